"""`shuffle`: a buffer of references from which the next element is drawn.

The law is tf.data's: the buffer is filled first; then every input element takes the slot of the output element that
was drawn uniformly from the buffer before it; when the input has ended, the rest is drawn in turn. Draw i is a pure
function of (seed, epoch, i), so blocks may be cut anywhere.

Draws are made for a whole block of inputs at once. Within the block a slot may be drawn twice; then the later output
is the input that was put there by the earlier draw, which a stable sort by slot finds.

The provenance of the rows, and the source rows they use up, travel through the buffer as columns like the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np

from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Advance, Fold, Mark, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn, alike, concat, merge
from asyncdata.memory.structure import Structure
from asyncdata.runtime.budget import Budget
from asyncdata.runtime.randomness import below
from asyncdata.runtime.stage import BLOCK_ROWS, MARK_EVERY, Stage, row_marks

Evacuate = Callable[[list[RefColumn]], Awaitable[None]]


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
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    again = np.empty(count, bool)
    again[:1] = False
    again[1:] = ordered[1:] == ordered[:-1]
    source = np.empty(count, np.int64)
    source[order] = np.where(again, size + np.roll(order, 1), ordered)
    ends = np.empty(count, bool)
    ends[-1:] = True
    ends[:-1] = ~again[1:]
    return source, ordered[ends], order[ends]


class _Buffer:
    """The rows that wait, column by column; the last two columns are provenance and used source rows."""

    def __init__(self, structure: Structure, columns: list[Column]) -> None:
        self.structure = structure
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[-1])

    @property
    def origins(self) -> Rows:
        column = self.columns[-2]
        assert isinstance(column, ArrayColumn)
        return column.array

    def block(self, columns: list[Column], marks: tuple[tuple[int, Mark], ...]) -> Block:
        """A block of rows that leave the buffer."""
        origin, used = columns[-2], columns[-1]
        assert isinstance(origin, ArrayColumn)
        assert isinstance(used, ObjectColumn)
        return Block(self.structure, tuple(columns[:-2]), origin.array, _advance(origin.array, used.items, marks))


def _with_history(block: Block) -> list[Column]:
    """The block's columns, then its provenance, then per row what it uses up (None: just itself)."""
    advance = block.advance
    used: list[Rows | None] = [None] * len(block)
    if advance.ends is not None:
        starts = [0, *advance.ends.tolist()]
        used = [advance.used_rows[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]
    return [*block.columns, ArrayColumn(block.origin), ObjectColumn(used)]


def _advance(origin: Rows, used: list[Rows | None], marks: tuple[tuple[int, Mark], ...]) -> Advance:
    if all(rows is None for rows in used):
        return Advance(len(origin), origin, None, marks)
    parts = [origin[i : i + 1] if rows is None else rows for i, rows in enumerate(used)]
    ends = np.cumsum([len(part) for part in parts]).astype(np.int64)
    return Advance(len(origin), np.concatenate(parts), ends, marks)


class ShuffleStage(Stage):
    """See the module's docstring.

    Args:
        label: The stage's name.
        upstream: The input.
        buffer_size: Elements in the buffer.
        key: Of the random draws, see `runtime.randomness`.
        evacuate: Called now and then with the buffer's references, so that slabs which are nearly empty are freed.
        budget: Told when the stage waits for input, on behalf of `account`.
        account: Charged with the slabs that the buffer pins.
    """

    def __init__(
        self,
        label: str,
        upstream: Stage,
        buffer_size: int,
        key: tuple[int, int],
        evacuate: Evacuate | None = None,
        budget: Budget | None = None,
        account: Account | None = None,
    ) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._size = buffer_size
        self._key = key
        self._evacuate = evacuate
        self._budget = budget
        self._account = account
        self._since_evacuation = 0
        self._filling: list[Block] = []
        self._buffer: _Buffer | None = None
        self._out = 0
        self._ended = False
        self._fold = Fold()
        self._mark_every = max(MARK_EVERY, buffer_size)

    def __len__(self) -> int:
        held = sum(len(block) for block in self._filling)
        return held + (len(self._buffer) if self._buffer is not None else 0)

    async def pull(self, limit: int) -> Block | None:
        if self._buffer is None and not self._ended:
            await self._fill()
        if not self._ended:
            await self._evacuate_now_and_then()
            block = await self._pull(limit)
            if block is not None:
                self._since_evacuation += len(block)
                return self._swap(block)
            self._ended = True
        return self._drain(limit)

    async def _pull(self, limit: int) -> Block | None:
        if self._budget is None or self._account is None:
            return await self._upstream.pull(limit)
        self._budget.wait(self._account)
        try:
            return await self._upstream.pull(limit)
        finally:
            self._budget.wait(self._account, False)

    async def _fill(self) -> None:
        while (missing := self._size - len(self)) > 0:
            block = await self._pull(min(BLOCK_ROWS, missing))
            if block is None:
                self._ended = True
                break
            self._fold.feed(block.advance)
            if len(block):
                self._filling.append(block)
                await self._evacuate_while_filling(len(block))
        if self._filling:
            blocks, self._filling = self._filling, []
            structure = blocks[0].structure
            columns = [concat(parts).owned() for parts in zip(*map(_with_history, blocks), strict=True)]
            self._buffer = _Buffer(structure, columns)

    def _swap(self, block: Block) -> Block:
        """Every input row takes the place of an output row."""
        buffer = self._buffer
        count = len(block)
        if buffer is None or not count:
            self._fold.feed(block.advance)
            return Block.empty(Advance(0, block.advance.used_rows))
        size = len(buffer)
        slots = below(self._key, self._out, np.full(count, size, np.int64))
        marks = []
        for row in row_marks(self._out, count, self._mark_every):
            contents = buffer.origins.copy()
            contents[slots[:row]] = block.origin[:row]
            marks.append((row, self._mark(row, self._fold.at(block.advance, row), contents)))
        source, written, last = exchange(slots, size)
        out: list[Column] = []
        for index, fresh in enumerate(_with_history(block)):
            held, fresh_alike = alike(buffer.columns[index], fresh)
            out.append(merge(held, fresh_alike, source))
            held.put(written, fresh_alike, last)  # type: ignore[arg-type]  # `alike` made them of one kind
            buffer.columns[index] = held
        self._fold.feed(block.advance)
        self._out += count
        return buffer.block(out, tuple(marks))

    def _drain(self, limit: int) -> Block | None:
        """The input has ended: draws from what is left, the last slot moving into the one that was drawn."""
        buffer = self._buffer
        if buffer is None or not len(buffer):
            return None
        left = len(buffer)
        count = min(limit, left)
        draws = below(self._key, self._out, np.arange(left, left - count, -1, dtype=np.int64))
        places = list(range(left))
        marked = set(row_marks(self._out, count, self._mark_every))
        marks = []
        chosen = []
        for row, slot in enumerate(draws.tolist()):
            if row in marked:
                marks.append((row, self._mark(row, self._fold.state, buffer.origins[places[: left - row]])))
            chosen.append(places[slot])
            places[slot] = places[left - 1 - row]
        rest = np.array(places[: left - count], np.int64)
        gone = np.array(chosen, np.int64)
        out = buffer.block([column.pick(gone) for column in buffer.columns], tuple(marks))
        buffer.columns = [column.pick(rest) for column in buffer.columns]
        self._out += count
        return out

    def _mark(self, row: int, state: object, contents: Rows) -> Mark:
        return {"drawn": self._out + row, "input": state, "buffer": contents}

    async def _evacuate_while_filling(self, rows: int) -> None:
        self._since_evacuation += rows
        if self._evacuate is not None and self._since_evacuation >= max(BLOCK_ROWS, self._size // 8):
            self._since_evacuation = 0
            refs = [column for block in self._filling for column in block.columns if isinstance(column, RefColumn)]
            await self._evacuate(refs)

    async def _evacuate_now_and_then(self) -> None:
        buffer = self._buffer
        if self._evacuate is not None and buffer and self._since_evacuation >= max(BLOCK_ROWS, self._size // 8):
            self._since_evacuation = 0
            await self._evacuate([column for column in buffer.columns if isinstance(column, RefColumn)])

    async def aclose(self) -> None:
        for block in self._filling:
            block.release()
        self._filling = []
        if self._buffer is not None:
            for column in self._buffer.columns:
                column.release()
            self._buffer = None
        self._ended = True
        await super().aclose()


