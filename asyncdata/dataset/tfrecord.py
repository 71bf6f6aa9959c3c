"""`TFRecordDataset`: the records of TFRecord files."""

from __future__ import annotations

from asyncdata import arguments
from asyncdata.dataset.filenames import FileNames, FilesDataset
from asyncdata.formats.compression import check_compression_type
from asyncdata.plan import sources
from asyncdata.spec import BytesSpec


class TFRecordDataset(FilesDataset):
    """The records of TFRecord files, as ``bytes``.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one record each; None: one file after the other.
        buffer_size: Taken for compatibility; how much is read at a time is `Options.chunk_bytes`.

    Raises:
        BrokenFrameError: While iterating, when a file is truncated or its framing damaged.
        CorruptRecordError: While iterating, when a payload's checksum does not match.

    Example:
        >>> import asyncdata as ad, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ad.TFRecordWriter(f"{folder}/a.tfrecord") as writer:
        ...         writer.write_many([b"one", b"two"])
        ...     list(ad.TFRecordDataset(f"{folder}/a.tfrecord"))
        [b'one', b'two']
    """

    __slots__ = ()
    __element_spec__ = BytesSpec()
    __checksums__ = True

    def __init__(
        self,
        filenames: FileNames,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
        *,
        buffer_size: int | None = None,
    ) -> None:
        arguments.integer_or_none("buffer_size", buffer_size, least=0)
        compression = check_compression_type(compression_type) or None
        self._read(filenames, num_parallel_reads, sources.TFRecordFile, compression=compression)
