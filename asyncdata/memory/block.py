"""Blocks: what stages exchange.

A block holds consecutive elements of a stage's output as columns, one per leaf, with the provenance of each element and
the advance that consuming them means. The cost of a stage is paid per block, not per element.

Ownership is linear: the owner of a block owns what its rows hold, and either passes the block on (whole, `split`,
`select`, `concat`) or calls `release`. After any of these the original must not be used.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from typing import Final

import numpy as np

from asyncdata.memory.advance import NO_ORIGINS, SUB_INDEX, Advance, Rows
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn, concat
from asyncdata.memory.structure import LEAF, DictOf, Structure, has_structure, unflatten
from asyncdata.types import Element

_BLOCKS_WITHOUT_ROWS: Final = 256
"""So many in a row are joined: a filter gives any number of them, and the marks of joined ones are copied again."""


class Block:
    """Consecutive elements of one structure, or bare objects, whose structures may differ. No leaf is a nest.

    Attributes:
        structure: How the leaves nest.
        columns: One per leaf, all of the same length.
        origin: ``int64[n, 4]`` provenance of each element (see `memory.advance`).
        advance: What consuming the elements means upstream.
    """

    __slots__ = ("advance", "columns", "origin", "structure")

    def __init__(self, structure: Structure, columns: tuple[Column, ...], origin: Rows, advance: Advance) -> None:
        self.structure = structure
        self.columns = columns
        self.origin = origin
        self.advance = advance

    @classmethod
    def empty(cls, advance: Advance) -> Block:
        """No elements, only the news that something upstream was used up."""
        return cls(LEAF, (), NO_ORIGINS, advance)

    def __len__(self) -> int:
        return len(self.origin)

    def __repr__(self) -> str:
        kinds = ", ".join(type(column).__name__ for column in self.columns)
        return f"Block({len(self)} elements, {kinds or 'no columns'})"

    @property
    def nbytes(self) -> int:
        """Payload bytes of the elements."""
        return sum(column.nbytes for column in self.columns)

    def move(self, by: int) -> None:
        """Moves the numbers of the elements' sources (exclusive or), see `SourceTable.move`."""
        self._move(0, by)

    def move_sub_indices(self, by: int) -> None:
        """Moves the sub-indices of the elements (exclusive or), see `Stage.sub_index`."""
        self._move(SUB_INDEX, by)

    def _move(self, column: int, by: int) -> None:
        if by and len(self):
            self.origin = self.origin.copy()
            self.origin[:, column] ^= by

    def payload_bytes(self, count: int) -> int:
        """Bytes of the first `count` elements, with those that their tables refer to; not of bare objects."""
        total = 0
        for column in self.columns:
            if isinstance(column, RefColumn):
                part = column.pick(slice(count))
                total += part.nbytes + sum(int(table[:, 1].sum()) for table in part.tables())
            elif isinstance(column, ArrayColumn):
                total += column.array[:count].nbytes
        return total

    def split(self, row: int) -> tuple[Block, Block]:
        """The first `row` elements and the rest."""
        head, tail = self.advance.split(row)
        parts = [column.split(row) for column in self.columns]
        return (
            Block(self.structure, tuple(a for a, _ in parts), self.origin[:row], head),
            Block(self.structure, tuple(b for _, b in parts), self.origin[row:], tail),
        )

    def select(self, kept: Rows) -> Block:
        """Only the elements at these ascending indices; the others are released but stay used up."""
        columns = tuple(column.gather(kept) for column in self.columns)
        self.release()
        return Block(self.structure, columns, self.origin.take(kept, axis=0), self.advance.select(kept))

    def reorder(self, order: Rows, advance: Advance) -> Block:
        """All elements in another order (a permutation), with an advance of the caller's making."""
        columns = tuple(column.pick(order) for column in self.columns)
        return Block(self.structure, columns, self.origin.take(order, axis=0), advance)

    def release(self) -> None:
        """Gives back everything the elements hold."""
        for column in self.columns:
            column.release()

    def element(self, row: int) -> Element:
        """One element, for reading only: with private copies of what lies in the arena, and views of other arrays."""
        if self.structure is LEAF:
            return self.columns[0].element(row)
        return unflatten(self.structure, (column.element(row) for column in self.columns))

    def private(self, row: int) -> Element:
        """One element as a function is given it, which may write to it."""
        if self.structure is LEAF:
            return self.columns[0].private(row)
        return unflatten(self.structure, (column.private(row) for column in self.columns))

    def privates(self) -> Iterator[Element]:
        """All elements as a function is given them, each made when its turn comes."""
        structure = self.structure
        if not self.columns:
            return (unflatten(structure, iter(())) for _ in range(len(self)))
        if structure is LEAF:
            return self.columns[0].privates()
        rows = zip(*[column.privates() for column in self.columns], strict=True)
        if isinstance(structure, DictOf) and all(child is LEAF for child in structure.children):
            return (dict(zip(structure.keys, leaves, strict=True)) for leaves in rows)
        return (unflatten(structure, iter(leaves)) for leaves in rows)

    def elements(self) -> list[Element]:
        """All of them."""
        return [self.element(row) for row in range(len(self))]

    @property
    def has_nests(self) -> bool:
        """Whether elements are bare objects because they are not all alike, and nests all the same."""
        column = self.columns[0] if self.columns else None
        if self.structure is not LEAF or not isinstance(column, ObjectColumn):
            return False
        return any(map(has_structure, set(map(type, column.items))))

    def as_objects(self) -> Block:
        """The same elements as bare Python objects, whatever their structure."""
        if self.structure is LEAF:
            return self
        elements = self.elements()
        self.release()
        return Block(LEAF, (ObjectColumn(elements),), self.origin, self.advance)

    @staticmethod
    def concat(blocks: Sequence[Block]) -> Block:
        """One block of all elements; blocks without rows add their advance. Unlike structures become bare objects."""
        if len(blocks) == 1:
            return blocks[0]
        advance = Advance.concat([block.advance for block in blocks])
        full = [block for block in blocks if len(block)]
        if not full:
            return Block.empty(advance)
        if any(block.structure != full[0].structure for block in full):
            full = [block.as_objects() for block in full]
        columns = tuple(concat(parts) for parts in zip(*(block.columns for block in full), strict=True))
        origin = np.concatenate([block.origin for block in full])
        return Block(full[0].structure, columns, origin, advance)

    def add_to(self, parts: MutableSequence[Block]) -> None:
        """Appends this block to others that wait, whose number stays small as long as there are no rows."""
        parts.append(self)
        if len(parts) % _BLOCKS_WITHOUT_ROWS:
            return
        if not any(len(parts[-place]) for place in range(1, _BLOCKS_WITHOUT_ROWS + 1)):
            empty = [parts.pop() for _ in range(_BLOCKS_WITHOUT_ROWS)]
            parts.append(Block.concat(empty[::-1]))
