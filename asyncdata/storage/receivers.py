"""`Receivers`: several processes that receive the bodies of reads, behind one order of requests.

::

    slots, retries, second attempts ─┬─▶ reader of receiving process 1  ├─▶ the buffers of the reads, in shared memory
                                     └─▶ reader of receiving process 2… │

One loop receives as much as one processor copies and decrypts. Where that is enough, this loop receives by itself, and
there are no processes. Threads would share the interpreter's lock, which TLS takes for each record of 16 KiB. A read
goes to where the fewest are; each process has connections of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from asyncdata.machine import usable_cpus
from asyncdata.observe.cpu_time import clock_s
from asyncdata.options import AUTOTUNE
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.types import ObjectInfo

_MOST: Final = 8
_MOST_LOSSES: Final = 3
"""After so many processes that ended by themselves, no other one is started."""
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


class Receiver(Protocol):
    """A process that receives; see `asyncdata.runtime.receiving.receiver.ReceiverProcess`."""

    @property
    def fallbacks(self) -> dict[str, int]:
        """Bodies that took aiohttp's path there, by reason."""
        ...

    def reader(self, spec: ReaderSpec, near: BodyReader) -> BodyReader:
        """What reads bodies there by a recipe; `near` reads what the process cannot."""
        ...

    async def ready(self) -> None:
        """Returns when it has opened the readers that were asked for.

        Raises:
            OSError: It has ended.
        """
        ...

    def cpu_s(self) -> float:
        """CPU seconds so far. Any thread may call it."""
        ...

    def kill(self) -> None:
        """Ends it at once; its reads fail."""
        ...

    async def aclose(self) -> None:
        """Ends it. Reads must have ended before."""
        ...


class _Seat:
    """Where bodies are received: this loop, or a process.

    Attributes:
        number: No other one has it; 0: this loop.
        receiver: The process; None for this loop.
        under_way: Reads that it makes now.
        readers: By recipe; each belongs to one `_Spread`.
    """

    __slots__ = ("number", "readers", "receiver", "under_way")

    def __init__(self, number: int, receiver: Receiver | None) -> None:
        self.number = number
        self.receiver = receiver
        self.under_way = 0
        self.readers: dict[_Spread, BodyReader] = {}


class Receivers:
    """See the module's text. On the loop of the reads.

    Args:
        count: How many processes receive; 1: this one alone. `AUTOTUNE`: 1, until another number is asked for.
        begin: Starts another process. It is given what to call if the process ends by itself.
        most: That `AUTOTUNE` may go up to; None: one for each processor, 8 at most.
    """

    def __init__(
        self,
        count: int,
        begin: Callable[[Callable[[Receiver], None]], Awaitable[Receiver]],
        *,
        most: int | None = None,
    ) -> None:
        self._most = (most or min(_MOST, usable_cpus())) if count == AUTOTUNE else count
        self._is_given = count != AUTOTUNE
        self._wanted = self._most if self._is_given else 1
        self._begin = begin
        self._numbers = itertools.count()
        self._near = _Seat(next(self._numbers), None)
        self._processes: list[_Seat] = []
        self._spreads: list[_Spread] = []
        self._clock: int | None = None
        self._losses = 0
        self._lost_s = 0.0
        self._lost_fallbacks: Counter[str] = Counter()
        self._growing: asyncio.Task[None] | None = None
        self._starting: Receiver | None = None
        self._is_closed = False

    @property
    def count(self) -> int:
        """How many processes receive. Those that nobody wants any more are idle."""
        return max(1, len(self._far()))

    @property
    def most(self) -> int:
        """How many there may be."""
        return self._most

    @property
    def under_way(self) -> list[int]:
        """Reads of each process, this one first."""
        return [seat.under_way for seat in (self._near, *self._processes)]

    def _far(self) -> list[_Seat]:
        """The processes that receive beside this one, or instead of it."""
        wanted = min(self._wanted, self._most)
        return self._processes[:wanted] if wanted > 1 else []

    def cpu_s(self) -> float:
        """CPU seconds of all of them so far; 0 where the system does not say. Any thread may call it."""
        return self._near_s() + self.processes_s()

    def processes_s(self) -> float:
        """The part of that which is not this process's."""
        return self._lost_s + sum(seat.receiver.cpu_s() for seat in list(self._processes) if seat.receiver is not None)

    def cpu_each_s(self) -> dict[int, float]:
        """Of each that receives, by a number of its own; likewise."""
        far = {seat.number: seat.receiver.cpu_s() for seat in self._far() if seat.receiver is not None}
        return far or {self._near.number: self._near_s()}

    def _near_s(self) -> float:
        return 0.0 if self._clock is None else clock_s(self._clock)

    def open(self, spec: ReaderSpec) -> tuple[RangeReader, BodyReader]:
        """The reader of a recipe on this loop, and what reads bodies like it everywhere; both may be the same."""
        if self._clock is None and hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
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
        self._spreads.append(_Spread(self, part, own))
        return own, self._spreads[-1]

    def choose(self) -> _Seat:
        """Where the next body is received: here only as long as there are fewer processes than wanted."""
        if self._wanted == 1 or self._most == 1:
            return self._near
        far = self._far()
        if len(far) == min(self._wanted, self._most):
            return min(far, key=_under_way)
        if self._growing is None and not self._is_closed:
            self._growing = asyncio.get_running_loop().create_task(self._grow(), name="asyncdata receiver")
        return min((self._near, *far), key=_under_way)

    def ask(self, count: int) -> None:
        """So many are wanted from now on; reads under way go on where they are."""
        if not self._is_given:
            self._wanted = max(1, count)

    async def _grow(self) -> None:
        try:
            receiver = self._starting = await self._begin(self._lose)
        except (OSError, RuntimeError):
            self._most = max(1, len(self._processes))  # no more processes or descriptors: these have to do
            self._growing = None
            return
        if self._is_closed:
            receiver.kill()
        seat = _Seat(next(self._numbers), receiver)
        try:
            for spread in self._spreads:
                spread.reader(seat)
            await receiver.ready()
            self._processes.append(seat)
        except OSError:
            receiver.kill()  # if it has not ended already; either counts as a loss
        except BaseException:
            receiver.kill()  # it would open nothing; its end counts as a loss too
            raise
        finally:
            self._growing = self._starting = None

    def _lose(self, receiver: Receiver) -> None:
        """A process has ended by itself; its reads fail, and are made again elsewhere."""
        if self._is_closed:
            return
        self._lost_s += receiver.cpu_s()
        self._lost_fallbacks.update(receiver.fallbacks)
        self._processes = [seat for seat in self._processes if seat.receiver is not receiver]
        self._losses += 1
        if self._losses >= _MOST_LOSSES:
            self._most = max(1, len(self._processes))

    def fallbacks(self) -> list[dict[str, int]]:
        """Bodies that took aiohttp's path in other processes, by reason; those that have ended included."""
        far = [seat.receiver.fallbacks for seat in self._processes if seat.receiver is not None]
        return [*far, dict(self._lost_fallbacks)]

    async def aclose(self) -> None:
        """Ends the processes. Reads must have ended before."""
        self._is_closed = True
        if self._starting is not None:
            self._starting.kill()  # nobody waits until it has imported what it needs
        if self._growing is not None:
            await asyncio.wait([self._growing])
        receivers = [seat.receiver for seat in self._processes if seat.receiver is not None]
        await asyncio.gather(*(receiver.aclose() for receiver in receivers))


def _under_way(seat: _Seat) -> int:
    return seat.under_way


class _Spread:
    """One reader, and its like in the processes."""

    def __init__(self, receivers: Receivers, spec: ReaderSpec, reader: RangeReader) -> None:
        self._receivers = receivers
        self._spec = spec
        self._near = reader

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt) -> int:
        """See `RangeReader.read_into`."""
        seat = self._receivers.choose()
        seat.under_way += 1
        try:
            return await self.reader(seat).read_into(info, start, buffer, attempt)
        finally:
            seat.under_way -= 1

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt) -> tuple[ObjectInfo, int]:
        """See `RangeReader.open_read`."""
        seat = self._receivers.choose()
        seat.under_way += 1
        try:
            return await self.reader(seat).open_read(url, buffer, attempt)
        finally:
            seat.under_way -= 1

    def reader(self, seat: _Seat) -> BodyReader:
        """What reads there."""
        if seat.receiver is None:
            return self._near
        reader = seat.readers.get(self)
        if reader is None:
            reader = seat.readers[self] = seat.receiver.reader(self._spec, self._near)
        return reader
