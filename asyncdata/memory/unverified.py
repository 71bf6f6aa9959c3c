"""Payloads whose checksum nobody has verified yet, in whatever column they are.

Most lie in the arena, and the leaf of their column says so. Rows of different sources that come together in one block
are no longer of one leaf, or are Python objects: then the leaf of the row says it, or an `Unverified` that carries the
checksum along.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Rows
from asyncdata.memory.columns import Column, ObjectColumn, RefColumn, Unverified
from asyncdata.memory.structure import flatten, map_leaves
from asyncdata.types import Element

Check = Callable[[npt.NDArray[np.uint8], Rows], Rows]
"""Returns the positions of rows whose checksum, which lies behind the payload, does not hold."""


def unverified_rows(column: Column) -> Rows:
    """The rows that were not verified, ascending."""
    if isinstance(column, RefColumn):
        if column.leaf is not None:
            return np.arange(len(column) if column.leaf.unchecked else 0)
        return np.flatnonzero([column.leaf_at(row).unchecked for row in range(len(column))])
    if isinstance(column, ObjectColumn):
        return np.flatnonzero([bool(_payloads(item)) for item in column.items])
    return np.arange(0)


def holds(element: Element, check: Check) -> bool:
    """Whether every checksum that an element of a column of objects carries is that of its payload."""
    return not any(
        len(check(np.frombuffer(payload + payload.footer, np.uint8), np.array([[0, len(payload)]])))
        for payload in _payloads(element)
    )


def verified(column: Column) -> Column:
    """The same rows after all have been verified."""
    if isinstance(column, RefColumn):
        if column.leaf is not None:
            return RefColumn(column.slabs, column.rows, dataclasses.replace(column.leaf, unchecked=False))
        leaves = np.empty(len(column), object)
        leaves[:] = [dataclasses.replace(column.leaf_at(row), unchecked=False) for row in range(len(column))]
        return RefColumn(column.slabs, column.rows, None, leaves)
    return ObjectColumn(list(map(plain, column.items))) if isinstance(column, ObjectColumn) else column


def plain(element: Element) -> Element:
    """An element of a column of objects without the checksums it carries."""
    if not _payloads(element):
        return element
    return map_leaves(lambda leaf: bytes(leaf) if type(leaf) is Unverified else leaf, element)


def _payloads(element: Any) -> list[Unverified]:
    if isinstance(element, tuple | dict):
        return [leaf for leaf in flatten(element)[0] if type(leaf) is Unverified]
    return [element] if type(element) is Unverified else []
