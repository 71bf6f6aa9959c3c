"""When tasks ran in a worker process: it notes this in memory that it shares with its pool, which makes spans of it.

    worker: `TaskNotes`    begin ── the handler ── end
    pool: `TaskSpans`      sent ──────────────────── ended

A worker that is killed has noted when it began the task that it was in.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from asyncdata.observe.stopwatch import clock

if TYPE_CHECKING:
    from asyncdata.observe.trace_ring import TraceRing

_NOTE: Final = struct.Struct("=qddd")
"""Ticket, when the task began, when it ended or 0, and how long it waited for memory, in seconds."""
_SLOTS: Final = 256
"""Far more than the tasks a worker has at a time; tickets are unique over all workers."""

NOTES_BYTES: Final = _NOTE.size * _SLOTS


class TaskNotes:
    """See the module; in the worker.

    Args:
        region: ``NOTES_BYTES`` bytes.
    """

    def __init__(self, region: memoryview) -> None:
        self._region = region

    def begin(self, ticket: int) -> None:
        """A task begins."""
        _NOTE.pack_into(self._region, ticket % _SLOTS * _NOTE.size, ticket, clock(), 0.0, 0.0)

    def end(self, ticket: int, waited_s: float) -> None:
        """It has ended, and waited so long for memory."""
        at = ticket % _SLOTS * _NOTE.size
        _, began_s, _, _ = _NOTE.unpack_from(self._region, at)
        _NOTE.pack_into(self._region, at, ticket, began_s, clock(), waited_s)


class TaskSpans:
    """See the module; of one worker, in its pool.

    Args:
        name: The worker's.
        pid: Its process id.
        region: What the worker writes.
        ring: Where spans go; None while nobody wants them.
    """

    def __init__(self, name: str, pid: int, region: memoryview, ring: TraceRing | None) -> None:
        self._name = name
        self._pid = pid
        self._region = region
        self._sent: dict[int, float] = {}
        self.ring = ring

    def sent(self, ticket: int) -> None:
        """A task was sent."""
        if self.ring is not None:
            self._sent[ticket] = clock()

    def ended(self, ticket: int, label: str, *, failed: bool = False, killed: bool = False) -> None:
        """Its reply has come, or its worker is gone."""
        sent_s, now = self._sent.pop(ticket, None), clock()
        if sent_s is None or self.ring is None:
            return
        noted, began_s, ended_s, waited_s = _NOTE.unpack_from(self._region, ticket % _SLOTS * _NOTE.size)
        never_begun = (-1, 0, 0)
        times = (int(seconds * 1e9) for seconds in (began_s - sent_s, (ended_s or now) - began_s, waited_s))
        values = ticket, self._pid, *(times if noted == ticket else never_begun)
        self.ring.add_task(label, self._name, sent_s, now, values, failed=failed, killed=killed)
