"""Where other threads are, without the crash and the deadlock that Python 3.11 may have.

``sys._current_frames`` (documented, despite its name) and ``f_back`` make objects for the frames of other threads. In
Python 3.11 making an object may run the garbage collector, and what that frees may give up the interpreter lock, as an
``mmap`` does. Then the thread that is looked at goes on and leaves the frame, whose memory the object refers to
afterwards; and a thread that starts another one waits for a lock of the interpreter that ``sys._current_frames`` holds.
From 3.12 on the collector runs between instructions only.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import attrgetter, call, methodcaller
from types import CodeType, FrameType
from typing import Any, Final

Stack = list[tuple[CodeType, int | None]]
"""The code that a thread is in, and its line, the innermost first."""

_LOOK: Final[tuple[Callable[[], Any], ...]] = (sys._current_frames,)  # noqa: SLF001 -- see above
# Run in C under one hold of the interpreter lock, so that they undo no switching by the user.
_UNDISTURBED: Final = (gc.disable, *_LOOK, gc.enable)
_STEPS: Final = (_LOOK, _UNDISTURBED if sys.version_info < (3, 12) else _LOOK)
"""By whether the collector is on."""

_MOST_FRAMES: Final = 200
_MOST_SHOWN: Final = 50


def _look() -> Iterator[dict[int, FrameType]]:
    """Yields the frames of all threads by their identifiers, once; the collector is off until it is exhausted."""
    return filter(None, map(call, chain.from_iterable(map(_STEPS.__getitem__, map(call, (gc.isenabled,))))))


def stack_of(identifier: int | None) -> Stack:
    """Where a thread is; empty if there is no such thread, or it does not run.

    A frame keeps what its function refers to. If this thread lost the interpreter lock while it had one, an iterator
    that its user has dropped would stay open until it got the lock again. So one call into C reaches and leaves all of
    them, and the lock is not given up in the middle of it.
    """
    stack: Stack = []
    look = _look()
    try:
        stack.extend(chain(map(attrgetter("f_code", "f_lineno"), _outwards(identifier, look)), look))  # type: ignore[arg-type]  # the rest of a look is empty
    finally:
        deque(look, maxlen=0)
    return stack


def _outwards(identifier: int | None, look: Iterator[dict[int, FrameType]]) -> Iterator[FrameType]:
    """The frames of a thread, from the innermost on. Takes no more than one step of the look."""
    innermost = map(methodcaller("get", identifier), islice(look, 1))  # None without such a thread
    return takewhile(bool, accumulate(chain(innermost, repeat("f_back", _MOST_FRAMES - 1)), getattr))


def text_of(stack: Stack) -> str:
    """A stack as in a traceback, the innermost call last."""
    if not stack:
        return "  no stack\n"
    shown = reversed(stack[:_MOST_SHOWN])
    return "".join(traceback.format_list([(code.co_filename, line or 0, code.co_name, None) for code, line in shown]))
