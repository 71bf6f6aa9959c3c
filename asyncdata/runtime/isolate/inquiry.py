"""Requests to the loader process, one at a time, each answered within a moment or not at all."""

from __future__ import annotations

import pickle
import select
import threading
import time
from typing import Final

from asyncdata.observe.snapshot import PipelineStats
from asyncdata.runtime.isolate import protocol
from asyncdata.runtime.isolate.outbox import Outbox
from asyncdata.workers.channel import Channel
from asyncdata.workers.messages import Message

_PATIENCE_S: Final = 1.0


class Inquiry:
    """The receiving side of the control channel.

    Args:
        control: The channel.
        outbox: What sends on it.
    """

    def __init__(self, control: Channel, outbox: Outbox) -> None:
        self._control = control
        self._outbox = outbox
        self._lock = threading.RLock()  # a handler of signals may ask in the middle of anything
        self._asked = 0
        self._farewell = b""

    def ask(self, pipeline: int) -> PipelineStats | None:
        """The snapshot of a pipeline; None when its loop is busy with user code, or gone."""
        with self._lock:
            self._asked += 1
            number = self._asked
            self._outbox.post(lambda: self._control.send(protocol.ASK, number, pipeline))
            until_s = time.monotonic() + _PATIENCE_S
            poll = select.poll()
            try:
                poll.register(self._control.fileno(), select.POLLIN)
            except ValueError:
                return None  # closed in this moment
            while poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
                received = self._receive()
                if received is None:
                    return None
                for message in received:
                    if message.kind == protocol.ANSWER and message.ticket == number:
                        stats: PipelineStats | None = pickle.loads(message.body)  # noqa: S301 -- from the loader process
                        return stats
            return None

    def _receive(self) -> list[Message] | None:
        """What has come; None when nothing will come any more."""
        try:
            received = self._control.receive()
        except BlockingIOError:
            return []
        except (EOFError, OSError):
            return None
        for message in received:
            if message.kind == protocol.FAREWELL:
                self._farewell = message.body
        return received

    def last_words(self) -> bytes:
        """What the process said at its end, once it is gone; empty if nothing."""
        # Whoever asks comes back at once when the process is gone; unless a handler of signals has interrupted it, and
        # waits for this thread.
        locked = self._lock.acquire(timeout=2 * _PATIENCE_S)
        missed = 0
        # The first miss may be the system's word that the process left notes unread; what it said lies behind that.
        while missed < 2:
            missed += not self._receive()
        if locked:
            self._lock.release()
        return self._farewell
