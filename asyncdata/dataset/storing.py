"""Transformations that keep elements for later runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from asyncdata.dataset.arguments import as_url
from asyncdata.dataset.handle import Handle
from asyncdata.errors import UnsupportedURLError
from asyncdata.plan import grouping
from asyncdata.runtime.stored import MemoryCell
from asyncdata.storage.urls import scheme_of

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


class Storing(Handle):
    """The part of `Dataset` that keeps elements."""

    __slots__ = ()

    def cache(self, filename: str | os.PathLike[str] = "") -> Dataset:
        """Keeps what the first complete run delivers; later runs read that instead of the input.

        In memory the elements belong to this dataset, count against `Options.memory_limit_bytes` of every pipeline
        that uses them, and are gone with the dataset. In a file they outlive it; whoever finds a complete file there
        reads it, whatever the input is now, so remove the file when the input changes. A run that is broken off keeps
        nothing. What comes before the cache (a shuffle, say) happens once.

        Args:
            filename: A path on a local file system; memory unless given. Elements may then be numbers, arrays, bytes,
                str and nests of them; nothing is pickled.

        Raises:
            MemoryLimitError: While iterating, when the elements do not fit into the memory limit.
            PipelineError: While iterating, when an element cannot be written to the file.
            BrokenFrameError: While iterating, when the file is damaged or none of asyncdata's.

        Example:
            >>> import asyncdata as ad
            >>> read = []
            >>> ds = ad.Dataset.range(3).map(lambda x: read.append(int(x)) or x * x).cache()
            >>> [int(x) for x in ds], [int(x) for x in ds], read
            ([0, 1, 4], [0, 1, 4], [0, 1, 2])
        """
        name = as_url(filename) if filename else None
        if name is not None:
            name = local_path(name, "cache")
        return self._derive(grouping.Cache(input=self._node, filename=name, cell=MemoryCell()))


def local_path(name: str, what: str) -> str:
    """The path that a name or ``file://`` URL means.

    Raises:
        UnsupportedURLError: It is elsewhere.
    """
    if scheme_of(name) != "file":
        raise UnsupportedURLError(f"{what} writes to local file systems only", url=name)
    return os.path.abspath(name.removeprefix("file://"))
