"""The consumer's edge: where the stage loop hands deliveries to whoever iterates.

    pump (stage loop) ── put ──▶ [ bounded buffer ] ── take ──▶ consumer: a thread, or a task on any loop

The pump fills, waits at `capacity` elements, and is woken when the consumer takes. The consumer waits on a condition
(threads) or a future of its own loop (tasks); a cancelled wait takes nothing. At the end and on errors what is buffered
is delivered first. `close` drops the buffer: it is called by the consumer's side when it goes, from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from asyncdata.runtime.delivery import Delivery


class Edge:
    """See the module's docstring.

    Args:
        capacity: Elements that may wait.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._condition = threading.Condition()
        self._buffer: deque[Delivery] = deque()
        self._rows = 0
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._stage_loop: asyncio.AbstractEventLoop | None = None
        self._room: asyncio.Event | None = None
        self._starving: Callable[[bool], None] | None = None
        self.waits = 0

    def attach(self, loop: asyncio.AbstractEventLoop, starving: Callable[[bool], None]) -> None:
        """Called once by the pump: its loop, and whom to tell that the consumer waits."""
        self._room = asyncio.Event()
        self._starving = starving
        with self._condition:
            self._stage_loop = loop

    # --- pump --------------------------------------------------------------------------------------------------

    async def put(self, delivery: Delivery) -> bool:
        """Offers a delivery; waits while the buffer is full. False when the consumer is gone."""
        assert self._room is not None
        while True:
            with self._condition:
                if self._closed:
                    return False
                if self._rows < self._capacity or not self._buffer:
                    self._buffer.append(delivery)
                    self._rows += len(delivery)
                    self._wake()
                    break
                self._room.clear()
            await self._room.wait()
        assert self._starving is not None
        self._starving(False)
        return True

    async def wait_for_room(self) -> bool:
        """Returns when there is room for one more delivery; False when the consumer is gone."""
        assert self._room is not None
        while True:
            with self._condition:
                if self._closed:
                    return False
                if self._rows < self._capacity:
                    return True
                self._room.clear()
            await self._room.wait()

    def finish(self, error: BaseException | None) -> None:
        """No more deliveries; from any thread."""
        with self._condition:
            self._ended = True
            if self._error is None:
                self._error = error
            self._wake()

    def _wake(self) -> None:
        self._condition.notify_all()
        waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            try:
                loop.call_soon_threadsafe(_set, waiter)
            except RuntimeError:
                continue  # that loop was closed in the meantime

    # --- consumer ----------------------------------------------------------------------------------------------

    def take(self) -> Delivery | None:
        """The next delivery, for a thread; None at the end. Raises what the pipeline raised."""
        with self._condition:
            while not self._is_ready():
                self._report_waiting()
                self._condition.wait()
            return self._pop()

    async def take_async(self) -> Delivery | None:
        """The next delivery, for a task on any loop. A cancelled call takes nothing."""
        loop = asyncio.get_running_loop()
        while True:
            with self._condition:
                if self._is_ready():
                    return self._pop()
                self._report_waiting()
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiters.append((loop, waiter))
            await waiter

    def _is_ready(self) -> bool:
        return bool(self._buffer) or self._ended or self._closed

    def _pop(self) -> Delivery | None:
        if self._buffer:
            delivery = self._buffer.popleft()
            self._rows -= len(delivery)
            self._call_stage(self._set_room)
            return delivery
        if self._error is not None:
            # Raised once: afterwards the iterator is simply at its end.
            error, self._error = self._error, None
            raise error
        return None

    def _report_waiting(self) -> None:
        self.waits += 1
        self._call_stage(self._set_starving)

    def _set_room(self) -> None:
        if self._room is not None:
            self._room.set()

    def _set_starving(self) -> None:
        with self._condition:
            starving = not self._buffer
        if self._starving is not None and starving:
            self._starving(True)

    def _call_stage(self, function: Callable[[], None]) -> None:
        if self._stage_loop is not None:
            try:
                self._stage_loop.call_soon_threadsafe(function)
            except RuntimeError:
                return  # the runtime is gone; what is buffered is still delivered

    def close(self) -> None:
        """The consumer is gone: drops what is buffered and lets the pump end. Idempotent, from any thread."""
        with self._condition:
            self._closed = True
            dropped = list(self._buffer)
            self._buffer.clear()
            self._rows = 0
            self._wake()
        del dropped
        self._call_stage(self._set_room)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
