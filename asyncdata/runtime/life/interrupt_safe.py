"""`Gate` and `GuardedThread`: an event and a thread that Ctrl-C cannot break.

``threading.Event`` and ``threading.Condition`` enter and leave their locks in steps of Python. KeyboardInterrupt
between two of them leaves a lock locked for ever, and with it whoever opens or notifies: here that would be an event
loop, or a thread that says that it has started. A gate has no lock of its own; every waiter waits for one that nobody
else takes.

    wait()  leaves its lock in the list ─▶ looks whether the gate is open ─▶ waits for its lock
    open()  notes that it is open ─▶ unlocks what is in the list
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable


class Gate:
    """Closed at first, opened once, by any thread; others wait for that."""

    __slots__ = ("_is_open", "_waiting")

    def __init__(self) -> None:
        self._is_open = False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return self._is_open

    def open(self) -> None:
        """Lets everybody through, from now on; from any thread, waits for nothing."""
        self._is_open = True
        while self._waiting:
            try:
                lock = self._waiting.popleft()
            except IndexError:  # another thread opens it, too
                return
            lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns when the gate is open, or when the time is over; says whether it is open."""
        if self._is_open:
            return True
        lock = threading.Lock()
        lock.acquire()  # and `open` unlocks it
        self._waiting.append(lock)
        # Whoever opened it before may not have seen the lock.
        if not self._is_open:
            lock.acquire(timeout=-1 if timeout_s is None else max(0.0, min(timeout_s, threading.TIMEOUT_MAX)))
        if not self._is_open:
            try:
                self._waiting.remove(lock)
            except ValueError:
                return True  # opened in this moment
        return self._is_open


class GuardedThread:
    """A daemon thread that the main thread may start and wait for, however it is interrupted.

    Args:
        target: What it runs.
        name: Its name.
        failed: Called, in another thread, with the error when it cannot be started.
    """

    def __init__(self, target: Callable[[], None], name: str, failed: Callable[[BaseException], None]) -> None:
        self._target = target
        self._failed = failed
        self._launches: list[int] = []
        self._launched = Gate()
        self._ended = Gate()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts it, and does not wait for that.

        Raises:
            RuntimeError: There are too many threads.
        """
        # To start a thread and to note it are one step, of C: Ctrl-C comes before it or after it. And the thread is
        # another's, for a moment, since within `Thread.start` it would come in between.
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
        return threading.current_thread() is self._thread  # identifiers are used again

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
