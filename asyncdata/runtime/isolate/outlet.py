"""The loader's end of a pipeline whose consumer is another process; the counterpart of `Edge` in this process.

One delivery at a time is in flight to the consumer or waits there; the next one is sent when that one is taken. Lent
memory stays in the table of loans until the consumer reports that nothing views it any more. When the consumer leaves,
deliveries that it has never seen come back. Stage loop only, except `finish`.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import ObjectNotFoundError, refused
from asyncdata.memory.structure import Structure
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.runtime.consumer.delivery import Delivery
from asyncdata.runtime.isolate import out_of_band, protocol
from asyncdata.runtime.isolate.codec import dump_structure, wrap
from asyncdata.workers.channel import Channel
from asyncdata.workers.drain import Drain
from asyncdata.workers.failure import RemoteTraceback, annotate, encode_failure
from asyncdata.workers.messages import HEAD

_INLINE_BYTES: Final = protocol.MESSAGE_BYTES - HEAD.size


class Loans:
    """What consumers view, by the number of its delivery: letting go of a base gives its rows back."""

    def __init__(self) -> None:
        self._bases: dict[int, npt.NDArray[np.uint8] | None] = {}
        self._count = 0

    def lend(self, base: npt.NDArray[np.uint8] | None) -> int:
        """Keeps a base until `end`; returns its number."""
        self._count += 1
        if base is not None:
            self._bases[self._count] = base
        return self._count

    def end(self, number: int) -> None:
        """Nobody views it any more; may be said again."""
        self._bases.pop(number, None)


class Outlet:
    """See the module's docstring.

    Args:
        channel: The pipeline's socket, non-blocking.
        loop: The stage loop.
        arena: Descriptor and length of the arena.
        loans: Of the loader process.
        left: Called once, when the consumer is gone.
    """

    def __init__(
        self,
        channel: Channel,
        loop: asyncio.AbstractEventLoop,
        arena: tuple[int, int],
        loans: Loans,
        left: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._loop = loop
        self._loans = loans
        self._left = left
        self._pump_left: Callable[[], object] | None = None
        self._sent: deque[int] = deque()
        self._count = 0
        self._taken = 0
        self._waiting = -1
        self._room = asyncio.Event()
        self._starving: Callable[[bool], None] | None = None
        self._structure: Structure = None
        self._ended = False
        self._closed = False
        self._drain = Drain(channel, loop, self._all_sent)
        self._putting_back = False
        loop.add_reader(channel.fileno(), self._readable)
        self._drain.begin_unless(channel.hand_over(protocol.ARENA, first=arena[1], fd=arena[0]))

    # --- the pump's side ---------------------------------------------------------------------------------------

    def attach(
        self, loop: asyncio.AbstractEventLoop, starving: Callable[[bool], None], left: Callable[[], object]
    ) -> None:
        """Called once by the pump: whom to tell that the consumer waits, and that it has left."""
        assert loop is self._loop
        self._starving = starving
        self._pump_left = left
        self.remind()

    @property
    def is_closed(self) -> bool:
        """Whether the consumer is gone."""
        return self._closed

    def put(self, delivery: Delivery) -> None:
        """Sends a delivery; the one before it was taken, see `wait_for_room`."""
        pieces = wrap(delivery)
        if not self._count or delivery.structure != self._structure:
            self._structure = delivery.structure
            self._drain.begin_unless(self._channel.send(protocol.SHAPE, body=dump_structure(self._structure)))
        self._count += 1
        number = self._loans.lend(delivery.base)
        self._sent.append(number)
        self._send_pieces(number, protocol.TO_COPY if delivery.to_copy else 0, pieces)
        self.remind()

    async def wait_for_room(self, more: int = 0) -> bool:  # noqa: ARG002 -- one delivery is under way at a time
        """See `Exit`."""
        while not self._closed:
            if self._taken >= self._count:
                return True
            self._room.clear()
            await self._room.wait()
        return False

    def remind(self) -> None:
        """Says whether the consumer waits for something that is not under way."""
        if self._starving is not None:
            self._starving(self._waiting == self._count)

    def finish(self, error: BaseException | None) -> bool:
        """No more deliveries. The first call decides, later ones return False."""
        if self._ended:
            return False
        self._ended = True
        self._starving = None
        self._pump_left = None
        if not self._closed:
            if error is None:
                self._drain.begin_unless(self._channel.send(protocol.END))
            else:
                _explain(error)
                told = isinstance(error.__cause__, RemoteTraceback)
                self._drain.begin_unless(
                    self._channel.send(protocol.FAILED, first=int(told), body=encode_failure(error))
                )
        return True

    # --- what the consumer says --------------------------------------------------------------------------------

    def taken(self, count: int) -> None:
        """The consumer has taken so many deliveries."""
        while self._taken < count and self._sent:  # all came back if it is said after the consumer has left
            self._taken += 1
            self._sent.popleft()
        self._room.set()

    def waiting(self, count: int) -> None:
        """The consumer waits, having taken so many; -1: it does not wait."""
        self._waiting = count
        self.remind()

    def leave(self, count: int) -> None:
        """The consumer is gone and has never seen what was sent after so many deliveries."""
        self.taken(count)
        while self._sent:
            self._loans.end(self._sent.popleft())
        self._lose_consumer()

    def _readable(self) -> None:
        """The consumer never says anything here: its end is closed, perhaps before it could say so elsewhere."""
        self._loop.remove_reader(self._channel.fileno())
        self._lose_consumer()

    def _lose_consumer(self) -> None:
        if not self._closed:
            self._closed = True
            self._room.set()
            pump_left, self._pump_left = self._pump_left, None
            if pump_left is not None:
                pump_left()
            self._left()

    # --- the end -----------------------------------------------------------------------------------------------

    def report(self, error: BaseException) -> None:
        """Tells a consumer that has left, and waits, why the pipeline does not end."""
        self._drain.begin_unless(self._channel.send(protocol.STUCK, body=encode_failure(error)))

    def put_back(self, stats: PipelineStats | None) -> None:
        """Everything of the pipeline has ended: sends what is left to send, then closes."""
        if stats is not None:
            self._drain.begin_unless(self._channel.send(protocol.LAST_STATS, body=pickle.dumps(stats, 5)))
        self._putting_back = True
        if not self._channel.has_backlog:
            self._close()

    def _send_pieces(self, number: int, to_copy: int, pieces: out_of_band.Buffers) -> None:
        size = out_of_band.nbytes(pieces)
        if size <= _INLINE_BYTES:
            self._drain.begin_unless(self._channel.send(protocol.DELIVERY, number, to_copy, body=b"".join(pieces)))
            return
        try:
            fd = out_of_band.write_file("asyncdata-delivery", pieces)
        except OSError as error:
            raise refused("elements cannot be sent to the consumer", error, stage="Runtime") from error
        try:
            self._drain.begin_unless(self._channel.hand_over(protocol.DELIVERY_FILE, number, to_copy, size, fd=fd))
        finally:
            os.close(fd)

    def _all_sent(self) -> None:
        if self._putting_back:
            self._close()

    def _close(self) -> None:
        fd = self._channel.fileno()
        if fd >= 0:
            self._loop.remove_reader(fd)
            self._channel.close()


def _explain(error: BaseException) -> None:
    if isinstance(error, ObjectNotFoundError) and (error.url or "").startswith("memory:"):
        annotate(
            error,
            "memory:// belongs to one process: with isolate=True the pipeline sees only what its own functions have "
            "written there",
        )
