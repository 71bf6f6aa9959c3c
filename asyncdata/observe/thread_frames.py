"""The frames of all threads, without the deadlock that Python 3.11 may have.

``sys._current_frames`` (documented, despite its name) holds a lock of the interpreter while it makes objects. In Python
3.11 making an object may run the garbage collector, and what that frees may give up the interpreter lock, as an
``mmap`` does. A thread that starts another one then waits for the first lock while it has the second. From 3.12 on the
collector runs between instructions only.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from operator import call
from types import FrameType
from typing import Any, Final

_LOOK: Final[tuple[Callable[[], Any], ...]] = (sys._current_frames,)  # noqa: SLF001 -- see above
# Run in C under one hold of the interpreter lock, so that they undo no switching by the user.
_UNDISTURBED: Final = (gc.disable, *_LOOK, gc.enable)
_STEPS: Final = (_LOOK, _UNDISTURBED if sys.version_info < (3, 12) else _LOOK)
"""By whether the collector is on."""


def look_once() -> Iterator[dict[int, FrameType]]:
    """Yields the frames of all threads by their identifiers, once, and in C alone. To be exhausted, in any case."""
    return filter(None, map(call, chain.from_iterable(map(_STEPS.__getitem__, map(call, (gc.isenabled,))))))


def current_frames() -> dict[int, FrameType]:
    """The frame that each thread is in, by its identifier."""
    (frames,) = look_once()
    return frames
