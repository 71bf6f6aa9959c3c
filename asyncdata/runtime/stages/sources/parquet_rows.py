"""The rows of one Parquet file: footer first, then the wanted columns of the wanted row groups, and nothing else.

    tail ─▶ footer ─▶ row groups ─▶ byte ranges, near ones joined ─▶ one slab ─▶ decoded in a thread, bit by bit
                                                                                   └ byte strings: into slabs

The bytes of a row group's wanted columns lie in one slab while it is decoded; while that goes on the next row group is
read ahead, if memory is to be had. Numbers leave as arrays, byte strings and texts as references into slabs, so that
whoever collects rows is charged for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np

from asyncdata.errors import MemoryLimitError
from asyncdata.formats.parquet import END_BYTES, Decoded, ParquetFooter, RowGroup, footer_bytes
from asyncdata.formats.parquet_filters import Filters
from asyncdata.formats.parquet_values import Packed
from asyncdata.memory.advance import Advance, Mark, Marks, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.leaf import BYTES, STR
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.reading.io import Io, Read
from asyncdata.runtime.stage import StageContext
from asyncdata.runtime.stages.sources.file import FileStage, SourceFile
from asyncdata.runtime.state.marker import Marker
from asyncdata.storage.ranges import ByteRange, coalesce_ranges
from asyncdata.types import ObjectInfo

_TAIL_BYTES: Final = 1 << 16
"""Read at the end of a file, in the hope that the whole footer is there."""

_MOST_GAP_BYTES: Final = 1 << 16
"""Unwanted bytes between wanted ones that are read rather than asked around."""

_NOW: Final = 0
_SOON: Final = 1


class _Piece:
    """Some ranges of the file, received into one slab.

    Attributes:
        slab: Where they lie, held once.
        reads: On their way.
        starts: Offset in the file of each range, ascending.
        stops: Behind each.
        places: Where in the arena each begins.
    """

    def __init__(self, slab: Slab, spans: list[ByteRange]) -> None:
        self.slab = slab
        self.reads: list[Read] = []
        self.starts = [span.start for span in spans]
        self.stops = [span.stop for span in spans]
        self.places: list[int] = []
        at = slab.offset
        for span in spans:
            self.places.append(at)
            at += span.size

    def view(self, arena: memoryview, start: int, stop: int) -> memoryview:
        """The bytes from one offset in the file to another."""
        index = bisect_right(self.starts, start) - 1
        if index < 0 or stop > self.stops[index]:
            if start == stop:
                return arena[0:0]
            raise ValueError(f"bytes {start} to {stop} of the file are in no wanted range")
        at = self.places[index] + start - self.starts[index]
        return arena[at : at + stop - start]


class ParquetStage(FileStage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        file: What is read. The reserve of its account is what the row group that is read needs.
        info: What is known of it.
        io: Storage.
        columns: Wanted ones, in order; None for all.
        filters: Rows that pass are wanted.
        piece_bytes: Longest read.
        opened: Told what the file is, if that was not known.
    """

    def __init__(
        self,
        context: StageContext,
        file: SourceFile,
        info: ObjectInfo | None,
        io: Io,
        *,
        columns: tuple[str, ...] | None,
        filters: Filters,
        piece_bytes: int,
        opened: Callable[[ObjectInfo], None],
    ) -> None:
        super().__init__(context, file, context.budget.charge(_TAIL_BYTES))
        self._info = info
        self._io = io
        self._opened = opened
        self._columns = columns
        self._filters = filters
        self._piece_bytes = piece_bytes
        self._footer: ParquetFooter | None = None
        self._group: RowGroup | None = None
        self._next_group = 0
        self._piece: _Piece | None = None
        self._ahead: _Piece | None = None
        self._tail: _Piece | None = None
        self._rows: Iterator[Decoded] | None = None
        self._row = 0
        self._packed: Slab | None = None
        self._marker = Marker()

    # --- reading -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Asks for the end of the file as read-ahead, where its size is known."""
        if self._info is not None and self._tail is None and self._footer is None and not self._closed:
            self._tail = self._read_ahead([self._tail_range(self._info.size)])

    @property
    def draining(self) -> bool:
        """Whether the last row group has been asked for."""
        return self._closed or (self._footer is not None and self._next_group >= len(self._footer.groups))

    def _tail_range(self, size: int) -> ByteRange:
        return ByteRange(max(0, size - _TAIL_BYTES), size)

    def _read_ahead(self, spans: list[ByteRange]) -> _Piece | None:
        slab = self._budget.take_ahead(self._account, sum(span.size for span in spans), urgency=1, reader=self)
        return None if slab is None else self._start(slab, spans, _SOON)

    async def _read(self, spans: list[ByteRange]) -> _Piece:
        try:
            slab = await self._budget.take(self._account, sum(span.size for span in spans))
        except MemoryLimitError as error:
            error.url, error.offset = self.url, spans[0].start
            raise
        return self._start(slab, spans, _NOW)

    def _start(self, slab: Slab, spans: list[ByteRange], urgency: int) -> _Piece:
        assert self._info is not None
        piece = _Piece(slab, spans)
        for span, place in zip(spans, piece.places, strict=True):
            for start in range(span.start, span.stop, self._piece_bytes):
                count = min(self._piece_bytes, span.stop - start)
                at = place - slab.offset + start - span.start
                priority = (urgency, len(piece.reads), self._file.order)
                piece.reads.append(self._io.read(self._budget.slabs, slab, at, count, self._info, start, priority))
        return piece

    async def _received(self, piece: _Piece) -> None:
        for read in piece.reads:
            await read.wait()
        piece.reads.clear()

    def _keep(self, piece: _Piece) -> None:
        if not self._budget.is_kept(piece.slab):
            self._budget.keep(piece.slab)

    def _drop(self, piece: _Piece | None) -> None:
        if piece is not None:
            for read in piece.reads:
                read.cancel()
            self._budget.slabs.drop(piece.slab)

    def recall(self, slab: Slab) -> None:
        """Gives back what was read ahead; it is read again when it is needed."""
        if self._ahead is not None and self._ahead.slab is slab:
            self._drop(self._ahead)
            self._ahead = None
        elif self._tail is not None and self._tail.slab is slab:
            self._drop(self._tail)
            self._tail = None

    async def _open(self) -> None:
        if self._info is None:
            self._info = await self._io.stat(self.url)
            self._opened(self._info)
        info = self._info
        self._enter(info)
        arena = self._budget.slabs.arena.view
        span = self._tail_range(info.size)
        if self._tail is None:
            self._tail = await self._read([span])
        self._keep(self._tail)
        await self._received(self._tail)
        head = max(span.start, info.size - END_BYTES)
        tail = bytes(self._tail.view(arena, head, info.size))
        length = footer_bytes(tail, info.size, url=self.url, version=info.version)
        start = info.size - length
        if start < span.start:
            self._drop(self._tail)
            self._tail = None
            self._tail = await self._read([ByteRange(start, info.size)])
            await self._received(self._tail)
        footer = bytes(self._tail.view(arena, start, info.size))
        self._drop(self._tail)
        self._tail = None
        self._footer = await self.context.threads.run(
            partial(
                ParquetFooter,
                footer,
                size=info.size,
                url=self.url,
                version=info.version,
                columns=self._columns,
                filters=self._filters,
            )
        )
        # Of the row group of the first row that is wanted, those in front of it are passed over.
        self._next_group = sum(group.first_row + group.rows <= self._from_record for group in self._footer.groups)

    def _spans(self, group: RowGroup) -> list[ByteRange]:
        wanted = [ByteRange(start, stop) for start, stop in group.ranges]
        return [found.span for found in coalesce_ranges(wanted, max_gap_bytes=_MOST_GAP_BYTES)]

    async def _begin_group(self) -> bool:
        """Receives the next row group and asks for the one behind it; False behind the last one."""
        footer = self._footer
        assert footer is not None
        if self._next_group >= len(footer.groups):
            return False
        group = self._group = footer.groups[self._next_group]
        self._reserve(group)
        if self._ahead is not None:
            self._piece, self._ahead = self._ahead, None
            self._keep(self._piece)
        else:
            self._piece = await self._read(self._spans(group))
        self._next_group += 1
        await self._received(self._piece)
        if self._next_group < len(footer.groups):
            self._ahead = self._read_ahead(self._spans(footer.groups[self._next_group]))
        self._row = 0
        self._rows = footer.decode(group, partial(self._piece.view, self._budget.slabs.arena.view))
        return True

    def _reserve(self, group: RowGroup) -> None:
        spans = self._budget.charge(sum(span.size for span in self._spans(group)))
        try:
            self._budget.reserve(self._account, spans + self._budget.charge(group.decoded_bytes + 1))
        except MemoryLimitError as error:
            error.url, error.record = self.url, group.first_row
            raise

    def _end_group(self) -> None:
        self._rows = None
        self._drop(self._piece)
        self._piece = None

    # --- output ------------------------------------------------------------------------------------------------

    def _pull_ready(self, limit: int) -> Block | None:
        """Rows that were decoded already."""
        block = self._block
        if block is None or len(block) <= limit:
            self._block = None
            return block
        head, self._block = block.split(limit)
        return head

    async def _next_block(self, limit: int) -> Block | None:
        if self._footer is None:
            await self._open()
        while self._block is None:
            if self._rows is None and not await self._begin_group():
                return None
            decoded = await self.context.threads.run(next, self._rows, None)
            if decoded is None:
                self._end_group()
            else:
                self._block = await self._decoded_block(decoded)
        return self._pull_ready(limit)

    async def _decoded_block(self, decoded: Decoded) -> Block:
        assert self._footer is not None
        columns = await self._columns_of(decoded)
        assert self._group is not None
        offset = self._group.ranges[0][0] if self._group.ranges else 0
        origin = self._origin(self._group.first_row + self._row, np.full(decoded.rows, offset))
        begins = not self._row
        self._row += decoded.rows
        if decoded.kept is not None:
            origin = origin[decoded.kept]
        advance = Advance(len(origin), self._marks(origin, begins=begins))
        if not len(origin):
            return Block.empty(advance)
        return Block(self._footer.structure, columns, origin, advance)

    def _marks(self, origin: Rows, *, begins: bool) -> Marks:
        """Where reading can begin again: at a row of a row group, of each group also at the beginning."""
        group = self._group
        assert group is not None

        def mark(row: int) -> Mark:
            record, offset = int(origin[row, 1]), int(origin[row, 3])
            return {
                "record": record,
                "offset": offset,
                "version": None if self._info is None else self._info.version,
                "row_group": group.number,
            }

        return self._marker.marks(len(origin), mark, also=(0,) if begins and len(origin) else ())

    async def _columns_of(self, decoded: Decoded) -> tuple[Column, ...]:
        packed = [leaf for leaf in decoded.leaves if isinstance(leaf, Packed)]
        nbytes = sum(int(leaf.offsets[-1] - leaf.offsets[0]) for leaf in packed)
        slab = None
        if packed:
            # Rows of no bytes need a place, too.
            slab = self._packed = await self._take(nbytes + 1)
            await self.context.threads.run(self._copy, packed, slab.offset)
        columns: list[Column] = []
        at = 0 if slab is None else slab.offset
        for leaf in decoded.leaves:
            if isinstance(leaf, Packed):
                rows = np.stack((leaf.offsets[:-1] + (at - int(leaf.offsets[0])), np.diff(leaf.offsets)), 1)
                column = RefColumn(self._budget.slabs, rows, STR if leaf.text else BYTES)
                column.hold()
                columns.append(column)
                at += int(leaf.offsets[-1] - leaf.offsets[0])
            else:
                columns.append(ArrayColumn(leaf) if isinstance(leaf, np.ndarray) else ObjectColumn(leaf))
        if slab is not None:
            if self._budget.slabs.holds(slab) > 1:
                self._budget.move(slab, self._file.downstream)
            self._budget.slabs.drop(slab)
            self._packed = None
        return tuple(columns)

    async def _take(self, nbytes: int) -> Slab:
        try:
            return await self._budget.take(self._account, nbytes)
        except MemoryLimitError as error:
            assert self._group is not None
            error.url, error.record = self.url, self._group.first_row + self._row
            raise

    def _copy(self, packed: list[Packed], at: int) -> None:
        """Byte strings one behind the other into the arena; runs in a thread."""
        arena = self._budget.slabs.arena.array
        for leaf in packed:
            data = leaf.data[int(leaf.offsets[0]) : int(leaf.offsets[-1])]
            arena[at : at + len(data)] = data
            at += len(data)

    async def aclose(self) -> None:
        self._rows = None
        for piece in (self._piece, self._ahead, self._tail):
            self._drop(piece)
        self._piece = self._ahead = self._tail = None
        if self._packed is not None:
            self._budget.slabs.drop(self._packed)
            self._packed = None
        await super().aclose()
