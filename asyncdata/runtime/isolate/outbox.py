"""The consumer's side of the control channel. A thread appends its notes, and sends them if no other thread is sending.

Leases end inside the garbage collector, in any thread, perhaps in the middle of the code below. Notes that a finalizer
adds there are left to the sender that it interrupts, which checks again after releasing the lock. Notes that the socket
does not take stay, and are sent with later ones; a consumer sends them before it waits. ``with`` takes and releases the
lock in one step of C each, so Ctrl-C never leaves it locked.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from asyncdata.runtime.isolate.protocol import MOST_NOTES, NOTES, Note, pack_notes
from asyncdata.workers.channel import Channel

LONGEST_POLL_S: Final = 1e6
"""Of one system call, whose milliseconds are 32 bits."""


class Outbox:
    """See the module's docstring. From any thread.

    Args:
        channel: The control channel; nobody else sends on it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._queue: deque[Note | Callable[[], bool]] = deque()
        self.append: Callable[[Note], None] = self._queue.append
        """Adds a note that goes with the next ones; a step of C's."""
        self._lock = threading.RLock()
        self._sending = False
        self._closed = False
        self._pid = os.getpid()

    def note(self, kind: int, concerns: int, value: int) -> None:
        """Sends a note, now or with the next ones; in a forked child, where leases end too, it says nothing."""
        if os.getpid() != self._pid:
            return
        self._queue.append(Note(kind, concerns, value))
        self.flush()

    def send_appended(self, _note: Note) -> None:
        """Sends what a finalizer has appended. Ctrl-C may end this, and then the next one sends it."""
        if os.getpid() == self._pid:
            self.flush()

    def post(self, send: Callable[[], bool]) -> None:
        """Calls a function that sends on the channel, in its turn; it returns whether the socket took all."""
        self._queue.append(send)
        self.flush()

    def withdraw(self, send: Callable[[], bool]) -> None:
        """A function that was posted is not called from now on, if it was not called yet."""
        with self._lock, contextlib.suppress(ValueError):
            self._queue.remove(send)

    @property
    def has_backlog(self) -> bool:
        """Whether something could not be sent yet."""
        return not self._closed and (bool(self._queue) or self._channel.has_backlog)

    def flush(self) -> None:
        """Sends what there is, as much as the socket takes."""
        while self.has_backlog:
            with self._lock:
                if self._sending:
                    return  # this is a finalizer
                self._sending = True
                try:
                    done = self._send()
                finally:
                    self._sending = False
            if not done:
                return

    def _send(self) -> bool:
        if self._closed or not self._channel.flush():
            return False
        queue = self._queue
        while queue:
            notes: list[Note] = []
            # By index: a finalizer may append while this runs.
            for position in range(min(len(queue), MOST_NOTES)):
                item = queue[position]
                if not isinstance(item, Note):
                    break
                notes.append(item)
            if notes:
                # Forgotten only when sent: an interrupted sender leaves them to the next one, perhaps a second time.
                sent = self._channel.send(NOTES, body=pack_notes(notes))
                for _ in notes:
                    queue.popleft()
            else:
                send = queue.popleft()
                assert not isinstance(send, Note)
                sent = send()
            if not sent:
                return False
        return True

    def flush_all(self, until_s: float = math.inf) -> None:
        """Returns when everything is sent, or the other side is gone, or does not read.

        Args:
            until_s: On the monotonic clock, how long it waits for the other side to read.

        Raises:
            RuntimeError: This is a handler of signals, which has interrupted the sending.
        """
        self.check_not_interrupted()
        while self.has_backlog and (left_s := until_s - time.monotonic()) > 0:
            poll = select.poll()
            try:
                poll.register(self._channel.fileno(), select.POLLOUT)
            except ValueError:
                return  # closed in this moment
            poll.poll(min(left_s, LONGEST_POLL_S) * 1000)
            self.flush()

    def check_not_interrupted(self) -> None:
        """Raises an error in a handler of signals that would wait for what it has interrupted.

        The interrupted code is in the middle of a message: neither can the handler send another one now, nor does the
        process end whose messages it waits for.

        Raises:
            RuntimeError: That is so.
        """
        with self._lock:  # of this thread, if it is taken already
            if self._sending:
                raise RuntimeError(
                    "a handler of signals has interrupted a message to the loader process, and would wait for it: let "
                    "the handler raise an exception instead, or set a flag that the loop looks at"
                )

    def close(self) -> None:
        """Nothing is sent any more; closes the channel."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._channel.close()
