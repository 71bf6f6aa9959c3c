"""The bytes of one object as a run that always begins at a record, so that every record is contiguous.

    chunk 0  |rec|rec|rec|re…|          chunk 1  …|c|rec|rec|          a record larger than both
                          └ tail ──copied──▶ [headroom re][c|rec|rec]      └ a slab of its own

An incomplete record is joined with the bytes that follow: in front of the next chunk or, if it does not fit there, in a
larger slab. This slab has the size that the framer has verified or, if a record does not state its length (a line),
twice the bytes so far, until the record is complete or the memory limit is reached.

The size of a decompressed object is not known in advance. If one of its records would not fit into the memory limit,
the bytes that follow are first read and dropped: if they end before the record does, its length was wrong.
"""

from __future__ import annotations

from asyncdata.errors import BrokenFrameError, MemoryLimitError
from asyncdata.memory.accounts import Account
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.reading.chunks import Chunk, Chunks
from asyncdata.types import ObjectInfo


class Contiguous:
    """See the module's docstring.

    Args:
        chunks: The object's bytes.
        budget: For slabs of large records.
        account: The source's account.
        downstream: The account that framed slabs are charged to.
        compressed: Whether `chunks` decompresses, so that the size of its bytes is not known.
        at_once: The object is one record: where it is known to be larger than a chunk, it is received in one piece.

    Attributes:
        offset: Of the first byte that is not used yet, in the object.
        last: Nothing follows what is here.
    """

    def __init__(
        self,
        chunks: Chunks,
        budget: Budget,
        account: Account,
        downstream: Account,
        *,
        compressed: bool,
        at_once: bool,
    ) -> None:
        self._chunks = chunks
        self._budget = budget
        self._account = account
        self._downstream = downstream
        self._compressed = compressed
        self._at_once = at_once
        self._chunk: Chunk | None = None
        self._apart: Slab | None = None
        self._cut_off = False
        self._need = 0
        self.offset = 0
        self.last = False

    def begin(self, offset: int) -> None:
        """The first byte that is wanted is this one, at which a record begins."""
        self.offset = offset
        self._chunks.begin(offset)

    @property
    def info(self) -> ObjectInfo | None:
        """The stored object, once known."""
        return self._chunks.info

    @property
    def draining(self) -> bool:
        """Whether the last stored bytes have been asked for."""
        return self._chunks.draining

    def prepare(self) -> None:
        """Asks for the first chunk as read-ahead."""
        self._chunks.prepare()

    @property
    def view(self) -> memoryview:
        """The memory that positions count in."""
        return self._budget.slabs.arena.view

    @property
    def bounds(self) -> tuple[int, int]:
        """Where the bytes that are here begin and end."""
        return (0, 0) if self._chunk is None else (self._chunk.start, self._chunk.stop)

    @property
    def remaining(self) -> int | None:
        """Bytes of the object that are not used yet, where known."""
        info = self._chunks.info
        return None if self._compressed or info is None else info.size - self.offset

    @property
    def is_short(self) -> bool:
        """Whether more bytes are needed to go on."""
        return self._cut_off or (self._chunk is None and not self.last)

    # --- what was framed ---------------------------------------------------------------------------------------

    def use(self, stop: int) -> None:
        """Everything in front of this position was framed."""
        if self._chunk is not None:
            self.offset += stop - self._chunk.start
            self._chunk.start = stop
            if stop == self._chunk.stop:
                self.leave()

    def cut_off(self, need: int) -> None:
        """What begins here is not whole; it has `need` bytes, if that is known and was checked."""
        self._cut_off, self._need = True, need

    def leave(self) -> None:
        """The chunk is framed: its slab now belongs to the rows and their collector."""
        chunk, self._chunk = self._chunk, None
        if chunk is None:
            return
        slabs = self._budget.slabs
        if slabs.holds(chunk.slab) > 1:
            self._budget.move(chunk.slab, self._downstream)
        slabs.drop(chunk.slab)

    def stop(self) -> None:
        """No more bytes are wanted."""
        self._chunks.close()

    # --- more bytes --------------------------------------------------------------------------------------------

    def take_ready(self) -> bool:
        """Adds more bytes if they have arrived; returns False if it would have to wait."""
        if self._comes_at_once or (self._cut_off and not self._fits_in_front):
            return False
        following = self._chunks.take_ready()
        if following is None:
            return False
        self._put_in_front(self._tail() if self._cut_off else b"", following)
        return True

    async def take(self) -> None:
        """Brings up more bytes, or notes that there are none."""
        if self._comes_at_once:
            await self._receive_all()
            return
        if self._cut_off and not self._fits_in_front:
            await self._receive_apart()
            return
        rest = self._tail() if self._cut_off else b""
        self.leave()
        following = await self._chunks.next()
        if following is not None:
            self._put_in_front(rest, following)
            return
        self.last = True
        if rest:
            slab = await self._slab(len(rest))
            self.view[slab.offset : slab.offset + len(rest)] = rest
            self._set(Chunk(slab, slab.offset, slab.offset + len(rest), self.offset, 0))

    @property
    def _comes_at_once(self) -> bool:
        remaining = self.remaining
        if not self._at_once or self._chunk is not None or self.offset:
            return False  # not one record; or its first bytes came before its size was known
        return remaining is not None and remaining > self._chunks.data_bytes

    @property
    def _fits_in_front(self) -> bool:
        """Whether the tail goes in front of the next chunk, and is likely to be whole there."""
        start, stop = self.bounds
        tail = stop - start
        return tail <= self._chunks.room and self._need <= tail + self._chunks.data_bytes

    def _tail(self) -> bytes:
        start, stop = self.bounds
        return bytes(self.view[start:stop])

    def _put_in_front(self, rest: bytes, following: Chunk) -> None:
        self.leave()
        start = following.start - len(rest)
        self.view[start : following.start] = rest
        following.start = start
        self._set(following)

    def _set(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._cut_off, self._need = False, 0

    async def _receive_all(self) -> None:
        remaining = self.remaining
        assert remaining is not None
        slab = self._apart = await self._slab(remaining)
        filled = await self._chunks.fill(slab, 0, remaining)
        self._apart = None
        self._set(Chunk(slab, slab.offset, slab.offset + filled, 0, 0))

    async def _receive_apart(self) -> None:
        """The tail and what follows it in a slab of its own, which takes the chunk's place."""
        start, stop = self.bounds
        tail = stop - start
        size = self._need or max(2 * tail, tail + self._chunks.data_bytes)
        remaining = self.remaining
        if remaining is not None:
            size = min(size, remaining)
        # A tail that was one chunk is not held while more is asked for: readers of other objects need the room. A
        # larger one, which never came in one piece, is.
        rest = None
        if tail <= self._chunks.data_bytes:
            rest = self._tail()
            self.leave()
        try:
            slab = self._apart = await self._slab(size)
        except MemoryLimitError:
            self.leave()
            missing = await self._missing(size - tail) if self._compressed and self._need else 0
            if not missing:
                raise
            raise truncated(self.info, self.offset, missing) from None
        self.view[slab.offset : slab.offset + tail] = self.view[start:stop] if rest is None else rest
        self.leave()
        filled = tail + await self._chunks.fill(slab, tail, size - tail)
        self.last = self.last or filled < size
        self._apart = None
        self._set(Chunk(slab, slab.offset, slab.offset + filled, self.offset, 0))

    async def _missing(self, size: int) -> int:
        """How many of the next so many bytes there are not; those there are, are dropped."""
        while size > 0:
            chunk = await self._chunks.next()
            if chunk is None:
                return size
            size -= chunk.stop - chunk.start
            self._budget.slabs.drop(chunk.slab)
        return 0

    async def _slab(self, size: int) -> Slab:
        try:
            return await self._budget.take(self._account, size)
        except MemoryLimitError as error:
            info = self.info
            error.version = info.version if info is not None else None
            error.offset = self.offset
            raise

    def close(self) -> None:
        """Gives everything back."""
        for slab in (self._apart, self._chunk.slab if self._chunk is not None else None):
            if slab is not None:
                self._budget.slabs.drop(slab)
        self._apart = self._chunk = None
        self._chunks.close()


def truncated(info: ObjectInfo | None, offset: int, missing: int) -> BrokenFrameError:
    """The error for an object that ends inside the record that begins at an offset; 0 for an unknown length."""
    text = f", {missing} bytes of it are missing" if missing else ""
    return BrokenFrameError(
        f"the data ends inside a record{text}", version=info.version if info is not None else None, offset=offset
    )
