"""Looks now and then at which line of user code a thread is in.

Only lines of the user count, and of the parsers and decoders that users map. A thread that waits in this library, or
works for it, is in none. Code in C is not seen: its time is that of the line that called it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Final

from asyncdata.observe.line_table import Line, LineTable
from asyncdata.observe.stopwatch import clock
from asyncdata.observe.thread_stacks import Stack, stack_of

_LIBRARY: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MAPPED: Final = tuple(f"{_LIBRARY}{folder}{os.sep}" for folder in ("formats", "preprocessing"))
_STANDARD: Final = (os.path.dirname(os.path.abspath(os.__file__)) + os.sep, "<frozen ")
_NUMPY: Final = f"{os.sep}numpy{os.sep}"
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def line_of(stack: Stack, place: str) -> Line | None:
    """The innermost line of user code in a stack; of installed packages, the one that this library called.

    Args:
        stack: Of `stack_of`.
        place: What runs it.
    """
    found: tuple[CodeType, int | None] | None = None
    for entry in stack:
        file = entry[0].co_filename
        if file.startswith(_LIBRARY):
            if not file.startswith(_MAPPED):
                break
            found = entry  # the outermost one: the function that was mapped
        elif _NUMPY in file:
            continue  # this library calls it for itself, and users' lines are further out
        elif any(part in file for part in _INSTALLED):
            found = entry
        elif not file.startswith(_STANDARD):
            found = entry
            break
    if found is None:
        return None
    code, line = found
    return Line(place, code.co_qualname, code.co_filename, line or 0)


class StackSampler:
    """Looks at threads, each time that it is asked to.

    Args:
        threads: What each thread that is looked at is for, by its identifier.
        table: Where it notes what it saw.
    """

    def __init__(self, threads: Callable[[], Mapping[int, str]], table: LineTable) -> None:
        self._threads = threads
        self._table = table
        self._last_s = clock()

    def look(self) -> None:
        """Notes the lines that are running now; each counts for the time since the last look."""
        now = clock()
        seconds, self._last_s = now - self._last_s, now
        for identifier, place in self._threads().items():
            line = line_of(stack_of(identifier), place)
            if line is not None:
                self._table.add(line, seconds)

    def begin(self) -> None:
        """The next look counts for the time from now on."""
        self._last_s = clock()


class SamplerThread:
    """A thread that looks at a given rate.

    Args:
        sampler: What looks.
        name: The thread's name.
    """

    def __init__(self, sampler: StackSampler, name: str) -> None:
        self._sampler = sampler
        self._every_s = 0.0
        # Held unless something has changed: the cheapest thing to wait for.
        self._changed = threading.Lock()
        self._changed.acquire()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def look_every(self, seconds: float) -> None:
        """Looks every so many seconds from now on; 0: not any more."""
        self._every_s = seconds
        self._wake()

    def close(self) -> None:
        """Ends the thread, which takes no longer than one look."""
        self._closed = True
        self._wake()
        self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was woken and has not run since
            self._changed.release()

    def _run(self) -> None:
        while not self._closed:
            if self._changed.acquire(timeout=self._every_s or -1):
                self._sampler.begin()
            if self._every_s and not self._closed:
                self._sampler.look()
