"""The bridge between the two loops: the stage loop requests bytes, and the I/O loop receives them into a slab.

The loops meet twice per chunk: for the request and when the bytes have arrived. A `Read` holds its slab from the
request until the I/O loop has released it, whatever happens in between. A cancelled read returns its slab only when
nothing writes into it any more.

While a request to a network is under way, a thread takes the pages of a new slab from the system. Otherwise the I/O
loop would do so while it receives, which costs it more time than the bytes do.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from asyncdata.errors import PipelineClosedError
from asyncdata.memory.arena import populate
from asyncdata.memory.slabs import Slab, Slabs
from asyncdata.observe.stopwatch import Stopwatch
from asyncdata.options import Storage
from asyncdata.runtime.life.loops import LoopThread
from asyncdata.runtime.memory.activity import Outside, current
from asyncdata.storage.blocking_jobs import ThreadJobs, until_done
from asyncdata.storage.counters import FetchStats
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.object_crc import ObjectChecks
from asyncdata.storage.reader import RunOfFiles
from asyncdata.storage.urls import is_local
from asyncdata.types import ObjectInfo

T = TypeVar("T")

_POPULATED_FROM: Final = 256 << 10
"""Bytes. For a smaller read, waking the thread would cost more than the pages do."""


class Read:
    """One range on its way into a slab. Used on the stage loop.

    Attributes:
        done: Whether the I/O loop has let go of the slab.
        info: The object; known at the end when it was not before.
        run: The files, where it was to read several.
        filled: Bytes that were written.
    """

    def __init__(self, slabs: Slabs, slab: Slab, loop: asyncio.AbstractEventLoop, waits: Stopwatch) -> None:
        self._slabs = slabs
        self._waits = waits
        self.slab = slab
        self.done = False
        self.info: ObjectInfo | None = None
        self.run: RunOfFiles | None = None
        self.filled = 0
        self._error: BaseException | None = None
        self._event = loop.create_future()
        self.on_cancel: Callable[[], object] | None = None
        self._activity = current()
        if self._activity is not None:
            self._activity.begin()
        slabs.hold(slab)

    @property
    def arrived(self) -> bool:
        """Whether the bytes are there."""
        return self.done and self._error is None

    def cancel(self) -> None:
        """Stops the transfer; the slab is let go when it has stopped."""
        if not self.done and self.on_cancel is not None:
            self.on_cancel()

    async def wait(self) -> None:
        """Returns when the bytes are there, or raises what went wrong."""
        if not self.done:
            with self._waits:
                await asyncio.shield(self._event)
        if self._error is not None:
            raise self._error

    def finish(self, found: ObjectInfo | RunOfFiles | None, filled: int, error: BaseException | None) -> None:
        """Called on the stage loop once the I/O loop has let go."""
        self.done = True
        self.on_cancel = None  # leads to the transfer, and back
        if isinstance(found, RunOfFiles):
            self.run = found
        else:
            self.info = found
        self.filled = filled
        self._error = error
        self._slabs.drop(self.slab)
        if not self._event.done():
            self._event.set_result(None)
        if self._activity is not None:
            self._activity.end()


class _Transfer:
    """The I/O loop's half of a `Read`."""

    def __init__(
        self,
        io: Io,
        read: Read,
        receive: Callable[[], Coroutine[Any, Any, tuple[ObjectInfo | RunOfFiles, int]]],
    ) -> None:
        self._io = io
        self._read = read
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._outcome: tuple[ObjectInfo | RunOfFiles | None, int, BaseException | None] | None = None
        read.on_cancel = lambda: io.thread.call(self._cancel)

    def start(self) -> None:
        self._io.thread.call(self._begin)

    def _begin(self) -> None:
        if self._cancelled:
            self._report()
            return
        self._task = self._io.thread.spawn(self._run())
        # Also called for a task that is cancelled before its first step.
        self._task.add_done_callback(lambda _task: self._report())

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._outcome = (*await self._receive(), None)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- raised by the stage that waits for the read
            self._outcome = (None, 0, error)

    def _report(self) -> None:
        self._task = None  # a cancelled one keeps its traceback, which leads back here and to the buffer
        outcome = self._outcome or (None, 0, PipelineClosedError("the read was cancelled"))
        self._io.stage_loop.call_soon_threadsafe(self._io.finish, self._read, *outcome)


class _Reads:
    """How many reads are under way, by whatever storage options.

    Attributes:
        under_way: Runs once for each of them.
        closed: No more begin.
        idle: There are none.
    """

    def __init__(self) -> None:
        self.closed = False
        self.under_way = Stopwatch()
        self.idle = asyncio.Event()
        self.idle.set()


class Io:
    """Storage, as the stage loop sees it; owned by the Runtime.

    Args:
        thread: The I/O loop.
        stage_loop: Where results are reported.
        fetcher: What reads; closed with this.
        check_object_crc: Whether objects that were read as a whole are compared with the store's checksum.
    """

    def __init__(
        self,
        thread: LoopThread,
        stage_loop: asyncio.AbstractEventLoop,
        fetcher: Fetcher,
        *,
        check_object_crc: bool,
    ) -> None:
        self.thread = thread
        self.stage_loop = stage_loop
        self.fetcher = fetcher
        self._checks = ObjectChecks() if check_object_crc else None
        self._reads = _Reads()
        self._pages = ThreadJobs(1, "asyncdata-pages")
        self._waits = Stopwatch()

    def beside(self, storage: Storage) -> Io:
        """The same with other storage options, and part of this: it is closed with it."""
        other = copy.copy(self)
        other.fetcher = self.fetcher.beside(storage)
        other._checks = None if self._checks is None else ObjectChecks()  # noqa: SLF001 -- a copy of this
        return other

    def timed(self, waits: Stopwatch) -> Io:
        """The same, and part of this: a stopwatch runs while something waits for what is read."""
        other = copy.copy(self)
        other._waits = waits  # noqa: SLF001 -- a copy of this
        return other

    def read(
        self,
        slabs: Slabs,
        slab: Slab,
        start: int,
        length: int,
        source: ObjectInfo | str,
        position: int,
        priority: tuple[int, ...],
    ) -> Read:
        """Begins to fill ``slab[start : start + length]`` with the bytes of an object from `position` on.

        A `source` that is a URL is an object about which nothing is known yet; it is read from its beginning, and the
        read tells what it is and how much there was.
        """

        async def receive(buffer: memoryview) -> tuple[ObjectInfo, int]:
            if isinstance(source, str):
                info, filled = await self.fetcher.open_read(source, buffer, priority=priority)
                self._check(info, 0, buffer[:filled])
                return info, filled
            await self.fetcher.read(source, position, buffer, priority=priority)
            self._check(source, position, buffer)
            return source, length

        # An object about which nothing is known may be far smaller than the memory for it.
        if slab.is_new and length >= _POPULATED_FROM and isinstance(source, ObjectInfo) and not is_local(source.url):
            return self._begin(slabs, slab, start, length, partial(self._populated, receive))
        return self._begin(slabs, slab, start, length, receive)

    async def _populated(self, receive: Callable[[memoryview], Coroutine[Any, Any, T]], buffer: memoryview) -> T:
        """Receives, and meanwhile takes the buffer's pages; both are over when this ends, in any way."""
        populating = asyncio.ensure_future(self._pages.run(populate, buffer))
        try:
            return await receive(buffer)
        finally:
            await until_done(populating)

    def read_run(
        self,
        slabs: Slabs,
        slab: Slab,
        length: int,
        urls: Sequence[str],
        versions: Sequence[str | None],
        priority: tuple[int, ...],
    ) -> Read:
        """Begins to fill the first bytes of a slab with small files, see `asyncdata.storage.reader.RunReader`."""

        async def receive(buffer: memoryview) -> tuple[RunOfFiles, int]:
            run = await self.fetcher.read_run(urls, versions, buffer, priority=priority)
            return run, sum(info.size for info in run.infos)

        return self._begin(slabs, slab, 0, length, receive)

    def _begin(
        self,
        slabs: Slabs,
        slab: Slab,
        start: int,
        length: int,
        receive: Callable[[memoryview], Coroutine[Any, Any, tuple[ObjectInfo | RunOfFiles, int]]],
    ) -> Read:
        if self._reads.closed:
            raise PipelineClosedError("the Runtime was closed")
        read = Read(slabs, slab, self.stage_loop, self._waits)
        buffer = slabs.arena.view[slab.offset + start : slab.offset + start + length]
        self._reads.under_way.begin()
        self._reads.idle.clear()
        _Transfer(self, read, partial(receive, buffer)).start()
        return read

    def finish(
        self, read: Read, found: ObjectInfo | RunOfFiles | None, filled: int, error: BaseException | None
    ) -> None:
        """Reports a read that the I/O loop has let go of; on the stage loop."""
        read.finish(found, filled, error)
        self._reads.under_way.end()
        if not self._reads.under_way.open:
            self._reads.idle.set()

    async def idle(self) -> None:
        """Returns when no read is under way."""
        await self._reads.idle.wait()

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The objects that match, sorted by URL."""
        return await self.call(self.fetcher.glob(pattern))

    async def stat(self, url: str) -> ObjectInfo:
        """Size and version of one object."""
        return await self.call(self.fetcher.stat(url))

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the I/O loop; cancelling cancels it."""
        with Outside(), self._waits:
            return await asyncio.wrap_future(self.thread.submit(coroutine))

    @property
    def checks_objects(self) -> bool:
        """Whether objects that were read as a whole are compared with the checksum that is known of them."""
        return self._checks is not None

    @property
    def has_room(self) -> bool:
        """Whether fewer reads are under way than may be in flight, and a quarter more.

        Those wait in the queue of requests: it is there that the next one begins at once when a place gets free.
        """
        return 4 * self._reads.under_way.open < 5 * self.fetcher.window

    def chunks_ahead(self, in_turn: int) -> int:
        """Chunks each of so many files that are read in turn should ask for, so that together they fill the window."""
        return max(2, -(-self.fetcher.window // max(1, in_turn)))

    def _check(self, info: ObjectInfo, start: int, data: memoryview) -> None:
        """A range is complete; on the I/O loop.

        Raises:
            CorruptObjectError: It was the object's last, and the object's checksum is another one.
        """
        if self._checks is not None:
            self._checks.arrived(info, start, data)

    def note_restart(self) -> None:
        """A file is begun again, for its object was replaced."""
        self.thread.call(self.fetcher.note_restart)

    def stats(self) -> FetchStats:
        """Counters of all reads so far."""
        return self.fetcher.stats()

    @property
    def reading_s(self) -> float:
        """Seconds of all reads so far, summed over the reads; those under way included."""
        return self._reads.under_way.seconds()

    async def aclose(self) -> None:
        """Closes every connection. Reads must have been cancelled before."""
        if not self._reads.closed:
            self._reads.closed = True
            await self.idle()
            await self.call(self._pages.aclose())
            await self.call(self.fetcher.aclose())
