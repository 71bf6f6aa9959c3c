"""Datasets of files that hold rows, or texts to be parsed: CSV, JSON lines, Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from asyncdata import arguments
from asyncdata.dataset.filenames import FileNames, FilesDataset
from asyncdata.formats.compression import check_compression_type
from asyncdata.formats.json_lines import parse_json
from asyncdata.formats.parquet_filters import checked_filters
from asyncdata.plan import files

_NUMBERS: Final = ("int32", "int64", "float32", "float64")


class CsvDataset(FilesDataset):
    r"""The rows of CSV files, as tuples or dicts of one value per column; rules and arguments are those of tf.data.

    Fields may be quoted; then delimiters and line ends inside are data, and a quote inside is written twice. A field
    that is empty, or says `na_value`, is missing.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        record_defaults: Per wanted column a dtype (``numpy.int32``, ``int64``, ``float32``, ``float64``, ``bytes`` or
            ``str``; ``int`` and ``float`` mean int32 and float32), when its values are required; or what stands in for
            missing values: a number, ``bytes`` or ``str``, an array or a list of one. A Python ``int`` stands for
            int32 and a ``float`` for float32, as in tf.data. Or a dict of these by the names of the wanted columns:
            rows are dicts then, and each file's header (``header=True``) or `column_names` says where the columns are.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        header: Whether the first record of each file is no row.
        field_delim: What separates fields: one character.
        use_quote_delim: Whether quotes have a meaning.
        na_value: A field that says this is missing.
        select_cols: Numbers of the wanted columns, ascending; all unless given, and then each row has just those.
        exclude_cols: Numbers of the columns that are not wanted, instead.
        column_names: Names of all columns of the files, in order; rows are dicts then.
        num_parallel_reads: Files read in turn, one row each; None: one file after the other.
        buffer_size: Taken for compatibility; how much is read at a time is `Options.chunk_bytes`.

    Raises:
        CorruptRecordError: While iterating, when a value is missing or wrong, or a row has another number of fields.
        BrokenFrameError: While iterating, when quotes are misplaced.

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
        header = arguments.flag("header", header)
        if isinstance(record_defaults, Mapping):
            wanted = arguments.texts("the keys of record_defaults", list(record_defaults))
            defaults: Iterable[Any] = record_defaults.values()
        elif isinstance(record_defaults, str | bytes) or not isinstance(record_defaults, Iterable):
            raise TypeError(
                "record_defaults must be a list of a dtype or default per column, or a dict by their names, not "
                f"{arguments.shown(record_defaults)}"
            )
        else:
            wanted, defaults = None, record_defaults
        columns = [_column(default) for default in defaults]
        use_quote_delim = arguments.flag("use_quote_delim", use_quote_delim)
        delimiter = _text("field_delim", field_delim)
        if len(delimiter) != 1 or delimiter in (b"\n", b"\r", b'"' if use_quote_delim else b"\n"):
            raise ValueError(
                f"field_delim must be an ASCII character that is no line end or quote, not {field_delim!r}"
            )
        if not columns:
            raise ValueError("record_defaults must name at least one column")
        self._read(
            filenames,
            num_parallel_reads,
            files.CsvRows,
            compression=check_compression_type(compression_type) or None,
            dtypes=tuple(dtype for dtype, _ in columns),
            defaults=tuple(default for _, default in columns),
            header=header,
            delimiter=delimiter,
            quotes=use_quote_delim,
            na_value=_text("na_value", na_value),
            **_places(wanted, column_names, _selected(select_cols, exclude_cols, len(columns)), columns, header=header),
        )


class JsonLinesDataset(FilesDataset):
    r"""The values of JSON lines files: one JSON text per line, as Python objects. Blank lines are passed over.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"``, ``"ZLIB"`` or ``"ZSTD"``.
        num_parallel_reads: Files read in turn, one value each; None: one file after the other.
        num_parallel_calls: None parses in a thread of this process. Otherwise, or with `AUTOTUNE`, the worker processes
            parse, in one step with a `map` that follows with the same `num_parallel_calls` and a `batch`. What comes
            from there is what comes from any `map`: numbers are numpy scalars, lists of numbers arrays.

    Raises:
        CorruptRecordError: While iterating, when a line is no JSON text.

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
        compression = check_compression_type(compression_type) or None
        if num_parallel_calls is None:
            self._read(filenames, num_parallel_reads, files.JsonLines, compression=compression)
            return
        self._read(filenames, num_parallel_reads, files.TextLines, compression=compression, skip_blank=True)
        self._become(self.map(parse_json, num_parallel_calls))


class ParquetDataset(FilesDataset):
    """The rows of Parquet files, as dicts of one value per column. Needs the extra ``parquet``.

    Only the footer and the wanted columns of row groups that may have wanted rows are read. Numbers are numpy scalars,
    strings ``str``, binary columns ``bytes``, lists of numbers arrays, structs dicts; a missing float is NaN, a missing
    time NaT, anything else that is missing None. The memory limit must hold the wanted columns of one row group, as
    stored, of every file that is read in turn.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        columns: Names of the wanted columns, in the order wanted; all unless given.
        filters: Which rows are wanted: a list of conditions ``(column, operator, value)`` that must all hold, or a list
            of such lists of which one must. Operators are ``==``, ``!=``, ``<``, ``>``, ``<=``, ``>=``, ``in`` and
            ``not in``. Row groups whose statistics rule them out are not read.
        num_parallel_reads: Files read in turn, one row each; None: one file after the other.

    Raises:
        BrokenFrameError: While iterating, when a file is damaged or none of Parquet.
        MemoryLimitError: While iterating, when the wanted columns of a row group do not fit in the memory limit.

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
        self._read(filenames, num_parallel_reads, files.ParquetRows, columns=wanted, filters=checked_filters(filters))


def _names(columns: Any) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(arguments.texts("columns", columns)))
    if not names:
        raise ValueError("columns must name at least one column")
    return names


def _text(name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    text: str = arguments.instance(name, value, str, "a str")
    return text.encode()


def _column(default: Any) -> tuple[str, Any]:
    """dtype and default of a column; the default is None where there is none."""
    if isinstance(default, type | np.dtype):
        if default in (bytes, str):
            return "bytes", None
        name = "int32" if default is int else "float32" if default is float else np.dtype(default).name
        if name not in _NUMBERS:
            raise TypeError(f"record_defaults may say {', '.join(_NUMBERS)} or bytes, not {name}")
        return name, None
    if isinstance(default, list | tuple) and len(default) == 1:
        default = default[0]
    if isinstance(default, np.ndarray | np.generic) and default.size == 1:
        value = default.reshape(()).item() if default.dtype.kind not in "OSU" else default.reshape(-1)[0]
        if default.dtype.name in _NUMBERS:
            return default.dtype.name, value
        default = value
    if isinstance(default, str | bytes):
        return "bytes", default.encode() if isinstance(default, str) else bytes(default)
    if isinstance(default, int) and not isinstance(default, bool):
        return "int32", int(np.int32(default))
    if isinstance(default, float):
        return "float32", default
    raise TypeError(f"every item of record_defaults must be a dtype, a number or a str, not {arguments.shown(default)}")


def _places(
    wanted: tuple[str, ...] | None,
    column_names: Sequence[str] | None,
    selected: tuple[int, ...] | None,
    columns: Sequence[Any],
    *,
    header: bool,
) -> dict[str, Any]:
    """Where the wanted columns are and what they are called: fields of the node."""
    names = None if column_names is None else arguments.texts("column_names", column_names)
    if names is not None and len(set(names)) < len(names):
        raise ValueError(f"column_names must differ, not {list(names)}")
    if wanted is None:
        if names is None:
            return {"selected": selected}
        most = len(columns) - 1 if selected is None else selected[-1]
        if len(names) <= most or (selected is None and len(names) != len(columns)):
            raise ValueError(
                f"column_names must name all columns of the files: there are {len(names)} names, and record_defaults "
                f"has {len(columns)} items" + ("" if selected is None else f", the last for column {most}")
            )
        return {"selected": selected, "names": names if selected is None else tuple(names[i] for i in selected)}
    if selected is not None:
        raise ValueError("a dict of record_defaults selects columns by name: leave select_cols and exclude_cols out")
    if names is None:
        if not header:
            raise ValueError(
                "record_defaults has names of columns: say header=True if the files' first line has them, or give "
                "column_names"
            )
        return {"selected": None, "names": wanted, "by_header": True}
    absent = [name for name in wanted if name not in names]
    if absent:
        raise ValueError(f"record_defaults names the column {absent[0]!r}, which is not in column_names")
    return {"selected": tuple(map(names.index, wanted)), "names": wanted}


def _selected(select: Sequence[int] | None, exclude: Sequence[int] | None, columns: int) -> tuple[int, ...] | None:
    if select is not None and exclude is not None:
        raise ValueError("give either select_cols or exclude_cols")
    if exclude is not None:
        left_out = set(arguments.integers("exclude_cols", exclude, least=0))
        return tuple(number for number in range(columns + len(left_out)) if number not in left_out)
    if select is None:
        return None
    numbers = arguments.integers("select_cols", select, least=0)
    if len(numbers) != columns:
        raise ValueError(f"select_cols names {len(numbers)} columns, record_defaults {columns}")
    if any(b <= a for a, b in pairwise(numbers)):
        raise ValueError(f"select_cols must ascend, not {list(numbers)}")
    return numbers
