"""The bytes of one object, in order, as chunks in slabs, read ahead.

    object   |----- chunk 0 -----|----- chunk 1 -----|----- chunk 2 -----| …
    slab     [headroom][ data ]    [headroom][ data ]

The incomplete record at the end of one chunk is copied into the headroom in front of the next chunk's data, so that
every record is contiguous. Read-ahead is bounded: the source's own reserve pays for the chunk that is needed next; the
others are read-ahead that the ledger may recall. A recalled chunk is read again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from asyncdata.errors import PipelineClosedError
from asyncdata.memory.accounts import Account
from asyncdata.memory.slabs import Slab, Slabs
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.reading.io import Io, Read
from asyncdata.types import ObjectInfo

_HEADROOM: Final = 1 << 16
_SOON: Final = 0
# Between the chunk that somebody waits for and those behind it: the beginning of a file that is opened ahead. All files
# that are read in turn begin that way, and none has its second chunk before another has its first.
_BEGINNING: Final = 1


def headroom(slab_bytes: int) -> int:
    """Bytes kept free in front of a chunk's data."""
    return min(_HEADROOM, slab_bytes // 8)


class Chunk:
    """Consecutive bytes of an object, held once by the receiver.

    Attributes:
        slab: Where they lie.
        start: Arena offset of the first byte.
        stop: Arena offset behind the last one.
        position: Offset of the first byte in the object (decompressed offset for compressed objects).
        room: Free bytes in front of `start`.
    """

    __slots__ = ("position", "room", "slab", "start", "stop")

    def __init__(self, slab: Slab, start: int, stop: int, position: int, room: int) -> None:
        self.slab = slab
        self.start = start
        self.stop = stop
        self.position = position
        self.room = room


def copy_chunk(slabs: Slabs, chunk: Chunk, at: int, most: int) -> tuple[int, Chunk | None]:
    """Copies the first bytes of a chunk to an offset of the arena.

    Returns:
        How many, and the rest of the chunk; without a rest its slab was given back.
    """
    view = slabs.arena.view
    count = min(most, chunk.stop - chunk.start)
    view[at : at + count] = view[chunk.start : chunk.start + count]
    if count < chunk.stop - chunk.start:
        return count, Chunk(chunk.slab, chunk.start + count, chunk.stop, chunk.position + count, count)
    slabs.drop(chunk.slab)
    return count, None


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

    def begin(self, position: int) -> None:
        """The first byte that is wanted is this one; called before anything is read."""

    def prepare(self) -> None:
        """Starts reading."""

    async def next(self) -> Chunk | None:
        """The next bytes, None at the end."""

    def take_ready(self) -> Chunk | None:
        """Returns the next bytes if they have arrived."""

    async def fill(self, slab: Slab, start: int, length: int) -> int:
        """The next `length` bytes into another slab."""

    def close(self) -> None:
        """Gives everything back."""


class _Pending:
    """A chunk on its way."""

    __slots__ = ("length", "position", "read", "room", "slab")

    def __init__(self, slab: Slab, read: Read, position: int, length: int, room: int) -> None:
        self.slab = slab
        self.read = read
        self.position = position
        self.length = length
        self.room = room


class ChunkReader:
    """See the module's docstring.

    Args:
        io: Storage.
        budget: For slabs.
        account: The source's account.
        source: What is read: a listed object, or the URL of one about which nothing is known.
        slab_bytes: Size of a slab: headroom and data.
        window: Tells how many chunks may be on their way or waiting at a time, while the source is being read.
        order: Place of the source among its siblings, for who is served first.
        opened: Called when an unknown object turns out to be what.
        first_bytes: The most bytes of the first chunk, where somebody waits for the beginning; None: as of any other.
        eager: Whether `prepare` asks for more than the first chunk, as far as there are requests to spare.
    """

    def __init__(
        self,
        io: Io,
        budget: Budget,
        account: Account,
        source: ObjectInfo | str,
        *,
        slab_bytes: int,
        window: Callable[[], int],
        order: int,
        opened: Callable[[ObjectInfo], None],
        first_bytes: int | None = None,
        eager: bool = False,
    ) -> None:
        self._io = io
        self._budget = budget
        self._account = account
        self._source = source
        self.info: ObjectInfo | None = None if isinstance(source, str) else source
        """What is being read, once it is known."""
        self.room = headroom(slab_bytes)
        self.data_bytes = slab_bytes - self.room
        self._window = window
        self._order = order
        self._opened = opened
        self._first_bytes = self.data_bytes if first_bytes is None else min(first_bytes, self.data_bytes)
        self._eager = eager
        self._pending: deque[_Pending] = deque()
        self._rest: Chunk | None = None
        self._next = self._start = 0
        self._even = 0
        """The size of chunks, once the object is known."""
        self._active = False
        self._awaits_room = False
        self._direct = False
        self._closed = False

    def begin(self, position: int) -> None:
        """See `Chunks`."""
        self._next = self._start = position

    @property
    def draining(self) -> bool:
        """Whether the last chunk has been asked for."""
        return self.info is not None and self._next >= self.info.size

    def prepare(self) -> None:
        """Asks for the first chunks, if memory is to be had: the object is needed soon. To be called repeatedly."""
        if self._active or self._closed or self._awaits_room:
            return
        if self._next == self._start and not self._pending:
            self._read_ahead(1)
        if self._eager and self._pending:
            most = self._window()
            while self._io.has_room and len(self._pending) < most and not self._awaits_room:
                count = len(self._pending)
                self._read_ahead(count + 1)
                if len(self._pending) == count:
                    return  # that is all of it

    async def next(self) -> Chunk | None:
        """The next chunk, or None behind the last one."""
        self._active = True
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        if not self._pending and not await self._read_needed():
            return None
        self._read_ahead(self._window())
        while True:
            head = self._pending[0]
            if not self._budget.is_kept(head.slab):
                self._budget.keep(head.slab)
            try:
                await head.read.wait()
            except PipelineClosedError:
                if self._closed or (self._pending and self._pending[0] is head):
                    raise  # nobody recalled it
            if self._pending and self._pending[0] is head:
                break
            # Recalled while it was awaited: read again.
            if not self._pending and not await self._read_needed():
                return None
        return self._take_head()

    def take_ready(self) -> Chunk | None:
        """The next chunk if it has arrived; None for whatever `next` would have to wait for, or would raise."""
        if self._closed or self._rest is not None or not self._pending or not self._pending[0].read.arrived:
            return None
        self._active = True
        head = self._pending[0]
        if not self._budget.is_kept(head.slab):
            self._budget.keep(head.slab)
            if not self._budget.is_kept(head.slab):
                return None  # more than the source's reserve, which only one that is waited for may have
        return self._take_head()

    def _take_head(self) -> Chunk | None:
        head = self._pending.popleft()
        if isinstance(self._source, str):
            assert head.read.info is not None
            self._source = self.info = head.read.info
            self._opened(self.info)
            head.length = head.read.filled
            self._next = head.position + head.length
        if not head.length:
            self._budget.slabs.drop(head.slab)
            return None
        self._read_ahead(self._window())
        start = head.slab.offset + head.room
        return Chunk(head.slab, start, start + head.length, head.position, head.room)

    def refill(self) -> None:
        """Reads ahead again after memory was short."""
        self._awaits_room = False
        if not self._closed:
            if self._active:
                self._read_ahead(self._window())
            else:
                self.prepare()

    async def fill(self, slab: Slab, start: int, length: int) -> int:
        """Receives the next `length` bytes into another slab, those that are on their way included.

        Returns how many there were: fewer only behind the end of the object.
        """
        filled = 0
        while filled < length:
            if not self._pending and self._rest is None and self.info is not None:
                rest = min(length - filled, self.info.size - self._next)
                await self._fill_directly(slab, start + filled, rest)
                return filled + rest
            chunk = await self.next()
            if chunk is None:
                break
            count, self._rest = copy_chunk(self._budget.slabs, chunk, slab.offset + start + filled, length - filled)
            filled += count
        return filled

    async def _fill_directly(self, slab: Slab, start: int, length: int) -> None:
        assert self.info is not None
        reads: deque[Read] = deque()
        # No chunk may be read ahead from the middle of what is received here.
        self._direct = True
        try:
            while length or reads:
                if length and len(reads) < max(self._window(), 1):
                    count = min(length, self.data_bytes)
                    priority = (_SOON, 2 * len(reads), self._order)
                    reads.append(self._io.read(self._budget.slabs, slab, start, count, self.info, self._next, priority))
                    self._next += count
                    start, length = start + count, length - count
                else:
                    await reads[0].wait()
                    reads.popleft()
        finally:
            self._direct = False
            for read in reads:
                read.cancel()

    async def _read_needed(self) -> bool:
        """Asks for the next chunk from the source's own reserve; False behind the last one."""
        if self.info is None and self._start:
            # Only the first byte of an object can be asked for without knowing what it is.
            assert isinstance(self._source, str)
            self._source = self.info = await self._io.stat(self._source)
            self._opened(self.info)
        size = self._next_length()
        if size == 0:
            return False
        slab = await self._budget.take(self._account, self._slab_for(size))
        # Meanwhile memory may have come free for reading ahead, which then took the next bytes, or the last ones.
        size = min(size, self._next_length(), slab.nbytes - (self.room if self._next else 0))
        if self._closed or size <= 0 or (self.info is None and self._pending):
            self._budget.slabs.drop(slab)
            return bool(self._pending)
        self._ask(slab, size)
        return True

    def _read_ahead(self, window: int) -> None:
        if self._direct:
            return
        while len(self._pending) < window and (size := self._next_length()):
            if self.info is None and (self._pending or self._start):
                return
            slab = self._budget.take_ahead(
                self._account, self._slab_for(size), urgency=len(self._pending) + 1, reader=self
            )
            if slab is None:
                if not self._awaits_room:
                    self._awaits_room = True
                    self._budget.on_room(self.refill)
                return
            self._ask(slab, size)

    def _slab_for(self, size: int) -> int:
        # What a small beginning took from the last chunk is paid for all the same, where it is little: memory of one
        # size is used again by the next chunk, of whichever file.
        nearly_even = 3 * self._even <= 4 * size < 4 * self._even
        return (self._even if nearly_even else size) + (self.room if self._next else 0)

    def _next_length(self) -> int:
        """Bytes of the next chunk; a known object is read in chunks of one size, but for a small beginning."""
        if self.info is None:
            return self._first_bytes
        left = max(0, self.info.size - self._next)
        if not self._even and left:
            self._even = -(-left // -(-left // self.data_bytes))
        return min(left, self._even, self._first_bytes if self._next == self._start else left)

    def _ask(self, slab: Slab, size: int) -> None:
        room = self.room if self._next else 0
        priority = (_SOON, 2 * len(self._pending) + (not self._active) * _BEGINNING, self._order)
        read = self._io.read(self._budget.slabs, slab, room, size, self._source, self._next, priority)
        self._pending.append(_Pending(slab, read, self._next, size, room))
        if self.info is not None:
            self._next += size

    def recall(self, slab: Slab) -> None:
        """Gives a chunk back that was read ahead, and every later one: they are read again when they are needed."""
        index = next((i for i, pending in enumerate(self._pending) if pending.slab is slab), None)
        if index is None:
            return
        if self.info is not None:
            self._next = self._pending[index].position
        # All of them are taken out first: what a slab gives back may be used at once to read ahead again, from `_next`.
        dropped = [self._pending.pop() for _ in range(len(self._pending) - index)]
        for pending in dropped:
            self._drop(pending)

    def _drop(self, pending: _Pending) -> None:
        pending.read.cancel()
        self._budget.slabs.drop(pending.slab)

    def close(self) -> None:
        """Cancels what is on its way."""
        self._closed = True
        if self._rest is not None:
            self._budget.slabs.drop(self._rest.slab)
            self._rest = None
        while self._pending:
            self._drop(self._pending.pop())
