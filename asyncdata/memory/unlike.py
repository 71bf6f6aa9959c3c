"""Why elements do not make one batch, told in the same way wherever they were put together.

A batch is made of one leaf after the other, of all its elements. So the first error is not that of the first element
that is wrong:

1. the first element that nests differently from the batch's first one;
2. for each leaf in turn, the first element whose leaf cannot be batched, or is of another kind than the first one's;
3. then, of the same leaf, the first one with a value that has no place there: a text that is no Unicode, or a number
   that is too large.

Tasks that make parts of a batch keep what decides that, which is little, whatever the elements are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from asyncdata.errors import UnbatchableError
from asyncdata.memory.layout import as_bytes, mismatch, refuse_ragged, row_leaf, structure_mismatch
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.narrow import fits, halved_leaf, too_large
from asyncdata.memory.structure import LEAF, Structure, flatten, flatten_as, leaf_names, leaf_order

Kind: TypeAlias = Leaf | UnbatchableError
"""What an element's leaf is in a batch, or why it is nothing."""


@dataclass(slots=True)
class Kinds:
    """What the elements of a part of a batch are, as far as others differ from the first of them.

    Attributes:
        size: Elements of the whole batch.
        narrow: Whether numbers of 64 bits are written in 32.
        count: Elements of this part so far.
        structure: How the first one nests.
        leaves: What its leaves are.
        nests: The first element that nests differently, and how.
        others: Per leaf, the first element that cannot be batched or is of another kind, and what it is.
        values: Per leaf, the first element whose value has no place, and why.
    """

    size: int
    narrow: bool
    count: int = 0
    structure: Structure = LEAF
    leaves: tuple[Kind, ...] = ()
    nests: tuple[int, Structure] | None = None
    others: dict[int, tuple[int, Kind]] = field(default_factory=dict)
    values: dict[int, tuple[int, UnbatchableError]] = field(default_factory=dict)

    def add_alike(self, structure: Structure, leaves: Iterable[Leaf], count: int) -> None:
        """Takes the first elements, which are alike."""
        self.structure, self.leaves, self.count = structure, tuple(leaves), count

    def add(self, element: Any) -> None:
        """Takes the next element."""
        if not self.count:
            found, self.structure = flatten(element)
            self.leaves = tuple(map(self._kind, found))
        elif not flatten_as(self.structure, element, found := []):
            self.nests = self.nests or (self.count, flatten(element)[1])
            found = []
        for leaf, value in enumerate(found):
            self._compare(leaf, value)
        self.count += 1

    def _compare(self, leaf: int, value: Any) -> None:
        if leaf in self.others:
            return
        kind = self._kind(value) if self.count else self.leaves[leaf]
        if isinstance(kind, UnbatchableError) or kind != self.leaves[leaf]:
            self.others[leaf] = self.count, kind
        elif leaf not in self.values:
            try:
                self._place(kind, value)
            except UnbatchableError as error:
                self.values[leaf] = self.count, error

    def _kind(self, value: Any) -> Kind:
        try:
            leaf = row_leaf(value, self.size)
        except UnbatchableError as error:
            return error
        return halved_leaf(leaf) if self.narrow else leaf

    def _place(self, kind: Leaf, value: Any) -> None:
        if kind.kind == "table":
            as_bytes(value)
        elif kind.wide and not fits(np.asarray(value), np.dtype(kind.dtype)):
            raise too_large(np.dtype(kind.wide), np.dtype(kind.dtype))


def first_misfit(parts: Iterable[tuple[int, Kinds]]) -> tuple[int, UnbatchableError]:
    """Which element of a batch is to blame, and for what.

    Args:
        parts: Those of the batch, in order, each with the place of its first element; they are not all alike.
    """
    (_, first), *_ = parts = [(start, part) for start, part in parts if part.count]
    for start, part in parts:
        if leaf_order(first.structure, part.structure) is None:
            return start, structure_mismatch(first.structure, part.structure, start)
        if part.nests is not None:
            row, structure = part.nests
            return start + row, structure_mismatch(first.structure, structure, start + row)
    try:
        refuse_ragged(first.structure)
    except UnbatchableError as error:
        return 0, error
    names = leaf_names(first.structure)
    leaf, (row, found) = next((leaf, each) for leaf in range(len(names)) for each in _errors(parts, leaf))
    found.complete(leaf=names[leaf] or None)
    return row, found


def _errors(parts: list[tuple[int, Kinds]], leaf: int) -> Iterator[tuple[int, UnbatchableError]]:
    """What is wrong with one leaf, the most important error first."""
    first = parts[0][1]
    wanted = first.leaves[leaf]
    orders = (leaf_order(first.structure, part.structure) for _, part in parts)
    at = [leaf if order is None else order[leaf] for order in orders]
    for (start, part), there in zip(parts, at, strict=True):
        for row, kind in ((0, part.leaves[there]), part.others.get(there, (0, wanted))):
            if isinstance(kind, UnbatchableError):
                yield start + row, kind
            elif kind != wanted:
                assert isinstance(wanted, Leaf)
                yield start + row, mismatch(LEAF, [wanted], [kind], start + row)
    for (start, part), there in zip(parts, at, strict=True):
        if there in part.values:
            row, error = part.values[there]
            yield start + row, error
