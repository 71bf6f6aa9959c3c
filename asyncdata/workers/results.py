"""Where the results of a task go: in place as long as they are alike, elsewhere if they turn out to differ.

A task has memory for the slab of the whole batch, which all its tasks share, and for payloads of its own, as much as
was foreseen. If that is too little, `Rooms` asks for more.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.advance import Rows
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.layout import (
    Layout,
    as_bytes,
    batch_leaves,
    parts_of,
    plan_layout,
    refuse_ragged,
    row_leaf,
)
from asyncdata.memory.leaf import Leaf, array_leaf, is_plain
from asyncdata.memory.narrow import fits, halved_leaf, too_large
from asyncdata.memory.pickling import dumps
from asyncdata.memory.pinning import inside, is_small_part
from asyncdata.memory.returned import returned, returned_nest
from asyncdata.memory.structure import LEAF, Structure, flatten, flatten_as, unflatten
from asyncdata.memory.unlike import Kinds
from asyncdata.memory.wire import Rowset, aligned
from asyncdata.wording import with_article
from asyncdata.workers.task_records import DONE, NO_SPAN, PAYLOADS, RAGGED, RESULTS, RaggedRows, Task

Need = Callable[[int, int], tuple[int, int]]
"""Asks for bytes for one of `RESULTS` and `PAYLOADS`; gives offset and size."""
_Item: TypeAlias = tuple[Leaf, npt.NDArray[Any] | bytes | BytesArray]


class Rooms:
    """Where a task may write.

    Args:
        task: Says what was foreseen.
        need: Asks for more.

    Attributes:
        payload_bytes: What the payloads take.
    """

    def __init__(self, task: Task, need: Need) -> None:
        self._task = task
        self._need = need
        self.payload_bytes = 0

    def results(self, nbytes: int) -> int:
        """The offset of the slab of results."""
        offset, size = self._task.results
        return offset if size >= nbytes else self._need(nbytes, RESULTS)[0]

    def payloads(self, nbytes: int) -> int:
        """The offset of so many bytes of payloads; asked once."""
        self.payload_bytes = nbytes
        offset, size = self._task.payloads
        return offset if size >= nbytes else self._need(nbytes, PAYLOADS)[0]


def write_columns(
    array: npt.NDArray[np.uint8],
    task: Task,
    records: Rows,
    structure: Structure,
    columns: list[Any],
    rooms: Rooms,
    *,
    narrow: bool,
) -> tuple[int, int, bytes]:
    """Writes columns of what became of records; returns the offsets of results and payloads, and the pickled layout."""
    leaves = []
    for column in columns:
        if isinstance(column, np.ndarray):
            leaves.append(Leaf("array", column.dtype.str, (task.batch_size, *column.shape[1:])))
        else:
            leaves.append(Leaf("table", shape=(task.batch_size,), text=_is_text(column)))
    if narrow:
        leaves = list(map(halved_leaf, leaves))
    layout = plan_layout(structure, leaves)
    offset = rooms.results(layout.nbytes)
    rows = slice(task.batch_start, task.batch_start + len(records))
    stays = _stays(columns, records, array)
    tables = []
    for part, column in zip(parts_of(array, offset, layout), columns, strict=True):
        if isinstance(column, np.ndarray):
            part[rows] = column
        elif stays and lies_in(column, array):
            part[rows] = inside(column.places, records)
        else:
            tables.append((part[rows], column.views() if isinstance(column, BytesArray) else list(column)))
    return offset, _write_payloads(array, tables, rooms), dumps(layout)


def lies_in(value: Any, array: npt.NDArray[np.uint8]) -> bool:
    """Whether a value is byte strings, some at least, that are a part of what the task was given."""
    return isinstance(value, BytesArray) and value.memory is array and len(value) > 0


def _stays(values: Sequence[Any], records: Rows, array: npt.NDArray[np.uint8]) -> bool:
    """Whether byte strings that lie in records are handed over as references to them."""
    strings = sum(value.nbytes for value in values if lies_in(value, array))
    return not is_small_part(strings, int(records[:, 1].sum()))


def rows_within(task: Task, columns: Sequence[Any], count: int, array: npt.NDArray[np.uint8]) -> int:
    """How many of so many rows are within what a task's results may take: one at least."""
    if not task.most_bytes or not count:
        return count
    nbytes = sum(_own_bytes(column, array) for column in columns)
    return max(1, min(count, count * task.most_bytes // max(nbytes, 1)))


def _own_bytes(column: Any, array: npt.NDArray[np.uint8]) -> int:
    if isinstance(column, list):
        return sum(map(len, column))
    return 16 * len(column) if lies_in(column, array) else int(column.nbytes)


def _is_text(column: Any) -> bool:
    return not isinstance(column, BytesArray) and isinstance(column[0], str)


def _write_payloads(
    array: npt.NDArray[np.uint8], tables: Sequence[tuple[npt.NDArray[Any], list[Any]]], rooms: Rooms
) -> int:
    """Copies byte strings into a slab of this task's own, and their places into the tables."""
    if not tables:
        return NO_SPAN
    raw = [[item.encode() if isinstance(item, str) else item for item in items] for _, items in tables]
    total = sum(len(item) for items in raw for item in items)
    base = rooms.payloads(max(total, 1))
    position = base
    for (table, _), items in zip(tables, raw, strict=True):
        if sum(map(len, items)) < _SMALL_ITEM * len(items):
            # Small ones are joined first: one copy more, and nothing else to do for each.
            position = write_joined(array, position, table, items, base)
            continue
        for row, item in enumerate(items):
            size = len(item)
            array[position : position + size] = np.frombuffer(item, np.uint8)
            # An empty item behind a full slab would lie in the next one.
            table[row, 0] = position if size else base
            table[row, 1] = size
            position += size
    return base


def write_joined(
    array: npt.NDArray[np.uint8], position: int, table: npt.NDArray[Any], items: list[Any], inside: int
) -> int:
    """Writes items side by side from a position on, and their places into a table; gives the position behind them.

    Empty items are said to lie at ``inside``: behind a full slab they would lie in the next one.
    """
    joined = np.frombuffer(b"".join(items), np.uint8)
    table[:, 1] = list(map(len, items))
    np.cumsum(table[:, 1], out=table[:, 0])
    table[:, 0] += position
    table[:, 0] -= table[:, 1]
    table[table[:, 1] == 0, 0] = inside
    array[position : position + len(joined)] = joined
    return position + len(joined)


_SMALL_ITEM = 4096
"""Items of up to so many bytes on average are joined before they are written."""


class Results:
    """Collects results: in place as long as they are alike, aside once they turn out not to be.

    Attributes:
        unlike: What results are that do not make one batch, although they should; these are no longer kept.
    """

    def __init__(
        self, array: npt.NDArray[np.uint8], task: Task, rooms: Rooms, rows: Rowset, *, stack: bool, narrow: bool
    ) -> None:
        self._array = array
        self._rows = rows
        self._row = 0
        self._task = task
        self._rooms = rooms
        self._stack = stack
        self._narrow = narrow
        self._layout: Layout | None = None
        self._offset = NO_SPAN
        self._parts: list[npt.NDArray[Any]] = []
        self._alike: list[tuple[np.dtype[Any], tuple[int, ...]] | None] = []
        self._texts: list[list[Any]] = []
        self._done = 0
        self._most_rows = task.batch_size
        self._nbytes = 0
        self._aside: list[list[_Item]] | None = None
        self._nests = False
        self.unlike: Kinds | None = None

    def __len__(self) -> int:
        """Rows that were taken."""
        return self._done

    @property
    def is_full(self) -> bool:
        """Whether the results take as much as those of one task may, or more."""
        most = self._task.most_bytes
        return bool(most) and self._done > 0 and (self._done >= self._most_rows or self._nbytes >= most)

    def add(self, value: Any, row: int) -> None:
        """Takes the result for a row of the task; one that is refused leaves nothing behind."""
        self._row = row
        if self.unlike is not None:
            self.unlike.add(returned_nest(value))
            return
        try:
            self._add(value)
        except BaseException as error:
            for texts in self._texts:
                del texts[self._done :]
            if not self._stack or not isinstance(error, UnbatchableError):
                raise
            # Functions are called for the other rows all the same: what these raise is said first.
            self.unlike = self._kinds()
            self.unlike.add(returned_nest(value))
            return
        self._done += 1

    def _kinds(self) -> Kinds:
        """What the results are that were taken so far."""
        kinds = Kinds(self._task.batch_size, self._narrow)
        if self._aside is not None:
            for row in range(self._done):
                kinds.add(unflatten(self._structure, iter([_value(column[row]) for column in self._aside])))
        elif self._layout is not None:
            kinds.add_alike(self._structure, self._layout.leaves, self._done)
        return kinds

    def _add(self, value: Any) -> None:
        leaves: list[Any] = []
        if self._layout is None and self._aside is None:
            leaves, self._structure = flatten(value)
            if self._stack:
                refuse_ragged(self._structure)
        elif not self._stack:
            leaves, structure = flatten(value)
            if structure != self._structure:
                self._lose_structure()
                leaves = [returned_nest(value)]
        elif not flatten_as(self._structure, value, leaves):
            raise UnbatchableError("nests differently")
        leaves = list(map(returned, leaves))
        if self._layout is None and self._aside is None:
            if not any(map(_is_of_texts, leaves)) if self._stack else all(map(has_place, leaves)):
                self._begin(self._structure, leaves)
            else:
                self._aside = [[] for _ in leaves]
        if self._aside is not None:
            for leaf in leaves if self._stack else ():
                row_leaf(leaf, self._task.batch_size)
            self._put_aside(leaves)
        else:
            self._put(leaves)

    def _lose_structure(self) -> None:
        """Elements that nest in different ways are bare objects."""
        if self._aside is None:
            columns = self._taken_back()
        else:
            columns = [[_value(item) for item in column] for column in self._aside]
        rows = [[column[row] for column in columns] for row in range(self._done)]
        self._aside = [[_item(unflatten(self._structure, iter(leaves))) for leaves in rows]]
        self._structure = LEAF
        self._nests = True

    def _begin(self, structure: Structure, leaves: list[Any]) -> None:
        size = self._task.batch_size
        if self._task.most_bytes:
            row_bytes = sum(leaf.nbytes for leaf in batch_leaves(structure, leaves, 1))
            size = self._most_rows = max(1, min(size, self._task.most_bytes // max(row_bytes, 1)))
        found = batch_leaves(structure, leaves, size)
        self._layout = plan_layout(structure, list(map(halved_leaf, found)) if self._narrow else found)
        self._offset = self._rooms.results(self._layout.nbytes)
        self._parts = parts_of(self._array, self._offset, self._layout)
        self._alike = [
            None if leaf.kind == "table" or leaf.wide else (np.dtype(leaf.dtype), leaf.shape[1:])
            for leaf in self._layout.leaves
        ]
        self._texts = [[] for _ in leaves]

    def _put(self, leaves: list[Any]) -> None:
        assert self._layout is not None
        row = self._task.batch_start + self._done
        for column, (leaf, value) in enumerate(zip(self._layout.leaves, leaves, strict=True)):
            if type(value) in _PLAIN and (value.dtype, value.shape) == self._alike[column]:
                self._parts[column][row] = value
                continue
            if not self._stack and not has_place(value):
                return self._misfit(leaves)
            if leaf.kind == "table":
                if isinstance(value, str) != leaf.text or not isinstance(value, bytes | bytearray | memoryview | str):
                    return self._misfit(leaves)
                try:
                    # A view of the record is valid during the call only: what is kept is a copy.
                    self._texts[column].append(text := as_bytes(value))
                    self._nbytes += len(text)
                except UnbatchableError:
                    if self._stack:
                        raise
                    return self._misfit(leaves)
            else:
                part = self._parts[column]
                item = value if isinstance(value, np.ndarray) else np.asarray(value)
                if item.shape != leaf.shape[1:] or item.dtype.str != (leaf.wide or leaf.dtype):
                    return self._misfit(leaves)
                if leaf.wide and not fits(item, part.dtype):
                    raise too_large(item.dtype, part.dtype)
                part[row] = item
        return None

    def _misfit(self, leaves: list[Any]) -> None:
        assert self._layout is not None
        if self._stack:
            raise UnbatchableError("of another kind")
        self._aside = [[_item(value) for value in column] for column in self._taken_back()]
        self._nbytes = sum(self._size(data) for column in self._aside for _, data in column)
        self._put_aside(leaves)

    def _taken_back(self) -> list[list[Any]]:
        """What was written in place so far, as one list per leaf."""
        assert self._layout is not None
        start = self._task.batch_start
        return [
            _read_texts(text[: self._done], leaf)
            if leaf.kind == "table"
            else [part[start + i].copy() for i in range(self._done)]
            for leaf, part, text in zip(self._layout.leaves, self._parts, self._texts, strict=True)
        ]

    def _put_aside(self, leaves: list[Any]) -> None:
        assert self._aside is not None
        items = self._items(leaves)
        for column, item in zip(self._aside, items, strict=True):
            column.append(item)
            self._nbytes += self._size(item[1])

    def _items(self, leaves: list[Any]) -> list[_Item]:
        """Leaves as they will be written; byte strings that are a part of the task's row stay where they are."""
        lying = [lies_in(leaf, self._array) for leaf in leaves]
        if not any(lying):
            return list(map(_item, leaves))
        records = self._rows.records(self._row)
        stays = _stays(leaves, records, self._array)
        return [
            (_table_leaf(leaf), BytesArray(self._array, inside(leaf.places, records)))
            if stays and lies
            else _item(leaf)
            for leaf, lies in zip(leaves, lying, strict=True)
        ]

    def finish(self) -> tuple[int, int, int, bytes]:
        """The reply's status, offsets of results and payloads, and body; without rows there are neither."""
        if not self._done:
            return DONE, self._offset, NO_SPAN, b""
        if self._aside is not None:
            return self._finish_ragged()
        assert self._layout is not None
        start = self._task.batch_start
        tables = [
            (part[start : start + self._done], texts)
            for leaf, part, texts in zip(self._layout.leaves, self._parts, self._texts, strict=True)
            if leaf.kind == "table"
        ]
        payloads = _write_payloads(self._array, tables, self._rooms)
        return DONE, self._offset, payloads, dumps(self._layout)

    def _finish_ragged(self) -> tuple[int, int, int, bytes]:
        assert self._aside is not None
        kinds = [tuple(leaf for leaf, _ in column) for column in self._aside]
        payloads = [[data for _, data in column] for column in self._aside]
        table_bytes = aligned(16 * self._done)
        tables_bytes = table_bytes * len(kinds)
        total = sum(aligned(self._size(data)) for column in payloads for data in column)
        if self._offset == NO_SPAN and not self._stack:
            tables_at = self._offset = self._rooms.results(max(1, tables_bytes))
            base = position = self._rooms.payloads(max(1, total))
        else:
            # The first slab is the whole batch's, or was taken for a layout that did not last.
            tables_at = base = self._rooms.payloads(max(1, total + tables_bytes))
            position = base + tables_bytes
        for index, column in enumerate(payloads):
            at = tables_at + index * table_bytes
            table = self._array[at : at + 16 * self._done].view(np.int64).reshape(self._done, 2)
            for row, data in enumerate(column):
                size = self._size(data)
                if isinstance(data, BytesArray):
                    self._write_strings(position, data)
                    table[row] = position, 16 * len(data)
                    position += aligned(size)
                    continue
                raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
                self._array[position : position + size] = raw
                # An empty item behind a full slab would lie in the next one.
                table[row] = position if size else base, size
                position += aligned(size)
        body = dumps((tables_at, RaggedRows(self._structure, tuple(kinds), self._nests)))
        return RAGGED, self._offset, base, body

    def _size(self, data: npt.NDArray[Any] | bytes | BytesArray) -> int:
        if isinstance(data, BytesArray):
            return 16 * len(data) + (0 if data.memory is self._array else data.nbytes)
        return len(data) if isinstance(data, bytes) else int(data.nbytes)

    def _write_strings(self, position: int, strings: BytesArray) -> None:
        """A table of strings, and their payloads behind it, unless they stay where they are."""
        inner = self._array[position : position + 16 * len(strings)].view(np.int64).reshape(-1, 2)
        if strings.memory is self._array:
            inner[...] = strings.places
        else:
            write_joined(self._array, position + inner.nbytes, inner, strings.views(), position)


_PLAIN: Final = frozenset((np.ndarray, np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64))
"""Types of values about which their dtype and shape say all."""


def _is_of_texts(value: Any) -> bool:
    """Whether a leaf may be several byte strings or texts: the parent stacks these."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, bytes | str) for item in value)
    return isinstance(value, BytesArray) or (isinstance(value, np.ndarray) and value.dtype.kind in "OSU")


def has_place(value: Any) -> bool:
    """Whether a leaf can be written into the slab of a layout as what it is."""
    if isinstance(value, np.ndarray | np.generic):
        return is_plain(value) and value.dtype.kind != "V"
    return type(value) in (bytes, str)


def _item(value: Any) -> _Item:
    """Returns a leaf as it will be written: a copy, because the function may reuse its memory."""
    kind = type(value)
    if kind is bytes:
        return Leaf("bytes"), value
    if kind is str:
        # One that is not Unicode is pickled.
        with contextlib.suppress(UnicodeEncodeError):
            return Leaf("str"), value.encode()
    if kind is BytesArray and len(value):
        return _table_leaf(value), value.copy()
    if isinstance(value, np.ndarray | np.generic) and is_plain(value):
        return array_leaf(value), np.array(value, order="C")
    try:
        return Leaf("object"), dumps(value)
    except Exception as error:
        raise TypeError(
            f"{with_article(kind.__name__)} that the function returned cannot be sent from its process or thread: "
            f"{error}; with executor='inline' it stays where it is"
        ) from error


def _table_leaf(strings: BytesArray) -> Leaf:
    return Leaf("table", shape=(len(strings),), text=strings.text)


def _read_texts(items: list[bytes], leaf: Leaf) -> list[Any]:
    return [item.decode() for item in items] if leaf.text else items


def _value(item: _Item) -> Any:
    """The inverse of `_item`."""
    leaf, data = item
    if isinstance(data, BytesArray):
        return data
    if not isinstance(data, bytes):
        return data[()] if leaf.shape == () else data
    if leaf.kind == "bytes":
        return data
    if leaf.kind == "str":
        return data.decode()
    return pickle.loads(data)  # noqa: S301 -- written by `_item`
