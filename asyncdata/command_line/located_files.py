"""The files that a command is about: found by their URLs and patterns, and recognised by their first bytes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncdata.command_line.file_kinds import FORMATS, HEAD_BYTES, FileKind, first_record_bytes, kind_of
from asyncdata.errors import ObjectNotFoundError, StorageError
from asyncdata.observe.progress import Display
from asyncdata.options import Options, read_environment
from asyncdata.storage import Fetcher
from asyncdata.storage.groups import gather_bounded
from asyncdata.types import ObjectInfo

_AT_ONCE = 64
_ASK_PYTHON = re.compile(r"use list_files\(['\"](.*)['\"]\)")
"""What an error advises programs to do."""


def add_file_arguments(
    parser: argparse.ArgumentParser, urls: str = "URL, glob or range in braces", *, may_be_none: bool = False
) -> None:
    """The arguments that name files.

    Args:
        parser: Of the command.
        urls: Explains the URLs.
        may_be_none: Whether the command can do something else.
    """
    parser.add_argument("url", nargs="*" if may_be_none else "+", metavar="URL", help=urls)
    parser.add_argument("--format", choices=FORMATS, help="the format of all files (default: recognised)")


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """One file.

    Attributes:
        info: What the store says about it.
        kind: What it is.
        first_record_bytes: Length of the first record of a TFRecord file.
    """

    info: ObjectInfo
    kind: FileKind
    first_record_bytes: int | None = None


@dataclass(slots=True)
class LocatedFiles:
    """All files of a command.

    Attributes:
        files: Those whose beginning could be read, sorted by URL.
        unreadable: Why the others could not, and patterns without a match.
    """

    files: list[LocatedFile] = field(default_factory=list)
    unreadable: list[StorageError] = field(default_factory=list)

    def by_kind(self) -> dict[FileKind, list[LocatedFile]]:
        """The files of each kind."""
        kinds: dict[FileKind, list[LocatedFile]] = {}
        for each in self.files:
            kinds.setdefault(each.kind, []).append(each)
        return kinds


async def locate(patterns: Sequence[str], options: Options, display: Display, chosen: str | None) -> LocatedFiles:
    """Finds the files that URLs and patterns name, as `Dataset.list_files` does, and reads the beginning of each.

    Args:
        patterns: URLs, globs and ranges in braces.
        options: Of the storage.
        display: Where progress is shown.
        chosen: The format of all files, if the user names it.
    """
    fetcher = Fetcher(options, read_environment())
    located = LocatedFiles()
    infos: dict[str, ObjectInfo] = {}

    async def look(info: ObjectInfo) -> None:
        try:
            located.files.append(await _recognised(fetcher, info, chosen))
        except StorageError as error:
            error.complete(url=info.url)
            located.unreadable.append(error)
        display.show(len(located.files), lambda: f"of {len(infos):,} files recognised")

    try:
        for pattern in patterns:
            try:
                found = await fetcher.glob(pattern)
                if not found:
                    located.unreadable.append(ObjectNotFoundError("no file matches", url=pattern))
                infos |= {info.url: info for info in found}
            except StorageError as error:
                error.complete(url=pattern)
                error.message = _ASK_PYTHON.sub(r"give \1", error.message)
                located.unreadable.append(error)
        await gather_bounded(look, infos.values(), _AT_ONCE)
    finally:
        await fetcher.aclose()
    located.files.sort(key=lambda each: each.info.url)
    return located


async def _recognised(fetcher: Fetcher, info: ObjectInfo, chosen: str | None) -> LocatedFile:
    head = bytearray(HEAD_BYTES if info.size < 0 else min(info.size, HEAD_BYTES))
    if info.size < 0:
        info, filled = await fetcher.open_read(info.url, memoryview(head))
        del head[filled:]
    elif head:
        await fetcher.read(info, 0, memoryview(head))
    kind = kind_of(info.url, bytes(head), info.size, chosen)
    return LocatedFile(info, kind, first_record_bytes(kind, bytes(head)))
