"""Transformations that keep elements for later runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncdata import arguments
from asyncdata.dataset.handle import Handle, NodeOf
from asyncdata.errors import UnsupportedURLError
from asyncdata.formats.block_codec import CODECS
from asyncdata.plan import grouping
from asyncdata.runtime.stages.store.stored import MemoryCell
from asyncdata.storage.urls import scheme_of

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


class Storing(Handle):
    """The part of `Dataset` that keeps elements."""

    __slots__ = ()

    def cache(self, filename: str | os.PathLike[str] | None = "") -> Dataset:
        """Keeps what the first complete run delivers; later runs read that instead of the input.

        In memory the elements belong to this dataset, count against `Options.memory_limit_bytes` of every pipeline
        that uses them, and are gone with the dataset. In a file they outlive it: the same pipeline finds them there in
        any process, and another one is refused, see `snapshot`. A run that is broken off keeps nothing. What comes
        before the cache (a shuffle, say) happens once.

        Args:
            filename: A path on a local file system; memory when None or ``""``. Elements may then be numbers,
                arrays, bytes, str and nests of them; nothing is pickled.

        Raises:
            MemoryLimitError: While iterating, when the elements do not fit into the memory limit.
            PipelineError: While iterating, when an element cannot be written to the file.
            StaleDataError: While iterating, when steps, functions or files are not those that the file was made of.
            BrokenFrameError: While iterating, when the file is damaged or none of asyncdata's.

        Example:
            >>> import asyncdata as ad
            >>> read = []
            >>> ds = ad.Dataset.range(3).map(lambda x: read.append(int(x)) or x * x).cache()
            >>> [int(x) for x in ds], [int(x) for x in ds], read
            ([0, 1, 4], [0, 1, 4], [0, 1, 2])
        """
        name = "" if filename is None else arguments.url("filename", filename)
        path = local_path(name, "cache") if name else None
        return self._derive(grouping.Cache(input=self._node, filename=path, cell=MemoryCell()))

    def snapshot(
        self,
        path: str | os.PathLike[str],
        compression: str | None = "AUTO",
        reader_func: Callable[[Dataset], Dataset] | None = None,
        shard_func: Callable[..., Any] | None = None,
    ) -> Dataset:
        """Writes what the first complete run delivers to a directory; later runs read it, in this process or another.

        With the elements it notes what they are made of: the steps before it and their settings, digests of the
        functions' code, constants and what they refer to, and size and version of the files that were read. When any
        of this differs, a complete snapshot is refused, and the error names the first difference. Settings that change
        no element do not count (parallelism, executors, prefetching, memory), nor do `compression` and `reader_func`.
        What cannot be compared is warned of: objects that cannot be pickled, and what functions change while they run.

        Args:
            path: A directory on a local file system.
            compression: ``"GZIP"`` or ``"ZSTD"``; ``"AUTO"`` and None mean none. Reading finds out by itself.
            reader_func: ``reader_func(datasets)`` makes the dataset that is read of a dataset of one dataset per shard;
                their elements in turn unless given.
            shard_func: ``shard_func(element)`` returns the number of the shard an element goes to; all go to one
                unless given. Runs on the pipeline's loop.

        Raises:
            PipelineError: While iterating, when an element cannot be written.
            StaleDataError: While iterating, when the snapshot was made by another pipeline or of other files.
            DataError: While iterating, when the snapshot is damaged or none of asyncdata's.

        Example:
            >>> import asyncdata as ad
            >>> import tempfile
            >>> def in_turn(shards):
            ...     return shards.flat_map(lambda shard: shard)
            >>> with tempfile.TemporaryDirectory() as path:
            ...     ds = ad.Dataset.range(6).snapshot(path, reader_func=in_turn, shard_func=lambda x: x % 2)
            ...     [int(x) for x in ds], [int(x) for x in ds]
            ([0, 1, 2, 3, 4, 5], [0, 2, 4, 1, 3, 5])
        """
        arguments.choice("compression", compression, ("AUTO", *CODECS, "", None))
        if shard_func is not None:
            arguments.plain_function("shard_func", shard_func)
        if reader_func is not None:
            arguments.plain_function("reader_func", reader_func)
        return self._derive(
            grouping.Snapshot(
                input=self._node,
                path=local_path(arguments.url("path", path), "snapshot"),
                codec=compression if compression in CODECS else None,
                shard=shard_func,
                function=None if reader_func is None else NodeOf(reader_func, "snapshot"),
                make=self._derive,
                node_of=NodeOf(_itself, "snapshot"),
            )
        )


def _itself(dataset: Dataset) -> Dataset:
    return dataset


def local_path(name: str, what: str) -> str:
    """The path that a name or ``file://`` URL means.

    Raises:
        UnsupportedURLError: It is elsewhere.
    """
    if scheme_of(name) != "file":
        raise UnsupportedURLError(f"{what} writes to local file systems only", url=name)
    return os.path.abspath(name.removeprefix("file://"))
