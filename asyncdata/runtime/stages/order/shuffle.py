"""`shuffle`: a buffer of references from which the next element is drawn.

The law is tf.data's: the buffer is filled first; then every input element takes the slot of the output element that
was drawn uniformly from the buffer before it; when the input has ended, the rest is drawn in turn. Draw i is a pure
function of (seed, epoch, i), so blocks may be cut anywhere.

Draws are made for a whole block of inputs at once. Within the block a slot may be drawn twice; then the later output
is the input that was put there by the earlier draw, which a stable sort by slot finds.

The provenance of the rows, and what they use up of tracks, travel through the buffer as columns like the others. What
the input used up behind its last row leaves behind the last row of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from asyncdata.errors import StateError
from asyncdata.memory.accounts import Foreseen
from asyncdata.memory.advance import EMPTY, Advance, Mark, Marks, Rows, State
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, RefColumn, alike, concat, merge
from asyncdata.memory.structure import LEAF, Structure
from asyncdata.runtime.memory.evacuate import Evacuator
from asyncdata.runtime.memory.outside_slabs import OutsideSlabs
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.stages.order.buffer_log import BufferLog
from asyncdata.runtime.stages.order.draws import drained, exchange, pop, swapped, turns
from asyncdata.runtime.stages.order.history_columns import used_of, with_history
from asyncdata.runtime.stages.order.lying import FEW, LyingBuffer
from asyncdata.runtime.state.history import InputHistory
from asyncdata.runtime.state.marker import MARK_EVERY, Marker
from asyncdata.runtime.state.places import LaterPlaces, Places
from asyncdata.runtime.state.restored import Kept, Pick

_EVACUATE_EVERY: Final = 128
"""Input rows between two looks at what the buffer pins, or an eighth of the buffer if that is more."""

_EVACUATE_PART: Final = 32
"""Of the limit: a look at once when it pins so much more than at the last one."""


def _written(marks: Marks) -> Marks:
    """Without those that cannot be: any older one does."""
    return tuple([each for each in marks if each[1] is not None])


def from_history(structure: Structure, columns: list[Column], marks: Marks = (), *, ordered: bool = True) -> Block:
    """The inverse: a block of rows that have been moved about."""
    origin, history = columns[-2:]
    assert isinstance(origin, ArrayColumn)
    advance = Advance(len(origin), marks, used_of(history), ordered=ordered)
    return Block(structure, tuple(columns[:-2]), origin.array, advance)


_MARK_BYTES: Final = 8 << 20
_MARK_BYTES_PER_ROW: Final = 1 << 10
"""Likewise whenever so many bytes have gone through, or so many for each element of the buffer, if that is more. What
is behind a mark is read again, and a mark takes some time for each element of the buffer."""

_MARKS: Final = 8
"""While a buffer gets other elements, as many as it has, where marks say where they lie."""


_ROW_BYTES: Final = 32
"""For each element: its number, there and in marks."""

_FILE_ROW_BYTES: Final = 72
"""Likewise where elements lie in files: also the places of those that were there at the last marks, or came since."""


_TRACKED_BYTES: Final = 560
"""Likewise where elements come in no fixed order: states know of three times as many until some are forgotten."""

_LYING_BYTES: Final = 184
"""For each element that is to be read where it lies."""


class ShuffleStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        buffer_size: Elements in the buffer.
        key: Of the random draws, see `runtime.randomness`.
        pick: Where elements of the input can be read by themselves; None: the input must give them again.
        left: Elements that are in the buffer in the beginning and lie in files; there is no order in which they were.
        kept: Of the rows that the input gives again for the buffer, it gives only these.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        buffer_size: int,
        key: tuple[int, int],
        pick: Pick | None = None,
        left: Places | None = None,
        kept: Kept | None = None,
    ) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._size = buffer_size
        self._key = key
        self._pick = pick
        self._lying: LyingBuffer | None = None
        # Outputs that were delivered before.
        self._skipped = 0
        self._budget = context.budget
        self._account = context.kept
        self._evacuate = Evacuator(self._budget, self._account)
        self._outside = OutsideSlabs(self._budget, self._account)
        self._since_evacuation = 0
        self._used_before = 0
        self._filling: list[Block] = []
        self._filling_rows = self._filling_bytes = 0
        self._structure: Structure = LEAF
        self._columns: list[Column] = []
        self._places: list[int] = []
        self._tail = EMPTY
        self._full = False
        self._draining = False
        self._ended = False
        # What is behind a mark is made again: where the buffer is not, that costs more than a mark.
        least = 1 if pick is not None and pick.is_whole else MARK_EVERY
        self._marker = Marker(every=max(least, buffer_size if pick is None else buffer_size // _MARKS))
        self._passed_bytes = 0
        self._history = InputHistory()
        # Of rows that are known by their places alone, a number in front of all that the history knows.
        self._numbers: Rows = np.empty(0, np.int64)
        # Rows in front of this one lie in files, as far as they are in the buffer.
        self._lie_before = 0
        # All that have come from this one on do.
        self._lie_since = 0
        self._log: BufferLog | None = None
        self._wanted: Rows | None = None
        self._until = 0
        self._kept_rows = kept
        if left is not None:
            assert pick is not None, "they would not be read"
            self._lying = LyingBuffer(context, pick, left)
            self._full = False
            self._marker.input.ordered = False
        self._account.foresee = self._foresee
        self._budget.holders[self] = None

    def movable(self) -> Iterable[Column]:
        """See `runtime.memory.budget.Holder`."""
        if self._draining and self._lying is not None:
            self._compact(self._lying)
        elif self._draining:
            left = np.array(self._places, np.int64)
            self._columns = [column.pick(left) for column in self._columns]
            self._numbers = self._numbers[left]
            self._places = list(range(len(left)))
        return [column for block in self._filling for column in block.columns] + self._columns[:-2]

    def restore(self, mark: Mark) -> None:
        """See `Stage`: rows of the buffer are read where they lie, when they are drawn.

        Where they lie nowhere, the first pull reads again from the oldest of them on, and keeps those in the buffer.
        """
        if "places" in mark:
            if self._pick is None:
                raise ValueError("elements of this input lie in no files")
            self._lying = LyingBuffer(self.context, self._pick, mark["places"])
            self._skipped = mark.get("skip", 0)
            self._full = True
            numbers = mark["places"].numbers
            self._numbers = np.zeros(len(mark["places"]), np.int64) if numbers is None else numbers.copy()
        else:
            self._wanted, self._until = mark["buffer"].copy(), mark["next"]
        self._history.begin(mark["row"], mark["input"])
        self._marker.begin(mark["drawn"], mark["input"])

    def _foresee(self) -> Foreseen:
        held = sum(column.nbytes for column in self._columns[:-2])
        return Foreseen(self._size, self._kept, self._filling_bytes + held + self._outside.charged_bytes)

    @property
    def _kept(self) -> int:
        """Rows of the buffer that were read."""
        return self._filling_rows + (len(self._columns[-1]) if self._columns else 0)

    async def _add(self, block: Block) -> None:
        """One more block of a buffer that is being filled."""
        self._filling.append(block)
        # Asked for with every block, of which there may be as many as rows; and by whoever advises on memory.
        self._filling_rows += len(block)
        self._filling_bytes += sum(column.nbytes for column in block.columns)
        row_bytes = _ROW_BYTES if self._pick is None else _FILE_ROW_BYTES
        await self._outside.add(block, row_bytes if block.advance.used is None else _TRACKED_BYTES)

    def __len__(self) -> int:
        """Rows in the buffer, until the input has ended."""
        return self._kept if self._lying is None else len(self._lying.rows)

    @property
    def draining(self) -> bool:
        """When the input has nothing left to begin."""
        return self._ended or super().draining

    async def _refill(self, wanted: Rows) -> None:
        """The buffer as it was: its rows from the input, each in the slot that it had."""
        kept = np.sort(wanted)
        if self._kept_rows is not None:
            while len(self) < len(kept):
                block = await self._next_input(min(BLOCK_ROWS, len(kept) - len(self)))
                if block is None:
                    break
                if len(block):
                    await self._add(block)
                    self._since_evacuation += len(block)
                    await self._evacuate_now_and_then()
            for advance in self._kept_rows.advances:
                self._marker.input.feed(advance)
                self._history.feed(advance)
        while self._history.rows < self._until and not self._ended:
            first = self._history.rows
            block = await self._next_input(min(BLOCK_ROWS, self._until - first))
            if block is None:
                break
            if len(block):
                self._count(block)
                here = kept[np.searchsorted(kept, first) : np.searchsorted(kept, self._history.rows)] - first
                await self._add(block.select(here))
                self._since_evacuation += len(here)
                await self._evacuate_now_and_then()
        if len(self) < len(wanted):
            raise self._history.too_short(self._until, self.label)
        self._arrange(np.searchsorted(kept, wanted))
        self._numbers = wanted

    async def _pull_lying(self, lying: LyingBuffer, limit: int) -> Block | None:
        """`_pull`, as long as rows of the buffer lie elsewhere."""
        if not lying.begun:
            await self._outside.hold(_LYING_BYTES * len(self))
            self._read_ahead(lying)
            await lying.asked()
        if not self._full:
            await self._fill_behind(lying)
        while self._skipped and not self._ended:
            block = await self._next_input(min(BLOCK_ROWS, self._skipped))
            if block is not None and len(block):
                self._pass(block, lying)
                await self._evacuate_now_and_then()
        block = None if self._ended else await self._next_input(min(limit, FEW))
        if block is not None:
            if not len(block):
                return Block.empty(EMPTY)
            self._block = block
            if len(self) != self._size:
                raise StateError("the state is damaged: the input goes on behind its end", stage=self.label)
            source, _, _ = exchange(self._slots(len(block)), len(self))
            await self._have(source[source < len(self)], lying)
            self._since_evacuation += len(block)
            self._block = None
            return self._swap(block)
        if not self._draining:
            self._begin_draining(lying)
        count = min(limit, FEW, len(self._places))
        draws = drained(self._key, self._marker.rows, len(self._places), count)
        await self._have(pop(self._places.copy(), draws), lying)
        return self._drain(count)

    async def _fill_behind(self, lying: LyingBuffer) -> None:
        """The input fills up a buffer that began with other elements, so that these are read when they are drawn."""
        while not self._ended and (missing := self._size - len(self) - self._kept) > 0:
            block = await self._next_input(min(BLOCK_ROWS, missing))
            if block is not None and len(block):
                self._count(block)
                await self._add(block)
                self._since_evacuation += len(block)
                await self._evacuate_now_and_then()
        self._fill_up()
        if self._columns:
            origin, history = self._columns[-2:]
            _, origins, sizes = self._known(origin, self._columns[:-2], self._numbers)
            lying.extend(origins, sizes, history)
        self._numbers = np.zeros(len(self), np.int64)
        if self._ended:
            # Elements are drawn in another order than was thought.
            await lying.recall()

    def _read_ahead(self, lying: LyingBuffer) -> None:
        """Starts to read what will be drawn."""
        # A buffer that is not full is one that the input fills up first, or one that it does not fill up any more.
        size = len(self) if self._full else self._size
        found = turns(self._key, self._marker.rows, size, full=size == self._size, least=self._skipped)[: len(self)]
        lying.read(found, np.flatnonzero(found >= self._skipped))

    def _pass(self, block: Block, lying: LyingBuffer) -> None:
        """Outputs that were delivered before leave: inputs take their slots, whether what was there was read or not."""
        count, size = len(block), len(self)
        _, written, last = exchange(self._slots(count), size)
        self._numbers[written] = self._history.rows + last
        self._marker.after(block.advance, count, lambda row, state: None)  # noqa: ARG005 -- nobody sees them
        self._history.feed(block.advance)
        self._skipped -= count
        self._since_evacuation += count
        order = np.argsort(last)
        self._keep(block, last[order], written[order], lying)

    def _begin_draining(self, lying: LyingBuffer) -> None:
        """The input has ended: outputs that were delivered before are none of those that will be drawn."""
        self._draining = True
        self._places = list(range(len(self)))
        count = min(self._skipped, len(self._places))
        gone = pop(self._places, drained(self._key, self._marker.rows, len(self._places), count))
        self._marker.rows += count
        self._skipped = 0
        numbers = lying.leave(gone)
        for column in self._columns[:-2]:
            column.pick(numbers).release()
        left = len(self._places)
        order = pop(self._places.copy(), drained(self._key, self._marker.rows, left, left))
        found = np.zeros(len(self), np.int64)
        found[order] = np.arange(left)
        lying.read(found, order)

    async def _have(self, slots: Rows, lying: LyingBuffer) -> None:
        """Waits for the rows of these slots, and keeps what else has come."""
        while (block := await lying.next_block(slots)) is not None:
            try:
                kept, its_slots = lying.wanted(block)
            except StateError:
                block.release()
                raise
            self._since_evacuation += len(kept)
            self._keep(block, kept, its_slots, lying, lying.own(its_slots, block.origin[kept]))
            await self._pause()
            if not self._draining:
                await self._evacuate_now_and_then()

    def _keep(
        self, block: Block, rows: Rows, slots: Rows, lying: LyingBuffer, own: tuple[Column, Column] | None = None
    ) -> None:
        """Rows of a block take these slots, and the places of the rows that are there, which go.

        The others are dropped with what they use up, unlike those that `Block.select` leaves out: they were delivered,
        or are in the buffer of a step behind this one.

        Args:
            block: Of which some rows are kept, some of them several times.
            rows: These, ascending.
            slots: Which each of them takes.
            lying: The buffer.
            own: Provenance of the rows and what they use up, if that is not said by the block.
        """
        if self._columns and block.structure != self._structure:
            block = self._without_structure(block)
        columns = with_history(block)
        every = np.arange(len(block))
        if not np.array_equal(rows, every):
            others, again = np.setdiff1d(every, rows), rows[1:][rows[1:] == rows[:-1]]
            for column in columns[:-2]:
                column.pick(others).release()
                if isinstance(column, RefColumn):
                    column.pick(again).hold()
            columns = [column.pick(rows) for column in columns]
        columns[-2:] = own or columns[-2:]
        origin, history = columns[-2:]
        _, origins, sizes = self._known(origin, columns[:-2], np.zeros(len(rows), np.int64))
        lying.note(slots, origins, sizes, history)
        if not self._columns:
            self._structure = block.structure
            self._columns = [column.owned() for column in columns]
            lying.rows[slots] = np.arange(len(slots))
            return
        if self._draining:
            self._compact(lying)
        at = lying.rows[slots]
        old, new = np.flatnonzero(at >= 0), np.flatnonzero(at < 0)
        lying.rows[slots[new]] = self._kept + np.arange(len(new))
        for index, fresh in enumerate(columns):
            held, fresh_alike = alike(self._columns[index], fresh)
            held.pick(at[old]).release()
            held.put(at[old], fresh_alike, old)  # type: ignore[arg-type]  # `alike` made them of one kind
            self._columns[index] = concat([held, fresh_alike.pick(new)]) if len(new) else held

    def _compact(self, lying: LyingBuffer) -> None:
        """Lets go of the rows that have left; those that are left keep their slots."""
        kept = lying.compact(self._places)
        self._columns = [column.pick(kept) for column in self._columns]

    async def _end_lying(self, lying: LyingBuffer) -> None:
        """All rows were read: they get the order of their slots."""
        await lying.recall()
        # Nothing waits from here on.
        self._lying = None
        if self._draining:
            self._columns = [column.pick(lying.rows[self._places]) for column in self._columns]
            self._numbers = self._numbers[self._places]
            self._places = list(range(len(self._places)))
        else:
            self._columns = [column.pick(lying.rows) for column in self._columns]

    def _arrange(self, order: Rows) -> None:
        """The rows that were read for the buffer, each in its slot."""
        if self._filling:
            whole = Block.concat(self._filling)
            self._filling = [whole.reorder(order, whole.advance.reorder(order, ()))]
        self._fill_up()

    async def _pull(self, limit: int) -> Block | None:
        if self._lying is not None:
            self._block = await self._pull_lying(self._lying, limit)
            if self._lying.is_whole(self._places if self._draining else None):
                await self._end_lying(self._lying)
            block, self._block = self._block, None
            return block
        if self._wanted is not None:
            await self._refill(self._wanted)
            self._wanted = None
        while not self._full and not self._ended:
            missing = self._size - len(self)
            block = await self._next_input(min(BLOCK_ROWS, missing)) if missing > 0 else None
            if block is None:
                self._fill_up()
            elif len(block):
                self._count(block)
                await self._add(block)
                self._since_evacuation += len(block)
                await self._evacuate_now_and_then()
        if not self._ended:
            await self._evacuate_now_and_then()
            block = await self._next_input(limit)
            if block is not None:
                self._since_evacuation += len(block)
                return self._swap(block) if len(block) else Block.empty(EMPTY)
        if not self._draining:
            self._draining = True
            self._places = list(range(len(self)))
        return self._drain(limit)

    def _count(self, block: Block) -> None:
        """Rows that go into the buffer without pushing others out."""
        self._marker.input.feed(block.advance)
        self._history.feed(block.advance)

    async def _next_input(self, limit: int) -> Block | None:
        """The next block, whose first row uses up what was used up before it; one without rows is kept back."""
        await self._pause()
        block = await self._upstream.pull(limit)
        if block is None:
            self._ended = True
            return None
        advance = Advance.concat([self._tail, block.advance]) if self._tail.has_news else block.advance
        block.advance, self._tail = advance.split(advance.rows) if advance.has_news else (advance, EMPTY)
        return block

    def _fill_up(self) -> None:
        """The buffer is full, or there is no more."""
        self._full = True
        if self._filling:
            whole = Block.concat(self._filling)
            self._filling, self._filling_rows, self._filling_bytes = [], 0, 0
            self._structure = whole.structure
            self._columns = [column.owned() for column in with_history(whole)]
            self._numbers = np.arange(len(whole))

    def _swap(self, block: Block) -> Block:
        """Every input row takes the place of an output row."""
        if block.structure != self._structure:
            block = self._without_structure(block)
        count = len(block)
        size = len(self)
        drawn = self._marker.rows
        slots = self._slots(count)

        first = self._history.rows
        self._history.feed(block.advance)
        fresh_columns = with_history(block)
        is_marked = block.advance.ordered and self._marker.input.ordered
        held = self._log_of(block, slots, first, fresh_columns[-1]) if is_marked else None

        def mark(row: int, state: State) -> Mark:
            assert held is not None
            log, before = held
            if self._pick is not None and self._lie_before >= self._lie_since:
                return self._mark_lying(log.moment(before + row).held, drawn + row, first + row, state)
            return self._mark(*log.at(before + row), drawn + row, first + row, state)

        marks = _written(self._marker.after(block.advance, count, mark, also=self._far(block.columns)))
        source, written, last = exchange(slots, size)
        self._numbers[written] = first + last
        if self._lying is not None:
            known = self._known(ArrayColumn(block.origin), block.columns, slots)
            self._lying.note(written, known[1][last], known[2][last], fresh_columns[-1].pick(last))
            source = np.where(source < size, self._lying.rows[np.minimum(source, size - 1)], source - size + self._kept)
            written = self._lying.rows[written]
        out: list[Column] = []
        for index, fresh in enumerate(fresh_columns):
            column, fresh_alike = alike(self._columns[index], fresh)
            out.append(merge(column, fresh_alike, source))
            column.put(written, fresh_alike, last)  # type: ignore[arg-type]  # `alike` made them of one kind
            self._columns[index] = column
        return from_history(self._structure, out, marks, ordered=self._marker.input.ordered)

    def _log_of(self, block: Block, slots: Rows, first: int, history: Column) -> tuple[BufferLog, int]:
        """What marks among the rows of a block are made of, and how many rows it knows in front of the block."""
        if self._log is None:
            self._lie_since = max(self._lie_since, first)
            self._log = BufferLog(self._contents(), self._history_column())
        log, before, behind = self._log, self._log.rows, first + len(block)
        if self._pick is not None and not self._pick.lie(block.origin):
            self._lie_since = behind
        *known, last = self._known(ArrayColumn(block.origin), block.columns, np.arange(first, behind))
        # Whoever moves payloads writes to the references that sizes are a part of.
        log.take(slots, [*known, last.copy()], history)
        return log, before

    def _far(self, columns: Sequence[Column]) -> Sequence[int]:
        """The rows of the next block with which so many bytes have gone through that there should be a mark."""
        if self._pick is None:
            return ()
        refs = [column.rows[:, 1] for column in columns if isinstance(column, RefColumn)]
        if not refs:
            return ()
        every = max(_MARK_BYTES, _MARK_BYTES_PER_ROW * self._size)
        passed = self._passed_bytes + np.cumsum(np.sum(refs, axis=0))
        far = np.flatnonzero(np.diff(passed // every, prepend=self._passed_bytes // every)).tolist()
        self._passed_bytes = int(passed[-1])
        return far

    def _without_structure(self, block: Block) -> Block:
        """Makes bare objects of the block, and of the buffer, which differ in structure."""
        self._log = None
        held = from_history(self._structure, self._columns).as_objects()
        self._structure = held.structure
        self._columns = [*held.columns, *self._columns[-2:]]
        return block.as_objects()

    def _slots(self, count: int) -> Rows:
        """Those that the next inputs take."""
        return swapped(self._key, self._marker.rows, len(self), count)

    def _contents(self) -> list[Rows]:
        """What the rows of the buffer are known by, by slot."""
        if self._lying is not None:
            return [self._numbers, self._lying.origin, self._lying.sizes]
        return self._known(self._columns[-2], self._columns[:-2], self._numbers)

    def _history_column(self) -> Column:
        """What they use up of tracks, by slot."""
        return self._columns[-1] if self._lying is None else self._lying.history

    def _known(self, origin: Column, columns: Sequence[Column], numbers: Rows) -> list[Rows]:
        """What rows of the input are known by: where they lie and how long they are, or their numbers."""
        if self._pick is None:
            return [numbers]
        assert isinstance(origin, ArrayColumn)
        return [numbers, origin.array, self._pick.sizes(columns, len(numbers))]

    def _mark(self, contents: list[Rows], history: Column, drawn: int, following: int, state: State) -> Mark:
        """Which rows of the input are in the buffer, slot by slot, and the state of the input.

        This is the state in front of the oldest row of the buffer, or, where rows can be read by themselves, behind
        the last row that was taken.
        """
        numbers, *lying = contents
        if lying and self._lies(numbers, lying[0]):
            return self._mark_lying(lambda: (contents, history), drawn, following, state)
        oldest = int(numbers.min())
        if oldest < self._history.first:
            return None  # the input need not give again what was known by its place
        self._history.forget(oldest)
        return {
            "drawn": drawn,
            "buffer": numbers,
            "next": following,
            "row": oldest,
            "input": self._history.before(oldest),
        }

    def _mark_lying(
        self, held: Callable[[], tuple[list[Rows], Column]], drawn: int, following: int, state: State
    ) -> Mark:
        """The mark where rows can be read by themselves: what the buffer held is asked for when the mark is read."""
        assert self._pick is not None
        versions, is_numbered = self.context.sources.version, self._pick.is_numbered

        def make() -> Places:
            (numbers, origin, sizes), history = held()
            return Places(origin, sizes, versions, used_of(history), numbers=numbers if is_numbered else None)

        self._lie_before = following
        self._history.forget(following)
        return {"drawn": drawn, "places": LaterPlaces(make), "next": following, "row": following, "input": state}

    def _lies(self, numbers: Rows, origin: Rows) -> bool:
        """Whether all rows of the buffer are in files, of which those in front of the last mark were."""
        assert self._pick is not None
        return self._pick.lie(origin[numbers >= self._lie_before])

    def _drain(self, limit: int) -> Block | None:
        """Draws from what is left after the input's end; the last of them takes the place of the one drawn."""
        places = self._places
        count = min(limit, len(places))
        if not count:
            tail, self._tail = self._tail.dropped(), EMPTY
            return Block.empty(tail) if tail.has_news else None
        drawn = self._marker.rows
        draws = drained(self._key, drawn, len(places), count)
        ordered = self._marker.input.ordered
        before = places.copy() if self._marker.places(count, ordered=ordered) else []

        def mark(row: int) -> Mark:
            left = before.copy()
            pop(left, draws[:row])
            contents = [each[left] for each in self._contents()]
            history = self._history_column().pick(np.array(left, np.int64))
            return self._mark(contents, history, drawn + row, self._history.rows, self._marker.input.state)

        gone = pop(places, draws)
        marks = _written(self._marker.marks(count, mark, ordered=ordered))
        gone = gone if self._lying is None else self._lying.leave(gone)
        columns = [column.pick(gone) for column in self._columns]
        return from_history(self._structure, columns, marks, ordered=ordered)

    async def _evacuate_now_and_then(self) -> None:
        """Frees slabs that are nearly empty, when enough rows, or bytes, have come since the last time."""
        few = self._since_evacuation < max(_EVACUATE_EVERY, self._size // 8)
        if few and self._account.used - self._used_before < self._budget.limit // _EVACUATE_PART:
            return
        self._since_evacuation = 0
        columns = [column for block in self._filling for column in block.columns] + self._columns
        await self._evacuate([column for column in columns if isinstance(column, RefColumn)])
        self._used_before = self._account.used

    async def aclose(self) -> None:
        for block in self._filling:
            block.release()
        self._filling = []
        try:
            if self._lying is not None:
                await self._lying.recall()
        finally:
            left = np.array(self._places, np.int64)
            if self._lying is not None:
                left = self._lying.compact(self._places)
                self._lying = None
            for column in self._columns:
                (column.pick(left) if self._draining else column).release()
            self._columns, self._places = [], []
            self._filling_rows = self._filling_bytes = 0
            self._outside.close()
            self._full = self._draining = self._ended = True
            await super().aclose()
