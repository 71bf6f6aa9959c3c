"""Sends a stretch of a stored body over a wire, in slices, at the pace the pacer allows.

Driven by callbacks, not by a coroutine per slice: the socket says that it is writable or the pacer that it is the
sender's turn, and one slice goes out. Nothing is copied on a plain connection with a file: the kernel moves the bytes.
"""

from __future__ import annotations

import asyncio

from fake_gcs.objects.bodies import Source
from fake_gcs.pacing import DebtClock, Pacer, slice_bytes
from fake_gcs.wire import Wire

_SLICES_PER_TURN = 4


class BodySender:
    """Sends ``[start, stop)`` of an open body.

    Attributes:
        offset: The next byte that will be sent.
    """

    __slots__ = ("_asked", "_clock", "_done", "_pacer", "_slice", "_source", "_stop", "_unpaced", "_wire", "offset")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wire: Wire,
        pacer: Pacer,
        source: Source,
        start: int,
        stop: int,
        clock: DebtClock | None,
    ) -> None:
        self._wire = wire
        self._pacer = pacer
        self._source = source
        self._stop = stop
        self._clock = clock
        self._slice = slice_bytes(clock.rate if clock else None, pacer.total)
        self._unpaced = clock is None and pacer.total is None
        self._asked = False
        self._done: asyncio.Future[None] = loop.create_future()
        self.offset = start

    async def run(self, timeout_s: float) -> None:
        """Send it all.

        Raises:
            OSError: The connection broke, or the client took nothing for ``timeout_s`` (``TimeoutError``).
            EOFError: The file is shorter than it was.
        """
        timer: asyncio.TimerHandle | None = None
        loop = self._done.get_loop()
        seen = -1

        def look() -> None:
            nonlocal seen, timer
            if self._done.done():
                return
            if self.offset == seen and not self._asked:
                self._done.set_exception(TimeoutError("the client takes nothing"))
                return
            seen = self.offset
            timer = loop.call_later(timeout_s, look)

        try:
            self._step()
            if not self._done.done():
                seen = self.offset
                timer = loop.call_later(timeout_s, look)
            await self._done
        finally:
            if timer is not None:
                timer.cancel()
            self._wire.when_writable(None)
            if self._asked:
                self._pacer.forget(self)

    def _step(self) -> None:
        """Send as long as the socket takes it and the pacer allows it, but let others have their turn."""
        if self._done.done() or self._asked:
            return
        for _ in range(_SLICES_PER_TURN):
            if not self._unpaced and not self._pacer.ask(self, self._clock):
                self._asked = True
                self._wire.when_writable(None)
                return
            if not self._send_slice():
                return
        self._wire.when_writable(self._step)

    def granted(self) -> None:
        """It is this sender's turn: one slice, then ask again."""
        self._asked = False
        if not self._done.done() and self._send_slice():
            self._step()

    def _send_slice(self) -> bool:
        """Send one slice; True when the socket took all of it and more is to be sent."""
        size = min(self._pacer.turn_bytes(self._slice, self._clock), self._stop - self.offset)
        try:
            sent = self._send(size)
        except (OSError, EOFError) as error:
            self._done.set_exception(error)
            return False
        self.offset += sent
        if not self._unpaced and sent:
            self._pacer.charge(sent, self._clock)
        if self.offset >= self._stop:
            self._done.set_result(None)
            return False
        if sent < size:
            self._wire.when_writable(self._step)
            return False
        return True

    def _send(self, size: int) -> int:
        if self._source.fd is not None:
            return self._wire.send_file(self._source.fd, self.offset, size)
        return self._wire.send(self._source.read(self.offset, size))
