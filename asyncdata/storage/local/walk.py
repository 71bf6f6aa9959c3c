"""Globs over a local directory tree; opens only directories that can contain a match."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from asyncdata.storage.globs import GlobPattern, translate


def find_files(pattern: GlobPattern) -> Iterator[tuple[str, os.stat_result]]:
    """(path, status) of the regular files that match, in no particular order; paths are spelled as in the pattern.

    Links are followed to files; ``**`` does not follow links to directories, which might lead in circles. What
    vanishes or may not be read while walking is left out.
    """
    segments = pattern.text.split("/")
    if segments[0] == "":
        yield from _descend("/", [segment for segment in segments[1:] if segment])
    else:
        yield from _descend("", [segment for segment in segments if segment])


def _descend(folder: str, segments: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    segment, rest = segments[0], segments[1:]
    if "**" in segment:
        # From here on names are compared as a whole, below this folder.
        regex = re.compile(translate("/".join(segments)))
        for name, status in _files_below(folder, ""):
            if regex.match(name):
                yield folder + name, status
        return
    if not re.search(r"[*?[]", segment):
        if rest:
            yield from _descend(f"{folder}{segment}/", rest)
        else:
            yield from _file(folder + segment)
        return
    regex = re.compile(translate(segment))
    for entry in _entries(folder):
        if regex.match(entry.name):
            if not rest:
                yield from _file(folder + entry.name)
            elif entry.is_dir():
                yield from _descend(f"{folder}{entry.name}/", rest)


def _files_below(folder: str, below: str) -> Iterator[tuple[str, os.stat_result]]:
    for entry in _entries(folder + below):
        name = below + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(folder, f"{name}/")
        else:
            for _, status in _file(folder + name):
                yield name, status


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
