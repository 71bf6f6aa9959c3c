"""Staging memory: a device that copies as late as it may never copies what was overwritten, or is used too early."""

from __future__ import annotations

import gc
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.feed.even import Least
from asyncdata.feed.feeding import Feed
from asyncdata.feed.ranks import Division
from asyncdata.feed.run import Hand
from asyncdata.feed.staging import Staging, StagingRing
from asyncdata.testing import assert_no_leaks
from tests.patience import wait_until
from tests.samples import samples


class LateDevice:
    """Carries its orders out in their order, but only when it must, or when chance says so."""

    def __init__(self, slots: int, chance: random.Random) -> None:
        self._lock = threading.Lock()
        self.stagers: set[threading.Thread] = set()
        self.memory = [np.zeros(0, np.int64) for _ in range(slots)]
        self._chance = chance
        self._orders: deque[Callable[[], None]] = deque()
        self.told = self.done = 0

    def _until(self, number: int) -> None:
        while self.done < number:
            self._orders.popleft()()
            self.done += 1

    def stage(self, slot: int, batch: Any) -> Any:
        """The host copies at once."""
        self.stagers.add(threading.current_thread())
        if len(self.memory[slot]) < len(batch):
            self.memory[slot] = np.zeros(len(batch), np.int64)
        self.memory[slot][: len(batch)] = batch
        return self.memory[slot][: len(batch)]

    def start(self, staged: Any) -> tuple[Any, int]:
        """The device reads the staging memory later."""
        arriving = np.full(len(staged), -1)
        with self._lock:
            self._orders.append(lambda: np.copyto(arriving, staged))
            self.told += 1
            self._until(self._chance.randint(self.done, self.told))
            return arriving, self.told

    def wait(self, event: int) -> None:
        """The host waits for the device."""
        with self._lock:
            self._until(event)

    def use_behind(self, event: int, batch: Any) -> None:  # noqa: ARG002 -- of another signature, `Copies`
        """The trainer's orders come behind the copy; here the trainer reads at once."""
        with self._lock:
            self._until(event)


class LateFeed(Feed):
    """Feeds such a device."""

    def __init__(self, dataset: ad.Dataset, device: LateDevice, depth: int) -> None:
        super().__init__(dataset, Division(rank=0, world=1, shard=True, even="drop"))
        self._slots = StagingRing(device, depth + 1)
        self._depth = depth

    def _distributed(self) -> tuple[int, int] | None:
        return None

    def _check_process(self) -> None:
        """Any process will do."""

    def _least(self) -> Least:
        raise AssertionError

    def _hand(self) -> Hand:
        return Staging(self._slots, self._depth)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(20, 500)))
def test_what_arrives_is_what_was_sent(seed: int) -> None:
    """Over epochs of batches of several sizes, left at random: each batch arrives once, in order, unchanged."""
    chance = random.Random(seed)
    depth, size = chance.randrange(1, 4), chance.randrange(1, 6)
    ds = ad.Dataset.range(chance.randrange(30)).batch(size)
    device = LateDevice(depth + 1, chance)
    feed = LateFeed(ds, device, depth)
    for epoch in range(3):
        expected = [batch.tolist() for batch in ds.iterator(epoch=epoch)]
        leave = chance.randint(1, max(len(expected), 1)) if chance.random() < 0.5 else len(expected)
        found = []
        for batch in feed:
            found.append(batch)
            if len(found) == leave:
                break
        # Read late, as a trainer that keeps batches does.
        assert [batch.tolist() for batch in found] == expected[: len(found)]
        assert len(found) == leave or not expected
        rest = LateFeed(ds, LateDevice(depth + 1, chance), depth)
        state = feed.state_dict()
        rest.load_state_dict(state)
        assert [b.tolist() for b in rest] == (expected[len(found) :] if state["epoch"] == epoch else expected)


def test_so_many_are_on_their_way() -> None:
    """As many as `depth` says while the trainer uses one; the state counts none of them."""
    device = LateDevice(3, random.Random(0))
    feed = LateFeed(ad.Dataset.range(100).batch(4), device, 2)
    batches = iter(feed)
    for step in range(1, 10):
        next(batches)
        wait_until(lambda: device.told == step + 2)  # noqa: B023 -- it is asked here
        assert feed.state_dict()["steps"] == step


@pytest.mark.parametrize("left", ["ended", "closed", "dropped"])
def test_a_thread_of_the_epoch_copies(left: str) -> None:
    """The trainer's own would wait for copies; it ends with the epoch, or when the trainer leaves."""
    device = LateDevice(3, random.Random(0))
    feed = LateFeed(ad.Dataset.range(40).batch(4), device, 2)
    with assert_no_leaks():
        batches = iter(feed)
        next(batches)
        if left == "ended":
            list(batches)
        elif left == "closed":
            feed.close()
            assert not any(thread.is_alive() for thread in device.stagers)
        del batches
        gc.collect()
        wait_until(lambda: not any(thread.is_alive() for thread in device.stagers))
    assert threading.current_thread() not in device.stagers
    assert len(device.stagers) == 1


class FullDevice(LateDevice):
    """Has room for four batches."""

    def start(self, staged: Any) -> tuple[Any, int]:
        """Fails from then on."""
        if self.told == 4:
            raise MemoryError("no room on the device")
        return super().start(staged)


def test_an_error_of_the_device_belongs_to_its_batch() -> None:
    """Those before it arrive, and a state goes on with the batch itself."""
    feed = LateFeed(ad.Dataset.range(40).batch(4), FullDevice(3, random.Random(0)), 2)
    batches = iter(feed)
    assert [next(batches)[0] for _ in range(4)] == [0, 4, 8, 12]
    with pytest.raises(MemoryError, match="no room on the device"):
        next(batches)
    rest = LateFeed(ad.Dataset.range(40).batch(4), LateDevice(3, random.Random(0)), 2)
    rest.load_state_dict(feed.state_dict())
    assert [batch[0] for batch in rest] == [16, 20, 24, 28, 32, 36]
