"""`window`: nests of datasets, each of which holds some consecutive elements of the input.

    input    0 1 2 3 4 5 6 7 8 9        size 3, shift 2:     (0 1 2) (2 3 4) (4 5 6) (6 7 8) (8 9)
                                        and stride 2:        (0 2 4) (2 4 6) (4 6 8) (6 8) (8)

Window j begins at row ``j * shift``, and there is one for each such row of the input, unless it is not full and the
remainder is dropped. Rows wait as references, charged to the stage, until their first window is complete. Windows
leave as private copies, so that whatever becomes of them holds no memory of the pipeline; rows that several windows
share are copied out of the arena once. A pull makes windows of a part of the memory limit at most.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.accounts import Foreseen, Ticket
from asyncdata.memory.advance import EMPTY, Advance, Mark, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.structure import LEAF, RaggedOf, Structure, leaf_count
from asyncdata.runtime.memory.outside_slabs import OutsideSlabs, trim_heap
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.stages.group.materialized import Materialized
from asyncdata.runtime.stages.group.stacking import Misfit, structured
from asyncdata.runtime.state.marker import Marker

_TRIM_PART: Final = 16
"""Copies of more than one part in so many of the limit are given back to the system when they are gone."""
_SHARE: Final = 16
"""Windows of one pull take one part in so many of the memory limit, or are one."""

WrapContents = Callable[[Materialized], Any]


class WindowStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        size: Elements of a window.
        shift: From one window's beginning to the next one's.
        stride: From one element of a window to the next.
        drop_remainder: Whether windows that are not full are left out.
        wrap: Makes the dataset that user code sees.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        *,
        size: int,
        shift: int,
        stride: int,
        drop_remainder: bool,
        wrap: WrapContents,
    ) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._size = size
        self._stride = stride
        self._span = (size - 1) * stride + 1
        self._shift = shift
        self._drop = drop_remainder
        self._wrap = wrap
        self._budget = context.budget
        self._rows_account = context.rows
        self._private: Block | None = None
        self._fresh: deque[Block] = deque()
        self._rows = 0
        self._gap = 0
        self._ended = False
        self._marker = Marker(follows=True)
        self._most = 1
        self._copies: list[Ticket] = []
        self._outside = OutsideSlabs(self._budget, self._rows_account)
        self._rows_account.foresee = self._foresee
        self._budget.holders[self] = None

    def movable(self) -> Iterable[Column]:
        """See `runtime.memory.budget.Holder`."""
        return [column for block in self._fresh for column in block.columns]

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._marker.begin(mark["window"] + mark["skip"], mark["input"])

    def _foresee(self) -> Foreseen:
        held = [block for block in (self._private, *self._fresh) if block is not None]
        rows, nbytes = sum(map(len, held)), sum(block.nbytes for block in held) + self._outside.charged_bytes
        return Foreseen(self._span, rows, nbytes, self._size)

    async def _pull(self, limit: int) -> Block | None:
        self._give_copies()
        most = min(limit, self._most)
        while not self._full_windows() and not self._ended:
            await self._pause()
            await self._collect(most)
        count = min(most, self._full_windows() or self._last_windows())
        if not count:
            return None
        await self._charge_copies(self._gap + (count - 1) * self._shift + self._span)
        return self._emit(count)

    async def _charge_copies(self, rows: int) -> None:
        """Charges the private copies that are about to be made, until the windows are on their way."""
        nbytes = 0 if self._private is None else self._private.nbytes
        rows -= 0 if self._private is None else len(self._private)
        for block in self._fresh:
            if rows > 0:
                nbytes += block.nbytes * min(rows, len(block)) // max(len(block), 1)
                rows -= len(block)
        if nbytes:
            self._copies.append(await self._budget.charge_only(self._rows_account, nbytes))

    def _give_copies(self) -> None:
        copies, self._copies = self._copies, []
        nbytes = sum(ticket.nbytes for ticket in copies)
        for ticket in copies:
            self._budget.give(ticket)
        if nbytes > self._budget.limit // _TRIM_PART:
            trim_heap()

    # --- input -------------------------------------------------------------------------------------------------

    def _full_windows(self) -> int:
        """Full windows that can be made of the rows available."""
        missing = self._rows - self._gap - self._span
        return 0 if missing < 0 else missing // self._shift + 1

    def _last_windows(self) -> int:
        """Windows that are not full, which there are at the end."""
        rows = self._rows - self._gap
        return 0 if self._drop or rows <= 0 else -(-rows // self._shift)

    async def _collect(self, windows: int) -> None:
        """Takes one block of input."""
        want = self._gap + self._span + (windows - 1) * self._shift - self._rows
        block = await self._upstream.pull(min(max(want, 1), BLOCK_ROWS))
        if block is None:
            self._ended = True
        else:
            block.add_to(self._fresh)
            self._rows += len(block)
            await self._outside.add(block)

    # --- output ------------------------------------------------------------------------------------------------

    def _emit(self, count: int) -> Block:
        """The next so many windows, or fewer where elements nest differently."""
        starts = self._gap + np.arange(count, dtype=np.int64) * self._shift
        members = [np.arange(at, min(at + self._span, self._rows), self._stride) for at in starts.tolist()]
        held = self._make_private(min(self._rows, int(starts[-1]) + self._span), members)
        if held.has_nests:
            starts, members, count = starts[:1], members[:1], 1
            part = Block(LEAF, (held.columns[0].gather(members[0]),), held.origin[members[0]], EMPTY)
            if part.has_nests:
                with suppress(Misfit):  # then it is a dataset of bare objects
                    part = structured(part)
            windows = [part]
        else:
            windows = [
                Block(held.structure, tuple(c.gather(rows) for c in held.columns), held.origin[rows], EMPTY)
                for rows in members
            ]
        structure, kinds = _datasets(windows[0].structure)
        datasets = zip(*(self._wrapped(window, kinds) for window in windows), strict=True)
        columns = tuple(ObjectColumn(list(each)) for each in datasets)
        self._most = max(1, min(BLOCK_ROWS, self._budget.limit // _SHARE // max(_bytes_per_window(held, members), 1)))
        return Block(structure, columns, held.origin[starts], self._consume(held, starts))

    def _wrapped(self, window: Block, kinds: Sequence[Structure]) -> Iterator[object]:
        """The datasets that a window is made of."""
        columns = iter(window.columns)
        for kind in kinds:
            leaves = tuple(islice(columns, leaf_count(kind)))
            yield self._wrap(Materialized(kind, leaves, window.origin))

    def _consume(self, held: Block, starts: Rows) -> Advance:
        """Drops the rows that no later window needs, up to the end of the last one; the advance of the windows."""
        count = len(starts)
        stops = np.minimum(starts + min(self._shift, self._span), self._rows).tolist()
        head, rest = held.split(stops[-1])
        self._outside.drop(head)
        before = self._marker.rows
        marks = self._marker.after(
            head.advance, count, lambda row, state: {"window": before + row, "input": state}, starts
        )
        self._private = rest
        self._rows -= stops[-1]
        self._gap = max(0, self._shift - self._span)
        return head.advance.group(stops, marks)

    def _make_private(self, rows: int, members: list[Rows]) -> Block:
        """The first so many rows, in ordinary memory; their slabs are given back.

        Where windows do not overlap, rows that belong to none are not copied.
        """
        wanted = np.ones(rows, bool)
        if self._shift >= self._span:
            wanted[:] = False
            wanted[np.concatenate(members)] = True
        parts = [self._private] if self._private is not None else []
        have = sum(map(len, parts))
        while have < rows:
            block = self._fresh.popleft()
            if have + len(block) > rows:
                block, rest = block.split(rows - have)
                self._fresh.appendleft(rest)
            columns = tuple(_taken_out(column, wanted[have : have + len(block)]) for column in block.columns)
            parts.append(Block(block.structure, columns, block.origin, block.advance))
            have += len(block)
        self._private = Block.concat(parts)
        return self._private

    def _release(self) -> None:
        for block in (self._private, *self._fresh):
            if block is not None:
                block.release()
        self._private, self._rows = None, 0
        self._fresh.clear()
        self._outside.close()

    @property
    def draining(self) -> bool:
        """When the input drains; what is available takes no time."""
        return self._ended or super().draining

    async def aclose(self) -> None:
        self._release()
        self._give_copies()
        self._ended = True
        await super().aclose()


def _datasets(structure: Structure) -> tuple[Structure, list[Structure]]:
    """How the datasets of a window nest, and what the elements of each are: leaves, or RaggedArrays."""
    if structure is LEAF or isinstance(structure, RaggedOf):
        return LEAF, [structure]
    found = [_datasets(child) for child in structure.children]
    nest = dataclasses.replace(structure, children=tuple(child for child, _ in found))
    return nest, [kind for _, kinds in found for kind in kinds]


def _taken_out(column: Column, wanted: npt.NDArray[np.bool_]) -> Column:
    """A column out of the arena; its rows are released, those that are not wanted are lost."""
    if not isinstance(column, RefColumn):
        return column
    items = [column.element(row) if keep else None for row, keep in enumerate(wanted.tolist())]
    column.release()
    return ObjectColumn(items)


def _bytes_per_window(held: Block, members: list[Rows]) -> int:
    """What a window takes: rows of arrays are copied for each, objects are shared."""
    nbytes = 0
    for column in held.columns:
        copies = sum(map(len, members)) if isinstance(column, ArrayColumn) else len(held)
        nbytes += column.nbytes * copies // max(len(held), 1)
    return nbytes // len(members)
