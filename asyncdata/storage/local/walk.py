"""Globs over a local directory tree; opens only directories that can contain a match."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from asyncdata.storage.globs import GlobPattern, translate

_WILDCARD: Final = re.compile(r"[*?[]")


def find_files(pattern: GlobPattern) -> Iterator[tuple[str, os.stat_result]]:
    """(path, status) of the regular files that match, in no particular order; paths are spelled as in the pattern.

    Links are followed to files; ``**`` does not follow links to directories, which might lead in circles. What
    vanishes or may not be read while walking is left out.
    """
    segments = [segment for segment in pattern.text.split("/") if segment]
    # (folder, which segment is sought in it). A list instead of recursion: a pattern may be deeper than Python's stack.
    todo = [("/" if pattern.text.startswith("/") else "", 0)] if segments else []
    while todo:
        folder, at = todo.pop()
        while at < len(segments) - 1 and not _WILDCARD.search(segments[at]):
            folder += f"{segments[at]}/"
            at += 1
        segment, is_last = segments[at], at == len(segments) - 1
        if "**" in segment:
            # From here on names are compared as a whole, below this folder.
            regex = re.compile(translate("/".join(segments[at:])))
            for name, status in _files_below(folder):
                if regex.match(name):
                    yield folder + name, status
        elif not _WILDCARD.search(segment):
            yield from _file(folder + segment)
        else:
            regex = re.compile(translate(segment))
            for entry in _entries(folder):
                if regex.match(entry.name):
                    if is_last:
                        yield from _file(folder + entry.name)
                    elif _is_folder(entry, follow_links=True):
                        todo.append((f"{folder}{entry.name}/", at + 1))


def _files_below(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    todo = [""]
    while todo:
        below = todo.pop()
        for entry in _entries(folder + below):
            name = below + entry.name
            if _is_folder(entry, follow_links=False):
                todo.append(f"{name}/")
            else:
                for _, status in _file(folder + name):
                    yield name, status


def _is_folder(entry: os.DirEntry[str], *, follow_links: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow_links)
    except OSError:  # links in a circle, or too many of them
        return False


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder or ".") as entries:
            return list(entries)
    except OSError:
        return []


def _file(path: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        status = os.stat(path)
    except OSError:
        return
    if stat.S_ISREG(status.st_mode):
        yield path, status
