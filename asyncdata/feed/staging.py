"""In which order batches go to a device through staging memory that is used again and again.

    batch ── host copy ──▶ slot 0 ═══ copy by the device ═══▶ batch on the device, event
    batch ── host copy ──▶ slot 1 ═══ …                       (the device copies after the call returned)
    batch ── waits for the event of slot 0, then the same

A slot is written only when the copy that read it is done, and a batch is used only after its copy. A batch of the
pipeline is free as soon as it is in a slot. What a device does is behind `Copies`, so this order can be tested without
one.

A thread of the epoch copies: a trainer that waits for each of its steps would wait for the host's copies as well. Only
`Copies.use_behind` is called by the trainer's own.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from asyncdata.types import Element


class Copies(Protocol):
    """What a device does."""

    def stage(self, slot: int, batch: Element) -> Any:
        """Copies a batch into the memory of a slot; done when it returns."""

    def start(self, staged: Any) -> tuple[Any, Any]:
        """Tells the device to copy; returns the batch on the device, and the event that the copy is done."""

    def wait(self, event: Any) -> None:
        """Returns when the event has happened."""

    def use_behind(self, event: Any, batch: Any) -> None:
        """What the trainer tells the device from now on happens after the event; the batch lives until it is done."""


class StagingRing:
    """Staging memory for so many batches, for one epoch after the other.

    The thread of an epoch that was left may still send its last batch when that of the next one sends its first.

    Args:
        copies: The device.
        count: How many slots there are.
    """

    def __init__(self, copies: Copies, count: int) -> None:
        self.copies = copies
        self._read: list[Any] = [None] * count
        self._next = 0
        self._lock = threading.Lock()

    def send(self, batch: Element) -> tuple[Any, Any]:
        """The batch on the device, and the event that it is there."""
        with self._lock:
            slot = self._next
            self._next = (slot + 1) % len(self._read)
            if self._read[slot] is not None:
                self.copies.wait(self._read[slot])
            arriving, event = self.copies.start(self.copies.stage(slot, batch))
            self._read[slot] = event
        return arriving, event


class Staging:
    """The batches of one epoch on their way to the device; a `Hand`.

    Args:
        slots: The staging memory.
        depth: How many batches are on their way while the trainer uses one.
    """

    def __init__(self, slots: StagingRing, depth: int) -> None:
        self.depth = depth
        self._slots = slots
        self._arriving: deque[Future[tuple[Any, Any]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="asyncdata-staging")

    @property
    def waiting(self) -> int:
        """See `Hand`."""
        return len(self._arriving)

    def send(self, batch: Element) -> None:
        """See `Hand`."""
        self._arriving.append(self._thread.submit(self._slots.send, batch))

    def receive(self) -> Any:
        """See `Hand`."""
        batch, event = self._arriving.popleft().result()
        self._slots.copies.use_behind(event, batch)
        return batch

    def clear(self, *, wait: bool) -> None:
        """See `Hand`."""
        self._arriving.clear()
        self._thread.shutdown(wait=wait, cancel_futures=True)
