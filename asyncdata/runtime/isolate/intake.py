"""The consumer's end of a pipeline that runs in the loader process; the counterpart of `Edge` in this process.

    loader ── socket of this pipeline ──▶ pop: unwrap, view the arena through a lease
       ▲                                       │ taken, waiting, released …
       └────────── outbox of the loader ◀──────┘

No thread of this process is between the socket and the consumer: the consumer waits for the socket itself, a thread in
``poll``, a task through its own loop. As in `Edge`, waiting takes nothing and taking waits for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import select
import threading
import time
from collections import deque
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from asyncdata.errors import CloseTimeoutError, refused
from asyncdata.memory.lease import Lease, Returns
from asyncdata.memory.structure import Structure
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.runtime.consumer.delivery import Delivery
from asyncdata.runtime.isolate import out_of_band, protocol
from asyncdata.runtime.isolate.codec import load_structure, unwrap
from asyncdata.runtime.isolate.outbox import LONGEST_POLL_S, Outbox
from asyncdata.runtime.life.threads import in_thread
from asyncdata.workers.channel import Channel
from asyncdata.workers.failure import decode_failure
from asyncdata.workers.messages import Message

_REPORT_S: Final = 3.0
"""How much longer than its time limit the loader process is given to say what does not end."""


class Home(Protocol):
    """What an intake needs of the loader process it belongs to."""

    outbox: Outbox
    name: str

    def memory(self, fd: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """The loader's arena, mapped; takes over the descriptor."""

    def await_end(self) -> BaseException:
        """Returns when the process is gone: the error to raise."""

    def left(self, intake: Intake) -> None:
        """The intake's socket is closed."""


class Intake:
    """See the module's docstring.

    Args:
        number: Of the pipeline.
        channel: The pipeline's socket, non-blocking.
        home: The loader process.
        close_timeout_s: How long putting back may take before it is reported.
    """

    def __init__(self, number: int, channel: Channel, home: Home, *, close_timeout_s: float) -> None:
        self.number = number
        self._channel = channel
        self._home = home
        self._limit_s = close_timeout_s
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._inbox: deque[Message] = deque()
        self._returns = Returns(home.outbox.append, home.outbox.send_appended)
        self._memory: npt.NDArray[np.uint8] | None = None
        self._structure: Structure = None
        self._taken = 0
        self._ended = False
        self._broken = False
        self._closed = False
        self._disposed = False
        self._error: BaseException | None = None
        self._polling = 0
        self._waiters: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        self.waits = 0
        self.stats: PipelineStats | None = None

    def descriptor(self) -> int:
        """Of the socket; -1 when it is closed."""
        return self._channel.fileno()

    # --- taking ------------------------------------------------------------------------------------------------

    def pop(self) -> tuple[bool, Delivery | None]:
        """Whether there is an answer now, and which: the next delivery, or None at the end.

        Raises:
            BaseException: What the pipeline raised, or that its process is gone; once.
        """
        with self._lock:
            while not (self._closed or self._ended):
                message = self._receive()
                if message is None:
                    return False, None
                delivery = self._accept(message)
                if delivery is not None:
                    return True, delivery
            error, self._error = self._error, None
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback leads back to this frame
            return True, None

    def _receive(self) -> Message | None:
        """The next message, or None when there is none yet.

        Raises:
            SystemResourceError: It cannot be received; the loader process does not send it again.
        """
        while not self._inbox:
            if self._broken:
                return None
            try:
                self._inbox.extend(self._channel.receive())
            except BlockingIOError:
                return None
            except EOFError:
                self._broken = True
            except OSError as error:
                self._broken = self._channel.fileno() < 0  # closed in this moment, by a handler of signals
                if not self._broken:
                    self._ended = True
                    raise refused("a batch cannot be received", error, stage="consumer") from error
        try:
            return self._inbox.popleft()
        except IndexError:  # closed in this moment, by a handler of signals
            return None

    def _accept(self, message: Message) -> Delivery | None:
        """Takes a message in; a delivery is for the consumer."""
        if message.kind in (protocol.DELIVERY, protocol.DELIVERY_FILE):
            return self._deliver(message)
        if message.kind == protocol.SHAPE:
            self._structure = load_structure(message.body)
        elif message.kind == protocol.ARENA:
            self._memory = self._home.memory(message.fd, message.first)
        elif message.kind == protocol.FAILED:
            self._ended = True
            self._error = decode_failure(message.body, where=self._home.name)
            if message.first:
                _drop_last_note(self._error)  # it tells of the worker already
        elif message.kind == protocol.END:
            self._ended = True
        return None

    def _deliver(self, message: Message) -> Delivery:
        base = None
        if self._memory is not None:
            base = Lease(self._memory, self._returns, protocol.Note(protocol.RELEASED, message.ticket, 0)).bytes()
        self._taken += 1
        self._home.outbox.note(protocol.TAKEN, self.number, self._taken)
        try:
            contents = (
                out_of_band.load_file(message.fd)
                if message.kind == protocol.DELIVERY_FILE
                else out_of_band.load(message.body)
            )
            return unwrap(contents, self._structure, base, to_copy=message.first == protocol.TO_COPY).taken()
        except BaseException:
            base = None  # an error may be kept for long, and this frame with it
            raise

    # --- waiting -----------------------------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        return bool(self._inbox) or self._ended or self._closed

    def wait(self) -> None:
        """Returns when `pop` may have an answer; for a thread."""
        with self._lock:
            if self._is_ready():
                return
            self._begin_waiting()
        ready = False
        try:
            if self._broken:
                self._end_with(self._home.await_end())
            else:
                self._home.outbox.flush_all()
                poll = select.poll()
                with contextlib.suppress(ValueError):  # closed in this moment
                    poll.register(self._channel.fileno(), select.POLLIN)
                    poll.poll()
            ready = True
        finally:
            self._end_waiting(ready)

    async def wait_async(self) -> None:
        """Returns when `pop` may have an answer; for a task on any loop."""
        loop = asyncio.get_running_loop()
        if self._home.outbox.has_backlog:
            await in_thread(self._home.outbox.flush_all)
        with self._lock:
            if self._is_ready():
                return
            self._begin_waiting()
            waiter: asyncio.Future[None] = loop.create_future()
            if not self._broken:
                self._watch(loop, waiter)
        ready = False
        try:
            if self._broken:
                await in_thread(lambda: self._end_with(self._home.await_end()))
            else:
                await waiter
            ready = True
        finally:
            with self._lock:
                self._unwatch(loop, waiter)
            self._end_waiting(ready)

    def _end_with(self, error: BaseException) -> None:
        with self._lock:
            if not self._is_ready():
                self._error = error
                self._ended = True

    def _watch(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(loop)
        if waiters is None:
            self._waiters[loop] = [waiter]
            loop.add_reader(self._channel.fileno(), self._wake, loop)
        else:
            waiters.append(waiter)

    def _unwatch(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(loop, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[loop]
                loop.remove_reader(self._channel.fileno())

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """The socket has something; on the loop that watches it."""
        with self._lock:
            waiters = self._waiters.pop(loop, None)
            if waiters is None:
                return
            loop.remove_reader(self._channel.fileno())
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _begin_waiting(self) -> None:
        self.waits += 1
        self._polling += 1
        if not self._broken:
            self._home.outbox.note(protocol.WAITING, self.number, self._taken)

    def _end_waiting(self, ready: bool) -> None:
        with self._lock:
            self._polling -= 1
            if not ready and not self._polling and not self._closed:
                # Cancelled, or interrupted: the consumer no longer waits, and what measures its wait must know.
                self._home.outbox.note(protocol.WAITING, self.number, -1)
            self._dispose_unless_used()

    # --- leaving -----------------------------------------------------------------------------------------------

    def signal(self) -> None:
        """The consumer is gone: lets the pipeline end. From any thread, without a lock."""
        if os.getpid() == self._pid:
            self._leave()
            self._disposed = True
            if self._polling:  # a loop does not notice that a socket is closed which it watches
                self._channel.cut()
                return  # the last one that waits closes it
        self._memory = None
        self._channel.close()
        self._home.left(self)

    def _leave(self) -> None:
        self._closed = True
        self._ended = True
        self._home.outbox.note(protocol.LEFT, self.number, self._taken)
        self._channel.finish()

    def close(self) -> None:
        """The consumer leaves: drops what has arrived and lets the pipeline end. Idempotent, from any thread."""
        with self._lock:
            if self._closed:
                return
            self._leave()
            self._error = None
            _discard(self._inbox)
            loops = list(self._waiters)
        for loop in loops:
            with contextlib.suppress(RuntimeError):  # that loop was closed in the meantime
                loop.call_soon_threadsafe(self._wake, loop)

    def wait_until_put_back(self) -> None:
        """Returns when nothing of the pipeline is left in the loader process; after `close`.

        Raises:
            CloseTimeoutError: User code is stuck there; the message holds its stack.
        """
        until_s = time.monotonic() + self._limit_s + _REPORT_S
        poll = select.poll()
        try:
            poll.register(self._channel.fileno(), select.POLLIN)
        except ValueError:
            return  # closed by another thread that waited
        self._home.outbox.flush_all(until_s)
        while not self._drain():
            left_s = until_s - time.monotonic()
            if not poll.poll(max(0, min(left_s, LONGEST_POLL_S)) * 1000) and left_s <= LONGEST_POLL_S:
                raise CloseTimeoutError(
                    f"the pipeline in {self._home.name} has not ended {self._limit_s + _REPORT_S:.1f} s after it was "
                    "closed: user code is still running there"
                )

    def _drain(self) -> bool:
        """Throws away what is still coming; whether the other side has put everything back."""
        with self._lock:
            while True:
                try:
                    received = self._channel.receive()
                except BlockingIOError:
                    return False
                except EOFError:
                    return True
                except OSError:
                    if self._channel.fileno() < 0:
                        return True  # closed by another thread
                    continue  # it came without its descriptor, and is not wanted
                for message in received:
                    if message.kind == protocol.STUCK:
                        raise decode_failure(message.body, where=self._home.name)
                    if message.kind == protocol.LAST_STATS:
                        self.stats = pickle.loads(message.body)  # noqa: S301 -- from the loader process
                _discard(received)

    def dispose(self) -> None:
        """Closes the socket as soon as nobody waits for it any more; after `close`."""
        with contextlib.suppress(CloseTimeoutError):
            self._drain()
        with self._lock:
            self._disposed = True
            self._dispose_unless_used()

    def cut(self) -> None:
        """Tells waiters that the process is gone. The thread that noticed calls it."""
        self._channel.cut()

    def end(self, error: BaseException) -> None:
        """The Runtime is closed: what has not been taken is dropped, as without isolation, and this error is raised."""
        with self._lock:
            if not (self._ended or self._closed):
                self._ended, self._error = True, error
            _discard(self._inbox)
        self.dispose()

    def _dispose_unless_used(self) -> None:
        if self._disposed and not self._polling:
            self._memory = None
            self._channel.close()
            self._home.left(self)


def _discard(messages: deque[Message] | list[Message]) -> None:
    for message in messages:
        if message.fd >= 0:
            os.close(message.fd)
    messages.clear()


def _drop_last_note(error: Exception) -> None:
    kept = getattr(error, "__notes__", None)
    if kept:
        kept.pop()
