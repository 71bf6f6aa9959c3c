"""Parquet: from a footer to the byte ranges of the selected columns, and from their bytes to columns. Sans-I/O.

pyarrow (extra ``parquet``) handles Thrift, pages and encodings; it is imported when the first footer is read, and only
here. Invariants: a range that the footer states is compared with the size of the file before anything reads it; pyarrow
sees only the bytes of the announced ranges; a row group is decoded a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import BrokenFrameError, DataError, MissingPackageError
from asyncdata.formats.parquet_filters import Bounds, Filters, columns_of, may_pass
from asyncdata.formats.parquet_footer import ColumnChunk, Group, parse_footer
from asyncdata.formats.parquet_values import Leaves, add_leaves, passing, spec_of_type, stored_value, structure_of
from asyncdata.memory.structure import DictOf, Structure
from asyncdata.wording import counted, listed

MAGIC: Final = b"PAR1"
_ENCRYPTED: Final = b"PARE"
END_BYTES: Final = 8
"""The bytes behind the footer: its length and the magic bytes."""

_DECODE_BYTES: Final = 4 << 20
"""About how much is decoded at a time."""

_MOST_ROWS: Final = 1024

ReadAt: TypeAlias = Callable[[int, int], memoryview]
"""Gives the bytes from one offset in the file to another; raises ``ValueError`` for those that are not there."""


class Decoded(NamedTuple):
    """Some consecutive rows of a row group.

    Attributes:
        rows: How many were decoded.
        kept: Which of them pass the filters; None: all.
        leaves: Per leaf of the structure, the values of the rows that pass.
    """

    rows: int
    kept: npt.NDArray[np.int64] | None
    leaves: Leaves


class RowGroup(NamedTuple):
    """A row group that is wanted.

    Attributes:
        number: Its place in the file.
        first_row: Number of its first row in the file.
        rows: How many it has.
        ranges: The bytes of the wanted columns: offsets in the file, ascending.
        rows_at_a_time: Decoded together.
        decoded_bytes: About what these take up.
    """

    number: int
    first_row: int
    rows: int
    ranges: tuple[tuple[int, int], ...]
    rows_at_a_time: int
    decoded_bytes: int


def footer_bytes(tail: bytes, size: int, *, url: str, version: str | None) -> int:
    """Returns the length of the footer and the bytes behind it, from the last bytes of a file.

    Raises:
        BrokenFrameError: This is no Parquet file, or its footer cannot be that long.
    """

    def broken(message: str) -> BrokenFrameError:
        return BrokenFrameError(message, url=url, version=version, offset=max(0, size - END_BYTES))

    if tail[-4:] == _ENCRYPTED:
        raise broken("the footer is encrypted, which is not supported")
    if tail[-4:] != MAGIC:
        raise broken(f"the file is not a Parquet file, or is truncated: it ends with {tail[-4:]!r}, not with {MAGIC!r}")
    length = int.from_bytes(tail[-8:-4], "little") + END_BYTES
    if length + len(MAGIC) > size:
        raise broken(f"the footer claims to have {length - END_BYTES} bytes, but the file has {size}")
    return length


class ParquetFooter:
    """What a footer says about the wanted part of a file.

    Args:
        footer: The footer and the bytes behind it.
        size: Of the file.
        url: The file.
        version: Its version.
        columns: Names of the wanted columns, in the order wanted; None for all.
        filters: Rows that pass are wanted.

    Attributes:
        structure: Of a row.
        element_spec: What a row is made of, missing values left aside.
        groups: Row groups that may have rows that pass.

    Raises:
        BrokenFrameError: The footer is damaged, or speaks of bytes that are not there.
        DataError: A column is not there, or there are several of its name.
    """

    def __init__(
        self,
        footer: bytes,
        *,
        size: int,
        url: str,
        version: str | None,
        columns: Sequence[str] | None,
        filters: Filters,
    ) -> None:
        self._size = size
        self._url = url
        self._version = version
        self._filters = filters
        arrow, parquet = _pyarrow()
        self._arrow = arrow
        self._parquet = parquet
        try:
            groups = parse_footer(footer[:-END_BYTES])
            self._metadata = parquet.read_metadata(arrow.BufferReader(footer))
            self._schema = self._metadata.schema.to_arrow_schema()
            names = list(self._schema.names)
        except Exception as error:  # noqa: BLE001 -- whatever pyarrow raises about a damaged footer
            raise self._broken(f"the footer is damaged ({_said(error)})", size - len(footer)) from None
        self._names = names if columns is None else list(columns)
        self._read_names = list(dict.fromkeys([*self._names, *columns_of(filters)]))
        absent = [name for name in self._read_names if name not in names]
        if absent:
            raise DataError(f"there is no column {absent[0]!r}; the file has {listed(names)}", url=url, version=version)
        for name in self._read_names:
            if (times := names.count(name)) > 1:
                raise DataError(
                    f"there are {times} columns {name!r}, which cannot be told apart; leave the name out of columns=",
                    url=url,
                    version=version,
                )
        children = tuple(structure_of(self._schema.field(name).type, arrow) for name in self._names)
        self.structure: Structure = DictOf(tuple(self._names), children)
        self.element_spec = {name: spec_of_type(self._schema.field(name).type, arrow) for name in self._names}
        self.groups = self._wanted(groups, size - len(footer))

    def _wanted(self, groups: list[Group], end: int) -> list[RowGroup]:
        found = []
        first_row = 0
        filtered = set(columns_of(self._filters))
        for number, group in enumerate(groups):
            if not group.rows:
                continue  # its columns may lie nowhere
            chunks = [chunk for chunk in group.chunks if self._is_read(chunk)]
            bounds = {chunk.path[0]: self._bounds(chunk) for chunk in chunks if chunk.path[0] in filtered}
            ranges = tuple(sorted(self._range(chunk, number, end) for chunk in chunks))
            if may_pass(self._filters, bounds):
                nbytes = sum(max(0, chunk.uncompressed) for chunk in chunks)
                at_a_time = max(1, min(_MOST_ROWS, _DECODE_BYTES * group.rows // max(1, nbytes)))
                decoded = nbytes * min(at_a_time, group.rows) // group.rows
                found.append(RowGroup(number, first_row, group.rows, ranges, at_a_time, decoded))
            first_row += group.rows
        return found

    def _is_read(self, chunk: ColumnChunk) -> bool:
        """Whether pyarrow reads it for these names, which it takes for paths: ``a`` means the column ``a.b`` too."""
        parts = ".".join(chunk.path).split(".")
        return any(".".join(parts[:length]) in self._read_names for length in range(1, len(parts) + 1))

    def _range(self, chunk: ColumnChunk, number: int, end: int) -> tuple[int, int]:
        if not len(MAGIC) <= chunk.start <= chunk.stop <= end:
            raise self._broken(
                f"the footer says that column {'.'.join(chunk.path)!r} of row group {number} lies at bytes "
                f"{chunk.start} to {chunk.stop} of {end}",
                end,
            )
        return chunk.start, chunk.stop

    def _bounds(self, chunk: ColumnChunk) -> Bounds | None:
        """What the statistics of a column say, in the values that a filter speaks of; None for what is no column."""
        if len(chunk.path) > 1:
            return None
        kind = self._schema.field(chunk.path[0]).type
        least, most = (stored_value(raw, chunk.kind, kind, self._arrow) for raw in (chunk.least, chunk.most))
        return Bounds(least, most, chunk.nulls is not None and chunk.nulls == chunk.values > 0)

    def decode(self, group: RowGroup, read_at: ReadAt) -> Iterator[Decoded]:
        """The rows of a row group, a few at a time.

        Args:
            group: Which.
            read_at: Gives its bytes.

        Raises:
            BrokenFrameError: They are not what the footer promises.
            DataError: A filter compares a column with a value of another kind, or a value has none in Python.
        """
        done = 0
        try:
            source = self._arrow.PythonFile(_Ranges(read_at, self._size), mode="r")
            reader = self._parquet.ParquetFile(source, metadata=self._metadata, pre_buffer=False)
            batches = reader.iter_batches(
                batch_size=group.rows_at_a_time, row_groups=[group.number], columns=self._read_names, use_threads=False
            )
            for batch in batches:
                yield self._decoded(batch, group, done)
                done += batch.num_rows
        except DataError:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever pyarrow raises about damaged pages
            raise self._damaged(group, done, f"is damaged ({_said(error)})") from None
        if done != group.rows:
            raise self._damaged(group, done, f"has {counted(done, 'row')} instead of {group.rows}")

    def _decoded(self, batch: Any, group: RowGroup, done: int) -> Decoded:
        rows, kept = batch.num_rows, None
        if self._filters:
            mask = self._passing(batch)
            kept = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
            if len(kept) == rows:
                kept = None
            else:
                batch = batch.filter(mask)
        leaves: Leaves = []
        for name in self._names:
            column = batch.column(batch.schema.get_field_index(name))
            try:
                add_leaves(column, leaves, self._arrow)
            except Exception:  # noqa: BLE001 -- whatever pyarrow and Python raise about values
                row = self._first_without_value(column)
                raise self._valueless(column, name, group, done + (row if kept is None else int(kept[row]))) from None
        return Decoded(rows, kept, leaves)

    def _first_without_value(self, column: Any) -> int:
        """Which row it is that a column has no value for."""
        for row in range(len(column)):
            try:
                add_leaves(column.slice(row, 1), [], self._arrow)
            except Exception:  # noqa: BLE001 -- as above
                return row
        return 0

    def _valueless(self, column: Any, name: str, group: RowGroup, row: int) -> DataError:
        """The error for bytes that are no text, which is damage, or for what Python's types cannot hold, which is not.

        Of the latter pyarrow says what would help its own users.
        """
        try:
            column.validate(full=True)
        except Exception as error:  # noqa: BLE001 -- whatever pyarrow raises about damaged values
            return self._damaged(group, row, f"is damaged (column {name!r}: {_said(error)})")
        kind = self._schema.field(name).type
        return DataError(
            f"column {name!r} of type {kind} has a value that Python cannot represent; leave the column out with "
            "columns=, or write it with another type",
            url=self._url,
            version=self._version,
            record=group.first_row + row,
        )

    def _passing(self, batch: Any) -> Any:
        try:
            return passing(batch, self._filters, self._arrow)
        except Exception as error:  # noqa: BLE001 -- whatever pyarrow raises about values that it cannot compare
            message = f"the filters do not fit the types of their columns ({_said(error)})"
            raise DataError(message, url=self._url, version=self._version) from None

    def _damaged(self, group: RowGroup, done: int, what: str) -> BrokenFrameError:
        start = group.ranges[0][0] if group.ranges else 0
        error = self._broken(f"row group {group.number} {what}", start)
        error.record = group.first_row + done
        return error

    def _broken(self, message: str, offset: int) -> BrokenFrameError:
        return BrokenFrameError(message, url=self._url, version=self._version, offset=offset)


class _Ranges:
    """A file of which only some ranges are there, as pyarrow wants to see it."""

    closed = False

    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._read_at = read_at
        self._size = size
        self._at = 0

    def read(self, nbytes: int = -1) -> memoryview:
        stop = self._size if nbytes < 0 else min(self._size, self._at + nbytes)
        view = self._read_at(self._at, stop)
        self._at = stop
        return view

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as arrow  # noqa: PLC0415 -- the door of an extra
        from pyarrow import compute, parquet  # noqa: PLC0415 -- the same
    except ImportError:
        raise MissingPackageError("reading Parquet needs an extra: pip install 'asyncdata[parquet]'") from None
    assert compute is arrow.compute
    return arrow, parquet


def _said(error: Exception) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0][:200] or type(error).__name__
