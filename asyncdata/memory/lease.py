"""Memory lent to the consumer, and how it comes back.

A `Lease` is the buffer beneath the arrays of one delivered batch. numpy keeps the object that exported a buffer alive
for as long as any array, slice or foreign tensor made from it lives, so the lease ends exactly when the last of them
does; a finalizer on an array would not do, for numpy shortens chains of views.

A lease may end in any thread, inside the garbage collector, after the pipeline is gone. It therefore takes no lock:
it appends to a deque and wakes the loop that owns the slabs.

    consumer drops last view ─▶ Lease.__del__ ─▶ Returns.append ─▶ (stage loop) drain ─▶ rows released
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


class Returns:
    """Leases that have ended, on their way back to the loop that owns the slabs.

    Args:
        wake: Schedules `drain` on that loop; callable from any thread; may raise RuntimeError once the loop is closed.
    """

    def __init__(self, wake: Callable[[Callable[[], None]], object]) -> None:
        self._wake = wake
        self._ended: deque[Callable[[], None]] = deque()
        self._woken = False
        self._closed = False

    def append(self, release: Callable[[], None]) -> None:
        """Hands back what a lease held. After `close` nothing happens: the arena is gone, or held by the views."""
        if self._closed:
            return
        self._ended.append(release)
        if not self._woken:
            self._woken = True
            try:
                self._wake(self.drain)
            except RuntimeError:
                self.close()  # the loop ended between two views of one consumer

    def drain(self) -> None:
        """Releases everything that has ended; on the owning loop."""
        self._woken = False
        while self._ended:
            self._ended.popleft()()

    def close(self) -> None:
        """From now on ending leases touch nothing."""
        self._closed = True
        self._ended.clear()


class Lease:
    """Exports the arena's bytes as an array interface; its end gives the rows back.

    Args:
        memory: The whole mapping, which every view keeps alive.
        returns: Where to report the end.
        release: What to do then, on the owning loop.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_memory", "_release", "_returns")

    def __init__(self, memory: npt.NDArray[np.uint8], returns: Returns, release: Callable[[], None]) -> None:
        self._memory = memory  # not the arena, which lets go of the mapping when it is closed
        self._returns = returns
        self._release = release
        self.__array_interface__: dict[str, Any] = {
            "shape": memory.shape,
            "typestr": "|u1",
            "data": (memory.__array_interface__["data"][0], False),
            "version": 3,
        }

    def bytes(self) -> npt.NDArray[np.uint8]:
        """The arena as an array whose life is the lease's."""
        return np.asarray(self)

    def __del__(self) -> None:
        self._returns.append(self._release)
