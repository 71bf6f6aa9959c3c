"""Datasets of files in other formats than TFRecord, named as tf.data names them where it has them."""

from __future__ import annotations

from asyncdata import arguments
from asyncdata.dataset.filenames import FileNames, FilesDataset
from asyncdata.formats.compression import check_compression_type
from asyncdata.plan import files
from asyncdata.spec import BytesSpec


class TextLineDataset(FilesDataset):
    r"""The lines of text files, as ``bytes`` without their ends.

    A line ends with LF; carriage returns are left out wherever they stand; the last line needs no end.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one line each; None: one file after the other.
        buffer_size: Taken for compatibility; how much is read at a time is `Options.chunk_bytes`.

    Example:
        >>> import asyncdata as ad, fsspec
        >>> fsspec.filesystem("memory").pipe("/greetings.txt", b"hello\r\nworld")
        >>> list(ad.TextLineDataset("memory://greetings.txt"))
        [b'hello', b'world']
    """

    __slots__ = ()
    __element_spec__ = BytesSpec()

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
        self._read(filenames, num_parallel_reads, files.TextLines, compression=compression)


class FixedLengthRecordDataset(FilesDataset):
    """Records of one length, as ``bytes``.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        record_bytes: Length of a record.
        header_bytes: Bytes to pass over at the beginning of each file.
        footer_bytes: Bytes to leave out at the end of each file.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one record each; None: one file after the other.
        buffer_size: Taken for compatibility; how much is read at a time is `Options.chunk_bytes`.

    Raises:
        BrokenFrameError: While iterating, when what lies between header and footer is no whole number of records.

    Example:
        >>> import asyncdata as ad, fsspec
        >>> fsspec.filesystem("memory").pipe("/digits.bin", b"head0123456789")
        >>> list(ad.FixedLengthRecordDataset("memory://digits.bin", 5, header_bytes=4))
        [b'01234', b'56789']
    """

    __slots__ = ()
    __element_spec__ = BytesSpec()

    def __init__(
        self,
        filenames: FileNames,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
        *,
        buffer_size: int | None = None,
    ) -> None:
        arguments.integer_or_none("buffer_size", buffer_size, least=0)
        self._read(
            filenames,
            num_parallel_reads,
            files.FixedLengthRecords,
            compression=check_compression_type(compression_type) or None,
            record_bytes=arguments.integer("record_bytes", record_bytes, least=1),
            header_bytes=arguments.integer_or_none("header_bytes", header_bytes, least=0) or 0,
            footer_bytes=arguments.integer_or_none("footer_bytes", footer_bytes, least=0) or 0,
        )


class TarDataset(FilesDataset):
    r"""The samples of tar files as WebDataset writes them: dicts of ``__key__`` (``str``) and, by extension, ``bytes``.

    Consecutive members whose names differ only behind the first dot of the last component are one sample; ``__key__``
    is what they have in common, folders included. Extensions are given in small letters. What is no regular file, has
    no extension, or is called ``__so__``, is passed over.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one sample each; None: one file after the other.

    Raises:
        BrokenFrameError: While iterating, when a file is truncated or a header damaged.
        CorruptRecordError: While iterating, when a sample has two members with one extension.

    Example:
        >>> import asyncdata as ad, fsspec, io, tarfile
        >>> file = io.BytesIO()
        >>> with tarfile.open(fileobj=file, mode="w") as tar:
        ...     for name, content in (("one.txt", b"cat"), ("one.cls", b"0"), ("two.txt", b"dog")):
        ...         member = tarfile.TarInfo(name)
        ...         member.size = len(content)
        ...         tar.addfile(member, io.BytesIO(content))
        >>> fsspec.filesystem("memory").pipe("/pets.tar", file.getvalue())
        >>> list(ad.TarDataset("memory://pets.tar"))
        [{'__key__': 'one', 'txt': b'cat', 'cls': b'0'}, {'__key__': 'two', 'txt': b'dog'}]
    """

    __slots__ = ()

    def __init__(
        self,
        filenames: FileNames,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        compression = check_compression_type(compression_type) or None
        self._read(filenames, num_parallel_reads, files.TarSamples, compression=compression)


class FileDataset(FilesDataset):
    """Whole files: one element each.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        with_url: Elements are pairs of URL (``str``) and content (``bytes``) instead of the content alone.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read at a time; 16 unless given. The order is that of the names.

    Raises:
        MemoryLimitError: While iterating, when a file does not fit in the memory limit.

    Example:
        >>> import asyncdata as ad, fsspec
        >>> fsspec.filesystem("memory").pipe({"/pages/a.txt": b"one", "/pages/b.txt": b""})
        >>> list(ad.FileDataset(ad.Dataset.list_files("memory://pages/*.txt", shuffle=False), with_url=True))
        [('memory://pages/a.txt', b'one'), ('memory://pages/b.txt', b'')]
    """

    __slots__ = ()

    def __init__(
        self,
        filenames: FileNames,
        *,
        with_url: bool = False,
        compression_type: str | None = None,
        num_parallel_reads: int | None = -1,
    ) -> None:
        compression = check_compression_type(compression_type) or None
        paired = arguments.flag("with_url", with_url)
        self._read(filenames, num_parallel_reads, files.WholeFile, compression=compression, with_url=paired)
