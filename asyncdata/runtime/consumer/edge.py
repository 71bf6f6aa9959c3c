"""Where the pipeline's loop meets the consumer's thread or loop.

    pump (stage loop) ── put ──▶ [ bounded buffer ] ── pop ──▶ consumer: a thread, or a task on any loop

The pump fills, waits at `capacity` elements, and is woken when the consumer takes. The consumer waits at a gate
(threads) or for a future of its own loop (tasks), and takes in a step of its own, so that a cancelled wait takes
nothing. Memory that is lent for a moment only is copied by the consumer, as a part of taking: until then it is counted.
At the end and on errors what is buffered is delivered first. `close` drops the buffer: it is called by the consumer's
side when it goes, from any thread.

There is no lock. A handler of signals may iterate and close in the middle of anything that the consumer's thread does;
the loop, on which that then waits, must not wait for the code that was interrupted. Each step below is one of C's, and
whoever announces something looks only afterwards: either side may be late, but not both.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from asyncdata.runtime.consumer.delivery import Delivery
from asyncdata.runtime.life.interrupt_safe import Gate


class Exit(Protocol):
    """Where a pump's deliveries go: to a consumer in this process (`Edge`), or in another."""

    def attach(
        self, loop: asyncio.AbstractEventLoop, starving: Callable[[bool], None], left: Callable[[], object]
    ) -> None:
        """Called once by the pump: its loop, whom to tell that the consumer waits, and that it has left."""

    @property
    def is_closed(self) -> bool:
        """Whether the consumer is gone."""

    async def wait_for_room(self, more: int = 0) -> bool:
        """Returns when there is room for one more delivery; False when the consumer is gone.

        Args:
            more: So many elements may wait beyond the usual number, where the exit can keep them.
        """

    def put(self, delivery: Delivery) -> None:
        """Offers a delivery for which there is room."""

    def remind(self) -> None:
        """Tells again that the consumer waits, if it does."""

    def finish(self, error: BaseException | None) -> bool:
        """No more deliveries. The first call decides, later ones return False."""


class OwnLoopError(RuntimeError):
    """A function on the stage loop waits for what only this loop could bring; the iterator goes on."""


class Edge:
    """See the module's docstring.

    Args:
        capacity: Elements that may wait.

    Attributes:
        waits: How often the consumer has waited.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._buffer: deque[Delivery] = deque()
        # Elements of each delivery that is buffered, or is being copied. Only C's functions go through it.
        self._counted: dict[Delivery, int] = {}
        self._unfinished = [None]
        self._ended = False
        self._errors: list[BaseException] = []
        self._closed = False
        self._waiters: deque[tuple[asyncio.Future[None], asyncio.AbstractEventLoop]] = deque()
        self._gates: deque[Gate] = deque()
        self._waiting: set[object] = set()
        self._stage_loop: asyncio.AbstractEventLoop | None = None
        self._stage_thread: threading.Thread | None = None
        self._room: asyncio.Event | None = None
        self._starving: Callable[[bool], None] | None = None
        self._left: Callable[[], object] | None = None
        self.waits = 0

    def attach(
        self, loop: asyncio.AbstractEventLoop, starving: Callable[[bool], None], left: Callable[[], object]
    ) -> None:
        """Called once by the pump: its loop, whom to tell that the consumer waits, and that it has left.

        A consumer that left before is found by the pump's own look at `is_closed`.
        """
        self._room = asyncio.Event()
        self._starving = starving
        self._left = left
        self._stage_thread = threading.current_thread()
        self._stage_loop = loop
        # The consumer may have begun to wait before there was anybody to be told.
        self._tell_starving()

    @property
    def is_closed(self) -> bool:
        """Whether the consumer is gone."""
        return self._closed

    # --- pump --------------------------------------------------------------------------------------------------

    async def wait_for_room(self, more: int = 0) -> bool:
        """See `Exit`."""
        assert self._room is not None
        while not self._closed:
            if self._rows() < self._capacity + more:
                return True
            self._room.clear()  # what sets it runs on this loop: not before the next line
            await self._room.wait()
        return False

    def put(self, delivery: Delivery) -> None:
        """Offers a delivery for which there is room, `wait_for_room` says when; one of any size may be offered."""
        self._counted[delivery] = len(delivery)
        self._buffer.append(delivery)
        if self._closed:
            self._drop()
        self._wake()
        self._tell_starving()

    def remind(self) -> None:
        """Tells again that the consumer waits, if it does: what was on its way to it turned out to be nothing."""
        self._tell_starving()

    def finish(self, error: BaseException | None) -> bool:
        """No more deliveries; from any thread. The first call decides, later ones return False."""
        try:
            self._unfinished.pop()
        except IndexError:
            return False
        self._starving = None
        self._left = None
        if error is not None:
            self._errors.append(error)
        self._ended = True
        if self._closed:
            self._drop()
        self._wake()
        return True

    def _wake(self) -> None:
        with contextlib.suppress(IndexError):  # none is left, or another thread wakes them, too
            while self._gates:
                self._gates.popleft().open()
        with contextlib.suppress(IndexError):
            while self._waiters:
                waiter, loop = self._waiters.popleft()
                with contextlib.suppress(RuntimeError):  # that loop was closed in the meantime
                    loop.call_soon_threadsafe(_set, waiter)

    # --- consumer ----------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Returns when `pop` has an answer; for a thread.

        Raises:
            OwnLoopError: The pipeline itself runs in this thread, so that the wait would never end.
        """
        me = object()
        try:
            while not self._is_ready():
                if threading.current_thread() is self._stage_thread:
                    raise OwnLoopError(
                        "a function that runs on the stage loop waits for the next element of a pipeline that this "
                        "loop runs. Take the element outside of the function, or combine datasets with Dataset.zip"
                    )
                self._begin_waiting(me)
                gate = Gate()
                self._gates.append(gate)
                if not self._is_ready():  # else it came before the gate could be seen
                    gate.wait()
        finally:
            self._end_waiting(me)

    async def wait_async(self) -> None:
        """Returns when `pop` has an answer; for a task on any loop."""
        me = object()
        loop = asyncio.get_running_loop()
        try:
            while not self._is_ready():
                self._begin_waiting(me)
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiters.append((waiter, loop))
                try:
                    if not self._is_ready():
                        await waiter
                finally:
                    if waiter.cancelled() or not waiter.done():  # else it was taken out
                        with contextlib.suppress(ValueError):  # at this moment
                            self._waiters.remove((waiter, loop))
        finally:
            self._end_waiting(me)

    def _is_ready(self) -> bool:
        return bool(self._buffer) or self._ended or self._closed

    def pop(self) -> tuple[bool, Delivery | None]:
        """Whether there is an answer now, and which: the next delivery, or None at the end.

        Raises:
            BaseException: What the pipeline raised; once, afterwards it is simply at its end.
        """
        has_ended = self._ended  # asked first: what was put before the end comes before it
        try:
            delivery = self._buffer.popleft()
        except IndexError:
            if has_ended and self._errors:
                self._raise_error()
            return has_ended or self._closed, None
        try:
            taken = delivery.taken()
        finally:
            self._counted.pop(delivery, None)
            self._call_stage(self._hear_of_taking)
        return True, taken

    def _raise_error(self) -> None:
        try:
            error = self._errors.pop()
        except IndexError:  # another thread has it
            return
        try:
            raise error
        finally:
            del error  # its traceback leads back to this frame

    def _rows(self) -> int:
        return sum(self._counted.values())

    def _begin_waiting(self, waiter: object) -> None:
        if waiter not in self._waiting:
            self.waits += 1
            self._waiting.add(waiter)
            self._call_stage(self._tell_starving)

    def _end_waiting(self, waiter: object) -> None:
        if waiter in self._waiting:
            self._waiting.discard(waiter)
            if not self._rows():
                # Cancelled, or interrupted: the consumer no longer waits, and what measures its wait must know.
                self._call_stage(self._tell_starving)

    def _hear_of_taking(self) -> None:
        self._set_room()
        self._tell_starving()  # another consumer may have waited all the time

    def _set_room(self) -> None:
        if self._room is not None:
            self._room.set()

    def _tell_starving(self) -> None:
        starving = self._starving
        if starving is not None:
            starving(bool(self._waiting) and not self._rows())

    def _call_stage(self, function: Callable[[], None]) -> None:
        if self._stage_loop is not None:
            try:
                self._stage_loop.call_soon_threadsafe(function)
            except RuntimeError:
                return  # the runtime is gone; what is buffered is still delivered

    def close(self) -> None:
        """The consumer is gone: drops what is buffered and lets the pump end. Idempotent, from any thread."""
        self._closed = True
        self._drop()
        self._wake()
        self._call_stage(self._leave)

    def _drop(self) -> None:
        """Lets go of what nobody takes any more; also of what was on its way when the consumer left."""
        self._errors.clear()
        self._buffer.clear()
        self._counted.clear()

    def _leave(self) -> None:
        self._set_room()
        left, self._left = self._left, None
        if left is not None:
            left()


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
