"""There are as many receiving loops as bring more, and their number changes nothing but the rate."""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple

import pytest

import asyncdata as ad
from asyncdata.planner.autotune import Autotuner, Interval, Use, receivers
from asyncdata.runtime.tuning.receiver_count import RECEIVERS, Load, held
from asyncdata.storage import receivers as receivers_module
from asyncdata.storage.receivers import Receivers
from fake_gcs import FakeGCS
from tests.patience import wait_until
from tests.samples import samples

CPUS = 4
TICK_S = 0.25


@pytest.mark.parametrize(
    ("busy", "idle", "part"),
    [([0.9], 1.5, 0.9), ([0.9], 0.5, 0), ([0.6], 4, 0), ([0.9, 0.8], 1, 0.8), ([0.9, 0.2], 4, 0), ([], 4, 0)],
)
def test_one_more_loop_needs_busy_ones_and_a_processor(busy: list[float], idle: float, part: float) -> None:
    """All that there are must be busy."""
    assert held(busy, idle) == part


class Net(NamedTuple):
    """A machine that receives, in MB/s.

    Attributes:
        link: What the network lets through.
        loop: What one loop can receive.
        together: What all loops can; where they hinder each other that is no more than one of them does.
        cpus: Processors that nothing else needs.
    """

    link: float
    loop: float = 1000.0
    together: float = 1e9
    cpus: float = 8.0


@pytest.mark.parametrize(
    ("net", "later", "first", "last"),
    [
        (Net(300), None, {1}, {1}),
        (Net(2500), None, {4}, {4}),
        (Net(50_000), None, {8}, {8}),
        (Net(50_000, cpus=1.5), None, {1, 2}, {1, 2}),
        (Net(50_000, cpus=0.5), None, {1}, {1}),
        (Net(3000, together=1000), None, {1, 2}, {1, 2}),
        (Net(2500), Net(200), {4}, {1}),
        (Net(300), Net(1800), {1}, {2, 4}),
    ],
)
def test_as_many_loops_as_bring_more(net: Net, later: Net | None, first: set[int], last: set[int]) -> None:
    """In a simulation with noise; a network that becomes slow gets back what it does not need."""
    for seed in range(samples(5, 200)):
        draw = random.Random(seed)
        tuner = Autotuner()
        value = tuner.add(RECEIVERS, receivers(8))
        received = 0.0
        seen: deque[list[float]] = deque(maxlen=4)
        for tick in range(1200):
            now = later if later is not None and tick >= 600 else net
            rate = min(now.link, value * now.loop, now.together) * draw.lognormvariate(0, 0.03)
            received += rate * TICK_S
            # Loops that hinder each other wait for one another, and are seen to be on a processor meanwhile.
            each = min(1.0, max(rate / now.loop / value, float(now.together < now.link)))
            if seen and len(seen[0]) != value:
                seen.clear()
            seen.append([each] * value)
            busy = [sum(column) / len(seen) for column in zip(*seen, strict=True)]
            use = Use(
                done=int(received), awaited=1.0, held=held(busy, now.cpus - sum(busy)), busy=sum(busy) / len(busy)
            )
            interval = Interval(seconds=TICK_S, waiting=1.0, uses={RECEIVERS: use}, room_bytes=1 << 30)
            value = tuner.decide(interval).get(RECEIVERS, value)
            if tick == 100:
                assert value in first, seed
        assert value in last, seed


def test_a_pipeline_gets_more_loops_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all loops look busy; the next iteration begins with them, and a given number stays."""
    seconds = 0.0

    def now(these: Receivers) -> Load:
        nonlocal seconds
        seconds += 1.0
        return Load(seconds, dict.fromkeys(range(these.count), seconds), 0.0, 3 * seconds)

    monkeypatch.setattr(Load, "now", now)
    monkeypatch.setattr(receivers_module, "usable_cpus", lambda: CPUS)
    with FakeGCS(buckets=["bucket"]) as server:
        for number in range(40):
            server.put("bucket", f"{number:02}", random.Random(number).randbytes(5_000_000))
        storage = {"gs": {"endpoint_url": server.url, "token": "anon"}}
        files = ad.Dataset.list_files("gs://bucket/*", shuffle=False).repeat()
        ds = files.interleave(lambda url: ad.FixedLengthRecordDataset(url, 1000), 8).batch(500)
        with ad.Runtime(ad.Options(storage=storage, num_workers=0)) as runtime:
            with ds.iterator() as it:
                for number, _ in enumerate(it):
                    # Not for every batch: a consumer that takes longer than the next batch waits for nothing.
                    if number % 50 == 0 and it.stats().fetch["receivers"] > 1:
                        break
                (knob,) = (each for each in it.stats().knobs if each.counts == RECEIVERS)
                assert knob.default == 1
                assert 1 < knob.value <= CPUS
            # More may have turned out to bring nothing meanwhile.
            (last,) = (each for each in it.stats().knobs if each.counts == RECEIVERS)
            with ds.iterator() as it:
                next(it)
                (knob,) = (each for each in it.stats().knobs if each.counts == RECEIVERS)
                assert knob.value == last.value
            wait_until(lambda: runtime.receivers.count == last.value)
        with ad.Runtime(ad.Options(storage=storage, num_workers=0, receivers=2)), ds.iterator() as it:
            next(it)
            assert all(each.counts != RECEIVERS for each in it.stats().knobs)
