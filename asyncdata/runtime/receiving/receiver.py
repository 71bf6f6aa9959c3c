"""`ReceiverProcess`: one more process that receives, as the I/O loop sees it.

::

    I/O loop                                         receiving process
    read_into(buffer, attempt) ── READ, place ──────▶ its reader: read_into(arena[place], noted)
      attempt.first_byte_at, …  ◀───────── NOTE ───── noted
      wire.filled               ◀── LOOK / SEEN ────▶
      wire.fail(), .nudge()     ── FAIL, NUDGE ─────▶ if this answer is still being received
    returns when that has ended ◀───────── DONE ───── bytes in the arena

A read whose process dies fails as if its connection were lost, and only when the system says that the process is gone:
until then its buffer may be written to. A process that says nothing for a long time is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from asyncdata.errors import PipelineClosedError, StorageError
from asyncdata.memory.arena import Arena
from asyncdata.observe.cpu_time import of_process
from asyncdata.runtime.receiving import protocol
from asyncdata.runtime.receiving.protocol import Order, Outcome
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.failures import FailureCause, read_failed
from asyncdata.storage.reader import ReaderSpec
from asyncdata.storage.receivers import BodyReader
from asyncdata.types import ObjectInfo
from asyncdata.workers.drain import Drain
from asyncdata.workers.messages import Message
from asyncdata.workers.process import describe_exit
from asyncdata.workers.spawn import Launched
from asyncdata.workers.whereabouts import read_stacks

_LOGGER = logging.getLogger("asyncdata")
_LOOK_S: Final = 0.04
"""So old is what is known of running answers, at most, when it is asked for."""
_HEARTBEAT_S: Final = 1.0
_SILENT_S: Final = 20.0
"""Without a word for so long, while reads are under way, a process is taken for hung."""
_START_S: Final = 120.0
"""A process that has not started by then never will; on a busy machine its imports take seconds."""
_END_S: Final = 5.0
"""For a process to close its connections; then it is killed."""


class _Errand:
    """A read under way; it is the attempt's wire while an answer is awaited or received.

    Args:
        receiver: Makes it.
        ticket: Its number there.
        attempt: Told what is noted there.
        ended: Done when nothing writes to the buffer any more.
    """

    def __init__(
        self, receiver: ReceiverProcess, ticket: int, attempt: Attempt, ended: asyncio.Future[Outcome | None]
    ) -> None:
        self.ended = ended
        self.seen = 0
        self.had_input: bool | None = None
        self._receiver = receiver
        self._ticket = ticket
        self._attempt = attempt

    def note(self, notes: Mapping[str, Any]) -> None:
        """What was noted there."""
        for name, value in notes.items():
            if name == "wire":
                self._attempt.wire = self if value else None
            else:
                setattr(self._attempt, name, value)

    @property
    def filled(self) -> int:
        """See `Wire.filled`; as it was when the process was last asked."""
        self._receiver.look()
        return max(self.seen, self._attempt.received)

    def has_input(self) -> bool:
        """What was so when it was last asked; True before, so that what may be there is looked at first."""
        known, self.had_input = self.had_input, None
        self._receiver.tell(protocol.ASK, self._ticket)
        return known is not False

    def nudge(self) -> None:
        """See `Wire.nudge`."""
        self._receiver.tell(protocol.NUDGE, self._ticket)

    def fail(self, error: StorageError) -> None:
        """See `Wire.fail`; an answer that is complete by then stays."""
        self._receiver.tell(protocol.FAIL, self._ticket, body=protocol.packed(error))


class ReceiverProcess:
    """See the module's text.

    Args:
        arena: Where all buffers lie.
        launched: The process.
        lost: Called when it has ended without being asked to.
    """

    def __init__(self, arena: Arena, launched: Launched, lost: Callable[[ReceiverProcess], None]) -> None:
        self._arena_bytes = arena.nbytes
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(arena.view))
        self._launched = launched
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._tickets = itertools.count(1)
        self._recipes: dict[int, ReaderSpec] = {}
        self._errands: dict[int, _Errand] = {}
        self._drain = Drain(launched.tasks, self._loop)
        self._is_closing = False
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._looked_at = self._heard_at = self._loop.time()
        self._heartbeat: asyncio.TimerHandle | None = None
        self._tend_at = 0.0
        self._cpu_s = 0.0
        self.fallbacks: dict[str, int] = {}
        """Bodies that took aiohttp's path, by reason."""
        self._loop.add_reader(launched.tasks.fileno(), self._receive)
        launched.process.watch(self._loop, self._mourn)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._launched.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it takes reads."""
        return not (self._gone.done() or self._is_closing)

    async def ready(self) -> None:
        """Returns when it has started and opened its readers.

        Raises:
            OSError: It ended before.
        """
        self.tell(protocol.START)
        ended, _ = await asyncio.wait([self._ready, self._gone], timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        if not ended:
            self.kill()
            await asyncio.wait([self._gone])
        if not self._ready.done():
            raise OSError(f"a receiving process {describe_exit(self._launched.process.exit_code)} while it started")

    def cpu_s(self) -> float:
        """CPU seconds of the process so far. Any thread may call it."""
        if not self._gone.done():
            self._cpu_s = max(self._cpu_s, of_process(self.pid).used_s)
        return self._cpu_s

    def reader(self, spec: ReaderSpec, near: BodyReader) -> BodyReader:
        """What reads bodies there by a recipe; `near` does where the process cannot."""
        recipe = len(self._recipes) + 1
        self._recipes[recipe] = spec
        self.tell(protocol.OPEN, recipe, body=protocol.packed(spec))
        return _FarReader(self, recipe, near)

    # --- reads -------------------------------------------------------------------------------------------------------

    def place_of(self, buffer: memoryview) -> int:
        """Where in the arena a buffer begins; -1: elsewhere."""
        if not buffer:
            return -1
        at = ctypes.addressof(ctypes.c_char.from_buffer(buffer)) - self._base
        return at if 0 <= at <= self._arena_bytes - len(buffer) else -1

    async def make(self, order: Order, place: int, attempt: Attempt) -> Any:
        """A read. When this has returned, raised or was cancelled, nothing of it is left there."""
        ticket = next(self._tickets)
        ended: asyncio.Future[Outcome | None] = self._loop.create_future()
        errand = self._errands[ticket] = _Errand(self, ticket, attempt, ended)
        self.tell(protocol.READ, ticket, place, body=protocol.packed(order))
        if self._heartbeat is None:
            self._heard_at = self._loop.time()
            self._tend_soon()
        was_cancelled = False
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                # The buffer is the caller's again only when the process has let it go.
                was_cancelled = True
                self.tell(protocol.CANCEL, ticket)
        del self._errands[ticket]
        attempt.wire = None
        outcome = ended.result()
        if outcome is not None:
            errand.note(outcome.notes)
            self.fallbacks = outcome.fallbacks
        if was_cancelled:
            raise asyncio.CancelledError
        if outcome is None:
            end = describe_exit(self._launched.process.exit_code)
            raise read_failed(f"the receiving process (pid {self.pid}) {end}", FailureCause.CONNECTION_LOST)
        if outcome.error is not None:
            raise outcome.error
        if outcome.value is None:
            raise PipelineClosedError("the storage layer was closed")
        return outcome.value

    def look(self) -> None:
        """Asks how far its answers have come, unless it was asked a moment ago."""
        now = self._loop.time()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self.tell(protocol.LOOK)

    def _tend(self) -> None:
        """Kills a process that has reads under way and says nothing."""
        self._heartbeat = None
        if not self._errands or self._gone.done():
            return
        now = self._loop.time()
        if now - self._tend_at > _HEARTBEAT_S:
            self._heard_at = now  # the whole program may have been stopped, this process too: it gets its time again
        if now - self._heard_at > _SILENT_S:
            _LOGGER.warning("receiving process %d said nothing for %.0f s and is killed", self.pid, _SILENT_S)
            self._launched.process.kill()
        self.look()
        self._tend_soon()

    def _tend_soon(self) -> None:
        self._tend_at = self._loop.time() + _HEARTBEAT_S
        self._heartbeat = self._loop.call_at(self._tend_at, self._tend)

    # --- messages ----------------------------------------------------------------------------------------------------

    def tell(self, kind: int, ticket: int = 0, first: int = 0, *, body: bytes = b"") -> None:
        """Sends a message; nothing happens when the process is gone."""
        if self._gone.done():
            return
        self._drain.begin_unless(self._launched.tasks.send(kind, ticket, first, body=body))

    def _receive(self) -> None:
        self._heard_at = self._loop.time()
        try:
            while True:
                for message in self._launched.tasks.receive():
                    self._hear(message)
        except BlockingIOError:
            return
        except EOFError:
            self._loop.remove_reader(self._launched.tasks.fileno())  # its end follows

    def _hear(self, message: Message) -> None:
        if message.kind == protocol.READY:
            if not self._ready.done():
                self._ready.set_result(None)
        elif message.kind == protocol.SEEN:
            for ticket, filled in protocol.unpacked_pairs(message.body).items():
                if (errand := self._errands.get(ticket)) is not None:
                    errand.seen = filled
        elif (errand := self._errands.get(message.ticket)) is None or errand.ended.done():
            return
        elif message.kind == protocol.NOTE:
            errand.note(protocol.unpacked(message.body))
        elif message.kind == protocol.INPUT:
            errand.had_input = bool(message.first)
        elif message.kind == protocol.DONE:
            errand.ended.set_result(protocol.unpacked(message.body))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _mourn(self) -> None:
        """The process is gone, and nothing of it writes any more."""
        self._loop.remove_reader(self._launched.tasks.fileno())
        self._drain.end()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._receive_last()
        self._gone.set_result(None)
        crash = read_stacks(self._launched.crash_fd)
        if not self._is_closing and self._ready.done():
            end = describe_exit(self._launched.process.exit_code) + (f"; its stacks:\n{crash}" if crash else "")
            _LOGGER.warning("receiving process %d %s; its reads are made again", self.pid, end)
        self._launched.close()
        for errand in self._errands.values():
            if not errand.ended.done():
                errand.ended.set_result(None)
        if not self._is_closing:
            self._lost(self)

    def _receive_last(self) -> None:
        """What it said before it ended."""
        try:
            while True:
                for message in self._launched.tasks.receive():
                    self._hear(message)
        except (BlockingIOError, EOFError, OSError):
            pass

    def descriptors(self) -> list[int]:
        """What leads to the process."""
        if self._gone.done():
            return []
        launched = self._launched
        found = [launched.tasks.fileno(), launched.control.fileno(), launched.process.descriptor, launched.crash_fd]
        return [descriptor for descriptor in found if descriptor >= 0]

    def kill(self) -> None:
        """Ends the process at once, if it still runs."""
        if not self._gone.done():
            self._launched.process.kill()

    async def aclose(self) -> None:
        """Ends the process; returns when it is gone. Reads must have ended before."""
        self._is_closing = True
        self.tell(protocol.CLOSE)
        try:
            _, running = await asyncio.wait([self._gone], timeout=_END_S)
        except asyncio.CancelledError:
            self.kill()
            raise
        if running:
            self.kill()
            await asyncio.wait([self._gone])


class _FarReader:
    """Reads bodies by a recipe in another process; see `BodyReader`."""

    def __init__(self, receiver: ReceiverProcess, recipe: int, near: BodyReader) -> None:
        self._receiver = receiver
        self._recipe = recipe
        self._near = near

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt) -> int:
        """See `RangeReader.read_into`."""
        place = self._receiver.place_of(buffer) if self._receiver.is_alive else -1
        if place < 0:
            return await self._near.read_into(info, start, buffer, attempt)
        found: int = await self._receiver.make(self._order(info, start, buffer, attempt), place, attempt)
        return found

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt) -> tuple[ObjectInfo, int]:
        """See `RangeReader.open_read`."""
        place = self._receiver.place_of(buffer) if self._receiver.is_alive else -1
        if place < 0:
            return await self._near.open_read(url, buffer, attempt)
        found: tuple[ObjectInfo, int] = await self._receiver.make(self._order(url, 0, buffer, attempt), place, attempt)
        return found

    def _order(self, target: ObjectInfo | str, start: int, buffer: memoryview, attempt: Attempt) -> Order:
        return Order(self._recipe, target, start, len(buffer), attempt.limits, attempt.opened, attempt.detour)
