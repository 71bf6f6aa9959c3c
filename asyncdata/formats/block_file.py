"""Files of images: what `cache(filename)` and `snapshot` write and read.

    | magic, 64 B | image | image | … | index | trailer, 64 B |

    image    header length, body length, CRC-32C of both | header, JSON, padded to 64 B | body, padded to 64 B
    index    JSON: offset, bytes and rows of every image; with them, in a cache, what the elements were made of
    trailer  offset and length of the index, its CRC-32C, magic

A body may be compressed (`block_codec`). Its length and CRC are then those of the compressed bytes, and the header has
the original length. The trailer is written last, so a file without a trailer was never finished. Headers name numpy
dtypes, shapes and nests. Nothing is pickled, and a header is never trusted: `block_image.check_image` checks that
everything it describes is inside the body. A namedtuple comes back as another one with the same name and fields.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import keyword
import struct
from collections import namedtuple
from dataclasses import dataclass
from typing import Any, Final

import crc32c
import numpy as np
import numpy.typing as npt

from asyncdata.errors import BrokenFrameError
from asyncdata.formats.block_codec import CODECS, pack, unpack
from asyncdata.formats.block_image import (
    DTYPE_KINDS,
    PLAIN,
    Image,
    Spec,
    StoredArray,
    StoredMixed,
    StoredPlain,
    StoredRefs,
    UniformSpec,
)
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import LEAF, DictOf, RaggedOf, Structure, TupleOf, leaf_count
from asyncdata.memory.wire import aligned
from asyncdata.types import Json

MAGIC: Final = b"asyncdata blocks 1\n".ljust(64, b"\0")
TRAILER_BYTES: Final = 64
_FRAME: Final = struct.Struct("<QQII40x")
_TRAILER: Final = struct.Struct("<QQI24x20s")
_END: Final = b"asyncdata blocks end"
_MAX_DEPTH: Final = 64
_FRAME_BYTES: Final = _FRAME.size
_MOST_BITS: Final = 2048
"""The largest integers that are written as JSON numbers: Python refuses to convert very long ones."""
_MOST_CLASSES: Final = 1024


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """Where an image lies in its file, frame included."""

    offset: int
    nbytes: int
    rows: int


class UnwritableError(TypeError):
    """An element holds an object that cannot be written."""


# --- writing -------------------------------------------------------------------------------------------------------


def frame(image: Image, codec: str | None = None) -> list[bytes | memoryview]:
    """Returns an image in its file form, in pieces.

    Args:
        image: With its body.
        codec: One of `CODECS`, or None.

    Raises:
        CompressionError: There is no module for the codec.
        UnwritableError: It holds Python objects that are neither numbers nor strings nor arrays, or it could not be
            read back.
    """
    assert image.body is not None
    names: dict[str, Any] = {
        "rows": image.rows,
        "structure": _write_structure(image.structure, 0),
        "columns": [_write(s) for s in image.specs],
    }
    body: Any = image.body.data
    if codec is not None:
        packed = pack(body, codec)
        names["packed"] = [codec, len(body), len(packed)]
        body = packed.ljust(aligned(len(packed)), b"\0")
    try:
        header = json.dumps(names).encode()
    except ValueError as error:  # a key of a dict has too many digits
        raise UnwritableError(f"an element cannot be written to a file: {error}") from error
    header += b" " * (-len(header) % 64)
    start = _FRAME.pack(len(header), len(body), crc32c.crc32c(header), crc32c.crc32c(body))
    return [start, header, body]


def index(places: list[ImagePlace], at: int, made_of: Json = None) -> bytes:
    """Returns the index and the trailer for the end of the file, which is at `at`; `made_of` is stored with them."""
    entries = [[place.offset, place.nbytes, place.rows] for place in places]
    text = json.dumps(entries if made_of is None else {"images": entries, "made_of": made_of}).encode()
    text += b" " * (-len(text) % 64)
    return text + _TRAILER.pack(at, len(text), crc32c.crc32c(text), _END)


def _write(spec: Spec) -> dict[str, Any]:
    if isinstance(spec, StoredArray):
        return {"kind": "array", "dtype": spec.dtype, "shape": spec.shape, "at": spec.at}
    if isinstance(spec, StoredRefs):
        leaves = [[leaf.kind, leaf.dtype, leaf.shape, leaf.text] for leaf in spec.leaves]
        return {"kind": "refs", "leaves": leaves, "which_at": spec.which_at, "rows_at": spec.rows_at}
    if isinstance(spec, StoredPlain):
        return {"kind": "plain", "values": list(map(_write_plain, spec.values))}
    if isinstance(spec, StoredMixed):
        return {"kind": "mixed", "parts": [_write(part) for part in spec.parts], "kinds_at": spec.kinds_at}
    odd = next(item for item in spec.items if type(item) not in PLAIN)
    raise UnwritableError(
        f"{_named(odd)} cannot be written to a file: only numbers, arrays of numbers and dates, bytes, str, None and "
        "nests of them can; change it in map()"
    )


def _named(odd: Any) -> str:
    if type(odd) is str:
        return "a str with surrogates, which is not valid Unicode,"
    if type(odd) is np.ndarray:
        return "an array of objects" if odd.dtype.kind == "O" else f"an array of {odd.dtype}"
    return f"an object of {type(odd).__qualname__}"


def _write_plain(value: Any) -> Any:
    """The value as JSON. What JSON has no number for becomes a text or a list; no plain value is one of these."""
    if type(value) is int and value.bit_length() > _MOST_BITS:
        return hex(value)
    return [value.real, value.imag] if type(value) is complex else value


def _write_structure(structure: Structure, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise UnwritableError(f"an element of more than {_MAX_DEPTH} nests in each other cannot be written to a file")
    if structure is LEAF:
        return None
    if isinstance(structure, RaggedOf):
        return {"ragged": structure.levels}
    if isinstance(structure, TupleOf):
        out: dict[str, Any] = {"tuple": [_write_structure(child, depth + 1) for child in structure.children]}
        if structure.make is not None:
            out["name"] = getattr(structure.make, "__name__", "Record")
            out["fields"] = list(getattr(structure.make, "_fields", ()))
            try:
                record_class(out["name"], tuple(out["fields"]), len(structure.children))
            except (ValueError, TypeError) as error:
                raise UnwritableError(f"a tuple of {out['name']} cannot be written to a file: {error}") from error
        return out
    if isinstance(structure, DictOf):
        if not all(isinstance(key, str | int) for key in structure.keys):
            raise UnwritableError("a dict with keys other than str and int cannot be written to a file")
        return {
            "keys": list(structure.keys),
            "dict": [_write_structure(child, depth + 1) for child in structure.children],
        }
    raise UnwritableError("a registered dataclass cannot be written to a file; turn it into a dict or a tuple in map()")


# --- reading -------------------------------------------------------------------------------------------------------


def read_trailer(data: bytes, size: int) -> tuple[int, int, int]:
    """Offset, length and CRC of the index, from the last `TRAILER_BYTES` of a file of this size."""
    if len(data) != TRAILER_BYTES:
        raise BrokenFrameError("the file is too short for its trailer")
    offset, length, crc, end = _TRAILER.unpack(data)
    if end != _END or offset + length + TRAILER_BYTES != size:
        raise BrokenFrameError("the file was never finished, or asyncdata did not write it")
    return offset, length, crc


def read_index(data: bytes, crc: int, end: int) -> tuple[list[ImagePlace], Any]:
    """Where the images lie, all of them before `end`; and what was given to `index` as `made_of`."""
    if crc32c.crc32c(data) != crc:
        raise BrokenFrameError("the checksum of the index does not match")
    try:
        found = json.loads(data)
        entries, made_of = (found["images"], found["made_of"]) if isinstance(found, dict) else (found, None)
        places = [ImagePlace(*map(int, entry)) for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise BrokenFrameError("the index cannot be read") from error
    for place in places:
        if (
            place.offset < len(MAGIC)
            or place.nbytes < _FRAME_BYTES
            or place.rows < 0
            or place.offset + place.nbytes > end
        ):
            raise BrokenFrameError("the index points outside of the file", offset=place.offset)
    return places, made_of


def read_image(memory: npt.NDArray[np.uint8], place: ImagePlace, most: int) -> tuple[Image, int]:
    """The image whose frame is the beginning of `memory`, and where its body begins there.

    A body that was packed has been unpacked, and is the image's own.

    Args:
        memory: The bytes of the frame.
        place: Where they come from.
        most: Bytes that a body may be unpacked to.

    Raises:
        CompressionError: There is no module for what it is packed by.
        DataError: It is damaged.
    """
    header_bytes, body_bytes, header_crc, body_crc = _FRAME.unpack(memory[:_FRAME_BYTES].tobytes())
    start = _FRAME_BYTES + header_bytes
    if header_bytes > place.nbytes or aligned(start) != start or start + body_bytes != place.nbytes:
        raise BrokenFrameError("the lengths of a block do not agree", offset=place.offset)
    header = memory[_FRAME_BYTES:start].tobytes()
    body = memory[start : start + body_bytes]
    if crc32c.crc32c(header) != header_crc or crc32c.crc32c(body.data) != body_crc:
        raise BrokenFrameError("the checksum of a block does not match", offset=place.offset)
    try:
        names = json.loads(header)
        structure = _read_structure(names["structure"], 0)
        image = Image(int(names["rows"]), structure, tuple(map(_read, names["columns"])), body_bytes)
        codec, unpacked, packed = names.get("packed", (None, 0, 0))
        if codec is not None and (codec not in CODECS or not 0 <= packed <= body_bytes or not 0 <= unpacked <= most):
            raise ValueError("its body cannot be decompressed")
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise BrokenFrameError(f"the header of a block cannot be read: {error}", offset=place.offset) from error
    if image.rows != place.rows or len(image.specs) != leaf_count(structure):
        raise BrokenFrameError("the header of a block does not agree with the index", offset=place.offset)
    if codec is None:
        return image, start
    try:
        own = unpack(body[:packed].tobytes(), codec, unpacked)
    except BrokenFrameError as error:
        error.complete(offset=place.offset)
        raise
    return dataclasses.replace(image, nbytes=unpacked, body=own), 0


def _read(names: dict[str, Any]) -> Spec:
    if names["kind"] == "mixed":
        return StoredMixed(tuple(map(_read_uniform, names["parts"])), int(names["kinds_at"]))
    return _read_uniform(names)


def _read_uniform(names: dict[str, Any]) -> UniformSpec:
    kind = names["kind"]
    if kind == "array":
        return StoredArray(_dtype(names["dtype"]), _shape(names["shape"]), int(names["at"]))
    if kind == "refs":
        leaves = tuple(_read_leaf(*entry) for entry in names["leaves"])
        return StoredRefs(leaves, int(names["which_at"]), int(names["rows_at"]))
    if kind == "plain":
        values = tuple(map(_read_plain, names["values"]))
        if not all(type(value) in PLAIN for value in values):
            raise ValueError("a plain value is none")
        return StoredPlain(values)
    raise ValueError(f"unknown kind of column: {kind!r}")


def _read_plain(value: Any) -> Any:
    if isinstance(value, str):
        return int(value, 16)
    return complex(*map(float, value)) if isinstance(value, list) else value


def _read_leaf(kind: str, dtype: str, shape: list[int], text: bool) -> Leaf:
    if kind in ("bytes", "str"):
        return Leaf("str" if kind == "str" else "bytes")
    if kind == "table":
        (count,) = _shape(shape)
        return Leaf("table", shape=(count,), text=bool(text))
    if kind == "array":
        return Leaf("array", _dtype(dtype), _shape(shape))
    raise ValueError(f"unknown kind of leaf: {kind!r}")


def _dtype(name: str) -> str:
    dtype = np.dtype(str(name))
    if dtype.kind not in DTYPE_KINDS:
        raise ValueError(f"dtype {name!r} is not allowed")
    return dtype.str


def _shape(extents: list[int]) -> tuple[int, ...]:
    shape = tuple(map(int, extents))
    if len(shape) > _MAX_DEPTH or any(not 0 <= extent < 1 << 48 for extent in shape):
        raise ValueError(f"shape {shape} is not allowed")
    return shape


def _read_structure(names: Any, depth: int) -> Structure:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if names is None:
        return LEAF
    if "ragged" in names:
        levels = int(names["ragged"])
        if not 1 <= levels <= _MAX_DEPTH:
            raise ValueError(f"{levels} levels of rows")
        return RaggedOf(levels)
    if "tuple" in names:
        children = tuple(_read_structure(child, depth + 1) for child in names["tuple"])
        if "fields" not in names:
            return TupleOf(children)
        return TupleOf(children, record_class(str(names["name"]), tuple(map(str, names["fields"])), len(children)))
    children = tuple(_read_structure(child, depth + 1) for child in names["dict"])
    keys = tuple(names["keys"])
    if len(keys) != len(children) or not all(isinstance(key, str | int) for key in keys):
        raise ValueError("the keys of a dict do not fit it")
    return DictOf(keys, children)


@functools.lru_cache(_MOST_CLASSES)
def record_class(name: str, fields: tuple[str, ...], count: int) -> type[Any]:
    """The namedtuple that was written; one class for all images, as it was when they were written.

    Only identifiers become fields, so no text of a file is evaluated.

    Raises:
        ValueError: There is none with these fields.
    """
    name = name if name.isidentifier() and not keyword.iskeyword(name) else "Record"
    # Names such as `_1` are those that `rename=True` gave.
    make: Any = namedtuple  # noqa: PYI024 -- the fields are known only now
    made = make(name, fields, rename=True)
    if made._fields != fields or len(fields) != count:
        raise ValueError(f"fields {fields} do not fit a namedtuple of {count}")
    # Pickle would look for the class in this module.
    made.__reduce__ = lambda record: (_remade, (name, fields, tuple(record)))
    kind: type[Any] = made
    return kind


def _remade(name: str, fields: tuple[str, ...], parts: tuple[Any, ...]) -> Any:
    """A record that was pickled."""
    return record_class(name, fields, len(parts))(*parts)
