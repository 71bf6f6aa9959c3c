"""What was delivered before a state is left out of what follows it.

`DropStage` drops the first rows of a step that cannot begin behind them. `TrackedStage` is where an ordered input
enters the unordered part of a plan: it gives each row its position and drops single ones, see
`asyncdata.runtime.state.tracks`. Where rows are elements of files, it also tells where these lie. Behind a state, rows
that were far behind the others are read by themselves then, in front of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from asyncdata.memory.advance import Advance, Mark, Rows, State
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column, ObjectColumn, RefColumn
from asyncdata.memory.used import Used
from asyncdata.runtime.reading.source_table import LyingFiles
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.state.places import Places
from asyncdata.runtime.state.tracks import Track

_AROUND_MEMBER: Final = 1 << 10
_AROUND_SAMPLE: Final = 1 << 12
"""Headers and padding of members of tar files, long names, and the next header, which says that a sample is whole."""


class Pick(NamedTuple):
    """How elements of an input are read by themselves.

    Attributes:
        read: Makes the stage that reads those at some places, in any order.
        files: Those that have such elements; there will be more.
        is_sized: Whether elements are as they are in files, and nothing that was made of them.
        is_whole: Whether each element is known to be a whole file, or made of one.
        is_numbered: Whether places must say which element of the input each is.
        is_told_apart: Whether something else is made of an element each time that it comes, and reading it once fails.
    """

    read: Callable[[Places], Stage]
    files: Sequence[LyingFiles]
    is_sized: bool
    is_whole: bool = False
    is_numbered: bool = False
    is_told_apart: bool = False

    def sizes(self, columns: Sequence[Column], rows: int) -> Rows:
        """How long the elements in these columns are; 0 where that is not known."""
        if not self.is_sized or not all(files.is_bare for files in self.files):
            return np.zeros(rows, np.int64)
        name, *parts = columns
        if isinstance(name, RefColumn) and not parts:
            return name.rows[:, 1]
        # A sample of a tar file, or a file and its name.
        sizes = np.zeros(rows, np.int64)
        if isinstance(name, ObjectColumn) and parts and all(isinstance(part, RefColumn) for part in parts):
            sizes += _AROUND_SAMPLE
            for part in parts:
                sizes += part.rows[:, 1] + _AROUND_MEMBER  # type: ignore[union-attr]  # see above
        return sizes

    def lie(self, origin: Rows) -> bool:
        """Whether elements can be read by themselves, by their provenance."""
        numbers = origin[:, 0]
        # Most blocks come from one file.
        distinct = numbers[:1] if (numbers == numbers[:1]).all() else np.unique(numbers)
        return all(any(self._lies(number, files) for files in self.files) for number in distinct.tolist())

    def _lies(self, number: int, files: LyingFiles) -> bool:
        return number in files.numbers and not (self.is_told_apart and number in files.again)


class Kept:
    """Which of the first rows of an input a shuffle still has in its buffer.

    Args:
        rows: Their numbers, from the first one on, ascending.
        until: How many rows were taken.

    Attributes:
        advances: Of the rows that were taken, as they are passed, whether they are kept or not.
    """

    def __init__(self, rows: Rows, until: int) -> None:
        self.rows = rows
        self.until = until
        self.advances: list[Advance] = []


class KeptSideBySide(NamedTuple):
    """What `zip` makes of the rows that are kept of its inputs.

    Attributes:
        whole: Of its own rows; their advances are entered when its inputs have passed theirs.
        parts: Likewise of each input.
    """

    whole: Kept
    parts: Sequence[Kept]


class KeepStage(Stage):
    """Of the rows that a shuffle had taken from its input passes those on that it still has, and all behind them.

    The others were delivered: they do not reach the functions between here and the shuffle.

    Args:
        context: Of the step whose rows they are.
        upstream: Its stage.
        kept: Which rows.
    """

    def __init__(self, context: StageContext, upstream: Stage, kept: Kept) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._kept = kept
        self._at = self._passed = 0

    async def _pull(self, limit: int) -> Block | None:
        kept = self._kept
        while self._at < kept.until:
            await self._pause()
            is_last = self._passed == len(kept.rows)
            block = await self._upstream.pull(min(BLOCK_ROWS if is_last else limit, kept.until - self._at))
            if block is None:
                break
            here = kept.rows[self._passed : np.searchsorted(kept.rows, self._at + len(block))] - self._at
            kept.advances.append(block.advance)
            self._at += len(block)
            self._passed += len(here)
            # The others use nothing up: they were delivered, or are in the buffer of a step behind this one.
            used, ordered = block.advance.used, block.advance.ordered
            block = block.select(here)
            block.advance = Advance(len(here), (), None if used is None else used.pick(here), ordered=ordered)
            if self._passed < len(kept.rows) and len(here):
                return block
            # All that was taken is passed before the last rows that are kept.
            self._block = block if self._block is None else Block.concat([self._block, block])
        block, self._block = self._block, None
        return block if block is not None and len(block) else await self._upstream.pull(limit)

    def _pull_ready(self, limit: int) -> Block | None:
        return None if self._at < self._kept.until else self._upstream.pull_ready(limit)


class DropStage(Stage):
    """Drops the first rows of its input, because they were delivered before; `skip` would count them as used again.

    Args:
        context: Of the step whose rows they are.
        upstream: Its stage.
        count: How many.
    """

    def __init__(self, context: StageContext, upstream: Stage, count: int) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._left = count

    async def _pull(self, limit: int) -> Block | None:
        while self._left:
            await self._pause()
            block = await self._upstream.pull(min(BLOCK_ROWS, self._left + limit))
            if block is None:
                return None
            dropped = min(self._left, len(block))
            self._left -= dropped
            if dropped == len(block):
                # What follows its last row is news for the next one, as it is without a state.
                tail = block.advance.split(dropped)[1]
                block.release()
                if tail.has_news and not self._left:
                    return Block.empty(tail)
                continue
            head, block = block.split(dropped)
            head.release()
            return self._cut(block, limit)
        if self._block is not None:
            return self._cut(self._block, limit)
        return await self._upstream.pull(limit)

    def _cut(self, block: Block, limit: int) -> Block:
        self._block = None
        if len(block) > limit:
            block, self._block = block.split(limit)
        return block

    def _pull_ready(self, limit: int) -> Block | None:
        return None if self._left or self._block is not None else self._upstream.pull_ready(limit)


class TrackedStage(Stage):
    """Gives each row its position, and leaves out those that were delivered before.

    Args:
        context: Of the input's step.
        upstream: Its stage, which begins at the state of the saved track; None where all that is left was read before.
        track: Of the input.
        position: Of the first row.
        in_order: Whether what follows keeps the order of the rows, as far as no step mixes them.
        pick: How rows are read by themselves, where they can be.
        left: The rows that are, and come first.
        bare: See `Lying`.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage | None,
        track: Track,
        position: int,
        *,
        in_order: bool,
        pick: Pick | None = None,
        left: Stage | None = None,
        bare: bool = False,
    ) -> None:
        super().__init__(context, tuple(stage for stage in (left, upstream) if stage is not None))
        self._upstream = upstream
        self._track = track
        self._position = position
        self._later = track.saved.later
        self._in_order = in_order
        self._pick = pick
        self._left = left
        self._bare = bare

    @staticmethod
    def begin(state: State) -> tuple[int, State]:
        """The position at a state that its marks led to, and the input's state there."""
        mark, skip = state
        return (skip, state) if mark is None else (mark["at"] + skip, State(mark["input"], skip))

    @property
    def ordered(self) -> bool:
        """Where the order is kept."""
        return self._in_order and super().ordered

    def prepare(self) -> None:
        """What is read first."""
        for stage in self.inputs[:1]:
            stage.prepare()

    async def _pull(self, limit: int) -> Block | None:
        while True:
            await self._pause()
            if self._left is not None:
                block = await self._next_left(self._left, limit)
                if block is not None:
                    return block
            block = None if self._upstream is None else await self._upstream.pull(limit)
            if block is None:
                self._track.ends(self._position)
                return None
            if (tracked := self._tracked(block)) is not None:
                return tracked

    async def _next_left(self, left: Stage, limit: int) -> Block | None:
        """Rows that are read by themselves, which carry their positions."""
        while (block := await left.pull(limit)) is not None:
            if len(block):
                block.advance = block.advance.unordered()
                return block
        # What it has reserved is free for the rest.
        await left.aclose()
        self._left = None
        self.inputs = self.inputs[1:]
        return None

    def _pull_ready(self, limit: int) -> Block | None:
        if self._left is not None or self._upstream is None:
            return None
        block = self._upstream.pull_ready(limit)
        return None if block is None else self._tracked(block)

    def _tracked(self, block: Block) -> Block | None:
        first = self._position
        in_order = self._in_order and block.advance.ordered
        marks: list[tuple[int, Mark]] = []
        for row, mark in block.advance.marks:
            self._track.begins(first + row, mark)
            if in_order:
                marks.append((row, {"at": first + row, "input": mark}))
        self._position += len(block)
        positions = np.arange(first, self._position)
        known = self._later
        if len(known):
            known = known[slice(*np.searchsorted(known, (first, self._position)))]
        if len(known):
            positions = np.setdiff1d(positions, known, assume_unique=True)
            block = block.select(positions - first)
        if not len(block) and not marks:
            block.release()
            return None
        used = Used(self._track.used(positions))
        if self._pick is not None and len(block) and self._pick.lie(block.origin):
            sizes = self._pick.sizes(block.columns, len(block)).copy()
            places = Places(block.origin, sizes, self.context.sources.version, used)
            self._track.lies(places, bare=self._bare)
        block.advance = Advance(len(block), tuple(marks), used, ordered=in_order)
        return block
