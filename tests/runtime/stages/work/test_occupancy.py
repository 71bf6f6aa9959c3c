"""Workers that all wait for memory."""

from __future__ import annotations

from asyncdata.runtime.stages.work.occupancy import Occupancy


class Job:
    """Notes that it was hurried."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.blocked = 0
        self.hurried = False

    def hurry(self) -> None:
        self.hurried = True


def test_the_earliest_job_goes_first_when_every_worker_waits() -> None:
    """As long as one worker goes on nobody is preferred; then the earliest waiting job is, and all stages are told."""
    occupancy = Occupancy(2)
    told: list[bool] = []
    occupancy.watch(lambda: told.append(occupancy.is_full))
    late, early = Job(7), Job(3)
    occupancy.change(late, 1)
    assert not late.hurried
    occupancy.change(early, 1)
    assert early.hurried
    assert not late.hurried
    occupancy.change(early, -1)
    assert told == [False, True, False]


def test_a_job_waits_as_often_as_its_tasks_do() -> None:
    """Two tasks of one job hold two workers; whoever stopped watching is not told."""
    occupancy = Occupancy(2)
    told: list[bool] = []

    def tell() -> None:
        told.append(occupancy.is_full)

    occupancy.watch(tell)
    job = Job(0)
    occupancy.change(job, 1)
    occupancy.change(job, 1)
    assert (job.blocked, job.hurried) == (2, True)
    occupancy.forget(tell)
    occupancy.change(job, -1)
    occupancy.change(job, -1)
    assert told == [False, True]
    assert not occupancy.is_full
