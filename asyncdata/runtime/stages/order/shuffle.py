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
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from asyncdata.errors import StateError
from asyncdata.memory.accounts import Foreseen
from asyncdata.memory.advance import EMPTY, NO_ORIGINS, Advance, Mark, Marks, Rows, State
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn, alike, merge
from asyncdata.memory.structure import LEAF, Structure
from asyncdata.memory.used import NO_PAIRS, PAIR_WIDTH, Used
from asyncdata.runtime.memory.evacuate import Evacuator
from asyncdata.runtime.randomness import below
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.state.history import InputHistory
from asyncdata.runtime.state.marker import MARK_EVERY, Marker
from asyncdata.runtime.state.places import Places, by_place

_EVACUATE_EVERY: Final = 128
"""Input rows between two looks at what the buffer pins, or an eighth of the buffer if that is more."""

_EVACUATE_PART: Final = 32
"""Of the limit: a look at once when it pins so much more than at the last one."""

_SHORT: Final = 1 << 16


def exchange(slots: Rows, size: int) -> tuple[Rows, Rows, Rows]:
    """Resolves one block of draws.

    Args:
        slots: ``int64[n]``: the slot drawn for each input of the block.
        size: Slots in the buffer.

    Returns:
        ``source``: ``int64[n]``, for each output its slot (below `size`), or ``size + j`` for input j of this block;
        ``written``: the slots that change, ascending; ``last``: for each of those the input that ends up in it.
    """
    count = len(slots)
    # Small numbers are sorted by their digits, which is several times faster.
    order = np.argsort(slots.astype(np.uint16) if size <= _SHORT else slots, kind="stable")
    ordered = slots.take(order)
    again = np.empty(count, bool)
    again[:1] = False
    again[1:] = ordered[1:] == ordered[:-1]
    sources = ordered.copy()
    later = np.flatnonzero(again)
    sources[later] = size + order.take(later - 1)
    source = np.empty(count, np.int64)
    source[order] = sources
    ends = np.empty(count, bool)
    ends[-1:] = True
    ends[:-1] = ~again[1:]
    return source, ordered[ends], order[ends]


def _draws(key: tuple[int, int], drawn: int, size: int, count: int) -> Rows:
    """The places from which a buffer of so many rows that is not filled up any more is emptied."""
    return below(key, drawn, np.arange(size, size - count, -1, dtype=np.int64))


def _pop(places: list[int], draws: Rows) -> Rows:
    """Takes what was drawn out of a list, whose last entry takes its place each time."""
    gone = np.empty(len(draws), np.int64)
    for row, slot in enumerate(draws.tolist()):
        gone[row] = places[slot]
        places[slot] = places[-1]
        places.pop()
    return gone


def _written(marks: Marks) -> Marks:
    """Without those that cannot be: any older one does."""
    return tuple([each for each in marks if each[1] is not None])


def with_history(block: Block) -> list[Column]:
    """The block's columns, then its provenance, then what each row uses up of tracks.

    The last is an array of as many pairs for each row, or, where the numbers differ, objects: an array of pairs each.
    """
    used = block.advance.used
    history: Column
    if used is None:
        history = ArrayColumn(np.empty((len(block), 0, PAIR_WIDTH), np.int64))
    elif used.ends is None:
        history = ArrayColumn(used.pairs.reshape(-1, 1, PAIR_WIDTH))
    else:
        history = ObjectColumn([used.pairs[a:b] for a, b in pairwise((0, *used.ends.tolist()))])
    return [*block.columns, ArrayColumn(block.origin), history]


def from_history(structure: Structure, columns: list[Column], marks: Marks = (), *, ordered: bool = True) -> Block:
    """The inverse: a block of rows that have been moved about."""
    origin, history = columns[-2:]
    assert isinstance(origin, ArrayColumn)
    advance = Advance(len(origin), marks, _used(history), ordered=ordered)
    return Block(structure, tuple(columns[:-2]), origin.array, advance)


def _used(history: Column) -> Used | None:
    """What rows use up of tracks; the last column of `with_history`."""
    if isinstance(history, ObjectColumn):
        parts = [pairs.reshape(-1, PAIR_WIDTH) for pairs in history.items]
        return Used(np.concatenate([NO_PAIRS, *parts]), np.cumsum([len(part) for part in parts], dtype=np.int64))
    assert isinstance(history, ArrayColumn)
    return Used(history.array.reshape(-1, PAIR_WIDTH)) if history.array.shape[1] else None


def _replaced(held: Column, fresh: Column, slots: Rows) -> Column:
    """The rows of a buffer, when the first fresh ones have taken the places of some, one after the other."""
    source = np.arange(len(held))
    source[slots] = len(held) + np.arange(len(slots))
    return merge(*alike(held, fresh), source)


class Pick(NamedTuple):
    """How elements of the input are read by themselves.

    Attributes:
        read: Makes the stage that reads those at some places, in any order.
        is_sized: Whether elements are records, and no bytes that were made of them.
    """

    read: Callable[[Places], Stage]
    is_sized: bool


class ShuffleStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        buffer_size: Elements in the buffer.
        key: Of the random draws, see `runtime.randomness`.
        pick: Where elements of the input can be read by themselves; None: the input must give them again.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        buffer_size: int,
        key: tuple[int, int],
        pick: Pick | None = None,
    ) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._size = buffer_size
        self._key = key
        self._pick = pick
        self._picked: Stage | None = None
        self._budget = context.budget
        self._account = context.kept
        self._evacuate = Evacuator(self._budget, self._account)
        self._since_evacuation = 0
        self._used_before = 0
        self._filling: list[Block] = []
        self._structure: Structure = LEAF
        self._columns: list[Column] = []
        self._places: list[int] = []
        self._tail = EMPTY
        self._full = False
        self._draining = False
        self._ended = False
        # What is behind a mark is made again: where the buffer is not, that would cost more than the buffer.
        self._marker = Marker(every=max(MARK_EVERY, buffer_size if pick is None else buffer_size // 2))
        self._history = InputHistory()
        # Until rows are known by their places alone: then the input need not give them again.
        self._has_numbers = True
        self._numbers: Rows = np.empty(0, np.int64)
        self._wanted: Rows | Places | None = None
        self._until = 0
        self._account.foresee = self._foresee
        self._budget.holders[self] = None

    def movable(self) -> Iterable[Column]:
        """See `runtime.memory.budget.Holder`."""
        if self._draining:
            left = np.array(self._places, np.int64)
            self._columns = [column.pick(left) for column in self._columns]
            self._numbers = self._numbers[left]
            self._places = list(range(len(left)))
        return [column for block in self._filling for column in block.columns] + self._columns[:-2]

    def restore(self, mark: Mark) -> None:
        """See `Stage`: the first pull reads again from the oldest row of the buffer on, and keeps those in it."""
        self._wanted, self._until = mark["places"] if "places" in mark else mark["buffer"].copy(), mark["next"]
        self._history.begin(mark["row"], mark["input"])
        self._marker.begin(mark["drawn"], mark["input"])

    def _foresee(self) -> Foreseen:
        parts = [column for block in self._filling for column in block.columns] + self._columns[:-2]
        return Foreseen(self._size, len(self), sum(column.nbytes for column in parts))

    def __len__(self) -> int:
        """Rows in the buffer, until the input has ended."""
        return sum(len(block) for block in self._filling) + (len(self._columns[-1]) if self._columns else 0)

    @property
    def draining(self) -> bool:
        """When the input has nothing left to begin."""
        return self._ended or super().draining

    async def _refill(self, wanted: Rows) -> None:
        """The buffer as it was: its rows from the input, each in the slot that it had."""
        kept = np.sort(wanted)
        while self._history.rows < self._until:
            first = self._history.rows
            block = await self._next_input(min(BLOCK_ROWS, self._until - first))
            if block is None:
                break
            if len(block):
                self._count(block)
                here = kept[np.searchsorted(kept, first) : np.searchsorted(kept, self._history.rows)] - first
                self._filling.append(block.select(here))
                self._since_evacuation += len(here)
                await self._evacuate_now_and_then()
        if len(self) < len(wanted):
            raise self._history.too_short(self._until, self.label)
        self._arrange(np.searchsorted(kept, wanted))
        self._numbers = wanted

    async def _read_buffer(self, places: Places) -> None:
        """The buffer as it was: its rows from where they lie."""
        if self._pick is None:
            raise StateError("the state is damaged: elements of this input lie in no files", stage=self.label)
        self._has_numbers = False
        self._picked = self._pick.read(places)
        while (block := await self._picked.pull(BLOCK_ROWS)) is not None:
            await self._pause()
            if len(block):
                self._filling.append(block)
                self._since_evacuation += len(block)
                await self._evacuate_now_and_then()
        await self._picked.aclose()
        origin = np.concatenate([NO_ORIGINS, *(block.origin for block in self._filling)])
        found, wanted = by_place(origin), by_place(places.origin)
        if not np.array_equal(origin[found], places.origin[wanted]):
            raise StateError("the state is damaged: elements of the buffer lie elsewhere", stage=self.label)
        order = np.empty(len(places), np.int64)
        order[wanted] = found
        self._arrange(order)

    def _arrange(self, order: Rows) -> None:
        """The rows that were read for the buffer, each in its slot."""
        if self._filling:
            whole = Block.concat(self._filling)
            self._filling = [whole.reorder(order, whole.advance.reorder(order, ()))]
        self._fill_up()

    async def _pull(self, limit: int) -> Block | None:
        if self._wanted is not None:
            if isinstance(self._wanted, Places):
                await self._read_buffer(self._wanted)
            else:
                await self._refill(self._wanted)
            self._wanted = None
        while not self._full and not self._ended:
            missing = self._size - len(self)
            block = await self._next_input(min(BLOCK_ROWS, missing)) if missing > 0 else None
            if block is None:
                self._fill_up()
            elif len(block):
                self._count(block)
                self._filling.append(block)
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
            self._filling = []
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
        slots = below(self._key, drawn, np.full(count, size, np.int64))

        first = self._history.rows
        self._history.feed(block.advance)
        fresh_columns = with_history(block)

        def mark(row: int, state: State) -> Mark:
            held = [known.copy() for known in self._known(self._columns[-2], self._columns[:-2], self._numbers)]
            numbers = np.arange(first, first + count)
            for known, new in zip(held, self._known(ArrayColumn(block.origin), block.columns, numbers), strict=True):
                known[slots[:row]] = new[:row]
            history = _replaced(self._columns[-1], fresh_columns[-1], slots[:row])
            return self._mark(held, history, drawn + row, first + row, state)

        marks = _written(self._marker.after(block.advance, count, mark))
        source, written, last = exchange(slots, size)
        self._numbers[written] = first + last
        out: list[Column] = []
        for index, fresh in enumerate(fresh_columns):
            held, fresh_alike = alike(self._columns[index], fresh)
            out.append(merge(held, fresh_alike, source))
            held.put(written, fresh_alike, last)  # type: ignore[arg-type]  # `alike` made them of one kind
            self._columns[index] = held
        return from_history(self._structure, out, marks, ordered=self._marker.input.ordered)

    def _without_structure(self, block: Block) -> Block:
        """Makes bare objects of the block, and of the buffer, which differ in structure."""
        held = from_history(self._structure, self._columns).as_objects()
        self._structure = held.structure
        self._columns = [*held.columns, *self._columns[-2:]]
        return block.as_objects()

    def _known(self, origin: Column, columns: Sequence[Column], numbers: Rows) -> list[Rows]:
        """What rows of the input are known by: where they lie and how long they are, or their numbers."""
        if self._pick is None:
            return [numbers]
        assert isinstance(origin, ArrayColumn)
        column = columns[0] if self._pick.is_sized and len(columns) == 1 else None
        sizes = column.rows[:, 1] if isinstance(column, RefColumn) else np.zeros(len(numbers), np.int64)
        return [numbers, origin.array, sizes]

    def _mark(self, contents: list[Rows], history: Column, drawn: int, following: int, state: State) -> Mark:
        """Which rows of the input are in the buffer, slot by slot, and the state of the input.

        This is the state in front of the oldest row of the buffer, or, where rows can be read by themselves, behind
        the last row that was taken.
        """
        numbers, *lying = contents
        if lying and (places := self._lying(*lying, _used(history))) is not None:
            self._history.forget(following)
            self._has_numbers = False
            return {"drawn": drawn, "places": places, "next": following, "row": following, "input": state}
        if not self._has_numbers:
            return None
        oldest = int(numbers.min())
        self._history.forget(oldest)
        return {
            "drawn": drawn,
            "buffer": numbers,
            "next": following,
            "row": oldest,
            "input": self._history.before(oldest),
        }

    def _lying(self, origin: Rows, sizes: Rows, used: Used | None) -> Places | None:
        """Where the rows of the buffer lie; None if one of them lies nowhere."""
        sources = self.context.sources
        places = Places(origin, sizes, lambda number: sources[number].version, used)
        return places if sources.lying.issuperset(places.files) else None

    def _drain(self, limit: int) -> Block | None:
        """Draws from what is left after the input's end; the last of them takes the place of the one drawn."""
        places = self._places
        count = min(limit, len(places))
        if not count:
            tail, self._tail = self._tail.dropped(), EMPTY
            return Block.empty(tail) if tail.has_news else None
        drawn = self._marker.rows
        draws = _draws(self._key, drawn, len(places), count)
        ordered = self._marker.input.ordered
        before = places.copy() if self._marker.places(count, ordered=ordered) else []

        def mark(row: int) -> Mark:
            left = before.copy()
            _pop(left, draws[:row])
            known = self._known(self._columns[-2], self._columns[:-2], self._numbers)
            contents = [each[left] for each in known]
            history = self._columns[-1].pick(np.array(left, np.int64))
            return self._mark(contents, history, drawn + row, self._history.rows, self._marker.input.state)

        gone = _pop(places, draws)
        marks = _written(self._marker.marks(count, mark, ordered=ordered))
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
        if self._picked is not None:
            await self._picked.aclose()
        for block in self._filling:
            block.release()
        for column in self._columns:
            (column.pick(np.array(self._places, np.int64)) if self._draining else column).release()
        self._filling, self._columns, self._places = [], [], []
        self._full = self._draining = self._ended = True
        await super().aclose()
