"""Datasets of files: one class per format, with tf.data's names where tf.data has the format.

Each class checks its arguments and makes a plan that reads one file after the other, or several in turn.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from asyncdata import arguments
from asyncdata.dataset.csv_columns import csv_settings
from asyncdata.dataset.dataset import Dataset
from asyncdata.dataset.handles import node_of
from asyncdata.dataset.transformations import over_files
from asyncdata.formats.compression import check_compression_type
from asyncdata.formats.csv_rows import CsvFramer
from asyncdata.formats.fixed_length import FixedLengthFramer
from asyncdata.formats.framing import Framer
from asyncdata.formats.json_lines import JsonFramer, parse_json
from asyncdata.formats.lines import LineFramer
from asyncdata.formats.parquet_filters import checked_filters
from asyncdata.plan.files import FramedFile, ParquetRows, TarSamples, WholeFile
from asyncdata.plan.node import Node
from asyncdata.plan.sources import Items, TFRecordFile
from asyncdata.planner.element_spec import element_spec
from asyncdata.spec import BytesSpec

FileNames: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Dataset"
"""Argument of the file datasets: a URL, a list of URLs, or a Dataset of URLs."""


class OpenFile:
    """Makes the node that reads one file; a class, so that it can be pickled.

    Attributes:
        opens: The node without a URL.
    """

    def __init__(self, opens: Node) -> None:
        self.opens = opens
        self.__qualname__ = opens.label
        self.__element_spec__ = element_spec(opens)
        self.__checksums__ = isinstance(opens, TFRecordFile)

    def __call__(self, url: str | bytes) -> Node:
        """Returns the node of one file."""
        return dataclasses.replace(self.opens, url=arguments.url("a file name", url))  # type: ignore[call-arg]  # files have one


def framed(
    format: str,  # noqa: A002 -- the field's name
    framer: Callable[..., Framer],
    filenames: FileNames,
    compression_type: str | None,
    num_parallel_reads: int | None,
    *,
    spec: Any = None,
    **settings: Any,
) -> Node:
    """Returns the plan that reads files of consecutive records.

    Args:
        format: Format of the files: the name of the dataset's class.
        framer: Finds the records; see `asyncdata.formats.framing`.
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one record each; None: one file after the other.
        spec: The spec of a record, if it is known.
        **settings: The framer's arguments.
    """
    compression = _compression(compression_type)
    file = FramedFile(url="", compression=compression, format=format, framer=framer, arguments=settings, spec=spec)
    return over(filenames, num_parallel_reads, file)


def over(filenames: FileNames, num_parallel_reads: int | None, file: Node) -> Node:
    """Returns the plan that reads all files with one node: one after the other, or several in turn."""
    open_file = OpenFile(file)
    if isinstance(filenames, Dataset):
        return over_files(node_of("filenames", filenames), open_file, num_parallel_reads)
    names = arguments.urls("filenames", filenames)
    read = over_files(Items(items=names), open_file, num_parallel_reads)
    return open_file(names[0]) if len(names) == 1 else read


def _compression(compression_type: str | None) -> str | None:
    return check_compression_type(compression_type) or None


def _names(columns: Any) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(arguments.texts("columns", columns)))
    if not names:
        raise ValueError("columns must name at least one column")
    return names


@arguments.suggesting
class TFRecordDataset(Dataset):
    """The records of TFRecord files, as ``bytes``.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one record each; None: one file after the other.
        buffer_size: Accepted for compatibility; `Options.chunk_bytes` sets the size of a read.

    Raises:
        BrokenFrameError: During iteration, if a file is truncated or its framing is damaged.
        CorruptRecordError: During iteration, if a payload's checksum does not match.

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
        file = TFRecordFile(url="", compression=_compression(compression_type))
        super().__init__(over(filenames, num_parallel_reads, file))


@arguments.suggesting
class TextLineDataset(Dataset):
    r"""The lines of text files, as ``bytes`` without line ends.

    LF ends a line. Carriage returns are removed, wherever they are. The last line needs no LF.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one line each; None: one file after the other.
        buffer_size: Accepted for compatibility; `Options.chunk_bytes` sets the size of a read.

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
        spec = BytesSpec()
        super().__init__(
            framed("TextLineDataset", LineFramer, filenames, compression_type, num_parallel_reads, spec=spec)
        )


@arguments.suggesting
class FixedLengthRecordDataset(Dataset):
    """Records of one length, as ``bytes``.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        record_bytes: Length of a record.
        header_bytes: Bytes to skip at the beginning of each file.
        footer_bytes: Bytes to skip at the end of each file.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one record each; None: one file after the other.
        buffer_size: Accepted for compatibility; `Options.chunk_bytes` sets the size of a read.

    Raises:
        BrokenFrameError: During iteration, if the bytes between header and footer are not a whole number of records.

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
        super().__init__(
            framed(
                "FixedLengthRecordDataset",
                FixedLengthFramer,
                *(filenames, compression_type, num_parallel_reads),
                spec=BytesSpec(),
                record_bytes=arguments.integer("record_bytes", record_bytes, least=1),
                header_bytes=arguments.integer_or_none("header_bytes", header_bytes, least=0) or 0,
                footer_bytes=arguments.integer_or_none("footer_bytes", footer_bytes, least=0) or 0,
            )
        )


@arguments.suggesting
class FileDataset(Dataset):
    """Whole files: one element each.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        with_url: Yield pairs of URL (``str``) and contents (``bytes``) instead of only the contents.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read at a time; 16 by default. The order is that of the names.

    Raises:
        MemoryLimitError: During iteration, if a file does not fit into the memory limit.

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
        compression, paired = _compression(compression_type), arguments.flag("with_url", with_url)
        file = WholeFile(url="", compression=compression, with_url=paired)
        super().__init__(over(filenames, num_parallel_reads, file))


@arguments.suggesting
class CsvDataset(Dataset):
    r"""The rows of CSV files, as tuples or dicts of one value per column; rules and arguments are those of tf.data.

    Fields may be quoted. Delimiters and line ends inside quotes are data, and a quote inside is written twice. A field
    that is empty or equals `na_value` is missing.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        record_defaults: For each selected column, a dtype (``numpy.int32``, ``int64``, ``float32``, ``float64``,
            ``bytes`` or ``str``) if its values are required, or the default for missing values: a number, ``bytes`` or
            ``str``, an array or a list of one. As in tf.data, an ``int`` (the type or a value) means int32, a
            ``float`` float32, and the texts ``"int64"``, ``"float"``, ``"double"``, ``"string"`` and so on are dtypes.
            To use such a name as a default value, put it in a list: ``["string"]``. A dict of these by column name
            selects columns by name and yields dicts; each file's header (``header=True``) or `column_names` says where
            the columns are.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        header: Whether the first record of each file is a header.
        field_delim: The character that separates fields.
        use_quote_delim: Whether quotes are special.
        na_value: A field with this text is missing.
        select_cols: Numbers of the selected columns, ascending. By default all; rows then must have exactly these
            columns.
        exclude_cols: Numbers of the columns to skip, instead of `select_cols`.
        column_names: Names of all columns of the files, in order; rows are then dicts.
        num_parallel_reads: Files read in turn, one row each; None: one file after the other.
        buffer_size: Accepted for compatibility; `Options.chunk_bytes` sets the size of a read.

    Raises:
        CorruptRecordError: During iteration, if a value is missing or wrong, or a row has another number of fields.
        BrokenFrameError: During iteration, if quotes are misplaced.

    Example:
        >>> import asyncdata as ad, fsspec
        >>> fsspec.filesystem("memory").pipe("/fruit.csv", b'name,price\n"apple, red",1.5\npear,\n')
        >>> list(ad.CsvDataset("memory://fruit.csv", [bytes, 0.0], header=True))
        [(b'apple, red', np.float32(1.5)), (b'pear', np.float32(0.0))]
        >>> list(ad.CsvDataset("memory://fruit.csv", {"price": 0.0}, header=True))
        [{'price': np.float32(1.5)}, {'price': np.float32(0.0)}]
    """

    __slots__ = ()

    def __init__(
        self,
        filenames: FileNames,
        record_defaults: Sequence[Any] | Mapping[str, Any],
        compression_type: str | None = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Sequence[int] | None = None,
        *,
        exclude_cols: Sequence[int] | None = None,
        column_names: Sequence[str] | None = None,
        num_parallel_reads: int | None = None,
        buffer_size: int | None = None,
    ) -> None:
        arguments.integer_or_none("buffer_size", buffer_size, least=0)
        settings = csv_settings(
            record_defaults,
            header=arguments.flag("header", header),
            field_delim=field_delim,
            use_quote_delim=arguments.flag("use_quote_delim", use_quote_delim),
            na_value=na_value,
            select_cols=select_cols,
            exclude_cols=exclude_cols,
            column_names=column_names,
        )
        super().__init__(framed("CsvDataset", CsvFramer, filenames, compression_type, num_parallel_reads, **settings))


@arguments.suggesting
class JsonLinesDataset(Dataset):
    r"""The values of JSON lines files: one JSON text per line, as Python objects. Blank lines are skipped.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one value each; None: one file after the other.
        num_parallel_calls: None parses in a thread of this process. With a number or `AUTOTUNE` the worker processes
            parse, in one step with a following `map` with the same `num_parallel_calls` and a `batch`. As from any
            `map` in workers, numbers are then numpy scalars and lists of numbers arrays.

    Raises:
        CorruptRecordError: During iteration, if a line is not JSON.

    Example:
        >>> import asyncdata as ad, fsspec
        >>> fsspec.filesystem("memory").pipe("/log.jsonl", b'{"id": 1, "tags": []}\n{"id": 2, "tags": ["x"]}\n')
        >>> list(ad.JsonLinesDataset("memory://log.jsonl"))
        [{'id': 1, 'tags': []}, {'id': 2, 'tags': ['x']}]
    """

    __slots__ = ()

    def __init__(
        self,
        filenames: FileNames,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
        num_parallel_calls: int | None = None,
    ) -> None:
        files = filenames, compression_type, num_parallel_reads
        if num_parallel_calls is None:
            super().__init__(framed("JsonLinesDataset", JsonFramer, *files))
            return
        lines = Dataset(framed("JsonLinesDataset", LineFramer, *files, spec=BytesSpec(), skip_blank=True))
        super().__init__(node_of("lines", lines.map(parse_json, num_parallel_calls)))


@arguments.suggesting
class TarDataset(Dataset):
    r"""The samples of tar files as WebDataset writes them: dicts of ``__key__`` (``str``) and, by extension, ``bytes``.

    Consecutive members whose names differ only after the first dot of the last component are one sample; ``__key__`` is
    their common part, including folders. Extensions are in lower case. Members that are not regular files, have no
    extension, or have a name such as ``__so__`` are skipped.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one sample each; None: one file after the other.

    Raises:
        BrokenFrameError: During iteration, if a file is truncated or a header is damaged.
        CorruptRecordError: During iteration, if a sample has two members with one extension.

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
        file = TarSamples(url="", compression=_compression(compression_type))
        super().__init__(over(filenames, num_parallel_reads, file))


@arguments.suggesting
class ParquetDataset(Dataset):
    """The rows of Parquet files, as dicts of one value per column. Needs the extra ``parquet``.

    It reads only the footer and the selected columns of row groups that may contain matching rows. Numbers are numpy
    scalars, strings ``str``, binary columns ``bytes``, lists of numbers arrays, structs dicts. A missing float is NaN,
    a missing time NaT, any other missing value None. The memory limit must hold the selected columns of one row group,
    as stored, for every file that is read in turn.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        columns: Names of the selected columns, in the order of the result; all by default.
        filters: Select rows by a list of conditions ``(column, operator, value)`` that must all be true, or by a list
            of such lists, one of which must be true. Operators are ``==``, ``!=``, ``<``, ``>``, ``<=``, ``>=``, ``in``
            and ``not in``. Row groups whose statistics rule them out are not read.
        num_parallel_reads: Files read in turn, one row each; None: one file after the other.

    Raises:
        BrokenFrameError: During iteration, if a file is damaged or not Parquet.
        MemoryLimitError: During iteration, if the selected columns of a row group do not fit into the memory limit.

    Example:
        >>> import asyncdata as ad, fsspec, io
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> file = io.BytesIO()
        >>> pq.write_table(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "x": [0.5, 1.5, 2.5]}), file)
        >>> fsspec.filesystem("memory").pipe("/rows.parquet", file.getvalue())
        >>> list(ad.ParquetDataset("memory://rows.parquet", columns=["name", "id"], filters=[("x", ">", 1)]))
        [{'name': 'b', 'id': np.int64(2)}, {'name': 'c', 'id': np.int64(3)}]
    """

    __slots__ = ()

    def __init__(
        self,
        filenames: FileNames,
        columns: Sequence[str] | None = None,
        filters: Sequence[Any] | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        wanted = None if columns is None else _names(columns)
        file = ParquetRows(url="", columns=wanted, filters=checked_filters(filters))
        super().__init__(over(filenames, num_parallel_reads, file))
