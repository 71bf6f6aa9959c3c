"""`map` of a ready-made parser on the stage loop: it is given records where they lie, many at a time.

    rows        |record 0|record 1|…            into the slabs that storage wrote
    parser      rows(arena, places) of records, or called with each batch of them
    results     numbers in arrays of their own; byte strings as references into the same slabs

A reference pins the whole slab of its record. Where the byte strings are a small part of the records, they are copied
into a slab of their own instead, so that what lies around them can go. What the parser does not do for many records at
once, and what it fails on, is done element by element.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn, read_table
from asyncdata.memory.leaf import BYTES, Leaf, is_plain
from asyncdata.memory.pinning import inside, is_small_part
from asyncdata.memory.slabs import Slab
from asyncdata.memory.structure import LEAF, Structure, flatten
from asyncdata.memory.wire import aligned
from asyncdata.runtime.stage import LONG_STEP_S, Stage, StageContext
from asyncdata.runtime.stages.rows.inline import InlineMapStage, column_of_results
from asyncdata.workers.results import write_joined

_FIRST_ROWS: Final = 256
"""Records at a time before it is known what they cost."""


class _Parsed(NamedTuple):
    """What became of some rows.

    Attributes:
        elements: How many.
        tables: Whether these were batches: byte strings become as many tables.
        structure: How the leaves nest.
        columns: One per leaf; None for those in `strings`.
        strings: By leaf, byte strings that lie in the arena, of all rows together.
        packs: Whether they are copied.
        records: Where the records lie.
        successor: The leaf whose byte strings take over what the records hold: one of each record, in its slab.
    """

    elements: int
    tables: bool
    structure: Structure
    columns: list[Column | None]
    strings: dict[int, BytesArray]
    packs: bool
    records: Rows
    successor: int | None = None


class ParserStage(InlineMapStage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        parser: Has a method ``rows(array, rows)`` for single records, and is called with batches; where it says that
            it is ``dense``, a batch is nothing else than its records side by side.
        function: The same, as it is called for an element.
    """

    def __init__(self, context: StageContext, upstream: Stage, parser: Any, function: Callable[..., Any]) -> None:
        super().__init__(context, upstream, function)
        self._parser = parser
        self._budget = context.budget
        self._account = context.tasks
        self._arena = context.budget.slabs.arena.array
        self._most = self._slice = _FIRST_ROWS
        self._gives_rows = parser.dense
        self._slab: Slab | None = None

    async def _pull(self, limit: int) -> Block | None:
        if self._error is None and not self._ended:
            await self._pause()
            if self._block is None:
                self._block = await self._upstream.pull(limit)
            if self._block is not None and (parsed := await self._parse(self._block, limit)) is not None:
                return await self._hand_on(parsed)
            self._ended = self._block is None
        return await super()._pull(limit)

    # --- parsing -----------------------------------------------------------------------------------------------

    def _look(self, block: Block, limit: int) -> tuple[list[Any], Exception | None]:
        with self._calls():
            return super()._look(block, limit)

    @contextlib.contextmanager
    def _calls(self) -> Generator[None]:
        """What the parser itself costs, wherever it runs, is counted as the time of its calls."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.context.meter.calls_s += time.thread_time() - began

    async def _read(self, records: Rows) -> tuple[list[Any], Structure]:
        """What the parser makes of records, a slice of two milliseconds at a time."""
        slices: list[list[Any]] = []
        structure = LEAF
        at = 0
        while at < len(records):
            await self._pause()
            rows = records[at : at + self._slice]
            before_s = self.context.meter.calls_s
            with self._calls():
                leaves, structure = flatten(self._parser.rows(self._arena, rows))
            spent_s = self.context.meter.calls_s - before_s
            self._slice = max(1, int(LONG_STEP_S * len(rows) / max(spent_s, 1e-6)))
            slices.append(leaves)
            at += len(rows)
        if len(slices) == 1:
            return slices[0], structure
        return list(map(_joined, zip(*slices, strict=True))), structure

    async def _parse(self, block: Block, limit: int) -> _Parsed | None:
        """The first rows, parsed where they lie; None where that cannot be."""
        column = block.columns[0] if block.structure is LEAF and block.columns else None
        if not isinstance(column, RefColumn) or not len(column):
            return None
        leaf = column.leaf_at(0)
        try:
            if leaf.kind == "table" and leaf.shape[0] and not leaf.text:
                return await self._parse_batches(column, leaf.shape[0], limit)
            if leaf.kind == "bytes" and column.leaf is not None and self._gives_rows:
                return await self._parse_records(column.rows[: min(limit, self._most)])
        except Exception:  # noqa: BLE001 -- element by element the same error names its row
            return None
        return None

    async def _parse_records(self, records: Rows, size: int = 0) -> _Parsed | None:
        """Single records, or all those of batches of a size."""
        leaves, structure = await self._read(records)
        self._gives_rows = all(_is_of_rows(leaf, len(records)) for leaf in leaves)
        if not self._gives_rows:
            return None
        found = {index: leaf for index, leaf in enumerate(leaves) if self._is_inside(leaf)}
        strings = sum(leaf.nbytes for leaf in found.values())
        packs = is_small_part(strings, int(records[:, 1].sum()))
        fresh = sum(leaf.nbytes for leaf in leaves) - (0 if packs else strings)
        by_bytes = self.context.block_bytes * len(records) // max(fresh, 1)
        self._most = max(1, min(by_bytes, self._slice, 2 * max(self._most, len(records))))
        rows = min(len(records), max(by_bytes, 1))
        rows -= rows % size if size and rows > size else 0
        rows = max(rows, size)
        columns = [None if index in found else _column_of(leaf[:rows], size) for index, leaf in enumerate(leaves)]
        found = {index: leaf[:rows] for index, leaf in found.items()}
        heir = None if packs else next(iter(found), None)
        return _Parsed(rows // max(size, 1), size > 0, structure, columns, found, packs, records[:rows], heir)

    async def _parse_batches(self, column: RefColumn, size: int, limit: int) -> _Parsed | None:
        """As many batches as are like the first, or that one."""
        count = min(limit, len(column), max(1, self._most // size))
        if self._gives_rows and column.leaf is not None:
            records = column.pick(slice(count)).tables()[0]
            if (parsed := await self._parse_records(records, size)) is not None:
                return parsed
        records = read_table(self._arena, int(column.rows[0, 0]), size)
        with self._calls():
            leaves, structure = flatten(self._parser(BytesArray(self._arena, records)))
        found = {index: leaf for index, leaf in enumerate(leaves) if self._is_inside(leaf)}
        packs = is_small_part(sum(leaf.nbytes for leaf in found.values()), int(records[:, 1].sum()))
        others = [leaf.copy() if isinstance(leaf, BytesArray) and not len(leaf) else leaf for leaf in leaves]
        columns = [None if index in found else column_of_results([leaf]) for index, leaf in enumerate(others)]
        return _Parsed(1, True, structure, columns, found, packs, records)

    def _is_inside(self, leaf: Any) -> bool:
        return isinstance(leaf, BytesArray) and leaf.memory is self._arena and len(leaf) > 0

    # --- handing on --------------------------------------------------------------------------------------------

    async def _hand_on(self, parsed: _Parsed) -> Block:
        """The block of what was parsed; takes its rows from those of the input."""
        assert self._block is not None
        columns = parsed.columns
        if nbytes := _stored_bytes(parsed):
            try:
                self._slab = await self._budget.take(self._account, nbytes)
            except MemoryLimitError as error:
                self.context.sources.locate_rows(error, self.label, self._block.origin[: parsed.elements])
                raise
        at = 0 if self._slab is None else self._slab.offset
        for index, strings in parsed.strings.items():
            columns[index], at = self._column(strings, parsed, at)
        block, self._block = self._block, None
        if parsed.elements < len(block):
            block, self._block = block.split(parsed.elements)
        self._change_hands(parsed, block)
        if self._guard is not None:
            self._guard.passed(parsed.elements)
        return Block(
            parsed.structure, tuple(column for column in columns if column is not None), block.origin, block.advance
        )

    def _change_hands(self, parsed: _Parsed, block: Block) -> None:
        """What the rows of the input hold is held by what was made of them from now on."""
        slabs = self._budget.slabs
        for index in parsed.strings:
            made = parsed.columns[index]
            assert isinstance(made, RefColumn)
            if index != parsed.successor:
                made.hold()
            elif parsed.tables:
                slabs.hold_rows(made.rows[:, 0])
        self._drop_slab()
        if parsed.successor is None:
            block.release()
        elif parsed.tables:
            (taken,) = block.columns
            assert isinstance(taken, RefColumn)
            slabs.drop_rows(taken.rows[:, 0])

    def _column(self, strings: BytesArray, parsed: _Parsed, at: int) -> tuple[RefColumn, int]:
        """References to byte strings, and the next free offset in the slab."""
        places = inside(strings.places, parsed.records)
        if parsed.packs:
            places = places.copy()
            at = aligned(max(write_joined(self._arena, at, places, strings.views(), at), at + 1))
        slabs = self._budget.slabs
        if not parsed.tables:
            return RefColumn(slabs, places, BYTES), at
        size = len(places) // parsed.elements
        step = aligned(16 * size)
        rows = np.empty((parsed.elements, 2), np.int64)
        rows[:, 0] = at + np.arange(parsed.elements) * step
        rows[:, 1] = 16 * size
        tables = self._arena[at : at + parsed.elements * step].view(np.int64).reshape(parsed.elements, step // 8)
        tables[:, : 2 * size] = places.reshape(parsed.elements, 2 * size)
        return RefColumn(slabs, rows, Leaf("table", shape=(size,))), at + parsed.elements * step

    def _drop_slab(self) -> None:
        if self._slab is not None:
            self._budget.slabs.drop(self._slab)
            self._slab = None

    async def aclose(self) -> None:
        self._drop_slab()
        await super().aclose()


def _stored_bytes(parsed: _Parsed) -> int:
    """What is written into a slab: tables, and copies."""
    steps = [aligned(16 * (len(strings) // parsed.elements)) for strings in parsed.strings.values()]
    copies = sum(aligned(max(strings.nbytes, 1)) for strings in parsed.strings.values())
    return sum(steps) * parsed.elements * parsed.tables + copies * parsed.packs


def _joined(slices: Sequence[Any]) -> npt.NDArray[Any] | BytesArray:
    """A leaf of all slices.

    Raises:
        ValueError: They are not alike.
    """
    if isinstance(slices[0], np.ndarray):
        return np.concatenate(slices)
    first = slices[0].memory
    if any(leaf.memory is not first for leaf in slices):
        raise ValueError("byte strings of slices lie in different memory")
    return BytesArray(first, np.concatenate([leaf.places for leaf in slices]), text=slices[0].text)


def _is_of_rows(leaf: Any, count: int) -> bool:
    """Whether a leaf of what became of single records can be taken apart into as many rows."""
    if isinstance(leaf, np.ndarray):
        return leaf.ndim > 0 and len(leaf) == count and is_plain(leaf)
    return isinstance(leaf, BytesArray) and len(leaf) == count


def _column_of(leaf: npt.NDArray[Any] | BytesArray, size: int) -> Column:
    """The rows of a leaf, or its batches of a size."""
    if isinstance(leaf, BytesArray):
        return ObjectColumn([leaf[at : at + size] for at in range(0, len(leaf), size)] if size else leaf.tolist())
    return ArrayColumn(leaf.reshape(-1, size, *leaf.shape[1:]) if size else leaf)
