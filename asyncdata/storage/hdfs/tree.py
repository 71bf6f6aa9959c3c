"""Globs over a tree of folders that is listed folder by folder; only folders that can contain a match are listed.

Pure, except for the two queries that it makes. Folders of one level are listed in parallel.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from asyncdata.storage.globs import GlobPattern, translate

T = TypeVar("T")

MAX_QUESTIONS: Final = 16
_WILDCARD: Final = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """A file or a folder.

    Attributes:
        path: Absolute.
        is_folder: Whether it is a folder.
        size: Bytes.
        version: Changes with the content.
    """

    path: str
    is_folder: bool
    size: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """How a store is asked.

    Attributes:
        look: Returns what is at a path; None if there is nothing.
        entries: What a folder holds; nothing where there is no such folder.
    """

    look: Callable[[str], Awaitable[FileStatus | None]]
    entries: Callable[[str], Awaitable[list[FileStatus]]]


async def find_files(pattern: GlobPattern, ask: Questions) -> list[FileStatus]:
    """The files whose absolute path matches, in no particular order."""
    segments = [segment for segment in pattern.text.split("/") if segment]
    folders = [""]
    for index, segment in enumerate(segments):
        rest = segments[index:]
        is_last = len(rest) == 1
        if "**" in segment:
            # From here on paths are compared as a whole, below each folder.
            regex = re.compile(translate("/".join(rest)))
            below = await _each(folders, lambda folder: _files_below(folder, ask))
            return [
                entry
                for folder, files in zip(folders, below, strict=True)
                for entry in files
                if regex.match(entry.path[len(folder) + 1 :])
            ]
        if not _WILDCARD.search(segment):
            folders = [f"{folder}/{segment}" for folder in folders]
            if is_last:
                found = await _each(folders, ask.look)
                return [entry for entry in found if entry is not None and not entry.is_folder]
            continue
        regex = re.compile(translate(segment))
        listed = await _each(folders, lambda folder: ask.entries(folder or "/"))
        matching = [entry for entries in listed for entry in entries if regex.match(entry.path.rpartition("/")[2])]
        if is_last:
            return [entry for entry in matching if not entry.is_folder]
        folders = [entry.path for entry in matching if entry.is_folder]
    return []


async def _files_below(folder: str, ask: Questions) -> list[FileStatus]:
    found: list[FileStatus] = []
    folders = [folder]
    while folders:
        listed = await _each(folders, lambda folder: ask.entries(folder or "/"))
        found += [entry for entries in listed for entry in entries if not entry.is_folder]
        folders = [entry.path for entries in listed for entry in entries if entry.is_folder]
    return found


async def _each(paths: Iterable[str], question: Callable[[str], Awaitable[T]]) -> list[T]:
    """The answers in the order of the paths, a few questions at a time; the first failure ends all."""
    turns = asyncio.Semaphore(MAX_QUESTIONS)

    async def answer(path: str) -> T:
        async with turns:
            return await question(path)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer(path)) for path in paths]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
