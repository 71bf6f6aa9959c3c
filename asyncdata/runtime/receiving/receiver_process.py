"""The main program of a receiving process: one event loop, its readers, and the reads that it is asked to make.

Everything runs on the loop. A read writes to its place in the arena, which this process shares with the Runtime. The
process ignores SIGINT, dies with the thread that started it where the system can do that, and ends when the Runtime's
ends of its channels close.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

import uvloop

from asyncdata.errors import StorageError
from asyncdata.memory.arena import GRANULE, Arena, populate
from asyncdata.runtime.receiving import protocol
from asyncdata.runtime.receiving.protocol import Order, Outcome
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.failures import without_frames
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.workers.channel import Channel
from asyncdata.workers.child import Setup, begin_process, leave
from asyncdata.workers.drain import Drain
from asyncdata.workers.messages import Message

_LARGE: Final = 256 << 10
"""Pages of smaller parts are entered as they are written to."""
_TOLD: Final = frozenset({"asked_at", "first_byte_at", "opened"})
"""These are sent at once. Other notes are sent together with the next of these, or with the outcome."""


class _NotedAttempt(Attempt):
    """An attempt that is observed from another process.

    Args:
        order: Says its limits.
        tell: Called when something was noted that cannot wait.
    """

    def __init__(self, order: Order, tell: Callable[[], None]) -> None:
        super().__init__(order.limits)
        self.__dict__.update(opened=order.opened, detour=order.detour, tell=tell, notes={}, ending=None)

    def fail(self, error: StorageError) -> None:
        """Ends what it receives; between two exchanges (a redirect, a new token), the next one."""
        self.__dict__["ending"] = error
        self._fail_wire()

    def _fail_wire(self) -> None:
        if self.wire is not None and self.__dict__["ending"] is not None:
            self.wire.fail(self.__dict__["ending"])
            self.__dict__["ending"] = None

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = value
        if name == "wire":
            value = value is not None
            if value and self.__dict__.get("ending") is not None:
                asyncio.get_running_loop().call_soon(self._fail_wire)  # the exchange is only about to begin
        if "notes" in self.__dict__:
            self.__dict__["notes"][name] = value
            if name in _TOLD:
                self.__dict__["tell"]()


class _Errand:
    """One read that is being made."""

    def __init__(self, task: asyncio.Task[None], attempt: _NotedAttempt) -> None:
        self.task = task
        self.attempt = attempt


class ReceiverHost:
    """See the module's text.

    Args:
        channel: Non-blocking.
        arena: All of it.
    """

    def __init__(self, channel: Channel, arena: memoryview) -> None:
        self._channel = channel
        self._arena = arena
        self._mapped = bytearray(len(arena) // GRANULE + 1)
        self._loop = asyncio.get_running_loop()
        self._readers: dict[int, RangeReader] = {}
        self._errands: dict[int, _Errand] = {}
        self._group: asyncio.TaskGroup
        self._drain = Drain(channel, self._loop)
        self._closing = asyncio.Event()

    async def work(self) -> None:
        """Makes reads until it is asked to close, or nobody is left to ask."""
        self._loop.add_reader(self._channel.fileno(), self._receive)
        async with asyncio.TaskGroup() as self._group:
            await self._closing.wait()
            for errand in self._errands.values():
                errand.task.cancel()
        for reader in self._readers.values():
            await reader.aclose()

    # --- messages ----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            while True:
                for message in self._channel.receive():
                    self._obey(message)
        except BlockingIOError:
            return
        except EOFError:
            leave(0)

    def _obey(self, message: Message) -> None:
        ticket = message.ticket
        if message.kind == protocol.READ:
            self._begin(ticket, message.first, protocol.unpacked(message.body))
        elif message.kind == protocol.LOOK:
            self._send(protocol.SEEN, body=protocol.packed_pairs(self._seen()))
        elif message.kind == protocol.OPEN:
            self._open(ticket, message.body)
        elif message.kind == protocol.START:
            self._send(protocol.READY)
        elif message.kind == protocol.CLOSE:
            self._closing.set()
        elif (errand := self._errands.get(ticket)) is not None:
            self._change(errand, message)

    def _open(self, recipe: int, body: bytes) -> None:
        try:
            spec: ReaderSpec = protocol.unpacked(body)
            self._readers[recipe] = spec.open()
        except Exception:  # noqa: BLE001 -- whatever a backend raises
            # Without a reader every read of this recipe would fail here; others make these once this process is gone.
            traceback.print_exc()
            leave(1)

    def _change(self, errand: _Errand, message: Message) -> None:
        if message.kind == protocol.CANCEL:
            errand.task.cancel()
        elif message.kind == protocol.FAIL:
            errand.attempt.fail(protocol.unpacked(message.body))
        # A connection is used again: what is not this read's answer any more is left alone.
        elif (wire := errand.attempt.wire) is not None:
            if message.kind == protocol.ASK:
                self._send(protocol.INPUT, message.ticket, wire.has_input())
            elif message.kind == protocol.NUDGE:
                wire.nudge()

    def _seen(self) -> list[tuple[int, int]]:
        """How far the answers have come that are being received."""
        wires = ((ticket, errand.attempt.wire) for ticket, errand in self._errands.items())
        return [(ticket, wire.filled) for ticket, wire in wires if wire is not None]

    def _send(self, kind: int, ticket: int = 0, first: int = 0, *, body: bytes = b"") -> None:
        self._drain.begin_unless(self._channel.send(kind, ticket, first, body=body))

    # --- reads -------------------------------------------------------------------------------------------------------

    def _begin(self, ticket: int, at: int, order: Order) -> None:
        attempt = _NotedAttempt(order, lambda: self._note(ticket, attempt))
        outcome: list[tuple[Any, BaseException | None]] = []
        task = self._group.create_task(self._run(at, order, attempt, outcome))
        self._errands[ticket] = _Errand(task, attempt)
        # Also called for a task that is cancelled before its first step.
        task.add_done_callback(lambda _task: self._end(ticket, attempt, outcome))

    async def _run(self, at: int, order: Order, attempt: _NotedAttempt, outcome: list[Any]) -> None:
        value, error = None, None
        try:
            value = await self._read(order, self._part(at, order.nbytes), attempt)
        except asyncio.CancelledError:
            raise
        except BaseException as raised:  # noqa: BLE001 -- raised in the other process
            error = raised
            without_frames(error)
        outcome.append((value, error))

    def _part(self, at: int, nbytes: int) -> memoryview:
        """A part of the arena. Its pages are entered in this process's tables together, the first time."""
        part = self._arena[at : at + nbytes]
        first, stop = at // GRANULE, (at + nbytes) // GRANULE
        if nbytes >= _LARGE and not all(self._mapped[first:stop]):
            populate(part)
            self._mapped[first:stop] = b"\1" * (stop - first)
        return part

    def _read(self, order: Order, buffer: memoryview, attempt: Attempt) -> Coroutine[Any, Any, Any]:
        reader = self._readers[order.recipe]
        if isinstance(order.target, str):
            return reader.open_read(order.target, buffer, attempt)
        return reader.read_into(order.target, order.start, buffer, attempt)

    def _note(self, ticket: int, attempt: _NotedAttempt) -> None:
        self._send(protocol.NOTE, ticket, body=protocol.packed(_taken(attempt)))

    def _end(self, ticket: int, attempt: _NotedAttempt, outcome: list[Any]) -> None:
        del self._errands[ticket]
        value, error = outcome[0] if outcome else (None, None)
        fallbacks: Counter[str] = Counter()
        for reader in self._readers.values():
            fallbacks.update(getattr(reader, "fallbacks", {}))
        done = Outcome(value, error, _taken(attempt), dict(fallbacks))
        try:
            body = protocol.packed(done)
        except Exception as unsendable:  # noqa: BLE001 -- whatever an exception of a library may hold
            said = f"{type(error).__name__}: {error} (which cannot be sent to another process: {unsendable})"
            body = protocol.packed(done._replace(value=None, error=StorageError(said)))
        self._send(protocol.DONE, ticket, body=body)


def _taken(attempt: _NotedAttempt) -> dict[str, Any]:
    """What was noted since the last time."""
    notes: dict[str, Any] = attempt.__dict__["notes"]
    attempt.__dict__["notes"] = {}
    return notes


async def _live(setup: Setup) -> None:
    sock, life = socket.socket(fileno=setup["tasks_fd"]), socket.socket(fileno=setup["control_fd"])
    sock.setblocking(False)
    arena = Arena.attach(setup["arena_fd"], setup["arena_bytes"])
    # Nothing is ever sent there: it is readable when the Runtime's end is closed.
    asyncio.get_running_loop().add_reader(life.fileno(), leave, 0)
    await ReceiverHost(Channel(sock, stream=setup["stream"]), arena.view).work()


def main(setup: Setup) -> NoReturn:
    """The whole life of a receiving process."""
    begin_process(setup["name"], setup["parent_pid"], setup["crash_fd"])
    for key in ("tasks_fd", "control_fd", "crash_fd"):
        os.set_inheritable(setup[key], False)
    try:
        with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_live(setup))
    except BaseException:  # noqa: BLE001 -- last words before the process ends
        traceback.print_exc()
        leave(1)
    leave(0)
