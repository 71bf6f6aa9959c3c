"""Which tasks hold a worker while they wait for memory.

A worker that waits for a grant runs nothing else, and tasks that were given to it wait behind. When every worker waits
like that, no stage that shares them goes on by itself, whatever else it has started: then the earliest of the waiting
jobs is treated as the one that is needed next, whose output memory is reserved for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Waiting(Protocol):
    """A job, as far as this module is concerned."""

    number: int
    blocked: int

    def hurry(self) -> None:
        """The job is needed next."""


class Occupancy:
    """Counts, for all stages that share the workers.

    Args:
        workers: How many there are.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._blocked = 0
        self._jobs: dict[Waiting, None] = {}
        self._stages: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether every worker waits for memory."""
        return self._blocked >= self._workers

    def watch(self, changed: Callable[[], None]) -> None:
        """Calls back whenever `is_full` may have changed."""
        self._stages.append(changed)

    def forget(self, changed: Callable[[], None]) -> None:
        """Undoes `watch`."""
        self._stages.remove(changed)

    def change(self, job: Waiting, by: int) -> None:
        """A task of this job begins (1) or ends (-1) to wait for memory."""
        job.blocked += by
        self._blocked += by
        if job.blocked:
            self._jobs[job] = None
        else:
            self._jobs.pop(job, None)
        if self.is_full:
            min(self._jobs, key=_number).hurry()
        for changed in self._stages:
            changed()


def _number(job: Waiting) -> int:
    return job.number
