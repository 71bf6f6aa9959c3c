"""States as data that JSON can hold, and back. Nothing that is read here is executed.

A value that JSON knows is written as it is. Every other value is an object with the key ``"~"``, which says what it is.
Arrays of integers are stored as differences and compressed, because the numbers of a buffer's rows lie close together.
First come the lowest bytes of all differences, then the next ones: those that vary are apart from those that hardly do,
so that a compressor that only looks for runs is enough. It takes a tenth of the time of one that looks for anything.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import StateError
from asyncdata.memory.advance import RecordMark, Slots, State
from asyncdata.runtime.state.places import Places

_KIND: Final = "~"
_NUMBER_KINDS: Final = "biufcSUmM?"
_DTYPE: Final = re.compile(r"[<>|](?:[biufcSU]\d{1,9}|[mM]8(?:\[\d*\w+\])?)")
_MOST_BYTES: Final = 1 << 31
_PACK_BYTES: Final = 1024
_INTEGER_BYTES: Final = 8
_DEEPEST: Final = 400
_PLAIN: Final = frozenset({int, str, bool, type(None)})
_COMPACT: Final = frozenset({RecordMark, Slots})


def to_json(value: Any) -> Any:  # noqa: C901, PLR0911 -- a kind each
    """A state, or a part of one.

    Raises:
        StateError: It holds something that cannot be stored, such as an object of a class of the user's.
    """
    if type(value) in _PLAIN:
        return value
    if type(value) is State:
        return {_KIND: "state", "mark": to_json(value.mark), "skip": int(value.skip)}
    if type(value) in _COMPACT:
        return to_json(value.written())
    if type(value) is float:
        return value if math.isfinite(value) else {_KIND: "float", "value": repr(value)}
    if type(value) is bytes:
        return {_KIND: "bytes", "data": base64.b64encode(value).decode()}
    if type(value) is dict:
        if {*map(type, value)} <= {str} and _KIND not in value:
            return {key: item if type(item) in _PLAIN else to_json(item) for key, item in value.items()}
        return {_KIND: "dict", "items": [[to_json(key), to_json(item)] for key, item in value.items()]}
    if type(value) is list:
        return [to_json(item) for item in value]
    if type(value) is tuple:
        return {_KIND: "tuple", "items": [to_json(item) for item in value]}
    if isinstance(value, Places):
        return {_KIND: "places", **to_json(value.columns())}
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBER_KINDS:
        return {**_array_to_json(np.asarray(value)), _KIND: "scalar"}
    if type(value) is np.ndarray and value.dtype.kind in _NUMBER_KINDS:
        return _array_to_json(value)
    raise StateError(
        f"an object of {type(value).__module__}.{type(value).__qualname__} is part of the state, and cannot be saved; "
        "numbers, texts, bytes, arrays, and lists, tuples and dicts of these can"
    )


def packed(value: Any, most_bytes: int = _MOST_BYTES) -> Any:
    """What `to_json` made, compressed where it is long; `from_json` reads both.

    Args:
        value: What it made.
        most_bytes: What is longer stays as it is, because most of it is arrays, which are compressed.
    """
    text = json.dumps(value, separators=(",", ":")).encode()
    if not _PACK_BYTES <= len(text) <= most_bytes:
        return value
    return {_KIND: "packed", "size": len(text), "data": compressed(text, level=1)}


def from_json(value: Any, depth: int = 0) -> Any:
    """What `to_json` was given.

    Raises:
        StateError: It is not what `to_json` makes.
    """
    if depth > _DEEPEST:
        raise StateError("the state is damaged: it is nested too deeply")
    if isinstance(value, list):
        return [from_json(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {key: from_json(item, depth + 1) for key, item in value.items()}
    try:
        return _object(value, depth + 1)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"the state is damaged: {type(error).__name__}: {error}") from error


def _object(value: dict[str, Any], depth: int) -> Any:  # noqa: PLR0911 -- a kind each
    kind = value[_KIND]
    if kind == "state":
        skip = value["skip"]
        if type(skip) is not int or skip < 0:
            raise ValueError(f"{skip!r} elements to skip")
        return State(from_json(value["mark"], depth), skip)
    if kind == "float":
        return float(value["value"])
    if kind == "bytes":
        return base64.b64decode(value["data"], validate=True)
    if kind == "tuple":
        return tuple(from_json(item, depth) for item in value["items"])
    if kind == "dict":
        return {from_json(key, depth): from_json(item, depth) for key, item in value["items"]}
    if kind == "array":
        return _array(value)
    if kind == "places":
        return Places.from_columns({key: from_json(item, depth) for key, item in value.items() if key != _KIND})
    if kind == "packed":
        return from_json(json.loads(_unpacked(value["data"], value["size"])), depth)
    if kind == "scalar":
        return _array(value)[()]
    raise ValueError(f"nothing is called {kind!r}")


def _array_to_json(array: npt.NDArray[Any]) -> dict[str, Any]:
    made = {_KIND: "array", "dtype": array.dtype.str, "shape": list(array.shape)}
    if array.ndim != 1 or array.dtype != np.int64:
        return {**made, "data": compressed(np.ascontiguousarray(array).tobytes())}
    differences = np.diff(array, prepend=0)
    # 0, -1, 1, -2, 2 … as 0, 1, 2, 3, 4 …: the high bytes of small ones are 0.
    unsigned = (differences << 1 ^ differences >> 63).view(np.uint64)
    width = max(1, (int(unsigned.max(initial=0)).bit_length() + 7) // 8)
    planes = unsigned.astype("<u8").view(np.uint8).reshape(-1, _INTEGER_BYTES)[:, :width].T
    packer = zlib.compressobj(level=1, strategy=zlib.Z_RLE)
    data = packer.compress(planes.tobytes()) + packer.flush()
    return {**made, "planes": width, "data": base64.b64encode(data).decode()}


def _array(value: dict[str, Any]) -> npt.NDArray[Any]:
    dtype = _dtype(value["dtype"])
    shape = tuple(value["shape"])
    if not all(type(extent) is int and extent >= 0 for extent in shape):
        raise ValueError(f"an array of {dtype} and shape {shape}")
    if "planes" in value:
        return _from_planes(value, *shape)
    width = _dtype(value.get("differences", dtype.str))
    nbytes = math.prod(shape) * width.itemsize
    array = np.frombuffer(_unpacked(value["data"], nbytes), width)
    if "differences" in value:  # of states that were made before there were planes
        return np.cumsum(array, dtype=np.int64)
    return array.reshape(shape).copy()


def _from_planes(value: dict[str, Any], count: int) -> npt.NDArray[Any]:
    width = value["planes"]
    if type(width) is not int or not 1 <= width <= _INTEGER_BYTES or type(count) is not int or count < 0:
        raise ValueError(f"integers of {width!r} bytes")
    planes = np.frombuffer(_unpacked(value["data"], count * width), np.uint8).reshape(width, count)
    octets = np.zeros((count, _INTEGER_BYTES), np.uint8)
    octets[:, :width] = planes.T
    unsigned = octets.view("<u8").reshape(count)
    return np.cumsum((unsigned >> 1).view(np.int64) ^ -(unsigned & 1).view(np.int64), dtype=np.int64)


def _dtype(text: Any) -> np.dtype[Any]:
    """As `dtype.str` writes it; numpy knows other spellings, and warns of some."""
    if type(text) is not str or not _DTYPE.fullmatch(text):
        raise ValueError(f"the dtype {text!r}")
    return np.dtype(text)


def _unpacked(text: Any, nbytes: Any) -> bytes:
    """So many bytes, and no more, however they were compressed."""
    if type(nbytes) is not int or not 0 <= nbytes <= _MOST_BYTES:
        raise ValueError(f"{nbytes!r} bytes")
    data = decompressed(text, nbytes)
    if len(data) != nbytes:
        raise ValueError(f"{len(data)} bytes instead of {nbytes}")
    return data


def compressed(data: bytes, level: int = -1) -> str:
    """Bytes as a text for JSON."""
    return base64.b64encode(zlib.compress(data, level)).decode()


def decompressed(text: Any, most: int) -> bytes:
    """What `compressed` was given.

    Raises:
        TypeError: It is no text.
        ValueError: It is not what `compressed` makes, or of more than so many bytes.
    """
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(base64.b64decode(text, validate=True), most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(data) > most or not unpacker.eof:
        raise ValueError(f"it does not end within {most} bytes")
    return data
