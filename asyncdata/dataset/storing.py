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
from asyncdata.runtime.stored import MemoryCell
from asyncdata.storage.urls import scheme_of

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


class Storing(Handle):
    """The part of `Dataset` that keeps elements."""

    __slots__ = ()

    def cache(self, filename: str | os.PathLike[str] | None = "") -> Dataset:
        """Keeps what the first complete run delivers; later runs read that instead of the input.

        In memory the elements belong to this dataset, count against `Options.memory_limit_bytes` of every pipeline
        that uses them, and are gone with the dataset. In a file they outlive it; whoever finds a complete file there
        reads it, whatever the input is now, so remove the file when the input changes. A run that is broken off keeps
        nothing. What comes before the cache (a shuffle, say) happens once.

        Args:
            filename: A path on a local file system; memory when None or ``""``. Elements may then be numbers,
                arrays, bytes, str and nests of them; nothing is pickled.

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

        As `cache` with a file, in shards: whoever finds a complete snapshot reads it, whatever the input is now. Unlike
        tf.data no fingerprint of the pipeline is compared: a snapshot is used when it is complete.

        Args:
            path: A directory on a local file system.
            compression: ``"GZIP"`` or ``"ZSTD"``; ``"AUTO"`` and None mean none. Reading finds out by itself.
            reader_func: ``reader_func(datasets)`` makes the dataset that is read of a dataset of one dataset per shard;
                their elements in turn unless given.
            shard_func: ``shard_func(element)`` returns the number of the shard an element goes to; all go to one
                unless given. Runs on the pipeline's loop.

        Raises:
            PipelineError: While iterating, when an element cannot be written.
            DataError: While iterating, when the snapshot is damaged or none of asyncdata's.

        Example:
            >>> import asyncdata as ad
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as path:
            ...     ds = ad.Dataset.range(6).snapshot(path, shard_func=lambda x: x % 2)
            ...     first = [int(x) for x in ds]
            ...     ds = ad.Dataset.range(0).snapshot(path, reader_func=lambda shards: shards.flat_map(lambda s: s))
            ...     again = [int(x) for x in ds]
            >>> first, again
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
