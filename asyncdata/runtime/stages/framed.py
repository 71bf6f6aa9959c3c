"""The records of one object of any framed format, as references into the slabs they were received into.

    chunks ──▶ Framer.frame(arena, start, stop) ──▶ columns of a block
       ▲          └ a cut-off tail: in front of the next chunk, or into a slab of its own

A record is always contiguous. The cut-off tail of a chunk is copied in front of the next one, into its headroom; what
does not fit there gets a larger slab of its own: of the size that the framer vouches for, or, where a record does not
say how long it is (a line), twice what is there already, until it is whole or the memory limit is reached.

Framing goes on block by block, so that a chunk of a million small records does not hold the loop; formats that do more
per record than look for its end are framed in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from asyncdata.errors import AsyncdataError, BrokenFrameError, DataError, MemoryLimitError
from asyncdata.formats.framing import Framer, Frames, Place, Refs, Values
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Advance, Mark, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.budget import Budget
from asyncdata.runtime.chunks import Chunk
from asyncdata.runtime.offload import Offload
from asyncdata.runtime.policy import Guard
from asyncdata.runtime.sourcetable import SourceTable
from asyncdata.runtime.stage import Pause, Stage, row_marks
from asyncdata.runtime.stages.tfrecord import Chunks


class FramedStage(Stage):
    """See the module's docstring.

    Args:
        label: The stage's name.
        url: The object.
        path: The stage's place in the plan and the element that opened it, for the source's number.
        chunks: Its bytes.
        framer: Of its format.
        compressed: Whether `chunks` decompresses, so that the size of its bytes is not known.
        budget: For slabs of large records.
        account: The source's account.
        reserve_bytes: What the account needs while the object is being read.
        any_order: Whether the stage below takes rows of this object and its like as they come.
        downstream: The account that framed slabs are charged to.
        sources: Where the object is entered.
        threads: Where framers run that take long.
        guard: Says whether a record that is wrong by itself may be left out; None lets none.
        at_once: The object is one record: where it is known to be larger than a chunk, it is received in one piece.
    """

    def __init__(
        self,
        label: str,
        url: str,
        path: tuple[int | str, ...],
        chunks: Chunks,
        framer: Framer,
        *,
        compressed: bool,
        budget: Budget,
        account: Account,
        reserve_bytes: int,
        any_order: bool,
        downstream: Account,
        sources: SourceTable,
        threads: Offload,
        guard: Guard | None = None,
        at_once: bool = False,
    ) -> None:
        super().__init__(label)
        self.url = url
        self._path = path
        self._chunks = chunks
        self._framer = framer
        self._compressed = compressed
        self._budget = budget
        self._account = account
        self._reserve_bytes = reserve_bytes
        self._any_order = any_order
        self._downstream = downstream
        self._sources = sources
        self._threads = threads
        self._guard = guard
        self._at_once = at_once
        self._number: int | None = None
        self._chunk: Chunk | None = None
        self._apart: Slab | None = None
        self._ready: Block | None = None
        self._error: DataError | None = None
        self._behind_error: tuple[int, int] | None = None
        self._index = 0
        self._offset = 0
        self._line = 1
        self._cut_off = False
        self._need = 0
        self._last = False
        self._ended = False
        self._started = False
        self._closed = False
        self._pause = Pause()

    def prepare(self) -> None:
        """Asks for the first chunk as read-ahead."""
        self._chunks.prepare()

    @property
    def draining(self) -> bool:
        """Whether the last bytes have been asked for."""
        return self._closed or self._chunks.draining

    async def pull(self, limit: int) -> Block | None:
        if self._closed:
            return None
        block = self.pull_ready(limit)
        if block is not None:
            return block
        self._budget.wait(self._account)
        try:
            return await self._next_block(limit)
        except AsyncdataError as error:
            error.url = error.url or self.url
            error.stage = error.stage or self.label
            raise
        finally:
            self._budget.wait(self._account, False)

    def pull_ready(self, limit: int) -> Block | None:
        """Records of chunks that have arrived, of formats that are framed on the loop."""
        if self._closed:
            return None
        self._begin()
        while True:
            block = self._next_ready(limit)
            if block is not None or self._error is not None or self._ended or self._framer.in_thread:
                return block
            if self._chunk is None and not self._last:
                if self._comes_at_once:
                    return None
                self._chunk = self._chunks.take_ready()
                if self._chunk is None:
                    return None
                self._enter_source()
            if self._cut_off:
                if not self._join_ready():
                    return None
            else:
                self._accept_frames(self._framing(limit)())

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            self._budget.reserve(self._account, self._reserve_bytes)
            if self._any_order:
                self._budget.begin(self._account)

    async def _next_block(self, limit: int) -> Block | None:
        while True:
            block = self._next_ready(limit)
            if block is not None:
                return block
            if self._error is not None:
                return self._leave_out(self._error)
            if self._ended:
                return None
            await self._pause()
            if self._cut_off:
                await self._join()
            elif self._chunk is None and not self._last:
                await self._next_chunk()
            else:
                framing = self._framing(limit)
                self._accept_frames(await self._threads.run(framing) if self._framer.in_thread else framing())

    def _framing(self, limit: int) -> Callable[[], Frames]:
        """Frames what is in the chunk, or says that there is nothing more."""
        chunk = self._chunk
        start, stop = (0, 0) if chunk is None else (chunk.start, chunk.stop)
        remaining = self._remaining()
        self._last = self._last or remaining == stop - start
        return partial(
            self._framer.frame,
            self._budget.slabs.arena.view,
            start,
            stop,
            limit=limit,
            remaining=remaining,
            last=self._last,
            place=self._place(),
        )

    def _accept_frames(self, frames: Frames) -> None:
        """Takes over what was framed, and notes what comes next: more of it, an error, the end, or more bytes."""
        chunk = self._chunk
        start, stop = (0, 0) if chunk is None else (chunk.start, chunk.stop)
        self._error = frames.error
        self._ended = frames.ended or (self._last and frames.stop == stop)
        self._accept(frames, start)
        self._offset += frames.stop - start
        self._line = frames.next_line
        if frames.ended:
            self._chunks.close()
        if chunk is None:
            return
        chunk.start = frames.stop
        if frames.error is not None and frames.resume >= 0 and self._guard is not None:
            self._behind_error = frames.resume, frames.resume_line
        elif self._ended or self._error is not None or chunk.start == chunk.stop:
            self._leave_chunk()
        elif not len(frames.starts):
            self._cut_off, self._need = True, frames.need
            if self._last:
                self._error = self._truncated()

    def _leave_out(self, error: DataError) -> Block:
        """Goes on behind a record that is wrong by itself, if it may be left out; raises the error if not."""
        if self._guard is None or self._behind_error is None:
            raise error
        (behind, line), self._behind_error = self._behind_error, None
        chunk = self._chunk
        assert chunk is not None
        error.stage = error.stage or self.label
        origin = self._origin(np.array([self._offset], np.int64))
        over = self._guard.skip(error, origin[0])
        if over is not None:
            raise over
        self._error = None
        self._offset += behind - chunk.start
        self._line = line
        self._index += 1
        chunk.start = behind
        if chunk.start == chunk.stop:
            self._ended = self._last
            self._leave_chunk()
        return Block.empty(Advance(0, origin))

    @property
    def _comes_at_once(self) -> bool:
        remaining = self._remaining()
        return self._at_once and not self._offset and remaining is not None and remaining > self._chunks.data_bytes

    async def _next_chunk(self) -> None:
        if self._comes_at_once:
            remaining = self._remaining()
            assert remaining is not None
            slab = self._apart = await self._take(remaining)
            filled = await self._chunks.fill(slab, 0, remaining)
            self._apart = None
            self._chunk = Chunk(slab, slab.offset, slab.offset + filled, 0, 0)
        else:
            self._chunk = await self._chunks.next()
            if self._chunk is None:
                self._last = True
        self._enter_source()

    def _enter_source(self) -> None:
        if self._number is None:
            info = self._chunks.info
            version = info.version if info is not None else None
            self._number = self._sources.add(self._path, self.url, version, is_file=True)

    def _remaining(self) -> int | None:
        info = self._chunks.info
        return None if self._compressed or info is None else info.size - self._offset

    def _place(self) -> Place:
        info = self._chunks.info
        return Place(
            url=self.url,
            version=info.version if info is not None else None,
            offset=self._offset,
            record=self._index,
            line=self._line,
        )

    # --- output ------------------------------------------------------------------------------------------------

    def _accept(self, frames: Frames, start: int) -> None:
        """Takes over the records in the chunk, which begin at ``start`` and after it."""
        count = len(frames.starts)
        if not count:
            return
        origin = self._origin(frames.starts + (self._offset - start))
        marks = self._marks(origin, frames.lines)
        columns = tuple(self._column(values) for values in frames.values)
        self._index += count
        self._ready = Block(self._framer.structure, columns, origin, Advance(count, origin, None, marks))

    def _next_ready(self, limit: int) -> Block | None:
        """The records that were accepted and not delivered yet: at most ``limit``, which they were framed for."""
        del limit
        ready, self._ready = self._ready, None
        return ready

    def _origin(self, offsets: Rows) -> Rows:
        """Provenance of the next records, which begin at these offsets in the object."""
        assert self._number is not None
        origin = np.zeros((len(offsets), 4), np.int64)
        origin[:, 0] = self._number
        origin[:, 1] = np.arange(self._index, self._index + len(offsets))
        origin[:, 3] = offsets
        return origin

    def _marks(self, origin: Rows, lines: Rows | None) -> tuple[tuple[int, Mark], ...]:
        """Where reading can begin again: at the byte, with the numbers, of these records."""
        marks = []
        for row in row_marks(self._index, len(origin)):
            mark = {"record": self._index + row, "offset": int(origin[row, 3])}
            if lines is not None:
                mark["line"] = int(lines[row])
            marks.append((row, mark))
        return tuple(marks)

    def _column(self, values: Values) -> Column:
        if isinstance(values, Refs):
            column = RefColumn(self._budget.slabs, values.rows, values.leaf)
            column.hold()
            return column
        return ArrayColumn(values) if isinstance(values, np.ndarray) else ObjectColumn(values)

    # --- chunks ------------------------------------------------------------------------------------------------

    def _leave_chunk(self) -> None:
        """The chunk is framed: its slab now belongs to the rows, and to whoever collects them."""
        chunk, self._chunk = self._chunk, None
        assert chunk is not None
        slabs = self._budget.slabs
        if slabs.holds(chunk.slab) > 1:
            self._budget.move(chunk.slab, self._downstream)
        slabs.drop(chunk.slab)

    @property
    def _fits_in_front(self) -> bool:
        """Whether the tail goes in front of the next chunk, and is likely to be whole there."""
        chunk = self._chunk
        assert chunk is not None
        tail = chunk.stop - chunk.start
        return tail <= self._chunks.room and self._need <= tail + self._chunks.data_bytes

    def _join_ready(self) -> bool:
        """The tail in front of the next chunk, if that is at hand."""
        if not self._fits_in_front:
            return False
        following = self._chunks.take_ready()
        if following is None:
            return False
        self._put_in_front(self._tail(), following)
        return True

    async def _join(self) -> None:
        """Brings more of the record that is cut off at the end of the chunk to its beginning."""
        if not self._fits_in_front:
            await self._receive_apart()
            return
        rest = self._tail()
        self._leave_chunk()
        following = await self._chunks.next()
        if following is None:
            self._last = True
            await self._put_apart(rest)
        else:
            self._put_in_front(rest, following)

    def _tail(self) -> bytes:
        chunk = self._chunk
        assert chunk is not None
        return bytes(self._budget.slabs.arena.view[chunk.start : chunk.stop])

    def _put_in_front(self, rest: bytes, following: Chunk) -> None:
        if self._chunk is not None:
            self._leave_chunk()
        start = following.start - len(rest)
        self._budget.slabs.arena.view[start : following.start] = rest
        following.start = start
        self._set_chunk(following)

    def _set_chunk(self, chunk: Chunk) -> None:
        """A chunk that begins with what was cut off."""
        self._chunk = chunk
        self._cut_off, self._need = False, 0

    async def _put_apart(self, rest: bytes) -> None:
        """The last bytes of an object whose size was not known, in a slab of their own."""
        slab = await self._take(len(rest))
        self._budget.slabs.arena.view[slab.offset : slab.offset + len(rest)] = rest
        self._set_chunk(Chunk(slab, slab.offset, slab.offset + len(rest), self._offset, 0))

    async def _receive_apart(self) -> None:
        """The tail and what follows it in a slab of its own, which takes the chunk's place."""
        chunk = self._chunk
        assert chunk is not None
        tail = chunk.stop - chunk.start
        size = self._need or max(2 * tail, tail + self._chunks.data_bytes)
        remaining = self._remaining()
        if remaining is not None:
            size = min(size, remaining)
        view = self._budget.slabs.arena.view
        # A tail that was one chunk is not held while more is asked for: readers of other objects need the room. A
        # larger one, which never came in one piece, is.
        rest = None
        if tail <= self._chunks.data_bytes:
            rest = self._tail()
            self._leave_chunk()
        slab = self._apart = await self._take(size)
        view[slab.offset : slab.offset + tail] = view[chunk.start : chunk.stop] if rest is None else rest
        if rest is None:
            self._leave_chunk()
        filled = tail + await self._chunks.fill(slab, tail, size - tail)
        if filled < size:
            self._last = True
        self._apart = None
        self._set_chunk(Chunk(slab, slab.offset, slab.offset + filled, self._offset, 0))

    async def _take(self, size: int) -> Slab:
        try:
            return await self._budget.take(self._account, size)
        except MemoryLimitError as error:
            place = self._place()
            error.url, error.version, error.offset, error.record = place.url, place.version, place.offset, place.record
            raise

    def _truncated(self) -> BrokenFrameError:
        place = self._place()
        missing = f": it has {self._need} bytes" if self._need else ""
        return BrokenFrameError(
            f"the data ends inside a record{missing}",
            url=place.url,
            version=place.version,
            offset=place.offset,
            record=place.record,
        )

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for slab in (self._apart, self._chunk.slab if self._chunk is not None else None):
            if slab is not None:
                self._budget.slabs.drop(slab)
        self._apart = self._chunk = None
        if self._ready is not None:
            self._ready.release()
            self._ready = None
        self._chunks.close()
        self._budget.close(self._account)
