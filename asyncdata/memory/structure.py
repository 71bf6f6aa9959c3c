"""Takes nested elements apart into leaves, and puts them together again.

tuple, namedtuple, dict and registered dataclasses are structure, and so is a `RaggedArray`: its flat values and the
splits of every level are separate leaves. Everything else is a leaf. A `Structure` is plain picklable data, so that it
can describe a batch across processes. Dict keys keep the order of the first element seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from asyncdata.memory.ragged import RaggedArray
from asyncdata.types import Element


@dataclass(frozen=True, slots=True)
class TupleOf:
    """A tuple, or a namedtuple when `make` is its class."""

    children: tuple[Structure, ...]
    make: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class DictOf:
    """A dict with these keys, in this order."""

    keys: tuple[Any, ...]
    children: tuple[Structure, ...]


@dataclass(frozen=True, slots=True)
class RecordOf:
    """A registered dataclass with these fields."""

    make: Callable[..., Any]
    fields: tuple[str, ...]
    children: tuple[Structure, ...]


@dataclass(frozen=True, slots=True)
class RaggedOf:
    """A RaggedArray: its flat values, then the row splits of each of its levels, outermost first."""

    levels: int


Structure: TypeAlias = "TupleOf | DictOf | RecordOf | RaggedOf | None"
"""``None`` is a leaf."""

LEAF: Final = None

_PAYLOADS: Final = frozenset((bytes, str, bytearray))
_NUMBERS: Final = frozenset((bool, int, float, complex, type(None)))
_BYTES_OF: Final = dict.fromkeys(_NUMBERS, 0) | {
    kind: np.dtype(kind).itemsize for kind in (np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64)
}
"""What leaves of these types count, to be looked up at once."""
_COLLECTIONS: Final = frozenset((list, set, frozenset))
_ITEM_BYTES: Final = 48
"""Of a Python object in a list, beside what it holds, about."""

C = TypeVar("C", bound=type)

_FIELDS: Final = "__asyncdata_fields__"


def register_dataclass(cls: C) -> C:
    """Makes a dataclass part of the structure of elements, like a namedtuple: its fields are batched one by one.

    Use it as a decorator, so that worker processes see it too. The constructor must work with the fields alone.

    Raises:
        TypeError: It is not a dataclass, or has a field that its constructor does not accept.

    Example:
        >>> import dataclasses
        >>> import asyncdata as ad
        >>> @ad.register_dataclass
        ... @dataclasses.dataclass
        ... class Point:
        ...     x: int
        ...     y: int
        >>> next(iter(ad.Dataset.range(3).map(lambda i: Point(i, i * i)).batch(3)))
        Point(x=array([0, 1, 2]), y=array([0, 1, 4]))
    """
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"register_dataclass needs a dataclass, not {cls!r}")
    hidden = [field.name for field in dataclasses.fields(cls) if not field.init]
    if hidden:
        raise TypeError(f"the constructor of {cls.__name__} does not take its fields {', '.join(hidden)}")
    setattr(cls, _FIELDS, tuple(field.name for field in dataclasses.fields(cls)))
    return cls


def registered_fields(element: Element) -> tuple[str, ...] | None:
    """The fields of an instance of a registered class, else None; a subclass has to be registered itself."""
    fields: tuple[str, ...] | None = type(element).__dict__.get(_FIELDS)
    return fields


def has_structure(kind: type) -> bool:
    """Whether instances of a class are nests, and no leaves."""
    return issubclass(kind, tuple | dict | RaggedArray) or _FIELDS in kind.__dict__


def flatten(element: Element, *, whole_ragged: bool = False) -> tuple[list[Any], Structure]:
    """The leaves of an element from left to right, and its structure; `whole_ragged`: a RaggedArray is one leaf."""
    leaves: list[Any] = []
    return leaves, _flatten_into(element, leaves, whole_ragged)


def _flatten_into(element: Element, leaves: list[Any], whole_ragged: bool) -> Structure:
    if type(element) in _BYTES_OF or type(element) is np.ndarray:
        leaves.append(element)
        return LEAF
    if isinstance(element, tuple):
        make = type(element) if hasattr(element, "_fields") else None
        return TupleOf(tuple([_flatten_into(child, leaves, whole_ragged) for child in element]), make)
    if isinstance(element, dict):
        children = tuple([_flatten_into(child, leaves, whole_ragged) for child in element.values()])
        return DictOf(tuple(element), children)
    if isinstance(element, RaggedArray) and not whole_ragged:
        splits = element.nested_row_splits
        leaves += (element.flat_values, *splits)
        return RaggedOf(len(splits))
    fields = registered_fields(element)
    if fields is not None:
        children = tuple(_flatten_into(getattr(element, name), leaves, whole_ragged) for name in fields)
        return RecordOf(type(element), fields, children)
    leaves.append(element)
    return LEAF


def flatten_as(structure: Structure, element: Element, leaves: list[Any]) -> bool:
    """Appends the leaves of an element in the order that `structure` gives; False where it does not fit."""
    if structure is LEAF:
        if has_structure(type(element)):
            return False
        leaves.append(element)
        return True
    if isinstance(structure, RaggedOf):
        if not isinstance(element, RaggedArray) or element.ragged_rank != structure.levels:
            return False
        leaves += (element.flat_values, *element.nested_row_splits)
        return True
    parts = _parts_as(structure, element)
    if parts is None:
        return False
    for child, part in zip(structure.children, parts, strict=True):
        if child is LEAF and (type(part) is np.ndarray or type(part) in _BYTES_OF):
            leaves.append(part)
        elif not flatten_as(child, part, leaves):
            return False
    return True


def leaves_of_all(structure: Structure, elements: list[Element]) -> list[list[Any]] | None:
    """The leaves of several elements, leaf by leaf; None where one has another structure, or its keys in other order.

    Level by level instead of element by element, which takes a tenth of the time.
    """
    kinds = set(map(type, elements))
    if structure is LEAF:
        return None if any(map(has_structure, kinds)) else [elements]
    if isinstance(structure, RaggedOf):
        same = all(issubclass(kind, RaggedArray) for kind in kinds)
        if not same or any(each.ragged_rank != structure.levels for each in elements):
            return None
        return [list(leaf) for leaf in zip(*((e.flat_values, *e.nested_row_splits) for e in elements), strict=True)]
    parts = _parts_of_all(structure, elements, kinds)
    if parts is None:
        return None
    found = [leaves_of_all(child, part) for child, part in zip(structure.children, parts, strict=True)]
    if any(leaves is None for leaves in found):
        return None
    return [leaf for leaves in found if leaves is not None for leaf in leaves]


def _parts_of_all(
    structure: TupleOf | DictOf | RecordOf, elements: list[Element], kinds: set[type]
) -> list[list[Any]] | None:
    """For each child of a structure, those of all elements; None where one does not fit."""
    if isinstance(structure, DictOf):
        keys = structure.keys
        fits = all(issubclass(kind, dict) for kind in kinds) and all(tuple(each) == keys for each in elements)
        return [[each[key] for each in elements] for key in keys] if fits else None
    if isinstance(structure, RecordOf):
        fits = kinds == {structure.make}
        return [[getattr(each, name) for each in elements] for name in structure.fields] if fits else None
    width = len(structure.children)
    fits = all(issubclass(k, tuple) and (k if hasattr(k, "_fields") else None) is structure.make for k in kinds)
    if not fits or any(len(each) != width for each in elements):
        return None
    return list(map(list, zip(*elements, strict=True)))


def _parts_as(structure: TupleOf | DictOf | RecordOf, element: Element) -> list[Any] | None:
    """The children of an element in the order that `structure` gives; None where it does not fit."""
    if isinstance(structure, TupleOf):
        fits = isinstance(element, tuple) and len(element) == len(structure.children)
        return list(element) if fits else None
    if isinstance(structure, RecordOf):
        fits = type(element) is structure.make
        return [getattr(element, name) for name in structure.fields] if fits else None
    if type(element) is dict and len(element) == len(structure.keys):
        try:
            return [element[key] for key in structure.keys]
        except KeyError:
            return None
    fits = isinstance(element, dict) and element.keys() == set(structure.keys)
    return [element[key] for key in structure.keys] if fits else None


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Element:
    """The element with this structure, its leaves taken from an iterator."""
    if structure is LEAF:
        return next(leaves)
    if isinstance(structure, RaggedOf):
        return RaggedArray.from_nested_row_splits(next(leaves), [next(leaves) for _ in range(structure.levels)])
    if isinstance(structure, TupleOf):
        parts = tuple([next(leaves) if child is LEAF else unflatten(child, leaves) for child in structure.children])
        return parts if structure.make is None else structure.make(*parts)
    if isinstance(structure, RecordOf):
        return structure.make(
            **{n: unflatten(c, leaves) for n, c in zip(structure.fields, structure.children, strict=True)}
        )
    return {
        key: next(leaves) if child is LEAF else unflatten(child, leaves)
        for key, child in zip(structure.keys, structure.children, strict=True)
    }


def map_leaves(function: Callable[[Any], Any], element: Element, *, whole_ragged: bool = False) -> Element:
    """The same nest with what the function makes of each leaf; `whole_ragged`: a RaggedArray is one leaf."""
    leaves, structure = flatten(element, whole_ragged=whole_ragged)
    if structure is LEAF:
        return function(element)
    return unflatten(structure, map(function, leaves))


def graft(structure: Structure, grafts: Iterator[Structure]) -> Structure:
    """The structure with another one in the place of each of its leaves, from left to right."""
    if structure is LEAF:
        return next(grafts)
    if isinstance(structure, RaggedOf):
        raise TypeError("the parts of a RaggedArray have no structure of their own")
    return dataclasses.replace(structure, children=tuple(graft(child, grafts) for child in structure.children))


def is_ragged(structure: Structure) -> bool:
    """Whether there is a RaggedArray in the nest."""
    if isinstance(structure, TupleOf | DictOf | RecordOf):
        return any(map(is_ragged, structure.children))
    return isinstance(structure, RaggedOf)


def leaf_order(structure: Structure, other: Structure) -> list[int] | None:
    """For each leaf of a structure, which leaf of another one it is; None where they nest differently.

    Dicts may have their keys in other orders.
    """
    if structure == other:
        return list(range(leaf_count(structure)))
    if is_ragged(other):
        return None
    found: list[int] = []
    return found if flatten_as(structure, unflatten(other, iter(range(leaf_count(other)))), found) else None


def leaf_count(structure: Structure) -> int:
    """How many leaves the structure has."""
    if isinstance(structure, RaggedOf):
        return 1 + structure.levels
    return 1 if structure is LEAF else sum(leaf_count(child) for child in structure.children)


def leaf_names(structure: Structure, prefix: str = "") -> list[str]:
    """A name per leaf for error messages, such as ``image`` or ``[1].label``; empty for a bare leaf."""
    if structure is LEAF:
        return [prefix]
    if isinstance(structure, RaggedOf):
        dot = "." if prefix else ""
        return [f"{prefix}{dot}values", *(f"{prefix}{dot}row_splits[{level}]" for level in range(structure.levels))]
    if isinstance(structure, RecordOf):
        return [
            name
            for field, child in zip(structure.fields, structure.children, strict=True)
            for name in leaf_names(child, f"{prefix}.{field}" if prefix else field)
        ]
    if isinstance(structure, TupleOf):
        return [n for i, child in enumerate(structure.children) for n in leaf_names(child, f"{prefix}[{i}]")]
    return [
        name
        for key, child in zip(structure.keys, structure.children, strict=True)
        for name in leaf_names(child, f"{prefix}.{key}" if prefix else str(key))
    ]


def describe(structure: Structure, leaves: Iterator[str]) -> str:
    """The structure in words, with a text per leaf, as error messages show it."""
    if structure is LEAF:
        return next(leaves)
    if isinstance(structure, RaggedOf):
        return f"RaggedArray({', '.join(next(leaves) for _ in range(1 + structure.levels))})"
    if isinstance(structure, TupleOf):
        inner = ", ".join(describe(child, leaves) for child in structure.children)
        return f"{structure.make.__name__ if isinstance(structure.make, type) else ''}({inner})"
    if isinstance(structure, RecordOf):
        inside = ", ".join(
            f"{n}={describe(c, leaves)}" for n, c in zip(structure.fields, structure.children, strict=True)
        )
        return f"{getattr(structure.make, '__name__', '')}({inside})"
    pairs = zip(structure.keys, structure.children, strict=True)
    return "{" + ", ".join(f"{key}: {describe(child, leaves)}" for key, child in pairs) + "}"


def element_bytes(element: Element, deep: int = 16) -> int:
    """What the arrays, byte strings and texts of an element take, also those in lists and sets; numbers count there.

    Args:
        element: An element, or a leaf.
        deep: So many levels of lists and sets are looked into, which may contain themselves.
    """
    kind = type(element)
    nbytes = _BYTES_OF.get(kind)
    if nbytes is not None:
        return nbytes
    if kind is np.ndarray and not element.dtype.hasobject:
        return int(element.nbytes)
    if kind in _PAYLOADS:
        return len(element)
    if kind is dict or kind is tuple:
        nbytes = 0
        for part in element if kind is tuple else element.values():
            size = _BYTES_OF.get(type(part))
            nbytes += element_bytes(part, deep) if size is None else size
        return nbytes
    if issubclass(kind, np.ndarray | np.generic):
        inside = element.flat if deep and element.dtype.hasobject else ()
        return int(element.nbytes) + sum(element_bytes(item, deep - 1) for item in inside)
    if kind in _COLLECTIONS:
        inside = () if not deep or type(next(iter(element), None)) in _NUMBERS else element
        return _ITEM_BYTES * len(element) + sum(element_bytes(item, deep - 1) for item in inside)
    leaves, structure = flatten(element, whole_ragged=True)
    if structure is LEAF:
        nbytes = getattr(element, "nbytes", 0)
        return int(nbytes) if isinstance(nbytes, int | np.integer) else 0  # a method, or a class's descriptor
    return sum(element_bytes(leaf, deep) for leaf in leaves)
