"""`interleave`: one inner dataset per input element, `cycle_length` of them read in turn.

    input elements ─▶ opened ahead (reading their first bytes) ─▶ slots 0 … cycle_length-1 ─▶ rotation ─▶ output

Deterministic: the rotation waits for the slot whose turn it is; the order is tf.data's, element for element. Sloppy: a
slot that has no rows is passed over; the order within an inner dataset is kept, and a pull waits only while
no slot has anything.

What is opened ahead neither changes the order nor counts for the state: an inner dataset begins when it gets its slot,
and an error in opening it is raised when it would have got it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from asyncdata.memory.advance import EMPTY, Advance, Mark, Marks, Rows, Slots, State
from asyncdata.memory.block import Block
from asyncdata.memory.used import NO_PAIRS
from asyncdata.runtime.stage import BLOCK_ROWS, Pause, Stage, StageContext, cancelled_task, close_all
from asyncdata.runtime.stages.order.inputs import Input
from asyncdata.runtime.stages.order.rotation import RotationPlan, Turn, next_turn, plan_rows, recorded_rows, runs_of
from asyncdata.runtime.state.choices import Choices
from asyncdata.runtime.state.history import InputHistory
from asyncdata.runtime.state.marker import Marker
from asyncdata.runtime.state.tracks import Tracks
from asyncdata.types import Element

MakeInner = Callable[..., Stage]

_SHORT: Final = 1 << 16

_AVAILABLE_BYTES: Final = 16 << 20
"""Payload that is collected from all slots together, where it is available, before rows leave: longer blocks are
cheaper by the row, and what has arrived need not be waited for."""


_BETWEEN_MARKS: Final = 32
"""Rows between two marks at the least, if inner datasets read nothing."""

_FEW_BLOCKS: Final = 4
"""For so many output blocks' worth of rows a slot asks at most before it asks in long runs."""


class _Waiting(NamedTuple):
    """An input element whose inner dataset has no slot yet; the number of its row in the input, and what it uses up."""

    inner: Stage
    row: int
    used: Rows


class _Slot(Input):
    """One place in the cycle, and the inner dataset that has it."""

    def __init__(self, inner: Stage, row: int, used: Rows, number: int, most_rows: int, most_bytes: int) -> None:
        super().__init__(inner)
        self.row = row
        self.used = used
        self._number = number
        self._given = 0
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._enough = 1
        self.pulling: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        # Given in advance of its turn, until its first row leaves.
        self.is_early = False
        self.taken = 0
        # Its next row is to have a mark of the stage.
        self.is_due = False
        self._drains = False

    @property
    def is_draining(self) -> bool:
        """Whether all of it has been asked for, if only once."""
        self._drains = self._drains or self.stage.draining
        return self._drains

    @property
    def limit(self) -> int:
        """How many rows to ask for next.

        At first no more than leave in one block, so that the first rows of one dataset do not wait until the others
        have found thousands. Then each slot a few more than the one before: datasets of one size would otherwise all
        ask at the same time ever after, and nothing would leave until the last of them has got its rows.
        """
        if not self._given:
            return self._most_rows
        behind_others = (2 + self._number) * self._most_rows - self._given
        return min(BLOCK_ROWS, _FEW_BLOCKS * self._most_rows, behind_others) if behind_others > 0 else BLOCK_ROWS

    @property
    def has_enough(self) -> bool:
        """Whether there is no reason to ask for more rows, even if they are available."""
        return self.ended or self.rows >= self._enough

    def add(self, block: Block | None) -> None:
        """What a pull gave."""
        if block is not None and len(block):
            self._given += len(block)
            mean = max(block.nbytes // len(block), 1)
            self._enough = max(1, min(self._most_rows, self._most_bytes // mean))
        super().add(block)
        self.ended = self.ended or self.stage.exhausted

    @property
    def marked(self) -> list[int]:
        """Which of the buffered rows have a mark."""
        return [row for row, _ in self.peek().advance.marks] if self.rows else []

    async def pull_at_hand(self, pause: Pause) -> None:
        """Rows that need not be waited for, as far as there are any and more are useful."""
        while not self.has_enough and (block := self.stage.pull_ready(self.limit)) is not None:
            self.add(block)
            await pause()


class InterleaveStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given. Where elements leave in any order, the rotation is sloppy.
        upstream: Gives the elements that inner datasets are made of.
        make_inner: ``make_inner(element, origin, used)`` makes an inner dataset's last stage and does not start it; a
            fourth argument is the state it is brought back to.
        cycle_length: Inner datasets read in turn.
        block_length: Elements per turn.
        ahead: Inner datasets opened beyond those that have a slot; where they read nothing, as many as there are slots.
        spare: Whether storage has requests to spare, so that more may be asked for than will be needed soon.
        tracks: Told of the elements whose datasets have ended, where elements have no fixed order.
        choices: The order in which a sloppy rotation reads slots, where it is noted or repeated.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        make_inner: MakeInner,
        *,
        cycle_length: int,
        block_length: int,
        ahead: int,
        spare: Callable[[], bool] = bool,
        tracks: Tracks | None = None,
        choices: Choices | None = None,
    ) -> None:
        super().__init__(context, (upstream,))
        self._spare = spare
        # Of those that wait: the first so many have begun to read, and the first so many have asked for all there is.
        self._prepared = 0
        self._asked = 0
        self._tracks = tracks
        self._choices = choices
        self._repeats = choices is not None and choices.repeats
        self._upstream = upstream
        self._make_inner = make_inner
        self._block_length = block_length
        self._most_ahead = ahead
        self._reads = False
        self._ordered = self._in_order = context.ordered
        self._slots: list[_Slot | None] = [None] * cycle_length
        self._turn = Turn(0, 0)
        self._elements: deque[tuple[Element, Rows, int, Rows]] = deque()
        self._waiting: deque[_Waiting] = deque()
        self._input_ended = False
        self._history = InputHistory()
        self._given = 0
        self._inner_marks = 0
        self._next_mark = 0
        self._revived: dict[int, tuple[int, State]] = {}
        self._marker = Marker()
        self._states: Slots | None = None
        self._tail = EMPTY
        self._arrived = asyncio.Event()
        self._opening: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    # --- input -------------------------------------------------------------------------------------------------

    def restore(self, mark: Mark) -> None:
        """See `Stage`; the first pull makes the inner datasets again that had a slot."""
        self._turn = Turn(mark["slot"], mark["taken"])
        self._history.begin(mark["row"], mark["input"])
        self._given = mark["next"]
        self._revived = {
            slot["row"]: (index, slot["state"]) for index, slot in enumerate(mark["slots"]) if slot is not None
        }
        self._marker.begin(0)

    async def _revive(self) -> None:
        """Gives the inner datasets their slots again; elements of datasets that have ended are passed over."""
        while self._history.rows < self._given:
            await self._pause()
            block = await self._upstream.pull(self._given - self._history.rows)
            if block is None:
                raise self._history.too_short(self._given, self.label)
            self._take_input(block)
        while self._elements:
            element, origin, row, used = self._elements.popleft()
            if row in self._revived:
                index, state = self._revived.pop(row)
                inner = self._make_inner(element, origin, used, state)
                self._reads = self._reads or not inner.draining
                slot = self._slots[index] = self._slot(index, inner, row, used)
                slot.begin(state)
                slot.taken = 1  # its state contains the version of its file
                inner.prepare()

    async def _fill_slot(self, index: int) -> bool:
        """Gives a free slot the next inner dataset; False when there is none."""
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            if not self._may_open_more:
                return False
            self._arrived.clear()
            await self._open_more()
            if not self._waiting and self._opening is not None:
                await self._arrived.wait()
        self._give_slot(index)
        await self._open_more()
        return True

    def _give_slot(self, index: int) -> None:
        found = self._waiting.popleft()
        self._prepared = max(0, self._prepared - 1)
        self._asked = max(0, self._asked - 1)
        self._given = found.row + 1
        self._slots[index] = self._slot(index, found.inner, found.row, found.used)

    def _slot(self, index: int, inner: Stage, row: int, used: Rows) -> _Slot:
        cycle = len(self._slots)
        return _Slot(inner, row, used, index, max(1, BLOCK_ROWS // cycle), _AVAILABLE_BYTES // cycle)

    @property
    def _may_open_more(self) -> bool:
        return self._failure is None and not (self._input_ended and not self._elements)

    @property
    def _ahead(self) -> int:
        """Beyond the length of the cycle only where inner datasets read: others hide nothing, and may be large."""
        return self._most_ahead if self._reads else min(self._most_ahead, len(self._slots))

    @property
    def _missing(self) -> int:
        """How many inner datasets are to be opened: for the free slots, and ahead."""
        return max(0, self._slots.count(None) + self._ahead - len(self._waiting))

    async def _open_more(self) -> None:
        """Opens what input is available, and what is not in the background: slots that have rows wait for no input."""
        if self._opening is None and self._missing and self._may_open_more:
            await self._open_ahead(wait=False)
            if self._missing and self._may_open_more:
                self._opening = self.context.spawn(self._open_in_background())

    async def _open_in_background(self) -> None:
        try:
            while self._missing and self._may_open_more:
                await self._open_ahead(wait=True)
                self._arrived.set()
        finally:
            self._opening = None
            self._arrived.set()

    async def _open_ahead(self, *, wait: bool) -> None:
        """Prepares inner datasets, of the input that is available; waits for some only where there is none."""
        try:
            while (missing := self._missing) and self._failure is None:
                await self._pause()
                if self._elements:
                    for _ in range(min(missing, len(self._elements))):
                        self._open_one(*self._elements.popleft())
                        await self._pause()
                    wait = False
                elif self._input_ended:
                    return
                elif (block := self._upstream.pull_ready(max(missing, self._ahead))) is not None:
                    # Elements that are available cost less together; their datasets are made one by one.
                    self._take_input(block)
                elif wait:
                    block = await self._upstream.pull(missing)
                    if block is None:
                        self._input_ended = True
                    else:
                        self._take_input(block)
                else:
                    return
        except Exception as error:  # noqa: BLE001 -- raised when those opened before have got their slots
            self._failure = error
        finally:
            self._prepare_soon()

    def _open_one(self, element: Element, origin: Rows, row: int, used: Rows) -> None:
        inner = self._make_inner(element, origin, used)
        self._in_order = self._in_order and inner.ordered
        self._reads = self._reads or not inner.draining
        self._waiting.append(_Waiting(inner, row, used))

    def _prepare_soon(self) -> None:
        """Starts reading what will be needed soon: one waiting dataset per slot that is free, or in its last piece.

        No more than that while anything is left to be asked for in a slot: what is read for later takes memory from
        what is read for now. Behind that, as many as there are requests to spare.
        """
        soon = sum(slot is None or slot.is_draining for slot in self._slots)
        if soon <= self._prepared and not self._spare():
            return
        for number in range(self._asked, len(self._waiting)):
            if number >= soon and not (soon == len(self._slots) and self._spare()):
                break
            inner = self._waiting[number].inner
            inner.prepare()
            self._prepared = max(self._prepared, number + 1)
            if number == self._asked and inner.draining:
                self._asked += 1

    def _take_input(self, block: Block) -> None:
        first = self._history.rows
        self._history.feed(block.advance)
        try:
            used: Iterable[Rows] = itertools.repeat(NO_PAIRS)
            if self._tracks is not None and block.advance.used is not None:
                used, rest = block.advance.used.by_row()
                self._tracks.drop(rest)
            elements = map(block.private, range(len(block)))
            self._elements.extend(zip(elements, block.origin, itertools.count(first), used))
        finally:
            block.release()

    def prepare(self) -> None:
        """Input elements are asked for at the first pull."""

    @property
    def draining(self) -> bool:
        """Every inner dataset has a slot, and drains."""
        if self._block is not None or not self._input_ended or self._waiting or self._elements:
            return False
        return all(slot is None or slot.stage.draining for slot in self._slots)

    @property
    def ordered(self) -> bool:
        """As long as no inner dataset is known that is not."""
        return self._in_order and super().ordered

    # --- output ------------------------------------------------------------------------------------------------

    async def _pull(self, limit: int) -> Block | None:
        if self._revived or self._history.rows < self._given:
            await self._revive()
        while self._block is None:
            filled = await self._fill_ordered() if self._ordered else await self._fill_sloppy()
            if not filled:
                return self._last_news()
            self._prepare_soon()
            # What is available is put in order at once, because that costs as much for a few rows of each slot as for
            # many; small limits are served from it.
            self._block = self._emit(BLOCK_ROWS)
        block = self._block
        if len(block) <= limit:
            self._block = None
            return block
        block, self._block = block.split(limit)
        return block

    def _last_news(self) -> Block | None:
        tail, self._tail = self._tail, EMPTY
        return Block.empty(tail) if tail.has_news else None

    async def _fill_ordered(self) -> bool:
        """Makes sure that the slot whose turn it is has rows; False at the end."""
        cycle = len(self._slots)
        passed = 0
        while passed < cycle:
            index = self._turn.slot
            if self._slots[index] is None and not await self._fill_slot(index):
                self._turn = next_turn(self._turn, cycle)
                passed += 1
                continue
            slot = self._slots[index]
            assert slot is not None
            passed = 0
            await slot.more(slot.limit, self._pause)
            if slot.rows:
                await self._fill_available()
                return True
            await self._vacate(index)
            self._turn = next_turn(self._turn, cycle)
        return False

    async def _fill_available(self) -> None:
        """Rows for the slots whose turns come next, as far as they are there: the longer a block, the cheaper its rows.

        A free slot among them is given what it would be given at its turn.
        """
        cycle = len(self._slots)
        given = False
        for step in range(cycle):
            index = (self._turn.slot + step) % cycle
            slot = self._slots[index]
            if slot is None:
                if not self._waiting:
                    break
                given = True
                self._give_slot(index)
                slot = self._slots[index]
                assert slot is not None
                slot.is_early = True
            await slot.pull_at_hand(self._pause)
            if not slot.rows:
                break
        if given:
            await self._open_more()

    async def _vacate(self, index: int) -> None:
        slot = self._slots[index]
        assert slot is not None
        await slot.stage.aclose()
        self._tail = Advance.concat([self._tail, slot.left_over()])
        if self._tracks is not None and len(slot.used):
            self._tracks.close(slot.used)
        self._slots[index] = None

    async def _fill_sloppy(self) -> bool:
        """Keeps every slot pulling; waits until one has rows; False at the end."""
        while True:
            self._arrived.clear()
            for index, slot in enumerate(self._slots):
                if slot is None:
                    continue
                if slot.error is not None and not self._repeats:
                    raise slot.error
                if slot.ended and not slot.rows:
                    await self._vacate(index)
            await self._give_slots()
            slots = [slot for slot in self._slots if slot is not None]
            if self._repeats:
                if self._has_wanted(slots):
                    return True
            elif any(slot.rows for slot in slots):
                return True
            if not slots and self._failure is not None:
                raise self._failure
            if not slots and self._input_ended and not self._elements:
                return False
            await self._arrived.wait()

    def _has_wanted(self, slots: Sequence[_Slot]) -> bool:
        """Whether there are rows of the dataset that comes next in the recorded order; raises if there never will be.

        An error of another dataset waits until nothing in front of it is left.
        """
        assert self._choices is not None
        wanted = self._choices.wanted
        slot = None if wanted is None else next((slot for slot in slots if slot.row == wanted[0]), None)
        if slot is not None and slot.rows:
            return True
        failed = next((other.error for other in slots if other.error is not None), None)
        if wanted is None:
            if failed is not None:
                raise failed
            if any(other.rows for other in slots):
                raise self._choices.ends(self.label)
            return False
        if slot is not None and slot.error is not None:
            raise slot.error
        no_slot = len(slots) == len(self._slots) and all(other.rows or other.error for other in slots)
        no_more = not self._waiting and not self._may_open_more
        if slot is None and (wanted[0] < self._given or no_slot or no_more):
            raise failed or self._failure or self._choices.misses(self.label)
        return False

    async def _give_slots(self) -> None:
        """Free slots get what was opened ahead, and all that have nothing ask for rows."""
        await self._open_more()
        for index in range(len(self._slots)):
            if self._slots[index] is None and self._waiting:
                self._give_slot(index)
            slot = self._slots[index]
            if slot is not None and slot.pulling is None and not slot.has_enough and slot.error is None:
                await slot.pull_at_hand(self._pause)
                if not slot.rows:
                    slot.pulling = self.context.spawn(self._pull_into(slot))
        await self._open_more()

    async def _pull_into(self, slot: _Slot) -> None:
        try:
            await slot.more(slot.limit, self._pause)
        except asyncio.CancelledError:
            slot.error = cancelled_task()
            raise
        except Exception as error:  # noqa: BLE001 -- raised by the pull that meets this slot
            slot.error = error
        finally:
            slot.pulling = None
            self._arrived.set()

    def _emit(self, limit: int) -> Block | None:
        """Rows available, in the order of the rotation."""
        slots = self._slots
        # A sloppy rotation passes over slots without rows; an ordered one stops at them, unless they are free for
        # good: while input may come, a free slot is one that must be asked.
        sloppy = not self._ordered
        idle = self._ordered and self._input_ended and not self._waiting and not self._elements
        vacant = [(slot is None and idle) or (sloppy and not (slot and slot.rows)) for slot in slots]
        available = [0 if slot is None else slot.rows for slot in slots]
        turn = self._turn
        if sloppy and vacant[turn.slot]:
            turn = next_turn(turn, len(slots))
        order, after = self._plan(available, vacant, turn, limit)
        if not len(order):
            if sloppy:
                self._turn = next_turn(turn, len(slots))
            return None
        counts = [len(order)] if len(slots) == 1 else np.bincount(order, minlength=len(slots)).tolist()
        present = [index for index, count in enumerate(counts) if count]
        # An inner dataset may show only by its rows that they come in any order.
        self._in_order = self._in_order and all(
            slot.peek().advance.ordered for slot in slots if slot is not None and slot.rows
        )
        marks = self._marks(order, present, turn, available, vacant)
        heads = []
        for index in present:
            slot = slots[index]
            assert slot is not None
            slot.is_early = False
            heads.append(slot.take(counts[index]))
            slot.taken += counts[index]
        self._turn = after
        joined = Block.concat(heads)
        if not self.ordered:
            joined.advance = joined.advance.unordered()
        if len(present) == 1:
            joined.advance = joined.advance.with_marks(marks)
        else:
            back = np.empty(len(order), np.int64)
            # Numbers of few bits are sorted by their digits, which is several times faster.
            narrow = order.astype(np.uint16) if len(slots) <= _SHORT else order
            back[np.argsort(narrow, kind="stable")] = np.arange(len(order))
            joined = joined.reorder(back, joined.advance.reorder(back, marks))
        if self._tail.has_news:
            # What inner datasets used up behind their last element goes with the element that comes next.
            joined.advance = Advance.concat([self._tail, joined.advance])
            self._tail = EMPTY
        return joined

    def _plan(self, available: Sequence[int], vacant: Sequence[bool], turn: Turn, limit: int) -> RotationPlan:
        if self._choices is None:
            return plan_rows(available, vacant, turn, self._block_length, limit)
        made_of = [None if slot is None else slot.row for slot in self._slots]
        if self._repeats:
            plan = RotationPlan(recorded_rows(available, made_of, self._choices, limit), turn)
        else:
            plan = plan_rows(available, vacant, turn, self._block_length, limit)
        self._choices.note(runs_of(plan.slots, made_of))
        return plan

    def _marked(self, order: Rows, present: Sequence[int]) -> list[int]:
        """Rows where marks belong.

        Where inner datasets read, one for as many of their marks as there are slots, whose states it has. Or at fixed
        rows where they have none. And behind the first row of each inner dataset that reads: from then on
        its state tells the version of its file.
        """
        if not self._reads:
            return self._spread_out(order, present)
        found: list[int] = []
        places: set[int] = set()
        for index in present:
            slot = self._slots[index]
            marked = [] if slot is None else slot.marked
            if slot is None or not (slot.is_due or marked):
                continue
            rows = np.flatnonzero(order == index)
            if slot.is_due:
                places.add(int(rows[0]))
                slot.is_due = False
            found += [int(rows[row]) for row in marked if row < len(rows)]
            if not slot.taken and marked[:1] == [0]:
                slot.is_due = len(rows) == 1
                places.update(rows[1:2].tolist())
        found.sort()
        begun, every = self._inner_marks, len(self._slots)
        self._inner_marks += len(found)
        if not begun:
            places.update(row for row in self._marker.places(len(order)) if not found or row <= found[0])
        places.update(row for count, row in enumerate(found, begun) if count % every == 0)
        return sorted(places)

    def _spread_out(self, order: Rows, present: Sequence[int]) -> list[int]:
        """Where nothing is read: fixed rows, and where datasets begin, but not close behind another mark.

        One costs more than a few rows.
        """
        begin = self._marker.rows
        if begin + len(order) <= self._next_mark:
            return []
        places = set(self._marker.places(len(order)))
        for index in present:
            slot = self._slots[index]
            if slot is not None and not slot.taken:
                places.add(int((order == index).argmax()))
        kept = []
        for row in sorted(places):
            if begin + row >= self._next_mark:
                kept.append(row)
                self._next_mark = begin + row + _BETWEEN_MARKS
        return kept

    def _marks(
        self, order: Rows, present: Sequence[int], turn: Turn, available: Sequence[int], vacant: Sequence[bool]
    ) -> Marks:
        def mark(row: int) -> Mark:
            before = plan_rows(available, vacant, turn, self._block_length, row).turn if row else turn
            slot = int(order[row])
            taken = before.taken if before.slot == slot else 0
            counts = np.bincount(order[:row], minlength=len(self._slots)).tolist()
            # What was given in advance must not show.
            shown: list[_Slot | None] = []
            hidden: list[int] = []
            for index, (s, count) in enumerate(zip(self._slots, counts, strict=True)):
                is_hidden = s is not None and s.is_early and not count and index != slot
                shown.append(None if is_hidden else s)
                if s is not None and is_hidden:
                    hidden.append(s.row)
            following = min(hidden, default=self._given)
            oldest = min((s.row for s in shown if s is not None), default=following)
            states = (None if s is None else (s.row, s.at(count)) for s, count in zip(shown, counts, strict=True))
            self._states = Slots.of(states, self._states)
            return {
                "slot": slot,
                "taken": taken,
                "slots": self._states,
                "next": following,
                "row": oldest,
                "input": self._history.before(oldest),
            }

        marks = self._marker.marks_at(len(order), mark, self._marked(order, present) if self.ordered else ())
        self._history.forget(min((s.row for s in self._slots if s is not None), default=self._given))
        return marks

    async def aclose(self) -> None:
        self._retire()
        tasks = [slot.pulling for slot in self._slots if slot is not None and slot.pulling is not None]
        tasks += [self._opening] if self._opening is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in self._slots:
            if slot is not None:
                slot.release()
        if self._block is not None:
            self._block.release()
            self._block = None
        inner = [slot.stage for slot in self._slots if slot is not None]
        await close_all([*inner, *(waiting.inner for waiting in self._waiting), *self.inputs])
        self._slots = [None] * len(self._slots)
        self._waiting.clear()
        self._elements.clear()
