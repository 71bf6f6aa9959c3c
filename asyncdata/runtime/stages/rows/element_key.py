"""`element_key`: what an element is remembered by, so that two elements have one key exactly when they are equal. Pure.

    numbers, arrays     dtype, shape and bytes; -0.0 is 0.0, and one nan is every nan
    masked arrays       the mask, and the values that it leaves
    bytes, texts        themselves, or a digest if they are long
    lists, dicts, sets  the keys of what is in them; a list of numbers of one kind is the array that it would become
    other objects       those that say themselves what they equal: themselves; else their content, pickled

A key that goes into a state must be the same in every process. `stable_key` gives such keys. It refuses objects that
say themselves what they equal, unless they are of a few kinds whose equality is known.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import math
import pathlib
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.pickling import dumps
from asyncdata.memory.ragged import RaggedArray
from asyncdata.memory.structure import LEAF, DictOf, RaggedOf, Structure, flatten, flatten_as

_LONG: Final = 64
_DIGEST_BYTES: Final = 16
_DOUBLE_BYTES: Final = 8
_NUMBERS: Final = {int: np.dtype(np.int64), float: np.dtype(np.float64), bool: np.dtype(np.bool_)}
"""Of Python's numbers, the dtype of an array of them."""

_LABELS: Final = ("axes", "columns", "coords")
"""Attributes of tables and labelled arrays (pandas, polars, xarray): the array that such an object gives lacks them."""

_ObjectKey: TypeAlias = Callable[[Any], Hashable]
"""The key of an object that says itself what it equals."""


def element_key(element: Any) -> Hashable:
    """The key of an element in this process."""
    return _nest_key(element, _itself)


def stable_key(element: Any) -> Hashable:
    """A key whose ``repr`` is the same in every process.

    Raises:
        TypeError: An object in the element has none.
    """
    return _nest_key(element, _by_content)


def earlier_stable_key(element: Any) -> Hashable:
    """The `stable_key` of states up to release 0.2.18, in which the order of a dict's keys counted."""
    return _nest_key(element, _by_content, in_order=False)


def digest(data: bytes) -> bytes:
    """16 bytes that stand for more of them."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _nest_key(element: Any, object_key: _ObjectKey, *, in_order: bool = True) -> Hashable:
    leaves, structure = flatten(element)
    if in_order and structure is not LEAF and (ordered := _in_order(structure)) != structure:
        structure, leaves = ordered, []
        flatten_as(structure, element, leaves)
    keys = tuple(_leaf_key(leaf, object_key) for leaf in leaves)
    return keys[0] if structure is LEAF else (structure, keys)


def _in_order(structure: Structure) -> Structure:
    """The structure of all elements that are equal but for the order of keys."""
    if structure is LEAF or isinstance(structure, RaggedOf):
        return structure
    children = tuple(map(_in_order, structure.children))
    if not isinstance(structure, DictOf):
        return dataclasses.replace(structure, children=children)
    pairs = sorted(zip(structure.keys, children, strict=True), key=lambda pair: repr(pair[0]))
    return DictOf(tuple(key for key, _ in pairs), tuple(child for _, child in pairs))


def _leaf_key(leaf: Any, object_key: _ObjectKey) -> Hashable:
    kind = type(leaf)
    make = _BY_KIND.get(kind)
    if make is not None:
        return make(leaf, object_key)
    if isinstance(leaf, np.ma.MaskedArray):
        # What lies behind the mask counts as little as for its `==`.
        zero: Any = np.zeros((), leaf.dtype)[()]
        values = np.asarray(leaf.filled(zero))
        return ("masked", _array_key(values, object_key), _array_key(np.ma.getmaskarray(leaf), object_key))
    if isinstance(leaf, np.ndarray | np.generic):
        return _array_key(np.asarray(leaf), object_key)
    if hasattr(leaf, "__array__"):
        if any(hasattr(kind, labels) for labels in _LABELS):
            return (_name(kind), _short(dumps(leaf)))
        return (_name(kind), _array_key(np.asarray(leaf), object_key))
    hashed: Any = kind.__hash__
    if hashed is not None and hashed is not object.__hash__:
        return object_key(leaf)
    return (_name(kind), _short(dumps(leaf)))


def _bytes_key(leaf: Any, _object_key: _ObjectKey) -> Hashable:
    return (bytes, _short(bytes(leaf)))


def _text_key(leaf: Any, _object_key: _ObjectKey) -> Hashable:
    return (str, _short(leaf.encode("utf-8", "surrogatepass")))


def _plain_key(leaf: Any, _object_key: _ObjectKey) -> Hashable:
    return (type(leaf), leaf)


def _float_key(leaf: Any, _object_key: _ObjectKey) -> Hashable:
    return (float, "nan" if math.isnan(leaf) else leaf + 0.0)


def _sequence_key(leaf: Any, object_key: _ObjectKey) -> Hashable:
    array = _as_numbers(leaf)
    return (type(leaf), _keys(leaf, object_key)) if array is None else _array_key(array, object_key)


def _dict_key(leaf: Any, object_key: _ObjectKey) -> Hashable:
    pairs = zip(_keys(leaf, object_key), _keys(leaf.values(), object_key), strict=True)
    return ("dict", _unordered(pairs, object_key))


def _set_key(leaf: Any, object_key: _ObjectKey) -> Hashable:
    return ("set", _unordered(_keys(leaf, object_key), object_key))


def _strings_key(leaf: Any, object_key: _ObjectKey) -> Hashable:
    return ("BytesArray", _keys(leaf.tolist(), object_key))


def _ragged_key(leaf: Any, object_key: _ObjectKey) -> Hashable:
    return ("RaggedArray", _leaf_key(leaf.values, object_key), _leaf_key(leaf.row_splits, object_key))


_BY_KIND: Final[Mapping[type, Callable[[Any, _ObjectKey], Hashable]]] = {
    bytes: _bytes_key,
    bytearray: _bytes_key,
    str: _text_key,
    int: _plain_key,
    bool: _plain_key,
    type(None): _plain_key,
    float: _float_key,
    list: _sequence_key,
    tuple: _sequence_key,
    dict: _dict_key,
    set: _set_key,
    frozenset: _set_key,
    BytesArray: _strings_key,
    RaggedArray: _ragged_key,
}


def _keys(items: Iterable[Any], object_key: _ObjectKey) -> tuple[Hashable, ...]:
    return tuple(_leaf_key(item, object_key) for item in items)


def _unordered(keys: Iterable[Hashable], object_key: _ObjectKey) -> Hashable:
    if object_key is _itself:  # equal objects may have other reprs, such as their addresses
        return frozenset(Counter(keys).items())
    return tuple(sorted(keys, key=repr))


def _array_key(array: npt.NDArray[Any], object_key: _ObjectKey) -> Hashable:
    if array.dtype == object:
        return ("objects", array.shape, _keys(array.ravel().tolist(), object_key))
    if array.dtype.hasobject or array.dtype.names:
        # In memory there are pointers, and gaps between fields.
        return (str(array.dtype), array.shape, _keys(array.ravel().tolist(), object_key))
    if array.ndim == 0 and array.dtype.kind in "iub":
        return (array.dtype.str, array.item())
    if array.dtype.kind in "fc":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array + np.array(0, array.dtype))
        parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
        if parts[0].dtype.itemsize > _DOUBLE_BYTES:
            return (array.dtype.str, array.shape, _short(b"".join(map(_without_padding, parts))))
    return (array.dtype.str, array.shape, _short(array.tobytes()))


def _without_padding(array: npt.NDArray[Any]) -> bytes:
    """The bytes of long doubles: of what lies behind the ten that count, nothing is known."""
    mantissas, exponents = np.frexp(array)
    upper = mantissas.astype(np.float64)
    with np.errstate(invalid="ignore"):
        lower = (mantissas - upper).astype(np.float64)
    return b"".join((upper.tobytes(), np.nan_to_num(lower).tobytes(), exponents.tobytes()))


def _as_numbers(items: Any) -> npt.NDArray[Any] | None:
    """The array of a list of numbers that are all of one kind, however deep; None where it is none."""
    inner: Any = items
    while type(inner) in (list, tuple) and len(inner):
        inner = inner[0]
    dtype = _NUMBERS.get(type(inner))
    if dtype is None or not _all_of(items, type(inner)):
        return None
    try:
        array = np.array(items)
    except ValueError:
        return None  # rows of different lengths
    # Numbers that do not fit become something else.
    return array if array.dtype == dtype else None


def _all_of(items: Any, kind: type) -> bool:
    return all(type(item) is kind or (type(item) in (list, tuple) and _all_of(item, kind)) for item in items)


def _itself(value: Any) -> Hashable:
    return value  # type: ignore[no-any-return]  # it is hashable


def _by_content(value: Any) -> Hashable:
    """The key of an object of a few kinds; equal ones of one kind have one."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        return (_name(kind), value.name)
    if isinstance(value, decimal.Decimal | fractions.Fraction):
        return ("number", value.as_integer_ratio() if math.isfinite(value) else str(value))
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return ("time", value.astimezone(datetime.UTC).isoformat())
    if kind in (complex, range, datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID):
        return (_name(kind), repr(value + 0.0 if kind is complex else value))
    if isinstance(value, pathlib.PurePath):
        return (_name(kind), str(value))
    if dataclasses.is_dataclass(value) and _compares_fields(kind):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value) if field.compare]
        return (_name(kind), _keys(fields, _by_content))
    raise TypeError(
        "in an order that is not fixed, unique() remembers elements across runs, and an object of class "
        f"{kind.__name__} has no key that is the same in all of them. Use map() in front of it to make bytes, texts or "
        "numbers of such objects, or keep the order: deterministic=True"
    )


def _compares_fields(kind: Any) -> bool:
    """Whether a dataclass has the equality that its fields give it, and not one that is written out."""
    code = getattr(kind.__dict__.get("__eq__"), "__code__", None)
    return bool(kind.__dataclass_params__.eq) and code is not None and bool(code.co_filename == "<string>")


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _short(data: bytes) -> Hashable:
    if len(data) > _LONG:
        return digest(data)
    # No digest, though as long as one.
    return (data,) if len(data) == _DIGEST_BYTES else data
