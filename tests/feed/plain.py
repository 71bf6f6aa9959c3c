"""A feed without a framework, and ranks that are threads of this process: what is the same for every framework."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import asyncdata as ad
from asyncdata.feed.even import Least
from asyncdata.feed.feeding import Feed
from asyncdata.feed.ranks import Division
from asyncdata.feed.run import Conversion, Hand

T = TypeVar("T")


class Meeting:
    """Where threads meet to find their least numbers; one that does not come breaks it for all.

    Args:
        world: How many threads come.
    """

    def __init__(self, world: int) -> None:
        self._lists: list[list[int]] = []
        self._found: list[int] = []
        self._barrier = threading.Barrier(world, self._compare)
        self.votes = 0
        self.steps: list[int] = []  # at which they were

    def _compare(self) -> None:
        self._found = [min(numbers) for numbers in zip(*self._lists, strict=True)]
        self.steps.append(self._found[2])
        self._lists = []
        self.votes += 1

    def least(self, numbers: list[int]) -> list[int]:
        """See `asyncdata.feed.even.Least`."""
        self._lists.append(numbers)
        self._barrier.wait(60)
        return self._found


class PlainFeed(Feed):
    """Hands batches out as they are."""

    def __init__(self, dataset: ad.Dataset, division: Division, meeting: Meeting | None = None) -> None:
        super().__init__(dataset, division)
        self._meeting = meeting

    def _distributed(self) -> tuple[int, int] | None:
        return None

    def _check_process(self) -> None:
        """Any process will do."""

    def _least(self) -> Least:
        assert self._meeting is not None
        return self._meeting.least

    def _hand(self) -> Hand:
        return Conversion(lambda batch: batch)


def plain(dataset: ad.Dataset, rank: int = 0, meeting: Meeting | None = None, **settings: Any) -> PlainFeed:
    """The feed of one rank."""
    known = {"rank": rank, "world": 1, "even": "drop", "shard": True}
    return PlainFeed(dataset, Division(**{**known, **settings}), meeting)


def on_all_ranks(world: int, run: Callable[[int], T]) -> list[T]:
    """What a function returns on each rank, the ranks being threads."""
    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(run, range(world)))
