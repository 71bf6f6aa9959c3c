"""The memory that the C library keeps of objects that are gone: up to 64 MB by itself, which nobody is charged with."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def trim_heap() -> None:
    """Gives back to the system what the C library keeps, if it can; some milliseconds for a large heap."""
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    # glibc has it, other C libraries do not.
    found: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", int)
    return found
