"""Parses one ``tf.train.Example`` at a time: finds the value of each selected key and decodes it.

::

    Example   = field 1: Features
    Features  = field 1, repeated: entry of the map
    entry     = field 1: key,  field 2: Feature
    Feature   = field 1: bytes list | field 2: float list | field 3: int64 list
    list      = field 1, repeated; numbers packed into one field, or a field each

Tags are one byte: field number * 8 + wire type, where wire type 2 is used for everything with a length. A scan notes
where the list of each selected key is and skips the rest unread; each list is then decoded by its kind. This parser
reads every valid record, words all errors, and is the reference for testing the parser of many records (``columnar``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.features import Kind, object_array
from asyncdata.formats.example.varints import WireError, read_length, read_varint, signed, skip_field, unpack_varints
from asyncdata.formats.example.wanted import Wanted
from asyncdata.wording import counted, listed

Record: TypeAlias = bytes | bytearray | memoryview
Data: TypeAlias = bytes | memoryview
Place: TypeAlias = tuple[int, int]
"""Begin and end of a Feature message in its record."""

TAG_OF_KIND: Final[Mapping[Kind, int]] = {"bytes": 0x0A, "float32": 0x12, "int64": 0x1A}
_KINDS: Final[dict[int, Kind]] = {tag: kind for kind, tag in TAG_OF_KIND.items()}
_FEW_BYTES: Final = 24
"""Packed lists up to here are decoded in Python, longer ones in numpy."""
_SMALL_RECORD_BYTES: Final = 4096
"""Up to here a record is copied to bytes first, whose items are cheaper to look at than a memoryview's."""
_float_at = struct.Struct("<f").unpack_from


class ScalarReader:
    """Reads the wanted lists of one record."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted = tuple(wanted)
        self._slots = {key: slot for slot, key in enumerate(dict.fromkeys(item.key for item in wanted))}

    def read(self, record: Record, views: memoryview | None = None) -> list[Any]:
        """The lists, in the order wanted.

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
            places = _scan(data, self._slots)
        except (WireError, IndexError) as error:
            raise CorruptRecordError(
                f"the record is not a tf.train.Example: {words_of(error)}; {_look(record)}"
            ) from None
        values: list[Any] = []
        for item in self._wanted:
            place = places[self._slots[item.key]]
            if place is not None:
                try:
                    values.append(decode(data, place, item, views))
                except (WireError, IndexError) as error:
                    raise CorruptRecordError(f"feature {item.name!r}: {words_of(error)}") from None
            elif item.default is not None:
                values.append(item.default)
            else:
                raise CorruptRecordError(
                    f"feature {item.name!r} ({item.kind}, shape {item.shape}) is missing; {what_there_is(data)}"
                )
        return values


def words_of(error: Exception) -> str:
    """What is wrong, for errors of the wire format."""
    return "it is cut off" if isinstance(error, IndexError) else str(error)


def what_there_is(data: Data, tag: int = 0x0A, what: str = "features") -> str:
    """Says which keys a record has, for errors of those that are missing.

    Args:
        data: A record that has been scanned.
        tag: Of the field with the map.
        what: The entries of this map.
    """
    entries = entries_of(data, tag)
    names = dict.fromkeys(key.decode(errors="replace") for key, (begin, stop) in entries if begin < stop)
    return f"the record has {listed(list(names))}" if names else f"the record has no {what}"


def in_batch(error: CorruptRecordError, index: int, count: int) -> CorruptRecordError:
    """The same error, which says which record of a batch it is about."""
    return CorruptRecordError(f"record {index} of the {count} in the batch: {error.message}")


def _look(record: Record) -> str:
    head = bytes(record[:12])
    return f"it is {counted(len(record), 'byte')} long and begins with {head.hex(' ')}" if head else "it is empty"


def _scan(data: Data, slots: Mapping[bytes, int]) -> list[Place | None]:
    """Where the value of each key lies: of several entries of a key, the last one that has a value.

    Args:
        data: The record.
        slots: The keys, numbered from 0.

    Raises:
        WireError, IndexError: If the record is not an Example.
    """
    places: list[Place | None] = [None] * len(slots)
    position, size = 0, len(data)
    while position < size:
        if data[position] != 0x0A:
            position = skip_field(data, position, size)
            continue
        position, end = read_length(data, position + 1, size)
        _scan_map(data, position, end, slots, places)
        position = end
    return places


def _scan_map(data: Data, position: int, end: int, slots: Mapping[bytes, int], places: list[Place | None]) -> None:
    """Scans one Features message. The usual layout is read inline: a call costs more than what it would do."""
    while position < end:
        if data[position] != 0x0A:
            raise WireError(f"an entry of its map begins with byte {data[position]:#04x}")
        entry = position + 2
        size = data[position + 1]
        if size < 0x80 and entry + size <= end:
            position = entry + size
        else:
            entry, position = read_length(data, position + 1, end)
        value = entry + 2 + data[entry + 1]
        if value + 1 < position and data[entry] == 0x0A and data[entry + 1] < 0x80 and data[value] == 0x12:
            key = bytes(data[entry + 2 : value])
            begin = value + 2
            if begin + data[value + 1] == position and data[value + 1] < 0x80:
                stop = position
            else:
                begin, stop = read_length(data, value + 1, position)
                if stop != position:
                    raise WireError("an entry of its map holds more than a key and a value")
        else:
            key, begin, stop = read_entry(data, entry, position)
        slot = slots.get(key)
        if slot is not None and begin < stop:
            places[slot] = begin, stop


def entries_of(data: Data, tag: int) -> Iterator[tuple[bytes, Place]]:
    """The entries of the maps that are in a record's fields of this tag: key, and where the value is."""
    for begin, stop in fields_with(data, 0, len(data), tag):
        for first, last in fields_with(data, begin, stop, 0x0A):
            key, start, behind = read_entry(data, first, last)
            yield key, (start, behind)


def fields_with(data: Data, position: int, end: int, tag: int) -> Iterator[Place]:
    """The fields of this tag in a message; all others are passed over."""
    while position < end:
        if data[position] == tag:
            begin, position = read_length(data, position + 1, end)
            yield begin, position
        else:
            position = skip_field(data, position, end)


def read_entry(data: Data, position: int, stop: int) -> tuple[bytes, int, int]:
    """Key, and begin and end of the value, of an entry whose two fields come in any order."""
    key, begin, end = b"", position, position
    for _ in range(2):
        tag, position = read_varint(data, position, stop)
        if tag not in (0x0A, 0x12):
            raise WireError(f"an entry of its map has a field with tag {tag:#04x}")
        field, position = read_length(data, position, stop)
        if tag == 0x0A:
            key = bytes(data[field:position])
        else:
            begin, end = field, position
    if position != stop:
        raise WireError("an entry of its map holds more than a key and a value")
    return key, begin, end


def decode(data: Data, place: Place, wanted: Wanted, views: memoryview | None) -> Any:
    """The value at a place.

    Args:
        data: The record.
        place: Where the Feature lies.
        wanted: What it must be.
        views: The record again, to cut bytes values from as views; None copies them.

    Raises:
        WireError, IndexError: If it is damaged, of another kind or count.
    """
    begin, stop = place
    tag, kind = data[begin], wanted.kind
    if tag != TAG_OF_KIND[kind]:
        raise WireError(_other_kind(tag, kind))
    position, end = read_length(data, begin + 1, stop)
    if kind == "bytes":
        return _shaped(_byte_strings(data, position, end, views), wanted)
    one = wanted.single
    if kind == "int64":
        single = _one_int64(data, position, end) if one else None
        return _shaped(_int64_list(data, position, end), wanted) if single is None else single
    if one and end - position == 6 and data[position] == 0x0A and data[position + 1] == 4:
        number = _float_at(data, position + 2)[0]
        # On the way through a double a NaN may lose a bit.
        if not math.isnan(number):
            return np.float32(number)
    return _shaped(_float_list(data, position, end), wanted)


def _other_kind(tag: int, kind: Kind) -> str:
    for other, other_tag in TAG_OF_KIND.items():
        if tag == other_tag:
            return f"it holds {other}, expected {kind}"
    return f"it begins with byte {tag:#04x}, which is not one of the three lists"


def _shaped(values: Any, wanted: Wanted) -> Any:
    """Values as the spec wants them: one value, an array of the shape, or of (steps, *shape)."""
    count = len(values)
    if wanted.count < 0:
        if count % wanted.step:
            raise WireError(
                f"it holds {counted(count, 'value')}, which is not a multiple of the {wanted.step} of a step"
            )
        array = object_array(values) if wanted.kind == "bytes" else values
        return array.reshape(-1, *wanted.shape) if wanted.shape else array
    if count != wanted.count:
        raise WireError(f"it holds {counted(count, 'value')}, expected {wanted.count} (shape {wanted.shape})")
    if not wanted.shape:
        return values[0]
    return (object_array(values) if wanted.kind == "bytes" else values).reshape(wanted.shape)


def _byte_strings(data: Data, position: int, end: int, views: memoryview | None) -> list[Any]:
    values: list[Any] = []
    while position < end:
        if data[position] != 0x0A:
            raise WireError(f"an item of its list begins with byte {data[position]:#04x}")
        begin, position = read_length(data, position + 1, end)
        values.append(bytes(data[begin:position]) if views is None else views[begin:position])
    return values


def _one_int64(data: Data, position: int, end: int) -> np.int64 | None:
    """The value of a list that holds just one in the usual layout; None if it does not look so."""
    if end - position < 2:
        return None
    if data[position] == 0x0A and position + 2 + data[position + 1] == end:
        position += 2
    elif data[position] == 0x08:
        position += 1
    else:
        return None
    if position == end:
        return None
    if position + 1 == end and data[position] < 0x80:
        return np.int64(data[position])
    value, after = read_varint(data, position, end)
    return np.int64(signed(value)) if after == end else None


def _int64_list(data: Data, position: int, end: int) -> npt.NDArray[np.int64]:
    if position < end and data[position] == 0x0A:
        begin, stop = read_length(data, position + 1, end)
        if stop - begin > _FEW_BYTES:
            return unpack_varints(np.frombuffer(data[begin:stop], np.uint8))[0]
        values = []
        while begin < stop:
            value, begin = read_varint(data, begin, stop)
            values.append(signed(value))
        return np.array(values, np.int64)
    values = []
    while position < end:
        if data[position] != 0x08:
            raise WireError(f"an item of its list begins with byte {data[position]:#04x}")
        value, position = read_varint(data, position + 1, end)
        values.append(signed(value))
    return np.array(values, np.int64)


def _float_list(data: Data, position: int, end: int) -> npt.NDArray[np.float32]:
    if position < end and data[position] == 0x0A:
        begin, stop = read_length(data, position + 1, end)
        if (stop - begin) % 4:
            raise WireError(
                f"its packed list of float32 is {counted(stop - begin, 'byte')} long, which is not a multiple of 4"
            )
        return np.frombuffer(data[begin:stop], "<f4").astype(np.float32)
    items = np.frombuffer(data[position:end], np.uint8)
    if len(items) % 5 or (items[::5] != 0x0D).any():
        raise WireError("its unpacked list of float32 is damaged")
    return items.reshape(-1, 5)[:, 1:].copy().view("<f4")[:, 0].astype(np.float32)


def features_of(record: bytes) -> dict[str, Any]:
    """Everything that is in an Example, for people who do not know it: no spec says what to expect.

    The values of each feature: an array of numbers or of byte strings, None for a feature without a list. A
    SequenceExample begins like an Example with its context, followed by named lists of features. Each of them is a list
    of such values, one per step.

    Raises:
        CorruptRecordError: The record is no Example, or a name in it is no text.

    Example::

        >>> from asyncdata import serialize_example
        >>> features_of(serialize_example({"label": 3}))
        {'label': array([3])}
    """
    try:
        found: dict[str, Any] = {}
        for key, place in entries_of(record, 0x0A):
            name = key.decode()
            found[name] = _value_of(record, name, place)
        for key, (begin, stop) in entries_of(record, 0x12):
            name, steps = key.decode(), fields_with(record, begin, stop, 0x0A)
            found[name] = [_value_of(record, name, place) for place in steps]
    except (WireError, IndexError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"the record is not a tf.train.Example: {words_of(error)}") from None
    return found


def _value_of(data: Data, name: str, place: Place) -> Any:
    begin, stop = place
    if begin == stop:
        return None
    kind = _KINDS.get(data[begin])
    if kind is None:
        raise WireError(f"feature {name!r} begins with byte {data[begin]:#04x}, which is not one of the three lists")
    return decode(data, place, Wanted(name, name.encode(), kind, (), -1, 1, None), None)
