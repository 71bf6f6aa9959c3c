"""Datasets of the records of files: one class per format, named as tf.data names them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from asyncdata.dataset.arguments import DEFAULT_CYCLE, as_url, check_parallel
from asyncdata.dataset.dataset import Dataset
from asyncdata.formats.compression import check_compression_type
from asyncdata.plan import sources


class TFRecordDataset(Dataset):
    """The records of TFRecord files, as ``bytes``.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"`` or ``"ZLIB"``.
        num_parallel_reads: Files read in turn, one record each; None: one file after the other.

    Raises:
        BrokenFrameError: While iterating, when a file is truncated or its framing damaged.
        CorruptRecordError: While iterating, when a payload's checksum does not match.
    """

    __slots__ = ()

    def __init__(
        self,
        filenames: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Dataset,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        compression = check_compression_type(compression_type) or None
        if isinstance(filenames, Dataset):
            urls: Dataset = filenames
        else:
            names: tuple[Any, ...]
            names = (filenames,) if isinstance(filenames, str | bytes | os.PathLike) else tuple(filenames)
            urls = Dataset(sources.Items(items=tuple(as_url(name) for name in names)))
            if len(names) == 1:
                super().__init__(sources.TFRecordFile(url=as_url(names[0]), compression=compression))
                return
        check_parallel("num_parallel_reads", num_parallel_reads)
        cycle = DEFAULT_CYCLE if num_parallel_reads == -1 else (num_parallel_reads or 1)
        super().__init__(
            urls.interleave(_OpenTFRecord(compression), cycle_length=cycle)._node  # noqa: SLF001 -- the same class
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._node,)


class _OpenTFRecord:
    """Opens one file; a class, so that it can be pickled."""

    __qualname__ = "TFRecordDataset"

    def __init__(self, compression: str | None) -> None:
        self.compression = compression

    def __call__(self, url: str) -> Dataset:
        return TFRecordDataset(url, self.compression)
