"""``tf.train.Example`` to numpy, without TensorFlow and without protobuf: ``parse_example(spec)``.

The values are those of ``tf.io.parse_single_example`` on the same bytes: the last entry of a key counts, an entry
without a value counts as absent, lists may be packed or not, int64 are two's complement varints, values are never cast.
Where TensorFlow lets a length reach beyond what encloses it, this parser reports a corrupt record.

One record is read in two steps: a scan notes where the value of each wanted key lies and skips the rest unread; each
value is then decoded by its kind (``one_example``). Blocks of records go through ``columns`` first, which steps all of
them together and leaves over those that depart from the common layout; here the two are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import CorruptRecordError
from asyncdata.formats import columns
from asyncdata.formats.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
    Wanted,
    want,
)
from asyncdata.formats.one_example import Data, Place, decode, scan
from asyncdata.formats.stepping import MAX_KEY_BYTES, SPARE_BYTES, Group, Ragged, Spans, Values
from asyncdata.formats.unordered import KeyTable
from asyncdata.formats.wire import WireError

Record: TypeAlias = bytes | bytearray | memoryview
Column: TypeAlias = npt.NDArray[Any] | list[Any]
"""An array with the records along its first axis, or a list with one bytes (or one ragged array) per record."""

_SMALL_RECORD_BYTES: Final = 4096
"""Up to here a record is copied to bytes first, whose items are cheaper to look at than a memoryview's."""
_JOIN_BELOW_BYTES: Final = 4096
"""Separate records of at most this mean size are joined into one buffer to be stepped together."""


class ExampleParser:
    """A picklable map function: one serialized Example, or a whole batch of them, to a dict by feature name.

    Called with one record (bytes, bytearray, memoryview) it gives a dict of bytes, numpy scalars and arrays; called
    with a sequence of records, what :meth:`batched` gives. A ragged feature's value is a flat array, a sequence's one
    of shape (steps, *shape).

    Attributes:
        spec: What was asked for.
        zero_copy: Bytes values are memoryviews into the record, valid as long as it is.
        accepts_rows: Tells a worker that it may call :meth:`rows` with references instead of payloads.
    """

    accepts_rows = True

    def __init__(self, spec: Mapping[str, Feature], *, zero_copy: bool = False) -> None:
        if not spec:
            raise ValueError("the spec names no feature")
        for name, feature in spec.items():
            if not isinstance(feature, FixedLenFeature | FixedLenSequenceFeature | VarLenFeature | RaggedFeature):
                raise TypeError(f"feature {name!r} is specified by {feature!r}, which is none of the feature classes")
        self.spec = dict(spec)
        self.zero_copy = zero_copy
        self._wanted = tuple(want(name, feature) for name, feature in spec.items())
        keys = list(dict.fromkeys(item.key for item in self._wanted))
        self._slots = {key: slot for slot, key in enumerate(keys)}
        self._slot_of = tuple(self._slots[item.key] for item in self._wanted)
        # Two names for one key (RaggedFeature.value_key) and very long keys: records are then parsed one by one.
        usual = len(keys) == len(self._wanted) and max(map(len, keys)) <= MAX_KEY_BYTES
        self._table = KeyTable(self._wanted) if usual else None

    def __reduce__(self) -> tuple[Callable[..., ExampleParser], tuple[Any, ...]]:
        return _rebuild, (self.spec, self.zero_copy)

    def __repr__(self) -> str:
        return f"parse_example({', '.join(self.spec)})"

    def __call__(self, record: Any) -> dict[str, Any]:
        """Parses one record, or a batch of them.

        Raises:
            CorruptRecordError: If a record is not an Example, or a feature is not what the spec says.
        """
        if isinstance(record, bytes | bytearray | memoryview):
            return dict(zip(self.spec, self._values(record), strict=True))
        views = getattr(record, "views", None)
        return self.batched(list(views() if callable(views) else record))

    def batched(self, records: Sequence[Record]) -> dict[str, Column]:
        """Parses records that lie apart; see :meth:`rows` for what comes back."""
        count = len(records)
        sizes = np.fromiter((len(record) for record in records), np.int64, count)
        if count < columns.FEWEST_RECORDS or int(sizes.sum()) > _JOIN_BELOW_BYTES * count:
            return self._assemble(records, [], np.arange(count))
        table = np.empty((count, 2), np.int64)
        np.cumsum(sizes, out=table[:, 0])
        table[:, 0] -= sizes
        table[:, 1] = sizes
        return self.rows(memoryview(b"".join((*records, bytes(SPARE_BYTES)))), table)

    def rows(self, view: memoryview | npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]) -> dict[str, Column]:
        """Parses the records that lie in ``view`` at ``rows`` = int64[n, 2] of (offset, length).

        Returns:
            By feature name: a fixed numeric feature is an array (n, *shape); a fixed bytes feature a list of bytes, or
            an object array (n, *shape); a ragged feature a list of one array per record.

        Raises:
            CorruptRecordError: For a record that cannot be parsed; its message says which of the batch.
        """
        data = view.data if isinstance(view, np.ndarray) else view
        records = _Rows(data, rows)
        if self._table is None:
            return self._assemble(records, [], np.arange(len(rows)))
        groups, left = columns.parse(np.frombuffer(data, np.uint8), rows, self._table, self._slots)
        return self._assemble(records, groups, left)

    def _assemble(
        self, records: Sequence[Record], groups: list[Group], left: npt.NDArray[np.int64]
    ) -> dict[str, Column]:
        """Columns from the groups that were stepped together and the records that were left over."""
        singles = []
        for index in left.tolist():
            try:
                singles.append(self._values(records[index]))
            except CorruptRecordError as error:
                raise _in_batch(error, index, len(records)) from None
        out: dict[str, Column] = {}
        for slot, item in enumerate(self._wanted):
            fixed = item.count >= 0
            values = [single[slot] for single in singles]
            if fixed and item.kind != "bytes":
                out[item.name] = self._numbers(records, slot, groups, left, values)
                continue
            column: list[Any] = [None] * len(records)
            for group in groups:
                indices = group.indices.tolist()
                for index, value in zip(
                    indices, self._items(records, indices, group.values.get(slot), item), strict=True
                ):
                    column[index] = value
            for index, value in zip(left.tolist(), values, strict=True):
                column[index] = value
            out[item.name] = _stack(column, item) if fixed and item.shape else column
        return out

    def _numbers(
        self,
        records: Sequence[Record],
        slot: int,
        groups: list[Group],
        left: npt.NDArray[np.int64],
        values: list[Any],
    ) -> npt.NDArray[Any]:
        """The column of a fixed numeric feature."""
        item = self._wanted[slot]
        if len(groups) == 1 and not len(left):
            whole = groups[0].values.get(slot)
            if isinstance(whole, np.ndarray):
                return whole
        column = np.empty((len(records), *item.shape), item.kind)
        for group in groups:
            part = group.values.get(slot)
            if isinstance(part, np.ndarray):
                column[group.indices] = part
            else:
                column[group.indices] = list(self._items(records, group.indices.tolist(), part, item))
        if values:
            column[left] = values
        return column

    def _items(
        self, records: Sequence[Record], indices: list[int], values: Values | None, item: Wanted
    ) -> Iterator[Any]:
        """One value per record of a group, for features that are not fixed numbers."""
        if values is None:
            yield from (item.default for _ in indices)
        elif isinstance(values, Ragged):
            splits = values.splits.tolist()
            for begin, end in pairwise(splits):
                # A copy, so that one record that is kept does not keep the whole block.
                numbers = values.values[begin:end].copy()
                yield numbers.reshape(-1, *item.shape) if item.shape else numbers
        elif isinstance(values, Spans):
            if not isinstance(records, _Rows):
                raise TypeError("spans refer to the rows of a buffer")
            data = records.data
            for index, begin, end in zip(indices, values.begin.tolist(), values.end.tolist(), strict=True):
                if not values.message:
                    yield data[begin:end] if self.zero_copy else data[begin:end].tobytes()
                    continue
                if begin == end:
                    yield item.default
                    continue
                part = data[begin:end]
                try:
                    value = _decoded(part, (0, len(part)), item, part if self.zero_copy else None)
                except CorruptRecordError as error:
                    raise _in_batch(error, index, len(records)) from None
                yield value

    def _values(self, record: Record) -> list[Any]:
        """The values of one record, in the order of the spec."""
        data: Data = record if isinstance(record, bytes) else memoryview(record)
        if len(record) <= _SMALL_RECORD_BYTES:
            data = bytes(data)
        views = memoryview(record) if self.zero_copy else None
        try:
            places = scan(data, self._slots)
        except (WireError, IndexError) as error:
            raise CorruptRecordError(
                f"the record is not a tf.train.Example: {_words(error)}; {_look(record)}"
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


def parse_example(spec: Mapping[str, Feature], *, zero_copy: bool = False) -> ExampleParser:
    """A map function from serialized ``tf.train.Example`` to a dict of values.

    Example:
        >>> from asyncdata.formats.features import FixedLenFeature, VarLenFeature
        >>> from asyncdata.formats.serialize import serialize_example
        >>> parse = parse_example({"label": FixedLenFeature([], int), "words": VarLenFeature(bytes)})
        >>> values = parse(serialize_example({"label": 7, "words": [b"a", b"b"]}))
        >>> int(values["label"]), values["words"].tolist()
        (7, [b'a', b'b'])

    Args:
        spec: By feature name, one of the feature classes.
        zero_copy: Give bytes values as memoryviews into the record.
    """
    return ExampleParser(spec, zero_copy=zero_copy)


def _rebuild(spec: dict[str, Feature], zero_copy: bool) -> ExampleParser:
    return ExampleParser(spec, zero_copy=zero_copy)


class _Rows(Sequence[Record]):
    """Records as (offset, length) rows of one buffer."""

    __slots__ = ("_rows", "data")

    def __init__(self, data: memoryview, rows: npt.NDArray[np.int64]) -> None:
        self.data = data
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        offset, length = self._rows[index].tolist()
        return self.data[offset : offset + length]


def _stack(column: list[Any], item: Wanted) -> npt.NDArray[Any]:
    array = np.empty((len(column), *item.shape), object)
    for index, value in enumerate(column):
        array[index] = value
    return array


def _decoded(data: Data, place: Place, item: Wanted, views: memoryview | None) -> Any:
    try:
        return decode(data, place, item, views)
    except (WireError, IndexError) as error:
        raise CorruptRecordError(f"feature {item.name!r}: {_words(error)}") from None


def _in_batch(error: CorruptRecordError, index: int, count: int) -> CorruptRecordError:
    return CorruptRecordError(f"record {index} of the {count} in the batch: {error.message}")


def _words(error: Exception) -> str:
    return "it is cut off" if isinstance(error, IndexError) else str(error)


def _look(record: Record) -> str:
    head = bytes(record[:12])
    return f"it is {len(record)} bytes long and begins with {head.hex(' ')}" if head else "it is empty"
