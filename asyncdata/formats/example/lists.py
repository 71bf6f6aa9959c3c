"""The lists that a spec asks for, read from one record or from a block of them.

A record is read in two steps: a scan notes where the list of each wanted key lies and skips the rest unread; each list
is then decoded by its kind (``one_example``). Blocks of records are read together, by compiled code (``fast``) or in
numpy (``columns``), both of which leave over what departs from the usual; here what was read together and what was read
one by one are put into one column per list:

| the list                      | its column                                               |
|-------------------------------|----------------------------------------------------------|
| numbers, as many as a shape   | array (n, *shape)                                        |
| one byte string               | `BytesArray`                                             |
| byte strings of a shape       | object array (n, *shape)                                 |
| any number of values          | `Ragged`: all values, and the splits between the records |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example import columns
from asyncdata.formats.example.features import Wanted, object_array
from asyncdata.formats.example.scalar import Data, Place, decode, scan
from asyncdata.formats.example.stepping import MAX_KEY_BYTES, Group, Ragged, Spans
from asyncdata.formats.example.varints import ByteArray, IntArray, WireError
from asyncdata.formats.fast.choice import Choice
from asyncdata.formats.fast.parsing import FastReader
from asyncdata.memory.bytesarray import BytesArray

Record: TypeAlias = bytes | bytearray | memoryview
Column: TypeAlias = npt.NDArray[Any] | BytesArray | Ragged
"""See the module's table."""

_SMALL_RECORD_BYTES: Final = 4096
"""Up to here a record is copied to bytes first, whose items are cheaper to look at than a memoryview's."""


class ListReader:
    """Reads the wanted lists.

    Args:
        wanted: What to look for.
        compiled: Whether blocks are read by compiled code; None: once so many records were read that it pays.
    """

    def __init__(self, wanted: Sequence[Wanted], *, compiled: bool | None) -> None:
        self._wanted = tuple(wanted)
        keys = list(dict.fromkeys(item.key for item in self._wanted))
        self._slots = {key: slot for slot, key in enumerate(keys)}
        self._slot_of = tuple(self._slots[item.key] for item in self._wanted)
        # Two lists of one key, and very long keys: records are then read one by one.
        usual = len(keys) == len(self._wanted) > 0 and max(map(len, keys)) <= MAX_KEY_BYTES
        self._blocks = columns.BlockReader(self._wanted, self._slots) if usual else None
        self._choice = Choice(compiled)
        self._fast: FastReader | None = None

    def record(self, record: Record, views: memoryview | None) -> list[Any]:
        """The lists of one record, in the order wanted.

        Args:
            record: The bytes.
            views: The record again, to cut byte strings from as views; None copies them.

        Raises:
            CorruptRecordError: If it is no Example, or a list is not what is wanted.
        """
        data: Data = record if isinstance(record, bytes) else memoryview(record)
        if len(record) <= _SMALL_RECORD_BYTES:
            data = bytes(data)
        try:
            places = scan(data, self._slots)
        except (WireError, IndexError) as error:
            raise CorruptRecordError(
                f"the record is not a tf.train.Example: {words_of(error)}; {_look(record)}"
            ) from None
        values: list[Any] = []
        for item, slot in zip(self._wanted, self._slot_of, strict=True):
            place = places[slot]
            if place is not None:
                values.append(_decoded(data, place, item, views))
            elif item.default is not None:
                values.append(item.default)
            else:
                raise CorruptRecordError(f"feature {item.name!r} ({item.kind}, shape {item.shape}) is missing")
        return values

    def block(self, array: ByteArray, rows: IntArray) -> list[Column]:
        """The columns of the records that lie in ``array`` at ``rows`` = int64[n, 2] of (offset, length).

        Byte strings stay where they are, as far as they can.

        Raises:
            CorruptRecordError: For a record that cannot be read; its message says which of the batch.
        """
        groups: list[Group] = []
        left = np.arange(len(rows))
        if self._blocks is not None:
            if self._choice.compiled(len(rows)):
                self._fast = self._fast or FastReader(self._wanted)
                groups, left = self._fast.parse(array, rows)
            else:
                groups, left = self._blocks.parse(array, rows)
        singles = []
        for index in left.tolist():
            offset, length = rows[index].tolist()
            try:
                singles.append(self.record(array[offset : offset + length].data, None))
            except CorruptRecordError as error:
                raise in_batch(error, index, len(rows)) from None
        found = _Found(array, len(rows), groups, left)
        return [found.column(slot, item, [one[slot] for one in singles]) for slot, item in enumerate(self._wanted)]

    def stacked(self, records: Sequence[list[Any]]) -> list[Column]:
        """The columns of records that were read one by one."""
        return [stacked([values[slot] for values in records], item) for slot, item in enumerate(self._wanted)]


def batch_of(records: Any) -> BytesArray:
    """A batch of records side by side.

    Raises:
        TypeError: It is something else: texts, numbers, a batch of batches.
    """
    items = records.tolist() if isinstance(records, np.ndarray) else records
    if isinstance(items, Sequence) and not isinstance(items, str):
        found = items if isinstance(items, BytesArray) else BytesArray.from_items(items)
        if not found.text:
            return found
    raise TypeError(f"a record is bytes, and a batch of records a sequence of them, not a {type(records).__name__}")


def stacked(values: list[Any], item: Wanted) -> Column:
    """The column of a list's values that were read one by one."""
    return _Found(np.empty(0, np.uint8), len(values), [], np.arange(len(values))).column(0, item, values)


class _Found:
    """What was read of a block: groups of records that were read together, and records read one by one."""

    def __init__(self, array: ByteArray, count: int, groups: list[Group], left: IntArray) -> None:
        self._array = array
        self._count = count
        self._groups = groups
        self._left = left

    def column(self, slot: int, item: Wanted, singles: list[Any]) -> Column:
        """One column; ``singles`` are the values of the records read one by one."""
        if item.count < 0:
            return self._any_number(slot, item, singles)
        if item.kind != "bytes":
            return self._numbers(slot, item, singles)
        if item.single:
            return self._strings(slot, item, singles)
        part = self._whole(slot)
        if isinstance(part, Ragged):
            return np.asarray(part.values).reshape(self._count, *item.shape)
        array = np.empty((self._count, *item.shape), object)
        for index, value in enumerate(self._listed(slot, item, singles)):
            array[index] = value
        return array

    def _whole(self, slot: int) -> Any:
        """What the only group has, if it holds every record."""
        if len(self._groups) == 1 and not len(self._left):
            return self._groups[0].values.get(slot)
        return None

    def _numbers(self, slot: int, item: Wanted, singles: list[Any]) -> npt.NDArray[Any]:
        whole = self._whole(slot)
        if isinstance(whole, np.ndarray):
            return whole
        column = np.empty((self._count, *item.shape), item.kind)
        for group in self._groups:
            part = group.values.get(slot)
            if isinstance(part, np.ndarray):
                column[group.indices] = part
            else:
                column[group.indices] = list(self._items(group, slot, item))
        if singles:
            column[self._left] = singles
        return column

    def _strings(self, slot: int, item: Wanted, singles: list[Any]) -> BytesArray:
        """Places in the block as long as every string lies there; otherwise copies of all."""
        rows = np.zeros((self._count, 2), np.int64)
        away = [value for value in singles if value]
        for group in self._groups:
            part = group.values.get(slot)
            if not isinstance(part, Spans):
                away += [item.default] if item.default else []
                continue
            rows[group.indices, 0] = part.begin
            rows[group.indices, 1] = part.end - part.begin
            absent = part.begin < 0
            if absent.any():
                away += [item.default] if item.default else []
                rows[group.indices[absent]] = 0
        if away:
            return BytesArray.from_items(self._listed(slot, item, singles))
        return BytesArray(self._array, rows)

    def _any_number(self, slot: int, item: Wanted, singles: list[Any]) -> Ragged:
        whole = self._whole(slot)
        if isinstance(whole, Ragged):
            return whole
        column = self._listed(slot, item, singles)
        splits = np.zeros(self._count + 1, np.int64)
        np.cumsum([len(values) for values in column], out=splits[1:])
        if item.kind == "bytes":
            return Ragged(BytesArray.from_items([value for values in column for value in values]), splits)
        return Ragged(np.concatenate(column) if column else np.empty(0, item.kind), splits)

    def _listed(self, slot: int, item: Wanted, singles: list[Any]) -> list[Any]:
        """One value per record."""
        column: list[Any] = [None] * self._count
        for group in self._groups:
            for index, value in zip(group.indices.tolist(), self._items(group, slot, item), strict=True):
                column[index] = value
        for index, value in zip(self._left.tolist(), singles, strict=True):
            column[index] = value
        return column

    def _items(self, group: Group, slot: int, item: Wanted) -> Iterator[Any]:
        """One value per record of a group."""
        part = group.values.get(slot)
        if part is None:
            yield from (item.default for _ in range(len(group.indices)))
        elif isinstance(part, Ragged):
            for begin, end in pairwise(part.splits.tolist()):
                values = part.values[begin:end]
                flat = object_array(values.tolist()) if isinstance(values, BytesArray) else values
                yield flat.reshape(item.shape) if item.count >= 0 else flat
        elif isinstance(part, Spans):
            yield from self._spanned(part, group, item)
        else:
            yield from part

    def _spanned(self, spans: Spans, group: Group, item: Wanted) -> Iterator[Any]:
        data = self._array.data
        for index, begin, end in zip(group.indices.tolist(), spans.begin.tolist(), spans.end.tolist(), strict=True):
            if begin < 0:
                yield item.default
            elif not spans.message:
                yield data[begin:end].tobytes()
            elif begin == end:
                yield item.default
            else:
                try:
                    yield _decoded(data[begin:end], (0, end - begin), item, None)
                except CorruptRecordError as error:
                    raise in_batch(error, index, self._count) from None


def _decoded(data: Data, place: Place, item: Wanted, views: memoryview | None) -> Any:
    try:
        return decode(data, place, item, views)
    except (WireError, IndexError) as error:
        raise CorruptRecordError(f"feature {item.name!r}: {words_of(error)}") from None


def in_batch(error: CorruptRecordError, index: int, count: int) -> CorruptRecordError:
    """The same error, which says which record of a batch it is about."""
    return CorruptRecordError(f"record {index} of the {count} in the batch: {error.message}")


def words_of(error: Exception) -> str:
    """What is wrong, for errors of the wire format."""
    return "it is cut off" if isinstance(error, IndexError) else str(error)


def _look(record: Record) -> str:
    head = bytes(record[:12])
    return f"it is {len(record)} bytes long and begins with {head.hex(' ')}" if head else "it is empty"
