"""`LyingBuffer`: a resumed shuffle's buffer whose rows are read where they lie, those first that are drawn first.

    slots      0        1        2        3         draws are known: slot 2 next, then 0, …
    rows       lies     here     coming   lies
                                   ▲
    files ─▶ picked rows ──────────┘                by the turn of their slots, two blocks ahead

The first output waits for its own row only. Rows whose slots are drawn while outputs are dropped, because they were
delivered before the state was taken, are not read at all: the input has taken their slots by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from asyncdata.errors import StateError
from asyncdata.memory.advance import SUB_INDEX, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, alike, concat
from asyncdata.runtime.stage import BLOCK_ROWS, Ahead, Stage, StageContext
from asyncdata.runtime.stages.order.history_columns import history_of
from asyncdata.runtime.stages.order.picked import PickedStage
from asyncdata.runtime.state.places import Places, by_place
from asyncdata.runtime.state.restored import Pick

LIES: Final = -1
"""Instead of the number of a row that was not read."""

_GONE: Final = -2
"""Instead of the number of a row that has left a buffer that is emptied."""

FEW: Final = 64
"""Outputs that leave together while rows lie elsewhere: none waits for the rows of many others."""

_AHEAD: Final = 2

_SIDES: Final = ("left", "right")


@dataclass(slots=True)
class _Reading:
    """Rows on their way.

    Attributes:
        stage: Reads them.
        ahead: What has come.
        origin: Their places, in order.
        slots: To which they belong, likewise.
        first: The stage that asks for the first of them; None if they lie in no files.
    """

    stage: Stage
    ahead: Ahead[Block]
    origin: Rows
    slots: Rows
    first: PickedStage | None


class LyingBuffer:
    """See the module's docstring. Who takes blocks keeps their rows, one behind the other.

    Args:
        context: Of the shuffle.
        pick: How rows are read.
        places: Where the row of each slot lies.

    Attributes:
        rows: ``int64[n]``: for each slot the number of its row among those that are kept, or less than 0.
        origin: Provenance of each slot's row, read or not.
        sizes: Its bytes, as far as they are known.
        history: What it uses up of tracks.
        begun: Whether anything was to be read.
    """

    def __init__(self, context: StageContext, pick: Pick, places: Places) -> None:
        self.rows: Rows = np.full(len(places), LIES, np.int64)
        self.origin = places.origin.copy()
        self.sizes = places.sizes.copy()
        self.history = history_of(places.used, len(places)).owned()
        self.begun = False
        self._places = places
        self._context = context
        self._pick = pick
        self._readings: list[_Reading] = []
        self._coming: Rows = np.full(len(places), -1, np.int64)

    def extend(self, origin: Rows, sizes: Rows, history: Column) -> None:
        """More slots, behind the others, with the first rows that are kept."""
        count = len(origin)
        self.rows = np.concatenate((self.rows, np.arange(count)))
        self.origin = np.concatenate((self.origin, origin))
        self.sizes = np.concatenate((self.sizes, sizes))
        self.history = concat(alike(self.history, history))
        self._coming = np.concatenate((self._coming, np.full(count, -1, np.int64)))

    def read(self, turns: Rows, slots: Rows) -> None:
        """Begins to read the rows of these slots that lie elsewhere and are not on their way.

        Args:
            turns: For each slot of the buffer, when it is drawn.
            slots: Those that are needed.
        """
        self.begun = True
        slots = slots[(self.rows[slots] == LIES) & (self._coming[slots] < 0)]
        if not len(slots):
            return
        slots = slots[by_place(self._places.origin[slots])]
        origin = self._places.origin[slots]
        # An element that was repeated is read once, for several slots.
        begins = np.flatnonzero(np.append(True, (origin[1:] != origin[:-1])[:, [0, 3]].any(axis=1)))
        stage = self._pick.read(self._places.chosen(slots[begins], np.minimum.reduceat(turns[slots], begins)))
        ahead: Ahead[Block] = Ahead(self._context, lambda: self._fill(reading))
        reading = _Reading(stage, ahead, origin, slots, _first_of(stage))
        self._coming[slots] = len(self._readings)
        self._readings.append(reading)
        ahead.begin()

    async def asked(self) -> None:
        """Waits until the first rows were asked for: what is asked for later does not delay them."""
        for reading in self._readings:
            if reading.first is not None:
                await reading.first.asked.wait()

    async def _fill(self, reading: _Reading) -> None:
        ahead = reading.ahead
        try:
            while True:
                await ahead.room(lambda: len(ahead.items) >= _AHEAD)
                block = await reading.stage.pull(BLOCK_ROWS)
                if block is None:
                    return
                if len(block):
                    ahead.put(block)
        finally:
            if reading.first is not None:
                reading.first.asked.set()  # they never will be, if they were not

    def is_whole(self, slots: Sequence[int] | None) -> bool:
        """Whether the rows of these slots, or of all, were read."""
        return not bool(((self.rows if slots is None else self.rows[slots]) == LIES).any())

    async def next_block(self, slots: Rows) -> Block | None:
        """Rows that have come, or will come until those of these slots are read; `wanted` says whose they are.

        None: they are, and nothing else has come.
        """
        for reading in self._readings:
            if reading.ahead.items:
                return reading.ahead.take()
        lies = slots[self.rows[slots] == LIES]
        if not len(lies):
            return None
        reading = self._readings[int(self._coming[lies[0]])]
        if not await reading.ahead.wait():
            raise StateError("the state is damaged: elements of the buffer are missing", stage=self._context.label)
        return reading.ahead.take()

    def wanted(self, block: Block) -> tuple[Rows, Rows]:
        """The rows of a block that belong to slots whose rows still lie elsewhere, ascending, and these slots.

        A row that belongs to several slots is there as many times.
        """
        rows, slots = self._slots_of(block.origin)
        kept = self.rows[slots] == LIES
        return rows[kept], slots[kept]

    def own(self, slots: Rows, origin: Rows) -> tuple[Column, Column]:
        """The provenance of rows in these slots, and what they use up: a row that was repeated is read for one slot."""
        origin = origin.copy()
        origin[:, SUB_INDEX] = self.origin[slots, SUB_INDEX]
        return ArrayColumn(origin), self.history.pick(slots)

    def note(self, slots: Rows, origin: Rows, sizes: Rows, history: Column) -> None:
        """These rows are in these slots now."""
        self.origin[slots] = origin
        self.sizes[slots] = sizes
        self.history, fresh = alike(self.history, history)
        self.history.put(slots, fresh, np.arange(len(slots)))  # type: ignore[arg-type]  # `alike` made them of one kind

    def leave(self, slots: Rows) -> Rows:
        """The numbers of those rows of these slots that are kept; they go, and so do those that lie elsewhere."""
        numbers = self.rows[slots]
        self.rows[slots] = _GONE
        return numbers[numbers >= 0]

    def compact(self, slots: Sequence[int]) -> Rows:
        """The numbers of the rows of these slots, which are kept in this order from now on, and no others."""
        chosen = np.array(slots, np.int64)
        kept = chosen[self.rows[chosen] >= 0]
        numbers = self.rows[kept]
        self.rows[self.rows >= 0] = _GONE
        self.rows[kept] = np.arange(len(kept))
        return numbers

    def _slots_of(self, origin: Rows) -> tuple[Rows, Rows]:
        """Rows, ascending, and slots that they belong to, of which there may be several."""
        found: list[tuple[Rows, Rows]] = []
        for file in np.unique(origin[:, 0]).tolist():
            here = np.flatnonzero(origin[:, 0] == file)
            unknown = np.ones(len(here), bool)
            for reading in self._readings:
                a, b = np.searchsorted(reading.origin[:, 0], (file, file + 1)).tolist()
                begin, end = (np.searchsorted(reading.origin[a:b, 3], origin[here, 3], side) for side in _SIDES)
                counts = end - begin
                unknown &= counts == 0
                nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
                found.append((here.repeat(counts), reading.slots[a + begin.repeat(counts) + nth]))
            if unknown.any():
                raise StateError(
                    "the state is damaged: elements of the buffer lie elsewhere", stage=self._context.label
                )
        rows, slots = map(np.concatenate, zip(*found, strict=True))
        order = np.argsort(rows, kind="stable")
        return rows[order], slots[order]

    async def recall(self) -> None:
        """Nothing is on its way any more: all that still lies elsewhere may be read in another order."""
        while self._readings:
            reading = self._readings[-1]
            await reading.ahead.aclose()
            while reading.ahead.items:
                reading.ahead.take().release()
            await reading.stage.aclose()
            self._readings.pop()
        self._coming[:] = -1
        self.begun = False


def _first_of(stage: Stage) -> PickedStage | None:
    """The stage below that reads rows of files, or the first of several that take turns."""
    while not isinstance(stage, PickedStage):
        if not stage.inputs:
            return None
        stage = stage.inputs[0]
    return stage
