"""`Gate` and `GuardedThread`: an event and a thread that Ctrl-C cannot break.

``threading.Event`` and ``threading.Condition`` enter and leave their locks in Python steps. A KeyboardInterrupt between
two of these steps leaves a lock locked forever and blocks every thread that opens or notifies: here an event loop, or a
thread that reports its start. A gate has no lock of its own; every waiter waits for a private lock.

    wait()  leaves its lock in the list ─▶ looks whether the gate is open ─▶ waits for its lock
    open()  notes that it is open ─▶ unlocks what is in the list
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_FOR_EVER_S: Final = threading.TIMEOUT_MAX / 2
_UNSEEN_S: Final = 1.0
"""How long a signal can go unseen by a waiting main thread. CPython looks for signals before it waits for a lock, and a
signal ends the wait; one that arrives between the two does neither."""


class Gate:
    """An event that is set once, by any thread, and for which others wait."""

    __slots__ = ("_is_open", "_waiting")

    def __init__(self) -> None:
        self._is_open = False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return self._is_open

    def open(self) -> None:
        """Opens the gate for good. Any thread may call it; it waits for nothing."""
        self._is_open = True
        while self._waiting:
            try:
                lock = self._waiting.popleft()
            except IndexError:  # another thread opens it, too
                return
            lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the gate is open or the time is over; returns whether it is open."""
        if self._is_open:
            return True
        lock = threading.Lock()
        lock.acquire()  # and `open` unlocks it
        self._waiting.append(lock)
        until = time.monotonic() + min(_FOR_EVER_S if timeout_s is None else timeout_s, _FOR_EVER_S)
        most_s = _UNSEEN_S if threading.current_thread() is threading.main_thread() else _FOR_EVER_S
        # A thread that opened the gate before may not have seen the lock.
        while not self.is_open and (left := until - time.monotonic()) > 0:
            if lock.acquire(timeout=min(left, most_s)):
                break
        if not self._is_open:
            try:
                self._waiting.remove(lock)
            except ValueError:
                return True  # opened in this moment
        return self._is_open


class GuardedThread:
    """A daemon thread that the main thread may start and wait for, even if it is interrupted at any point.

    Args:
        target: The function it runs.
        name: Its name.
        failed: Called in another thread with the error if the thread cannot be started.
    """

    def __init__(self, target: Callable[[], None], name: str, failed: Callable[[BaseException], None]) -> None:
        self._target = target
        self._failed = failed
        self._launches: list[int] = []
        self._launched = Gate()
        self._ended = Gate()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread without waiting for the start.

        Raises:
            RuntimeError: There are too many threads.
        """
        # Starting a thread and recording it is one step in C, so Ctrl-C comes before or after it. Another, short-lived
        # thread calls `Thread.start`, because Ctrl-C could interrupt that method in this thread.
        self._launches.extend(map(_thread.start_new_thread, (self._launch,), ((),)))

    def _launch(self) -> None:
        try:
            self._thread.start()
        except BaseException as error:  # noqa: BLE001 -- told to whoever waits for the thread's work
            self._failed(error)
            self._ended.open()
        finally:
            self._launched.open()

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended.open()

    @property
    def was_started(self) -> bool:
        """Whether it runs, will run or has run."""
        return bool(self._launches)

    @property
    def ident(self) -> int | None:
        """Its identifier; None before it runs."""
        return self._thread.ident

    def is_current(self) -> bool:
        """Whether the caller runs in it."""
        return threading.current_thread() is self._thread  # identifiers are reused

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Waits for its end, if it was started."""
        if self._launches:
            self._launched.wait()
            self._ended.wait()
            if self._thread.ident is not None:
                self._thread.join()
