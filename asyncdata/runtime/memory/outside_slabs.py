"""Charges a stage with what it holds outside of slabs: small numbers, references, and the bookkeeping of its rows."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Final

from asyncdata.memory.accounts import Account, Ticket
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column, ObjectColumn, RefColumn
from asyncdata.runtime.memory.budget import Budget

_PART: Final = 64
"""One part in so many of the limit is charged at a time; less than one is not charged at all."""

_TIMES: Final = 2
"""What lies outside of slabs is there twice while blocks are put together."""

_OBJECT_BYTES: Final = 120
"""Of an object in a list: its place there and its header."""


class OutsideSlabs:
    """See the module's docstring.

    Args:
        budget: Of the pipeline.
        account: Of the stage.
    """

    def __init__(self, budget: Budget, account: Account) -> None:
        self._budget = budget
        self._account = account
        self._step = budget.charge(budget.limit // _PART)
        self._tickets: list[Ticket] = []
        self._held = 0

    async def add(self, block: Block, row_bytes: int = 0) -> None:
        """The stage has collected another block, and knows so much more of each element. See `hold`."""
        await self.hold(self._held + _TIMES * bytes_outside(block) + row_bytes * len(block))

    def drop(self, block: Block) -> None:
        """So much of what was added has left; it is charged until the next block is added."""
        # Blocks that were put together take as much as their parts, or more.
        self._held = max(0, self._held - _TIMES * bytes_outside(block))

    def put_back(self, block: Block) -> None:
        """Of what was dropped this has not left."""
        self._held += _TIMES * bytes_outside(block)

    @property
    def charged_bytes(self) -> int:
        """What is charged now."""
        return len(self._tickets) * self._step

    async def hold(self, nbytes: int) -> None:
        """The stage holds so many bytes from now on; waits until there is memory for them.

        Raises:
            MemoryLimitError: There never will be.
        """
        self._held = nbytes
        self._give_all_but(nbytes // self._step)
        while len(self._tickets) < nbytes // self._step:
            self._tickets.append(await self._budget.charge_only(self._account, self._step))

    def _give_all_but(self, count: int) -> None:
        while len(self._tickets) > count:
            self._budget.give(self._tickets.pop())

    def close(self) -> None:
        """The stage holds nothing any more."""
        self._held = 0
        self._give_all_but(0)


def bytes_outside(block: Block) -> int:
    """What a block takes beside its slabs."""
    used = block.advance.used
    return (
        sum(map(_outside, block.columns))
        + block.origin.nbytes
        + (0 if used is None else used.pairs.nbytes + (0 if used.ends is None else _OBJECT_BYTES * len(block)))
    )


def _outside(column: Column) -> int:
    if isinstance(column, RefColumn):
        return int(column.rows.nbytes) + (0 if column.leaves is None else int(column.leaves.nbytes))
    return column.nbytes + (_OBJECT_BYTES * len(column) if isinstance(column, ObjectColumn) else 0)


def trim_heap() -> None:
    """Gives back to the system what the C library keeps of objects that are gone: up to 64 MB by itself, uncharged.

    Takes some milliseconds for a large heap.
    """
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    # glibc has it, other C libraries do not.
    found: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", int)
    return found
