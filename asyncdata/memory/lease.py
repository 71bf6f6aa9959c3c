"""Memory lent to the consumer, and how it returns.

A `Lease` is the buffer beneath the arrays of one delivered batch. numpy keeps the exporter of a buffer alive as long as
any array, slice or foreign tensor made from it exists, so the lease ends exactly with the last of them. A finalizer on
an array would not work, because numpy shortens chains of views.

A lease may end in any thread, inside the garbage collector, or after the pipeline is gone. It therefore takes no lock.
It also runs no Python code: the main thread handles Ctrl-C between two steps of Python code, and inside a finalizer
Python prints and discards KeyboardInterrupt, together with the rest of the finalizer.

    consumer drops last view ─▶ Lease.__del__ ─▶ call_soon_threadsafe (all C) ─▶ (stage loop) rows released
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_consume: Final = deque[object](maxlen=0).extend
"""Runs an iterator to its end and keeps nothing."""


class Returns:
    """The way on which leases come back to the loop that owns the slabs.

    Args:
        steps: Called one after another with what a lease held, in whatever thread it ends. `close` comes before they
            stop working.
    """

    def __init__(self, *steps: Callable[[Any], object]) -> None:
        self._steps = [*steps]

    def ending(self, held: object) -> Callable[[], object]:
        """What a lease calls at its end; nothing happens after `close`. Only the steps themselves may be Python's."""
        return functools.partial(_consume, map(operator.call, self._steps, itertools.repeat(held)))

    def close(self) -> None:
        """From now on ending leases touch nothing: the arena is gone, or held by the views."""
        self._steps.clear()


class Lease:
    """Exports the arena's bytes as an array interface; its end gives the rows back.

    Args:
        memory: The whole mapping, which every view keeps alive.
        returns: Where to report the end.
        held: What the end tells ``returns``.
    """

    # A finalizer of each instance: Python reads the slot as it would read a method, and calls what is in it.
    __slots__ = ("__array_interface__", "__del__", "__weakref__", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8], returns: Returns, held: object) -> None:
        self._memory = memory  # not the arena, which lets go of the mapping when it is closed
        self.__array_interface__: dict[str, Any] = {
            "shape": memory.shape,
            "typestr": "|u1",
            "data": (memory.__array_interface__["data"][0], False),
            "version": 3,
        }
        self.__del__ = returns.ending(held)

    def bytes(self) -> npt.NDArray[np.uint8]:
        """The arena as an array whose life is the lease's."""
        return np.asarray(self)
