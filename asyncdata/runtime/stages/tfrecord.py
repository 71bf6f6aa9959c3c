"""The records of one TFRecord file, as references into the slabs they were received into.

A record is always contiguous. The cut-off tail of a chunk is copied in front of the next one, into its headroom; a
record that does not fit there gets a slab of its own, of the size its verified header says, and the rest of it is
received into that slab.

Framing goes on block by block, so that a chunk of a million small records does not hold the loop.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from asyncdata.errors import AsyncdataError, BrokenFrameError, MemoryLimitError
from asyncdata.formats.tfrecord import FRAME_BYTES, HEADER_BYTES, FrameContext, frame
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Advance
from asyncdata.memory.block import Block
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.leaf import BYTES, UNCHECKED_BYTES
from asyncdata.memory.slabs import Slab
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.budget import Budget
from asyncdata.runtime.chunks import Chunk
from asyncdata.runtime.sourcetable import SourceTable
from asyncdata.runtime.stage import Stage, row_marks
from asyncdata.types import ObjectInfo


class Chunks(Protocol):
    """The bytes of one object in order: `ChunkReader`, or `InflatedChunks` behind one."""

    room: int
    """Bytes kept free in front of every chunk but the first."""

    data_bytes: int
    """The most bytes of a chunk."""

    @property
    def info(self) -> ObjectInfo | None:
        """The stored object, once known."""

    @property
    def draining(self) -> bool:
        """Whether the last stored bytes have been asked for."""

    def prepare(self) -> None:
        """Starts reading."""

    async def next(self) -> Chunk | None:
        """The next bytes, None at the end."""

    def take_ready(self) -> Chunk | None:
        """The next bytes, if they are at hand."""

    async def fill(self, slab: Slab, start: int, length: int) -> int:
        """The next `length` bytes into another slab."""

    def close(self) -> None:
        """Gives everything back."""


class TFRecordStage(Stage):
    """See the module's docstring.

    Args:
        label: The stage's name.
        url: The file.
        path: The stage's place in the plan and the element that opened it, for the source's number.
        chunks: Its bytes.
        compressed: Whether `chunks` decompresses, so that the size of its bytes is not known.
        check: Whether payload checksums are to be verified downstream.
        budget: For slabs of large records.
        account: The source's account.
        reserve_bytes: What the account needs while the file is being read.
        any_order: Whether the stage below takes rows of this file and its like as they come.
        downstream: The account that framed slabs are charged to.
        sources: Where the file is entered.
    """

    def __init__(
        self,
        label: str,
        url: str,
        path: tuple[int | str, ...],
        chunks: Chunks,
        *,
        compressed: bool,
        check: bool,
        budget: Budget,
        account: Account,
        reserve_bytes: int,
        any_order: bool = False,
        downstream: Account,
        sources: SourceTable,
    ) -> None:
        super().__init__(label)
        self.url = url
        self._path = path
        self._chunks = chunks
        self._compressed = compressed
        self._check = check
        self._budget = budget
        self._account = account
        self._reserve_bytes = reserve_bytes
        self._any_order = any_order
        self._downstream = downstream
        self._sources = sources
        self._number: int | None = None
        self._chunk: Chunk | None = None
        self._apart: Slab | None = None
        self._error: BrokenFrameError | None = None
        self._index = 0
        self._offset = 0
        self._need = 0
        self._started = False
        self._closed = False

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
        self._begin()
        block = self._at_hand(limit) if self._error is None else None
        if block is not None:
            return block
        self._budget.wait(self._account)
        try:
            if self._error is not None:
                raise self._error
            return await self._next_block(limit)
        except AsyncdataError as error:
            error.url = error.url or self.url
            error.stage = error.stage or self.label
            raise
        finally:
            self._budget.wait(self._account, False)

    def pull_ready(self, limit: int) -> Block | None:
        """Records of chunks that have arrived."""
        if self._closed or self._error is not None:
            return None
        self._begin()
        return self._at_hand(limit)

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            self._budget.reserve(self._account, self._reserve_bytes)
            if self._any_order:
                self._budget.begin(self._account)

    async def _next_block(self, limit: int) -> Block | None:
        while True:
            block = self._at_hand(limit)
            if block is not None:
                return block
            if self._error is not None:
                raise self._error
            if self._chunk is None:
                self._chunk = await self._chunks.next()
                if self._chunk is None:
                    return None
                self._enter_source()
            elif (block := await self._join(self._need)) is not None:
                return block

    def _at_hand(self, limit: int) -> Block | None:
        """Records that are there; None with an error noted, without a chunk, or with one that ends inside a record."""
        while True:
            if self._chunk is None:
                self._chunk = self._chunks.take_ready()
                if self._chunk is None:
                    return None
                self._enter_source()
            chunk = self._chunk
            frames = frame(
                self._budget.slabs.arena.view,
                chunk.start,
                chunk.stop,
                limit=limit,
                remaining=self._remaining(),
                context=self._context(),
            )
            rows = frames.rows
            if frames.error is not None:
                self._error = frames.error
            if len(rows):
                return self._block(rows, frames.stop)
            if frames.error is not None:
                return None
            self._need = frames.need
            if frames.stop == chunk.stop:
                self._leave_chunk()
            elif not self._join_ready():
                return None

    def _enter_source(self) -> None:
        if self._number is None:
            info = self._chunks.info
            version = info.version if info is not None else None
            self._number = self._sources.add(self._path, self.url, version, is_file=True)

    def _remaining(self) -> int | None:
        info = self._chunks.info
        return None if self._compressed or info is None else info.size - self._offset

    def _context(self) -> FrameContext:
        info = self._chunks.info
        return FrameContext(
            url=self.url,
            version=info.version if info is not None else None,
            object_offset=self._offset,
            record_index=self._index,
        )

    def _block(self, rows: np.ndarray[tuple[int, int], np.dtype[np.int64]], stop: int) -> Block:
        chunk = self._chunk
        assert chunk is not None
        count = len(rows)
        origin = np.zeros((count, 4), np.int64)
        assert self._number is not None
        origin[:, 0] = self._number
        origin[:, 1] = np.arange(self._index, self._index + count)
        origin[:, 3] = rows[:, 0] - (chunk.start + HEADER_BYTES - self._offset)
        marks = tuple(
            (row, {"record": self._index + row, "offset": int(origin[row, 3])}) for row in row_marks(self._index, count)
        )
        column = RefColumn(self._budget.slabs, rows, UNCHECKED_BYTES if self._check else BYTES)
        column.hold()
        self._offset += stop - chunk.start
        self._index += count
        chunk.start = stop
        if chunk.start == chunk.stop:
            self._leave_chunk()
        return Block(LEAF, (column,), origin, Advance(count, origin, None, marks))

    def _leave_chunk(self) -> None:
        """The chunk is framed: its slab now belongs to the rows, and to whoever collects them."""
        chunk, self._chunk = self._chunk, None
        assert chunk is not None
        self._pass_on(chunk.slab)

    def _pass_on(self, slab: Slab) -> None:
        slabs = self._budget.slabs
        if slabs.holds(slab) > 1:
            self._budget.move(slab, self._downstream)
        slabs.drop(slab)

    def _join_ready(self) -> bool:
        """As `_join`, where the following chunk is at hand and takes the record's beginning."""
        chunk = self._chunk
        assert chunk is not None
        tail = chunk.stop - chunk.start
        if self._is_apart(tail, self._need):
            return False
        following = self._chunks.take_ready()
        if following is None:
            return False
        self._put_in_front(self._cut_off(), following)
        return True

    def _is_apart(self, tail: int, need: int) -> bool:
        return bool(need) and (tail > self._chunks.room or need > tail + self._chunks.data_bytes)

    def _put_in_front(self, rest: bytes, following: Chunk) -> None:
        start = following.start - len(rest)
        self._budget.slabs.arena.view[start : following.start] = rest
        following.start = start
        self._chunk = following

    async def _join(self, need: int) -> Block | None:
        """Brings the record that is cut off at the end of the chunk together.

        Returns it as a block of its own, or None when it now lies in front of the next chunk's bytes.
        """
        chunk = self._chunk
        assert chunk is not None
        tail = chunk.stop - chunk.start
        if self._is_apart(tail, need):
            return await self._receive_apart(tail, need)
        rest = self._cut_off()
        following = await self._chunks.next()
        if following is None:
            raise self._truncated(tail, need)
        self._put_in_front(rest, following)
        return None

    def _cut_off(self) -> bytes:
        """Takes the tail out of the chunk and leaves it: its bytes may be needed for what follows."""
        chunk = self._chunk
        assert chunk is not None
        rest = bytes(self._budget.slabs.arena.view[chunk.start : chunk.stop])
        self._leave_chunk()
        return rest

    async def _receive_apart(self, tail: int, need: int) -> Block:
        """A record in a slab of its own; `need` was verified against its checksum and the object's size."""
        rest = self._cut_off()
        try:
            slab = await self._budget.take(self._account, need)
        except MemoryLimitError as error:
            error.url, error.offset, error.record = self.url, self._offset, self._index
            raise
        self._apart = slab
        self._budget.slabs.arena.view[slab.offset : slab.offset + tail] = rest
        filled = await self._chunks.fill(slab, tail, need - tail)
        if filled < need - tail:
            raise self._truncated(tail + filled, need)
        self._apart = None
        rows = np.array([[slab.offset + HEADER_BYTES, need - FRAME_BYTES]], np.int64)
        # Stands in as the chunk that is framed, so that rows are counted in one place.
        self._chunk = Chunk(slab, slab.offset, slab.offset + need, self._offset, 0)
        return self._block(rows, slab.offset + need)

    def _truncated(self, tail: int, need: int) -> BrokenFrameError:
        missing = f", {need - tail} bytes of it are missing" if need else ""
        return BrokenFrameError(
            f"the data ends inside a record{missing}",
            url=self.url,
            version=self._context().version,
            offset=self._offset,
            record=self._index,
        )

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for slab in (self._apart, self._chunk.slab if self._chunk is not None else None):
            if slab is not None:
                self._budget.slabs.drop(slab)
        self._apart = self._chunk = None
        self._chunks.close()
        self._budget.close(self._account)
