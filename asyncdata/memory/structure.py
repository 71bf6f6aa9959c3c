"""Nested elements taken apart into leaves, and put together again.

tuple, namedtuple and dict are structure, and so is a `RaggedArray`: its flat values and the splits of every level are
leaves of their own. Everything else is a leaf. A `Structure` is plain picklable data, so that it can describe a batch
across processes. Dict keys keep the order of the first element seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

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
class RaggedOf:
    """A RaggedArray: its flat values, then the row splits of each of its levels, outermost first."""

    levels: int


Structure: TypeAlias = "TupleOf | DictOf | RaggedOf | None"
"""``None`` is a leaf."""

LEAF: Final = None


def flatten(element: Element) -> tuple[list[Any], Structure]:
    """The leaves of an element from left to right, and its structure."""
    leaves: list[Any] = []
    return leaves, _flatten_into(element, leaves)


def _flatten_into(element: Element, leaves: list[Any]) -> Structure:
    if isinstance(element, tuple):
        make = type(element) if hasattr(element, "_fields") else None
        return TupleOf(tuple(_flatten_into(child, leaves) for child in element), make)
    if isinstance(element, dict):
        return DictOf(tuple(element), tuple(_flatten_into(child, leaves) for child in element.values()))
    if isinstance(element, RaggedArray):
        splits = element.nested_row_splits
        leaves += (element.flat_values, *splits)
        return RaggedOf(len(splits))
    leaves.append(element)
    return LEAF


def flatten_as(structure: Structure, element: Element, leaves: list[Any]) -> bool:
    """Appends the leaves of an element in the order that `structure` gives; False where it does not fit."""
    if structure is LEAF:
        if isinstance(element, tuple | dict | RaggedArray):
            return False
        leaves.append(element)
        return True
    if isinstance(structure, RaggedOf):
        if not isinstance(element, RaggedArray) or element.ragged_rank != structure.levels:
            return False
        leaves += (element.flat_values, *element.nested_row_splits)
        return True
    if isinstance(structure, TupleOf):
        if not isinstance(element, tuple) or len(element) != len(structure.children):
            return False
        return all(flatten_as(child, part, leaves) for child, part in zip(structure.children, element, strict=True))
    if not isinstance(element, dict) or len(element) != len(structure.keys):
        return False
    return all(
        key in element and flatten_as(child, element[key], leaves)
        for key, child in zip(structure.keys, structure.children, strict=True)
    )


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Element:
    """The element with this structure, its leaves taken from an iterator."""
    if structure is LEAF:
        return next(leaves)
    if isinstance(structure, RaggedOf):
        return RaggedArray.from_nested_row_splits(next(leaves), [next(leaves) for _ in range(structure.levels)])
    if isinstance(structure, TupleOf):
        parts = tuple(unflatten(child, leaves) for child in structure.children)
        return parts if structure.make is None else structure.make(*parts)
    return {key: unflatten(child, leaves) for key, child in zip(structure.keys, structure.children, strict=True)}


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
    pairs = zip(structure.keys, structure.children, strict=True)
    return "{" + ", ".join(f"{key}: {describe(child, leaves)}" for key, child in pairs) + "}"
