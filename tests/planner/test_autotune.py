"""The tuner: on every kind of work it comes near the best fixed settings, soon, and loses nothing to the defaults."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from asyncdata.planner.autotune import CALLS, TIMES, Autotuner, Interval, KnobRange, Use, tasks, workers
from tests.planner.knob_simulation import WORKERS, Step, Workload, run
from tests.samples import samples

SECONDS = 40.0
FILES = KnobRange(first=0, most=32)
MORE = KnobRange(first=16, most=1024)
TASKS = tasks(2)

WORKLOADS = {
    "link-bound": Workload(steps=[Step(bounds=FILES, beside=16, latency_s=0.05, most=200), Step(bounds=CALLS)]),
    "distant small files": Workload(steps=[Step(bounds=FILES, beside=1, latency_s=0.08), Step(latency_s=0.0001)]),
    "decode-bound": Workload(steps=[Step(bounds=TASKS, latency_s=0.004, cpu_s=0.004)]),
    "consumer-bound": Workload(steps=[Step(bounds=CALLS, latency_s=0.01)], consumer_s=0.002),
    "tiny records": Workload(steps=[Step(bounds=FILES, beside=16, latency_s=0.0002, loop_s=2e-5)]),
    "huge records": Workload(
        steps=[Step(bounds=CALLS, latency_s=0.5, nbytes=20 << 20)], consumer_s=0.005, room_bytes=4 << 30
    ),
    "huge records, little memory": Workload(
        steps=[Step(bounds=CALLS, latency_s=0.5, nbytes=20 << 20)], room_bytes=500 << 20
    ),
    "sleeping async map": Workload(steps=[Step(bounds=CALLS, latency_s=0.1, loop_s=1e-4)]),
    "slow sleeping async map": Workload(steps=[Step(bounds=MORE, latency_s=0.7, loop_s=1e-3)]),
    "sleeping async map with wide bounds": Workload(steps=[Step(bounds=MORE, latency_s=0.4, loop_s=5e-4)]),
    "a server with a limit": Workload(steps=[Step(bounds=CALLS, latency_s=0.1, most=400)]),
    "a server that is full": Workload(steps=[Step(bounds=CALLS, latency_s=0.1, most=160)]),
    "two maps that compete": Workload(
        steps=[Step(bounds=CALLS, latency_s=0.1, loop_s=5e-4), Step(bounds=CALLS, latency_s=0.05, loop_s=5e-4)]
    ),
    "two maps on workers": Workload(
        steps=[Step(bounds=TASKS, latency_s=0.01, cpu_s=0.002), Step(bounds=TASKS, latency_s=0.02, cpu_s=0.003)]
    ),
    "bursts": Workload(
        steps=[Step(bounds=TIMES, latency_s=0.01, beside=5, queue=lambda value: 50.0 * value, bursts=True)],
        consumer_s=0.001,
        pause=(1.0, 0.5),
    ),
    "slower half-way": Workload(
        steps=[Step(bounds=CALLS, latency_s=0.01, loop_s=5e-4)],
        later=[Step(bounds=CALLS, latency_s=0.2, loop_s=5e-4)],
        consumer_s=0.001,
    ),
    "faster half-way": Workload(
        steps=[Step(bounds=CALLS, latency_s=0.2, loop_s=5e-4)],
        later=[Step(bounds=CALLS, latency_s=0.01, loop_s=5e-4)],
        consumer_s=0.001,
    ),
    "decode-bound, sixteen workers": Workload(
        steps=[Step(bounds=tasks(16), latency_s=0.004, cpu_s=0.004)], cores=16, workers=16
    ),
    "workers that wait": Workload(steps=[Step(bounds=tasks(16), latency_s=0.05, asleep_s=0.05)], workers=16),
    "decoding for a consumer": Workload(
        steps=[Step(bounds=tasks(16), latency_s=0.004, cpu_s=0.004)], cores=16, workers=16, consumer_s=0.0012
    ),
    "decoding behind a link": Workload(
        steps=[Step(latency_s=0.05, beside=100, most=300), Step(bounds=tasks(16), latency_s=0.008, cpu_s=0.008)],
        cores=16,
        workers=16,
    ),
    "decoding becomes dear": Workload(
        steps=[Step(bounds=tasks(16), latency_s=0.004, cpu_s=0.004)],
        later=[Step(bounds=tasks(16), latency_s=0.018, cpu_s=0.018)],
        cores=16,
        workers=16,
        consumer_s=0.0012,
    ),
}
ENOUGH_WORKERS = {"decoding for a consumer": 4, "decoding behind a link": 3}
"""What is used of sixteen."""


def sweep(workload: Workload) -> list[dict[int, int]]:
    """Fixed settings to compare with."""
    ranges = [
        (number, sorted({*(min(4**power, step.bounds.most) for power in range(6)), step.bounds.first}))
        for number, step in enumerate(workload.steps)
        if step.bounds is not None
    ]
    if workload.workers:
        ranges.append((WORKERS, [2**power for power in range(workload.workers.bit_length())]))
    return [
        {number: value for (number, _), value in zip(ranges, chosen, strict=True)}
        for chosen in itertools.product(*(values for _, values in ranges))
    ]


@pytest.mark.sampled
@pytest.mark.parametrize("name", WORKLOADS)
def test_it_comes_near_the_best_fixed_settings_within_ten_seconds(name: str) -> None:
    """From ten seconds after the beginning, or a change, on: at least 0.95 of the best of a sweep."""
    workload = WORKLOADS[name]
    half = SECONDS / 2
    limit = workload.room_bytes
    for window in ((10.0, half), (half + 10.0, SECONDS)):
        best = 0.0
        for settings in sweep(workload):
            fixed = run(workload, SECONDS, 0, settings)
            if fixed.most_bytes <= limit:
                best = max(best, fixed.rate(*window))
        for seed in range(samples(3, 50)):
            assert run(workload, SECONDS, seed).rate(*window) >= 0.95 * best, (window, seed)


@pytest.mark.sampled
@pytest.mark.parametrize("name", WORKLOADS)
def test_it_loses_nothing_to_the_defaults(name: str) -> None:
    """With everything that trials cost, the whole run is at most 3 % slower than one with the defaults."""
    workload = WORKLOADS[name]
    for seed in range(samples(5, 100)):
        default = run(workload, SECONDS, seed, {}).rate(0, SECONDS)
        assert run(workload, SECONDS, seed).rate(0, SECONDS) >= 0.97 * default, seed


@pytest.mark.parametrize("name", ENOUGH_WORKERS)
def test_workers_that_bring_nothing_are_given_back(name: str) -> None:
    """Within a minute at most twice as many are left as are in use."""
    for seed in range(samples(5, 100)):
        found = run(WORKLOADS[name], 60.0, seed).values[str(WORKERS)]
        assert ENOUGH_WORKERS[name] <= found <= 2 * ENOUGH_WORKERS[name], seed


def test_nothing_is_given_back_while_nobody_asks_for_elements() -> None:
    """A pause says nothing about what is needed behind it."""
    tuner = Autotuner()
    assert tuner.add("w", workers(8)) == 8
    use = Use(done=1000, awaited=0.0, held=0.0)
    assert not any(tuner.decide(Interval(seconds=0.25, waiting=0.0, uses={"w": use}, room_bytes=0)) for _ in range(400))
    done = [
        tuner.decide(
            Interval(
                seconds=0.25,
                waiting=0.0,
                uses={"w": Use(done=1000 + 50 * number, awaited=0.0, held=0.0)},
                room_bytes=0,
            )
        )
        for number in range(40)
    ]
    assert {"w": 6} in done


@pytest.mark.parametrize("seed", range(samples(20, 500)))
def test_whatever_is_seen_knobs_stay_where_they_may_stand(seed: int) -> None:
    """One knob at a time, within its bounds and the memory that there is, and none while requests ramp up."""
    rng = Random(seed)
    knobs = {"a": CALLS, "b": FILES, "c": tasks(rng.randint(1, 4)), "d": TIMES, "e": workers(rng.randint(1, 9))}
    tuner = Autotuner()
    values = {name: tuner.add(name, bounds, rng.choice([None, 1000, 3])) for name, bounds in knobs.items()}
    done = dict.fromkeys(knobs, 0)
    for _ in range(400):
        room, each = rng.choice([0, 1 << 20, 1 << 40]), rng.choice([1, 1 << 16])
        done = {name: count + rng.choice([0, 1, 20, 5000]) for name, count in done.items()}
        uses = {
            name: Use(done=done[name], awaited=rng.random(), held=rng.random(), busy=rng.random(), bytes_each=each)
            for name in knobs
            if rng.random() < 0.99
        }
        is_ramping = rng.random() < 0.05
        turned = tuner.decide(
            Interval(seconds=0.25, waiting=rng.random(), uses=uses, room_bytes=room, is_ramping=is_ramping)
        )
        assert len(turned) <= (0 if is_ramping else 1)
        for name, value in turned.items():
            assert knobs[name].lowest <= value <= knobs[name].most
            assert (value - values[name]) * each <= room or tuner.why(name).endswith("too few")
            assert tuner.why(name)
        values.update(turned)
