"""`Receivers`: several event loops that receive the bodies of reads, behind one order of requests.

::

    slots, retries, second attempts ─┬─▶ reader of this loop        │
                                     ├─▶ reader of receiver 1       ├─▶ the buffers of the reads
                                     └─▶ reader of receiver 2 …     │

One loop receives as much as one processor copies and decrypts. The system does that without the interpreter's lock, so
threads suffice. A read goes to the loop that has the fewest; each loop has connections of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Final, Protocol

from asyncdata.observe.cpu_time import clock_s
from asyncdata.options import AUTOTUNE, usable_cpus
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.far_reader import FarReader, Loop
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.types import ObjectInfo

_MOST: Final = 8
_CONNECTIONS: Final = 32
"""Of a loop that `AUTOTUNE` begins, at least."""

_SPREAD: Final = frozenset({"asyncdata.storage.gcs.reader", "asyncdata.storage.http"})
"""Backends whose bodies an event loop receives. Others have threads or a runtime of their own."""


class BodyReader(Protocol):
    """What reads bodies; see `RangeReader`."""

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt) -> int:
        """Fills a buffer."""
        ...

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt) -> tuple[ObjectInfo, int]:
        """Reads the beginning of an unknown object."""
        ...


class Receivers:
    """See the module's text. On the loop of the reads.

    Args:
        count: How many loops receive, this one included; `AUTOTUNE`: one, until another number is asked for.
        begin: Starts another one.
        most: That `AUTOTUNE` may go up to; None: one for each processor, 8 at most.
    """

    def __init__(
        self,
        count: int,
        begin: Callable[[], Awaitable[Loop]],
        *,
        most: int | None = None,
    ) -> None:
        self._most = (most or min(_MOST, usable_cpus())) if count == AUTOTUNE else count
        self._is_given = count != AUTOTUNE
        self._wanted = self._most if self._is_given else 1
        self._begin = begin
        self.loops: list[Loop] = []
        """Those beside this one."""
        self._clocks: list[int | None] = []
        self.under_way = [0]
        """Reads of each loop, this one first."""
        self._spread: list[_Spread] = []
        self._growing: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def count(self) -> int:
        """How many loops receive. Those that nobody wants any more are idle."""
        return min(1 + len(self.loops), self._wanted)

    @property
    def most(self) -> int:
        """How many there may be."""
        return self._most

    def cpu_s(self) -> float:
        """CPU seconds of all of them so far; 0 where the system does not say. Any thread may call it."""
        return sum(map(_seconds, self._clocks))

    def cpu_each_s(self) -> list[float]:
        """Of each that receives; likewise."""
        return [_seconds(clock) for clock in self._clocks[: self.count]]

    def open(self, spec: ReaderSpec) -> tuple[RangeReader, BodyReader]:
        """The reader of a recipe on this loop, and what reads bodies like it on all loops; both may be the same."""
        if not self._clocks:
            self._clocks.append(_clock_of(threading.get_ident()))
        if spec.backend not in _SPREAD:
            own = spec.open()
            return own, own
        # They share what the process may open; one that comes by itself has to find enough.
        least = 1 if self._is_given else _CONNECTIONS
        self._most = max(1, min(self._most, spec.max_connections // least))
        part = dataclasses.replace(spec, max_connections=spec.max_connections // self._most)
        own = (part if self._is_given else spec).open()
        if self._most == 1:
            return own, own
        made = _Spread(self, part, own)
        self._spread.append(made)
        return own, made

    def choose(self) -> int:
        """Which loop receives the next body: 0 is this one."""
        if len(self.loops) + 1 < min(self._wanted, self._most) and self._growing is None and not self._is_closed:
            self._growing = asyncio.get_running_loop().create_task(self._grow(), name="asyncdata receiver")
        reads = self.under_way[: self._wanted]
        return 0 if len(reads) == 1 else reads.index(min(reads))

    def ask(self, count: int) -> None:
        """So many are wanted from now on; reads under way go on where they are."""
        if not self._is_given:
            self._wanted = max(1, count)

    async def _grow(self) -> None:
        try:
            loop = await self._begin()
        except (OSError, RuntimeError):
            self._most = 1 + len(self.loops)  # no more threads or descriptors: these loops have to do
        else:
            self.loops.append(loop)
            self._clocks.append(_clock_of(loop.identifier))
            self.under_way.append(0)
        finally:
            self._growing = None

    def fallbacks(self) -> list[dict[str, int]]:
        """Bodies that took aiohttp's path on other loops, by reason."""
        return [reader.fallbacks for spread in self._spread for reader in spread.far]

    async def aclose(self) -> None:
        """Closes the readers of the other loops, which are ended by who began them. Reads must have ended before."""
        self._is_closed = True
        if self._growing is not None:
            await asyncio.wait([self._growing])
        for spread in self._spread:
            for reader in spread.far:
                await reader.aclose()


class _Spread:
    """One reader, and its like on the other loops."""

    def __init__(self, receivers: Receivers, spec: ReaderSpec, reader: RangeReader) -> None:
        self._receivers = receivers
        self._spec = spec
        self._near = reader
        self.far: list[FarReader] = []

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt) -> int:
        """See `RangeReader.read_into`."""
        with self._chosen() as reader:
            return await reader.read_into(info, start, buffer, attempt)

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt) -> tuple[ObjectInfo, int]:
        """See `RangeReader.open_read`."""
        with self._chosen() as reader:
            return await reader.open_read(url, buffer, attempt)

    @contextlib.contextmanager
    def _chosen(self) -> Generator[BodyReader]:
        """The reader of the loop that takes the next body, which counts as under way there."""
        reads, place = self._receivers.under_way, self._receivers.choose()
        reads[place] += 1
        try:
            yield self._reader(place)
        finally:
            reads[place] -= 1

    def _reader(self, place: int) -> BodyReader:
        while len(self.far) < place:
            self.far.append(FarReader(self._receivers.loops[len(self.far)], self._spec))
        return self.far[place - 1] if place else self._near


def _clock_of(thread: int) -> int | None:
    """The clock of a thread that runs; None where the system has none. It can be read when the thread has ended."""
    return time.pthread_getcpuclockid(thread) if hasattr(time, "pthread_getcpuclockid") else None


def _seconds(clock: int | None) -> float:
    return 0.0 if clock is None else clock_s(clock)
