"""Globs over a local directory tree; opens only directories that can contain a match."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from asyncdata.storage.globs import GlobPattern, translate

_LOGGER: Final = logging.getLogger(__name__)
_WILDCARD: Final = re.compile(r"[*?[]")
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Nothing of that name, or what only leads in circles."""


def find_files(pattern: GlobPattern) -> Iterator[tuple[str, os.stat_result]]:
    """(path, status) of the regular files that match, in no particular order; paths are spelled as in the pattern.

    Links are followed to files; ``**`` does not follow links to directories, which might lead in circles. What
    vanishes while walking is left out, and a folder that may not be read, with a warning.

    Raises:
        OSError: A folder or a file's status cannot be read for any other reason, or the folder is named in the pattern.
    """
    segments = [segment for segment in pattern.text.split("/") if segment]
    # (folder, which segment is sought in it). A list instead of recursion: a pattern may be deeper than Python's stack.
    todo = [("/" if pattern.text.startswith("/") else "", 0)] if segments else []
    named = None
    while todo:
        folder, at = todo.pop()
        while at < len(segments) - 1 and not _WILDCARD.search(segments[at]):
            folder += f"{segments[at]}/"
            at += 1
        named = folder if named is None else named
        segment, is_last = segments[at], at == len(segments) - 1
        if "**" in segment:
            # From here on names are compared as a whole, below this folder.
            regex = re.compile(translate("/".join(segments[at:])))
            for name, status in _files_below(folder, is_named=folder == named):
                if regex.match(name):
                    yield folder + name, status
        elif not _WILDCARD.search(segment):
            yield from _file(folder + segment)
        else:
            regex = re.compile(translate(segment))
            for entry in _entries(folder, is_named=folder == named):
                if regex.match(entry.name):
                    if is_last:
                        yield from _file(folder + entry.name)
                    elif _is_folder(entry, follow_links=True):
                        todo.append((f"{folder}{entry.name}/", at + 1))


def _files_below(folder: str, *, is_named: bool) -> Iterator[tuple[str, os.stat_result]]:
    todo = [""]
    while todo:
        below = todo.pop()
        for entry in _entries(folder + below, is_named=is_named and not below):
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


def _entries(folder: str, *, is_named: bool) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder or ".") as entries:
            return list(entries)
    except PermissionError:
        if is_named:
            raise
        _LOGGER.warning("the folder %s may not be read: files in it are not listed", folder)
        return []
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return []


def _file(path: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return
    if stat.S_ISREG(status.st_mode):
        yield path, status
