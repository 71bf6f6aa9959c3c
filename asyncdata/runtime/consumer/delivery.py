"""What leaves the runtime: offsets, kinds and shapes, turned into elements by the consumer.

A delivery is one block at the consumer's edge. Its bytes stay in the arena; the consumer's arrays view them through one
lease, whose end gives the rows back. Where the slabs that its rows lie in are more than the consumer's share of the
memory, its rows are put together in one slab. When even that is too much, because the consumer keeps what it was given,
they are lent until the consumer takes them, which makes a private copy: nothing ever waits for a consumer to let go.
"""

from __future__ import annotations

import functools
import pickle
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, RefColumn
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.lease import Lease, Returns
from asyncdata.memory.structure import Structure, unflatten
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.memory.packing import Packer, RefLeaf
from asyncdata.runtime.state.news import News
from asyncdata.types import Element

_PARTS: Final = 4
"""Deliveries that fit into the consumer's share: one is held, one waits, one is being made, one is being let go."""


_FINE: Final = 32
"""A slab is small that is at most this part of the limit."""

ColumnParts: TypeAlias = tuple[RefLeaf | npt.NDArray[Any] | list[Any], ...]
"""One leaf of all elements each: in the arena, an array whose first axis is the element, or a list of objects."""


class Delivery:
    """Elements for the consumer, made one at a time when they are asked for.

    Attributes:
        structure: How the leaves nest.
        columns: The leaves.
        base: The arena through one lease, or a private copy; None when no leaf lies in it.
        to_copy: The base is lent for a moment only: see `taken`.
        advance: What consuming the elements means for the state.
        origin: Their provenance.
        news: What states must know of the pipeline since the delivery before.
    """

    __slots__ = ("_rows", "advance", "base", "columns", "news", "origin", "structure", "to_copy")

    def __init__(
        self,
        structure: Structure,
        columns: ColumnParts,
        base: npt.NDArray[np.uint8] | None,
        origin: Rows,
        advance: Advance,
        *,
        to_copy: bool = False,
    ) -> None:
        self.structure = structure
        self.columns = columns
        self.base = base
        self._rows = len(origin)
        self.origin = origin
        self.advance = advance
        self.to_copy = to_copy
        self.news: News | None = None

    def __len__(self) -> int:
        return self._rows

    def element(self, row: int) -> Element:
        """One element; arrays and byte batches are views that keep the memory alive."""
        if self.structure is None:
            return self._leaf(self.columns[0], row)
        return unflatten(self.structure, (self._leaf(column, row) for column in self.columns))

    def taken(self) -> Delivery:
        """What the consumer gets when it takes this; in ordinary memory where the base is lent for a moment only."""
        if not self.to_copy:
            return self
        base, packed = self.packer().write_apart()
        return self.moved(base, packed)

    def packer(self) -> Packer:
        """Knows what the rows in the arena need when they are put together."""
        assert self.base is not None
        packer = Packer(self.base)
        for column in self.columns:
            if isinstance(column, RefLeaf):
                packer.add(column)
        return packer

    def moved(self, base: npt.NDArray[np.uint8], packed: tuple[RefLeaf, ...]) -> Delivery:
        """The same elements, whose rows have been packed elsewhere."""
        left = iter(packed)
        columns = tuple(next(left) if isinstance(column, RefLeaf) else column for column in self.columns)
        delivery = Delivery(self.structure, columns, base, self.origin, self.advance)
        delivery.news = self.news
        return delivery

    def _leaf(self, column: RefLeaf | npt.NDArray[Any] | list[Any], row: int) -> Any:
        if not isinstance(column, RefLeaf):
            return column[row]
        assert self.base is not None
        offset, length = column.rows[row].tolist()
        return view_leaf(self.base, offset, length, column.leaf_at(row))


def view_leaf(base: npt.NDArray[np.uint8], offset: int, length: int, leaf: Leaf) -> Any:
    """What one row is, as a view where it can be one."""
    part = base[offset : offset + length]
    if leaf.kind == "array":
        array = part[: leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
        return array[()] if leaf.shape == () else array
    if leaf.kind == "table":
        return BytesArray(base, part.view(np.int64).reshape(leaf.shape[0], 2), text=leaf.text)
    if leaf.kind == "bytes":
        return part.tobytes()
    if leaf.kind == "str":
        return str(part.data, "utf-8")
    # Written by this pipeline's own processes, never by storage.
    return pickle.loads(part.data)  # noqa: S301 -- see above


class _Extent(NamedTuple):
    """What some elements take.

    Attributes:
        holds: The slabs that their rows lie in, ascending, and how often these hold each.
        nbytes: Bytes of their arrays, byte strings and texts.
    """

    holds: list[tuple[int, int]]
    nbytes: int


class Deliverer:
    """Makes deliveries of blocks; stage loop only.

    Args:
        budget: Whose slabs they are.
        account: The consumer's; charged with every slab that only deliveries hold.
        returns: How ended leases come back.
        share_bytes: Slabs the consumer may hold before it gets private copies; what it still holds of earlier
            iterators is a part of them.
        fine_share_bytes: The same as long as none of them is large; None: no other figure.
        remote: The consumer is another process, which makes private copies by itself.

    Attributes:
        elements: Handed over so far.
        nbytes: Bytes of their arrays, byte strings and texts.
        deliveries: In how many parts.
        copies: Those of them of which the consumer makes private copies.
        packed: Those of them that were put together in slabs of their own.
    """

    def __init__(
        self,
        budget: Budget,
        account: Account,
        returns: Returns,
        share_bytes: int,
        *,
        fine_share_bytes: int | None = None,
        remote: bool = False,
    ) -> None:
        self._budget = budget
        self._account = account
        self._returns = returns
        self._share = share_bytes
        self._fine_share = share_bytes if fine_share_bytes is None else fine_share_bytes
        self._remote = remote
        self._kept = budget.kept
        self.elements = 0
        self.nbytes = 0
        self.deliveries = 0
        self.copies = 0
        self.packed = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of slabs that the consumer holds, those of batches of earlier iterators included."""
        return self._kept.nbytes

    def deliver(self, block: Block) -> tuple[Delivery, Block | None]:
        """Hands the first elements of a block over to the consumer; returns them, and the rest if there is one.

        So many that the consumer, who holds one delivery while the next is waiting, stays inside its share; even if
        all it ever keeps is one element.
        """
        delivery, nbytes, rest = self._first(block)
        self.elements += len(delivery)
        self.nbytes += nbytes
        self.deliveries += 1
        return delivery, rest

    def _first(self, block: Block) -> tuple[Delivery, int, Block | None]:
        if not any(isinstance(column, RefColumn) for column in block.columns):
            part, rest = _cut(block, self._crossing(block)) if self._remote else (block, None)
            return self._lent(part, None), part.payload_bytes(len(part)), rest
        free = self._share - self._kept.nbytes
        count = len(block)
        extent = self._extent(block, count)
        grown = self._grown(extent)
        fits = grown <= min(self._share // _PARTS, free)
        if not fits and self._is_fine(extent):
            free = self._fine_share - self._kept.nbytes
        if not fits and (least := self._grown(self._extent(block, 1))) <= free:
            fits = True
            most = max(min(self._share // _PARTS, free), least)
            while grown > most:
                count = max(count // 2, 1)
                grown = self._grown(self._extent(block, count))
        if not fits:
            while count > 1 and block.payload_bytes(count) > self._share // _PARTS:
                count //= 2
        part, rest = _cut(block, count)
        if rest is not None:
            extent = self._extent(part, count)
        self._budget.slabs.claim(extent.holds)
        slabs = [index for index, _ in extent.holds]
        if fits:
            return self._lent(part, self._lend(slabs)), extent.nbytes, rest
        delivery = None if self._remote else self._packed(self._lent(part, self._budget.slabs.arena.array))
        if delivery is None:
            self.copies += 1
            return self._lent(part, self._lend_for_now(slabs), to_copy=True), extent.nbytes, rest
        self._drop(slabs)
        return delivery, extent.nbytes, rest

    def _packed(self, delivery: Delivery) -> Delivery | None:
        """The rows put together in a slab, which is warm, if that fits into the consumer's share."""
        packer = delivery.packer()
        if self._kept.nbytes + self._budget.charge(packer.nbytes) > self._share:
            return None
        try:
            slab = self._budget.take_now(self._account, packer.nbytes)
        except OSError:
            return None  # there is no room for a copy here: the consumer makes it
        if slab is None:
            return None
        self.packed += 1
        packed = packer.write(self._budget.slabs.arena.view, slab.offset)
        return delivery.moved(self._lend([slab.index]), packed)

    def _crossing(self, block: Block) -> int:
        """How many elements that lie outside the arena are sent to another process at a time."""
        count = len(block)
        while count > 1 and block.payload_bytes(count) > self._share // _PARTS:
            count //= 2
        return count

    def _extent(self, block: Block, count: int) -> _Extent:
        """What the first elements of a block take; their tables are read once for all of it."""
        offsets: list[Rows] = []
        nbytes = 0
        for column in block.columns:
            if isinstance(column, RefColumn):
                part = column if count == len(block) else column.pick(slice(count))
                for rows in (part.rows, *part.tables()):
                    offsets.append(rows[:, 0])
                    nbytes += int(rows[:, 1].sum())
            elif isinstance(column, ArrayColumn):
                nbytes += column.array[:count].nbytes
        holds = self._budget.slabs.holds_of(offsets[0] if len(offsets) == 1 else np.concatenate(offsets))
        return _Extent(holds, nbytes)

    def _grown(self, extent: _Extent) -> int:
        """The bytes of those slabs that the consumer does not hold."""
        lent = self._kept.counts
        others = self._budget.slabs.by_index([index for index, _ in extent.holds if index not in lent])
        return sum([slab.nbytes for slab in others])

    def _is_fine(self, extent: _Extent) -> bool:
        """Whether all of them are small."""
        most = self._budget.limit // _FINE
        slabs = self._budget.slabs.by_index([index for index, _ in extent.holds])
        return all(slab.nbytes <= most for slab in slabs)

    @staticmethod
    def _lent(block: Block, base: npt.NDArray[np.uint8] | None, *, to_copy: bool = False) -> Delivery:
        columns = tuple(
            RefLeaf(column.rows, column.leaf, column.leaves)
            if isinstance(column, RefColumn)
            else (column.array if isinstance(column, ArrayColumn) else column.items)
            for column in block.columns
        )
        return Delivery(block.structure, columns, base, block.origin, block.advance, to_copy=to_copy)

    def _lend(self, slabs: list[int]) -> npt.NDArray[np.uint8]:
        lent = self._budget.slabs.by_index(slabs)
        self._kept.lend(lent)
        self._budget.charge_consumer(lent, self._account)

        def release() -> None:
            self._kept.take_back(lent)
            self._budget.slabs.drop_each(lent)

        return Lease(self._budget.slabs.arena.array, self._returns, release).bytes()

    def _lend_for_now(self, slabs: list[int]) -> npt.NDArray[np.uint8]:
        """For as long as a copy takes: not counted as kept."""
        release = functools.partial(self._drop, slabs)
        return Lease(self._budget.slabs.arena.array, self._returns, release).bytes()

    def _drop(self, slabs: list[int]) -> None:
        self._budget.slabs.drop_each(self._budget.slabs.by_index(slabs))


def _cut(block: Block, count: int) -> tuple[Block, Block | None]:
    return block.split(count) if count < len(block) else (block, None)
