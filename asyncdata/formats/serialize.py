"""``tf.train.Example`` and ``SequenceExample`` from dicts of values: the writing counterparts of the parsers.

The bytes are those that protobuf writes for the same message with its keys in this order: numbers packed, map entries
with key and value always present.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.formats.wire import pack_varints

_BYTES: Final = b"\x0a"
_FLOATS: Final = b"\x12"
_INTS: Final = b"\x1a"
_FIRST: Final = b"\x0a"
_SECOND: Final = b"\x12"
_INT64: Final = np.iinfo(np.int64)


def serialize_example(features: Mapping[str, Any]) -> bytes:
    """One serialized Example.

    Example:
        >>> import asyncdata as ad
        >>> record = ad.serialize_example({"label": 3, "name": "cat", "weights": [0.5, 1.5]})
        >>> ad.parse_example({"weights": ad.VarLenFeature(float)})(record)["weights"].tolist()
        [0.5, 1.5]

    Args:
        features: By key: bytes or str (one string); int, bool or a numpy integer (one int64); float or a numpy float
            (one float32); a list, tuple or array of these, flattened; None or an empty list for a feature without a
            value. An empty array keeps its kind.

    Raises:
        TypeError: If a value is of none of these types, or of several.
        OverflowError: If an integer does not fit an int64.
    """
    entries = _entries(features, _feature)
    return _field(_FIRST, entries) if entries else b""


def serialize_sequence_example(context: Mapping[str, Any] | None, sequences: Mapping[str, Any] | None) -> bytes:
    """One serialized SequenceExample.

    Example:
        >>> import asyncdata as ad
        >>> record = ad.serialize_sequence_example({"id": 1}, {"tokens": [[1, 2], [3]]})
        >>> ad.parse_sequence_example({}, {"tokens": ad.VarLenFeature(int)})(record)[1]["tokens"].to_list()
        [[1, 2], [3]]

    Args:
        context: As the features of `serialize_example`.
        sequences: By key, the steps: each a value as in `serialize_example`.

    Raises:
        TypeError: If a value is of none of these types, or of several.
        OverflowError: If an integer does not fit an int64.
    """
    first = _entries(context or {}, _feature)
    second = _entries(sequences or {}, lambda steps: b"".join([_field(_FIRST, _feature(step)) for step in steps]))
    return (_field(_FIRST, first) if first else b"") + (_field(_SECOND, second) if second else b"")


def _entries(features: Mapping[str, Any], body: Callable[[Any], bytes]) -> bytes:
    """The entries of a map from keys to messages."""
    entries = []
    for name, value in features.items():
        try:
            message = body(value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"feature {name!r}: {error}") from None
        entries.append(_field(_FIRST, _field(_FIRST, name.encode()) + _field(_SECOND, message)))
    return b"".join(entries)


def _feature(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str | bytes | bytearray | memoryview):
        return _field(_BYTES, _field(_FIRST, _encoded(value)))
    if isinstance(value, list | tuple):
        if not value:
            return b""
        if isinstance(value[0], str | bytes | bytearray | memoryview):
            return _field(_BYTES, b"".join([_field(_FIRST, _encoded(item)) for item in value]))
    array = np.asarray(value)
    if array.dtype.kind in "SUO" or (
        array.dtype.kind == "f" and not isinstance(value, np.ndarray | np.generic | float)
    ):
        # The items themselves: numpy casts mixed lists to one type, and cuts zero bytes off the end of strings.
        items = np.asarray(value, object).ravel().tolist()
        if items and all(isinstance(item, int) for item in items):
            raise OverflowError(f"one of {len(items)} integers does not fit an int64")
        if array.dtype.kind != "f":
            return _field(_BYTES, b"".join([_field(_FIRST, _encoded(item)) for item in items]))
    return _numbers(array.ravel())


def _numbers(values: npt.NDArray[Any]) -> bytes:
    if values.dtype.kind == "f":
        packed = values.astype("<f4").tobytes()
        return _field(_FLOATS, _field(_FIRST, packed) if packed else b"")
    if values.dtype.kind not in "biu":
        raise TypeError(f"values of dtype {values.dtype} cannot be stored; give bytes, integers or floats")
    if values.dtype == np.uint64 and values.size and int(values.max()) > _INT64.max:
        raise OverflowError(f"{int(values.max())} does not fit an int64")
    packed = pack_varints(values.astype(np.int64))
    return _field(_INTS, _field(_FIRST, packed) if packed else b"")


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a {type(value).__name__} stands where bytes or str should")


def _field(tag: bytes, body: bytes) -> bytes:
    size = len(body)
    if size < 0x80:
        return b"%b%c%b" % (tag, size, body)
    length = bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return b"".join((tag, length, body))
