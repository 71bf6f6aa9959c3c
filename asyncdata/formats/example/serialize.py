"""``tf.train.Example`` and ``SequenceExample`` from dicts of values: the counterparts of the parsers.

The bytes are those that protobuf writes for the same message with its keys in this order: numbers are packed, and map
entries always contain key and value.

In these bytes a length precedes what it counts. A message therefore becomes a list of pieces with known sizes, in which
long values are not copied, and one join at the end writes each of them once.
Short strings of a list are joined at once.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import countOf
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.formats.example.varints import SHORT_VARINTS, pack_few, pack_varints, write_varint
from asyncdata.wording import kind_of

_Piece: TypeAlias = bytes | bytearray | memoryview
_Message: TypeAlias = tuple[bytes, Iterable[_Piece], int]
"""The beginning of a message, the pieces behind it, and their total size."""

_BYTES: Final = b"\x0a"
_FLOATS: Final = b"\x12"
_INTS: Final = b"\x1a"
_FIRST: Final = b"\x0a"
_SECOND: Final = b"\x12"
_EMPTY: Final[_Message] = (b"", (), 0)
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_SHORT: Final = 120
"""Messages below this size, and the messages around them, have one-byte lengths."""
_COPIED: Final = 1000
"""Values below this size are copied, not kept as pieces. What holds them has a length of `SHORT_VARINTS`."""
_FEW: Final = 256
"""Up to this number, integers are packed faster from a list than from an array."""
_FLOAT: Final = struct.Struct("<f")
_PLAIN: Final = frozenset((int, float, bytes, str))
_INTEGERS: Final = (int, np.integer, np.bool_)
_NUMBERS: Final = (*_INTEGERS, float, np.floating)
_SHORT_LEADS: Final = tuple(_FIRST + size for size in SHORT_VARINTS[:_COPIED])
"""The bytes before a copied value, by its size."""


def serialize_example(features: Mapping[str, Any]) -> bytes:
    """Returns one serialized Example.

    Example:
        >>> import asyncdata as ad
        >>> record = ad.serialize_example({"label": 3, "name": "cat", "weights": [0.5, 1.5]})
        >>> ad.parse_example({"weights": ad.VarLenFeature(float)})(record)["weights"].tolist()
        [0.5, 1.5]

    Args:
        features: Values by key: bytes or str (one string); int, bool or a numpy integer (one int64); float or a numpy
            float (one float32); a list, tuple or array of these, flattened, in which integers among floats are floats;
            None or an empty list for a feature without a value. An empty array keeps its kind.

    Raises:
        TypeError: A value has none of these types, has a mask, or is a list of texts and numbers.
        OverflowError: An integer does not fit an int64.
        ValueError: A text has surrogates, which UTF-8 cannot express.
    """
    pieces: list[_Piece] = []
    _add_map(pieces, _FIRST, features, _feature)
    return b"".join(pieces)


def serialize_sequence_example(context: Mapping[str, Any] | None, sequences: Mapping[str, Any] | None) -> bytes:
    """Returns one serialized SequenceExample.

    Example:
        >>> import asyncdata as ad
        >>> record = ad.serialize_sequence_example({"id": 1}, {"tokens": [[1, 2], [3]]})
        >>> ad.parse_sequence_example({}, {"tokens": ad.VarLenFeature(int)})(record)[1]["tokens"].to_list()
        [[1, 2], [3]]

    Args:
        context: Like the features of `serialize_example`.
        sequences: Lists of steps by key; each step is a value as in `serialize_example`.

    Raises:
        TypeError: A value has none of these types, or steps are no list.
        OverflowError: An integer does not fit an int64.
        ValueError: A text has surrogates, which UTF-8 cannot express.
    """
    pieces: list[_Piece] = []
    _add_map(pieces, _FIRST, context or {}, _feature)
    _add_map(pieces, _SECOND, sequences or {}, _steps)
    return b"".join(pieces)


def _add_map(pieces: list[_Piece], tag: bytes, features: Mapping[str, Any], message: Callable[[Any], _Message]) -> None:
    """Adds a map from keys to messages."""
    if not hasattr(features, "items"):
        raise TypeError(f"an Example is made of a dict of values by name, not of {arguments.shown(features)}")
    place, total = len(pieces), 0
    pieces.append(b"")  # The place of the total size.
    for name, value in features.items():
        if not isinstance(name, str):
            raise TypeError(f"names of features must be texts, not {arguments.shown(name)}")
        try:
            head, rest, size = message(value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"feature {name!r}: {error}") from None
        except UnicodeEncodeError as error:
            raise ValueError(f"feature {name!r}: {error}") from None
        key = name.encode()
        length = len(key)
        if length + size < _SHORT:
            pieces.append(b"\n%c\n%c%b\x12%c%b" % (length + size + 4, length, key, size, head))
            total += length + size + 6
        elif length + size < _COPIED:
            key_size, feature_size = SHORT_VARINTS[length], SHORT_VARINTS[size]
            entry_size = len(key_size) + length + len(feature_size) + size + 2
            entry = _FIRST + SHORT_VARINTS[entry_size]
            pieces.append(b"%b\n%b%b\x12%b%b" % (entry, key_size, key, feature_size, head))
            total += len(entry) + entry_size
        else:
            inner = b"\n%b%b\x12%b" % (write_varint(length), key, write_varint(size))
            outer = b"\n" + write_varint(len(inner) + size)
            pieces.append(outer + inner + head)
            total += len(outer) + len(inner) + size
        if rest:
            pieces += rest
    if total:
        pieces[place] = tag + (SHORT_VARINTS[total] if total < len(SHORT_VARINTS) else write_varint(total))


def _steps(steps: Any) -> _Message:
    """A FeatureList."""
    if isinstance(steps, str | bytes | bytearray | memoryview | Mapping) or not isinstance(steps, Iterable):
        # A text would be taken apart into characters, and bytes into numbers.
        raise TypeError(f"expected a list of steps, each of them a value or a list of values, not {kind_of(steps)}")
    pieces: list[_Piece] = []
    total = 0
    for step in steps:
        head, rest, size = _feature(step)
        lead = _FIRST + write_varint(size)
        pieces.append(lead + head)
        pieces += rest
        total += len(lead) + size
    return b"", pieces, total


def _feature(value: Any) -> _Message:
    """Adds a Feature. The simplest kinds come first; the second half handles the doubtful ones."""
    kind = type(value)
    if kind is int:
        if _LEAST <= value <= _MOST:
            return _one(_INTS, write_varint(value))
    elif (kind is list or kind is tuple) and value:
        return _list_feature(value)
    elif kind is bytes:
        return _one(_BYTES, value)
    elif kind is str:
        return _one(_BYTES, value.encode())
    elif kind is float:
        return _floats((value,))
    return _any_feature(value)


def _list_feature(values: Sequence[Any]) -> _Message:
    """Of a list or tuple that is not empty."""
    kind, count = type(values[0]), len(values)
    if count == 1:
        if kind in _PLAIN:
            return _feature(values[0])
    elif countOf(map(type, values), kind) == count:
        if kind is int:
            if count <= _FEW and (packed := pack_few(values)) is not None:
                return _one(_INTS, packed)
        elif kind is float:
            return _floats(values)
        elif kind is bytes:
            return _strings(values)
    return _any_feature(values)


def _any_feature(value: Any) -> _Message:
    if value is None:
        return _EMPTY
    _refuse_masks(value if isinstance(value, list | tuple) else (value,))
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "SUO":
        return _numbers(value.ravel())
    if isinstance(value, str | bytes | bytearray | memoryview):
        return _one(_BYTES, _encoded(value))
    if isinstance(value, list | tuple):
        if not value:
            return _EMPTY
        if isinstance(value[0], str | bytes | bytearray | memoryview):
            return _strings([_encoded(item, "bytes or str like the first item") for item in value])
    return _array_feature(value)


def _refuse_masks(values: Sequence[Any]) -> None:
    if any(isinstance(value, np.ma.MaskedArray) for value in values):
        raise TypeError(
            "a feature would lose the mask of a masked array: give array.filled(value), or array.compressed()"
        )


def _array_feature(value: Any) -> _Message:
    """Of lists of several types, lists of lists, and whatever else numpy makes an array of."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise TypeError("a list of lists of different lengths, or of lists among values; give one flat list") from None
    if not array.size and array.dtype == np.float64 and isinstance(value, list | tuple):
        return _EMPTY  # Lists of no values: floats only to numpy.
    if array.dtype.kind in "SUO" or (array.dtype.kind == "f" and not isinstance(value, float)):
        # The items themselves: numpy casts mixed lists to one type, and cuts zero bytes off the end of strings.
        items = np.asarray(value, object).ravel().tolist()
        if items and all(isinstance(item, _INTEGERS) for item in items):
            integers = [int(item) for item in items]
            if min(integers) < _LEAST or max(integers) > _MOST:
                raise OverflowError(f"one of {len(items)} integers does not fit an int64")
            return _numbers(np.array(integers))  # of numpy's unsigned ones and others it makes floats
        if array.dtype.kind != "f":
            if not items or not isinstance(items[0], _NUMBERS):
                return _strings([_encoded(item) for item in items])
            for item in items:
                if not isinstance(item, _NUMBERS):
                    raise TypeError(f"expected numbers like the first item, not {kind_of(item)}")
            array = np.array(items, np.float64)
    return _numbers(array.ravel())


def _numbers(values: npt.NDArray[Any]) -> _Message:
    packed: _Piece
    if values.dtype.kind == "f":
        tag, packed = _FLOATS, np.ascontiguousarray(values, "<f4").view(np.uint8).data
    elif values.dtype.kind not in "biu":
        raise TypeError(f"values of dtype {values.dtype} cannot be stored; give bytes, integers or floats")
    elif values.dtype == np.uint64 and values.size and int(values.max()) > _MOST:
        raise OverflowError(f"{int(values.max())} does not fit an int64")
    elif 0 < len(values) <= _FEW:
        tag, packed = _INTS, pack_few(values.tolist()) or b""
    else:
        tag, packed = _INTS, pack_varints(values.astype(np.int64, copy=False))
    return _one(tag, packed) if len(packed) else (tag + b"\0", (), 2)


def _floats(values: Sequence[float]) -> _Message:
    try:
        packed = _FLOAT.pack(*values) if len(values) == 1 else _float_packer(len(values))(*values)
    except OverflowError:
        return _numbers(np.asarray(values))
    return _one(_FLOATS, packed)


@functools.lru_cache(maxsize=64)
def _float_packer(count: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{count}f").pack


def _one(tag: bytes, value: _Piece) -> _Message:
    """A list with one field: a string, or packed numbers."""
    size = len(value)
    if size < _SHORT:
        return b"%b%c\n%c%b" % (tag, size + 2, size, value), (), size + 4  # type: ignore[str-format]  # any buffer
    if size < _COPIED:
        field = _SHORT_LEADS[size]
        head = b"".join((tag, SHORT_VARINTS[len(field) + size], field, value))
        return head, (), len(head)
    field = _FIRST + write_varint(size)
    head = tag + write_varint(len(field) + size) + field
    return head, (value,), len(head) + size


def _strings(values: Sequence[_Piece]) -> _Message:
    count = len(values)
    try:
        size = len(values[0])
        if len(values[-1]) == size and countOf(map(len, values), size) == count:
            packed = _SHORT_LEADS[size].join([b"", *values])
        else:
            pieces: list[_Piece] = [b""] * (2 * count)
            pieces[::2] = [_SHORT_LEADS[len(value)] for value in values]
            pieces[1::2] = values
            packed = b"".join(pieces)
    except IndexError:  # None, or a long one.
        return _long_strings(values)
    size = len(packed)
    if size < _SHORT:
        return b"\n%c%b" % (size, packed), (), size + 2
    if size < _COPIED:
        head = _SHORT_LEADS[size] + packed
        return head, (), len(head)
    head = _BYTES + write_varint(size)
    return head, (packed,), len(head) + size


def _long_strings(values: Sequence[_Piece]) -> _Message:
    """Strings kept as pieces, which only the final join copies."""
    sizes = list(map(len, values))
    leads = [_FIRST + write_varint(size) for size in sizes]
    total = sum(sizes) + sum(map(len, leads))
    head = _BYTES + write_varint(total)
    return head, chain.from_iterable(zip(leads, values, strict=True)), len(head) + total


def _encoded(value: Any, expected: str = "bytes, str, numbers, or a list or array of one of these") -> _Piece:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray):
        return value
    if isinstance(value, memoryview):
        return value.cast("B") if value.c_contiguous and value.nbytes else bytes(value)
    raise TypeError(f"expected {expected}, not {kind_of(value)}")
