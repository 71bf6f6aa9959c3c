"""Second attempts at reads that have fallen silent.

::

    first attempt   ──request──▶ . . . . . silence . . . . . . . . ✗ overtaken ─▶ copies the bytes, reads the rest
    second attempt                        ──request──▶ its own small buffer ─▶ complete: ahead of the first?

One timer checks all running attempts; a read starts neither a timer nor a task. An attempt is hedged if it was silent
longer than its tail estimate, if the kernel holds no bytes for it, and if this process itself was not late. A second
attempt that falls silent too is replaced. It requests only the next bytes, into memory of its own. If it completes
before the first attempt has come as far, the first one is ended, its buffer released, and the bytes copied; otherwise
the second one is dropped. Two copies are therefore never delivered, and two attempts never write to the same place.

While slots are free, as at the end of an epoch, a second attempt displaces no other request. It then starts sooner and
requests all missing bytes, as far as its memory goes, so that no third request is needed.

This memory is a small share of the memory limit, set aside when the Runtime starts, so no attempt waits for it. A
second attempt requests as many bytes as the rest of the share can hold; if nothing is left, it is not made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from asyncdata.errors import StorageError
from asyncdata.memory.arena import GRANULE
from asyncdata.options import HedgeOptions, Options
from asyncdata.storage.attempt import Attempt, ReadLimits
from asyncdata.storage.counters import FetchCounters
from asyncdata.storage.failures import FailureCause, read_failed
from asyncdata.types import ObjectInfo

TICK_S: Final = 0.05
_PATIENCE: Final = 4.0
_SOONER: Final = 1 / 2
"""Of the usual silence and of the least one, where the request that a second attempt adds takes no other's place."""
_SHARE: Final = 32
_LEAST_BYTES: Final = 16 << 10
"""Second attempts at fewer bytes, unless they are the last ones, are not worth a request."""

Again: TypeAlias = Callable[[int, memoryview, Attempt], Awaitable[ObjectInfo | None]]
"""Fills a buffer from an offset (relative to the read) on; tells the object where that was unknown."""


def hedge_bytes(options: Options) -> int:
    """The part of the memory limit that is set aside for second attempts: what they take at most, or 1/32 of it."""
    if not options.hedge.enabled:
        return 0
    most = -(-options.hedge.max_at_once * options.hedge.probe_bytes // GRANULE)
    return min(most, options.memory_limit_bytes // _SHARE // GRANULE) * GRANULE


class HedgeMemory:
    """What second attempts hold. Pure.

    Args:
        limit_bytes: All of them together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0

    @property
    def left_bytes(self) -> int:
        """What nobody holds."""
        return self.limit_bytes - self.used_bytes

    def fits(self, wanted: int) -> int:
        """How many of so many bytes a second attempt may have; 0 where it is not worth making."""
        fitting = min(wanted, self.left_bytes)
        return fitting if fitting == wanted or fitting >= _LEAST_BYTES else 0

    def take(self, nbytes: int) -> None:
        """One begins."""
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def give(self, nbytes: int) -> None:
        """Its bytes are dropped."""
        self.used_bytes -= nbytes


class HedgeBudget:
    """How many requests hedging may add: a fraction of those that are sent without it. Pure."""

    def __init__(self, options: HedgeOptions) -> None:
        self._options = options
        self._spent = 0

    def spend(self, requests: int, cost: int, at_once: int) -> bool:
        """Whether a hedge of `cost` requests may start, given all `requests` so far and those hedges that run."""
        without = requests - self._spent
        if at_once >= self._options.max_at_once or self._spent + cost > self._options.max_extra * without:
            return False
        self._spent += cost
        return True


class Racing(Attempt):
    """An attempt that may be hedged.

    Attributes:
        size: Bytes it wants.
        again: How to ask for some of them once more.
        opens: Whether it opens an object, so that what follows its head can be asked for only when that was seen.
        failed: Whether another one has to follow.
        began: When it began, on the loop's clock.
        after_s: How long it may be silent before it is hedged, as far as is known.
        task: The second attempt, while it runs and after.
        won_at: Where the bytes of the second attempt belong, relative to the first's beginning; -1 where none won.
        won: They.
        lent: Bytes of memory that they take.
        info: What the second attempt learned about an unknown object.
    """

    opens: bool = False
    failed: bool = False
    seen: int = -1
    quiet_since: float = 0.0
    hedged_at: float = 0.0
    nudged: bool = False
    task: asyncio.Task[bool] | None = None
    won_at: int = -1
    won: memoryview = memoryview(b"")
    lent: int = 0
    info: ObjectInfo | None = None

    def __init__(self, limits: ReadLimits | None, size: int, again: Again, began: float, after_s: float) -> None:
        self.limits = limits
        self.size = size
        self.again = again
        self.began = began
        self.after_s = after_s

    def is_silent(self, now: float) -> bool:
        """Whether nothing came for as long as it takes; to be asked at every look."""
        if self.wire is None:
            self.seen = -1
            return False
        progress = self.wire.filled + (self.first_byte_at >= 0)
        if progress != self.seen:
            if self.seen < 0:
                self.quiet_since = self.asked_at
            elif self.nudged:
                self.nudged = False  # what is looked at only now has been here for some time
            else:
                self.quiet_since = now
            self.seen = progress
        return now - self.quiet_since >= self.after_s


class Hedger:
    """See the module's text; on one loop.

    Args:
        options: When, and how much.
        memory: Where the bytes come from.
        counters: Where hedges are counted.
        after_s: How long an attempt at so many bytes may be silent, by what is known now.
        has_room: Whether fewer requests are in flight than may be.
    """

    def __init__(
        self,
        options: HedgeOptions,
        memory: HedgeMemory,
        counters: FetchCounters,
        after_s: Callable[[int], float],
        has_room: Callable[[], bool],
    ) -> None:
        self._options = options
        self._memory = memory
        self._counters = counters
        self._after_s = after_s
        self._has_room = has_room
        self._budget = HedgeBudget(options)
        self.running: set[Racing] = set()
        """Attempts that are watched; to be added to while it `looks`."""
        self.looks = False
        """Whether a look is due; else ``watch`` has to be called."""
        self._tasks: set[asyncio.Task[bool]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def watch(self, racing: Racing) -> None:
        """An attempt begins."""
        if not self._options.enabled:
            return
        self.running.add(racing)
        if self._timer is None:
            self._arm(asyncio.get_running_loop())

    def forget(self, racing: Racing) -> None:
        """It is over; a second attempt that is still running has lost."""
        self.running.discard(racing)
        if racing.task is not None and not racing.task.done():
            racing.task.cancel()
        if racing.lent:
            self._memory.give(racing.lent)
            racing.lent, racing.won = 0, memoryview(b"")

    async def aclose(self) -> None:
        """Ends second attempts that still run."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.looks = None, False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + TICK_S
        self._timer = loop.call_at(self._due, self._look)
        self.looks = True

    def _look(self) -> None:
        self._timer, self.looks = None, False
        if not self.running:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = now - self._due > TICK_S
        self._arm(loop)
        has_room = self._has_room()
        part, least_s = _SOONER if has_room else 1.0, self._options.least_delay_s
        silent: list[tuple[Racing, int]] = []
        for racing in self.running:
            if racing.lent:
                continue  # overtaken: it is as good as over, and its second attempt is not replaced
            # Others have told more since it began.
            racing.after_s = part * max(self._after_s(racing.size), least_s)
            if not racing.is_silent(now) or late:
                continue
            if racing.task is not None:
                patience = 1.0 if racing.task.done() else _PATIENCE
                if now - racing.hedged_at < patience * racing.after_s:
                    continue
                racing.task.cancel()  # it fell silent as well, or failed
                racing.task = None
            wire = racing.wire
            if wire is None:
                continue
            if wire.has_input():
                # Too little to wake this process, or it is late: what came is looked at first.
                racing.nudged = True
                wire.nudge()
            else:
                silent.append((racing, wire.filled))
        if not silent:
            return
        most = self._options.probe_bytes
        if has_room:
            # One request for all that is missing saves the way there and back of another.
            most = max(most, self._memory.left_bytes // len(silent))
        for racing, offset in silent:
            self._hedge(racing, offset, most, now)

    def _hedge(self, racing: Racing, offset: int, most: int, now: float) -> None:
        opened = racing.opened
        if offset and racing.opens and opened is None:
            return
        # An object that is opened may be smaller than what was asked for.
        whole = racing.size if opened is None else min(racing.size, opened.size)
        size = self._memory.fits(min(whole - offset, most))
        if size <= 0:
            return
        cost = 1 if offset + size == whole else 2
        if self._budget.spend(self._counters.requests, cost, len(self._tasks)):
            task = asyncio.get_running_loop().create_task(self._race(racing, offset, size), name="asyncdata hedge")
            racing.task, racing.hedged_at = task, now
            self._memory.take(size)
            self._tasks.add(task)
            # Also called for a task that is cancelled before its first step.
            task.add_done_callback(partial(self._ended, size))

    def _ended(self, size: int, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is not None or not task.result():
            self._memory.give(size)

    async def _race(self, racing: Racing, offset: int, size: int) -> bool:
        """The second attempt; whether its bytes are kept, and its memory with them."""
        buffer = bytearray(size)
        limits = racing.limits
        second = Attempt(limits=limits)
        second.opened = racing.opened
        second.detour = True
        self._counters.hedged()
        try:
            info = await racing.again(offset, memoryview(buffer), second)
        except StorageError:
            self._counters.hedge_ended(won=False, wasted=second.received)
            return False  # the first attempt continues and reports the error itself
        except asyncio.CancelledError:
            self._counters.hedge_ended(won=False, wasted=second.received)
            raise
        wire = racing.wire
        if racing not in self.running or racing.lent or wire is None or wire.filled >= offset + size:
            self._counters.hedge_ended(won=False, wasted=size)
            return False
        self._counters.hedge_ended(won=True, wasted=wire.filled - offset)
        won = memoryview(buffer)
        racing.won_at, racing.won, racing.info = offset, won if info is None else won[: info.size - offset], info
        racing.lent = size
        wire.fail(read_failed("a second attempt was ahead", FailureCause.OVERTAKEN))
        return True
