"""`unique`: each element the first time it comes.

What was seen is remembered as keys (see `element_key`), so that memory follows the number of different elements, not
their size. It is Python's memory, not the arena's, and charged as bytes without a slab.

Where elements come in no fixed order, all keys are digests, and those of elements that were delivered are in the state.
Of equal elements that were not delivered, the first one to come again is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Foreseen, Ticket
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.rows.element_key import digest, earlier_stable_key, element_key, stable_key
from asyncdata.runtime.state.marker import FirstMark
from asyncdata.runtime.state.tracks import KEY_BYTES, Track
from asyncdata.workers.failure import annotate

_KEY_BYTES: Final = 150
"""What one leaf of an element that was seen costs, about: its place in the set and the key."""
_NEST_BYTES: Final = 250
"""What a nest costs besides."""
_AT_ONCE: Final = 8
"""Of what is charged, one part in so many is charged at a time."""


class UniqueStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        track: Knows what was delivered, where elements come in no fixed order.
    """

    def __init__(self, context: StageContext, upstream: Stage, track: Track | None = None) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._track = track
        self._seen: set[Hashable] = set() if track is None else {key.tobytes() for key in track.saved.keys}
        self._resumed = bool(self._seen)
        self._passed = 0 if track is None else track.saved.delivered
        self._budget = context.budget
        self._account = context.kept
        self._account.foresee = self._foresee
        self._tickets: list[Ticket] = []
        self._charged = 0
        self._each = _KEY_BYTES
        self._error: BaseException | None = None
        self._first_mark = FirstMark()

    def _foresee(self) -> Foreseen:
        """Nobody knows how many there will be: twice as many as there are."""
        count = len(self._seen)
        return Foreseen(2 * count, count, self._each * count, is_guess=True)

    async def _pull(self, limit: int) -> Block | None:
        await self._pause()
        if self._error is not None:
            raise self._error
        block = self._block = await self._upstream.pull(limit)
        if block is None:
            if self._track is not None:
                self._track.ends(self._passed)
            return None
        if block.advance.ordered:
            self._first_mark.feed(block.advance)
        keys, self._error = _keys(block, element_key if self._track is None else stable_key)
        if self._error is not None:
            self.context.sources.locate(self._error, self.label, block.origin[len(keys)])
        if self._track is not None:
            keys = list(map(_digest, keys))
            if self._resumed and (block.structure is not LEAF or block.has_nests):
                keys = self._as_kept(block, keys)
        elif block.structure is not LEAF:
            self._each = max(self._each, _NEST_BYTES + _KEY_BYTES * len(block.columns))
        await self._charge(len(self._seen) + len(set(keys).difference(self._seen)))
        self._block = None
        kept: list[int] = []
        rows = self._add(keys, kept, self._charged // self._each)
        if rows < len(block):
            # What came before is delivered first.
            block, rest = block.split(rows)
            rest.release()
        if len(kept) < len(block):
            block = block.select(np.array(kept, np.int64))
        # What was seen is part of the state, and nothing that a mark could hold.
        block.advance = block.advance.with_marks(self._first_mark.marks(len(block)))
        if self._track is not None:
            numbers = self._track.next_numbers(len(kept))
            digests = b"".join([keys[row] for row in kept])  # type: ignore[misc]  # all are digests
            self._track.remembers(numbers, np.frombuffer(digests, np.int64).reshape(-1, 2))
            block.advance = self._track.counted(block.advance, numbers)
            self._passed += len(kept)
        return block

    def _as_kept(self, block: Block, keys: list[Hashable]) -> list[Hashable]:
        """The keys, or those of an earlier release, where its state has these."""
        earlier = map(_digest, _keys(block, earlier_stable_key)[0])
        return [old if old in self._seen else key for old, key in zip(earlier, keys, strict=True)]

    async def _charge(self, count: int) -> None:
        """Charges so many keys; notes the error if there is no memory for them."""
        missing = count * self._each - self._charged
        if missing <= 0:
            return
        nbytes = max(missing, self._charged // _AT_ONCE)
        try:
            self._tickets.append(await self._budget.charge_only(self._account, nbytes))
        except MemoryLimitError as error:
            annotate(error, f"{len(self._seen)} different elements are remembered, and there are more of them")
            self._error = error
        else:
            self._charged += self._budget.charge(nbytes)

    def _add(self, keys: list[Hashable], kept: list[int], most: int) -> int:
        """Notes which rows are new; how many were looked at until there was no room for one more."""
        for row, key in enumerate(keys):
            if key in self._seen:
                continue
            if len(self._seen) >= most:
                return row
            self._seen.add(key)
            kept.append(row)
        return len(keys)

    async def aclose(self) -> None:
        tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            self._budget.give(ticket)
        await super().aclose()


def _keys(block: Block, key: Callable[[Any], Hashable]) -> tuple[list[Hashable], Exception | None]:
    """Keys of the rows up to one that has none, and why."""
    if block.structure is LEAF and block.columns and isinstance(block.columns[0], ArrayColumn):
        array = block.columns[0].array
        if array.ndim == 1 and array.dtype.kind in "iub":
            name = array.dtype.newbyteorder("=").str  # that of the numbers, which are the elements
            return [(name, value) for value in array.tolist()], None
    keys: list[Hashable] = []
    try:
        keys.extend(map(key, block.elements()))
    except Exception as error:  # noqa: BLE001 -- raised once the rows before it are delivered
        return keys, error
    return keys, None


def _digest(key: Hashable) -> bytes:
    return digest(repr(key).encode("utf-8", "surrogatepass"))[:KEY_BYTES].ljust(16, b"\0")
