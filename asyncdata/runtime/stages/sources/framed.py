"""The records of one object of any framed format, as references into the slabs they were received into.

    chunks ──▶ Contiguous ──▶ Framer.frame(arena, start, stop) ──▶ columns of a block

Framing goes on block by block, so that a chunk of a million small records does not hold the loop; formats that do more
per record than look for its end are framed in a thread. Where workers frame, see `framed_away`, they are a block ahead
of the pulls as long as there is no error: what to do about one is decided when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, cast

import numpy as np

from asyncdata.errors import AsyncdataError, BrokenFrameError, CompressionError, DataError, MemoryLimitError
from asyncdata.formats.framing import Framer, Frames, Place, Refs, Values
from asyncdata.memory.advance import EMPTY, Advance, Mark, Marks, RecordMark, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.slabs import Slabs
from asyncdata.runtime.reading.chunks import Chunks
from asyncdata.runtime.reading.contiguous import Contiguous, truncated
from asyncdata.runtime.stage import BLOCK_ROWS, Ahead, StageContext
from asyncdata.runtime.stages.sources.file import FileStage, SourceFile
from asyncdata.runtime.stages.sources.framed_away import FramedAway
from asyncdata.runtime.state.marker import Marker
from asyncdata.workers.failure import annotate

_MARK_BYTES: Final = 1 << 18
"""The first record in each so many bytes has a mark, so that large records are not read again from far in front."""


class FramedStage(FileStage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        file: The object.
        chunks: Its bytes.
        framer: Of its format.
        reserve_bytes: What the account needs while the object is being read.
        compressed: Whether `chunks` decompresses, so that the size of its bytes is not known.
        at_once: The object is one record: where it is known to be larger than a chunk, it is received in one piece.
        by_header: Its beginning says how it is read.
        away: Where workers may frame; None: nowhere.
    """

    def __init__(
        self,
        context: StageContext,
        file: SourceFile,
        chunks: Chunks,
        framer: Framer,
        *,
        reserve_bytes: int,
        compressed: bool = False,
        at_once: bool = False,
        by_header: bool = False,
        away: FramedAway | None = None,
    ) -> None:
        super().__init__(context, file, reserve_bytes)
        self._bytes = Contiguous(
            chunks, context.budget, file.account, file.downstream, compressed=compressed, at_once=at_once
        )
        self._framer = framer
        self._away = away
        self._ahead: Ahead[Block] | None = None
        self._limit = BLOCK_ROWS
        self._awaited = False
        self._at_once = at_once
        self._by_header = by_header
        self._columns: tuple[int, ...] | None = None
        self._guard = context.guard
        self._error: DataError | None = None
        self._refused: AsyncdataError | None = None  # why the file is none that may be read, for the pull that waits
        self._behind_error: tuple[int, int] | None = None
        self._marker = Marker()
        self._window = 0
        self._index = 0
        self._line = 1
        self._counts_lines = False
        self._ended = False

    def restore(self, mark: Mark) -> None:
        """See `Stage`: reads from the record's first byte on."""
        super().restore(mark)
        if self._by_header and "columns" not in mark:
            return  # one that does not say what the header says
        if "columns" in mark:
            self._columns = tuple(mark["columns"])
        self._index = mark["record"]
        self._line = mark.get("line", 1)
        self._bytes.begin(mark["offset"])
        self._window = mark["offset"] // _MARK_BYTES
        self._ended = self._at_once and self._index > 0

    def prepare(self) -> None:
        """Asks for the first chunk as read-ahead."""
        if not self._ended:
            self._bytes.prepare()

    @property
    def draining(self) -> bool:
        """Whether the last bytes have been asked for."""
        return self._closed or self._ended or self._bytes.draining

    def _pull_ready(self, limit: int) -> Block | None:
        """Records of chunks that have arrived, of formats that are framed on the loop."""
        if self._closed or self._refused is not None:
            return None
        self._begin()
        if self._frames_ahead():
            return self._take_ahead(limit)
        while True:
            block = self._next_ready(limit)
            if block is not None or self._error is not None or self._ended or self._framer.in_thread:
                return block
            if not self._bytes.is_short:
                self._accept_frames(self._here(self._framing(limit)))
            elif self._bytes.take_ready():
                try:
                    self._enter(self._bytes.info)
                except AsyncdataError as error:
                    self._refused = error
                    return None
            else:
                return None

    def _complete(self, error: AsyncdataError) -> None:
        if isinstance(error, MemoryLimitError | BrokenFrameError | CompressionError) and error.record is None:
            error.record = self._index
        if isinstance(error, MemoryLimitError) and self._counts_lines:
            text = "in CSV a quote that is never closed makes one record of all that follows"
            annotate(error, f"the record that begins on line {self._line} does not fit; {text}")
        super()._complete(error)

    async def _next_block(self, limit: int) -> Block | None:
        if self._refused is not None:
            raise self._refused
        if self._frames_ahead():
            assert self._ahead is not None
            self._awaited = True
            try:
                if await self._ahead.wait():
                    return self._take_ahead(limit)
            finally:
                self._awaited = False
            # The pulls go on from there: with an error, which is dealt with now that its turn has come, or at the end.
            self._ahead = self._away = None
        while True:
            block = self._next_ready(limit)
            if block is not None:
                return block
            if self._error is not None:
                return self._leave_out(self._error)
            if self._ended:
                return None
            await self._pause()
            if self._bytes.is_short:
                await self._bytes.take()
                self._enter(self._bytes.info)
            else:
                self._accept_frames(await self._frame(limit))

    # --- framing ahead of the pulls ----------------------------------------------------------------------------

    def _frames_ahead(self) -> bool:
        """Whether the next rows come from what is framed ahead; begins with it where workers are to frame."""
        ends = self._error is not None or self._ended or self._block is not None
        if self._ahead is None and self._away is not None and not ends and self._away.is_wished:
            self._ahead = Ahead(self.context, self._frame_ahead)
        return self._ahead is not None

    def _take_ahead(self, limit: int) -> Block | None:
        """The next of what is framed, if there is any; at most so many rows."""
        assert self._ahead is not None
        self._limit = limit
        self._ahead.begin()
        if not self._ahead.items:
            return None
        block = self._ahead.items[0]
        if len(block) <= limit:
            return self._ahead.take()
        block, self._ahead.items[0] = block.split(limit)
        return block

    async def _frame_ahead(self) -> None:
        """Frames one block after the other, up to an error of the records or the end."""
        assert self._ahead is not None
        while self._error is None and not self._ended:
            await self._ahead.room(self._may_not_frame)
            if self._bytes.is_short:
                await self._bytes.take()
                self._enter(self._bytes.info)
                continue
            self._accept_frames(await self._frame(self._limit))
            block = self._next_ready(self._limit)
            if block is not None:
                self._ahead.put(block)

    def _may_not_frame(self) -> bool:
        """Whether there is a block, or nothing to make one of; only a pull waits for bytes."""
        assert self._ahead is not None
        if self._ahead.items:
            return True
        if self._bytes.is_short and not self._awaited and self._bytes.take_ready():
            self._enter(self._bytes.info)
        return self._bytes.is_short and not self._awaited

    def _here(self, framing: Callable[[], Frames]) -> Frames:
        return framing() if self._away is None else self._away.here(framing)

    async def _frame(self, limit: int) -> Frames:
        """Frames the bytes that are here, where that is to be done now."""
        framing = self._framing(limit)
        if self._away is not None and self._away.is_wished:
            start, stop = self._bytes.bounds
            return await self._away.frame(start, stop, **framing.keywords)
        if self._framer.in_thread:
            return cast("Frames", await self.context.threads.run(framing))
        return self._here(framing)

    def _framing(self, limit: int) -> partial[Frames]:
        """Frames the bytes that are here, or says that there are no more."""
        run = self._bytes
        start, stop = run.bounds
        remaining = run.remaining
        run.last = run.last or remaining == stop - start
        return partial(
            self._framer.frame,
            run.view,
            start,
            stop,
            limit=limit,
            remaining=remaining,
            last=run.last,
            place=self._place(),
        )

    def _accept_frames(self, frames: Frames) -> None:
        """Takes over what was framed, and notes what comes next: more of it, an error, the end, or more bytes."""
        run = self._bytes
        start, stop = run.bounds
        self._error = frames.error
        self._columns = frames.columns
        self._ended = frames.ended or (run.last and frames.stop == stop)
        self._accept(frames, start)
        self._line = frames.next_line
        self._counts_lines = frames.lines is not None
        run.use(frames.stop)
        if frames.ended:
            run.stop()
        if frames.error is not None and frames.resume >= 0 and self._guard is not None:
            self._behind_error = frames.resume, frames.resume_line
        elif self._ended or frames.error is not None:
            run.leave()
        elif frames.stop < stop and (frames.short or not len(frames.starts)):
            run.cut_off(frames.need)
            if run.last:
                self._error = self._truncated(frames.need)

    def _leave_out(self, error: DataError) -> Block:
        """Goes on behind a record that is wrong by itself, if it may be left out; raises the error if not."""
        if self._guard is None or self._behind_error is None:
            raise error
        (behind, line), self._behind_error = self._behind_error, None
        error.stage = error.stage or self.label
        origin = self._origin(self._index, np.array([self._bytes.offset], np.int64))
        over = self._guard.skip(error, origin[0])
        if over is not None:
            raise over
        self._error = None
        self._line = line
        self._index += 1
        _, stop = self._bytes.bounds
        self._ended = self._bytes.last and behind == stop
        self._bytes.use(behind)
        return Block.empty(EMPTY)

    def _place(self) -> Place:
        info = self._bytes.info
        return Place(
            url=self.url,
            version=info.version if info is not None else None,
            offset=self._bytes.offset,
            record=self._index,
            line=self._line,
            columns=self._columns,
        )

    # --- output ------------------------------------------------------------------------------------------------

    def _accept(self, frames: Frames, start: int) -> None:
        """Takes over the records in the chunk, which begin at ``start`` and after it."""
        count = len(frames.starts)
        if not count:
            return
        origin = self._origin(self._index, frames.starts + (self._bytes.offset - start))
        marks = self._marks(origin, frames.lines)
        columns = tuple(column_of(values, self._budget.slabs) for values in frames.values)
        self._index += count
        self._block = Block(self._framer.structure, columns, origin, Advance(count, marks))

    def _next_ready(self, limit: int) -> Block | None:
        """The records that were accepted and not delivered yet: at most ``limit``, which they were framed for."""
        del limit
        ready, self._block = self._block, None
        return ready

    def _marks(self, origin: Rows, lines: Rows | None) -> Marks:
        """Where reading can begin again: at the byte, with the numbers, of these records."""
        info = self._bytes.info
        version = None if info is None else info.version

        def mark(row: int) -> Mark:
            _, record, _, offset = origin[row].tolist()
            begin = RecordMark(record, offset, version)
            if lines is None and self._columns is None:
                return begin
            place = begin.written()
            if lines is not None:
                place["line"] = int(lines[row])
            if self._columns is not None:
                place["columns"] = list(self._columns)
            return place

        windows = origin[:, 3] // _MARK_BYTES
        far = (np.flatnonzero(windows[1:] != windows[:-1]) + 1).tolist()
        if windows[0] != self._window:
            far.insert(0, 0)
        self._window = int(windows[-1])
        return self._marker.marks(len(origin), mark, also=far)

    def _truncated(self, need: int) -> BrokenFrameError:
        start, stop = self._bytes.bounds
        error = truncated(self._bytes.info, self._bytes.offset, need - (stop - start) if need else 0)
        error.url, error.record = self.url, self._index
        return error

    async def aclose(self) -> None:
        if not self._closed:
            if self._ahead is not None:
                await self._ahead.aclose()
                while self._ahead.items:
                    self._ahead.items.popleft().release()
            self._bytes.close()
        await super().aclose()


def column_of(values: Values, slabs: Slabs) -> Column:
    """One leaf of framed records, which holds the slabs that its references are in."""
    if isinstance(values, Refs):
        column = RefColumn(slabs, values.rows, values.leaf)
        column.hold()
        return column
    return ArrayColumn(values) if isinstance(values, np.ndarray) else ObjectColumn(values)
