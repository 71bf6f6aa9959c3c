"""Where a parser runs: on every kind of work it comes near the better place, soon, and loses nothing to the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import pytest

from asyncdata.planner.placement import LOOP, WORKERS, Look, Placement, reason_to_move
from tests.samples import samples

SECONDS = 60.0
TICK_S = 0.25
START_S = 0.4
"""Until workers have started; the loop works meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What rows cost, in microseconds.

    Attributes:
        parse: Of the parser, wherever it runs.
        rest: Of all other steps on the loop.
        hand: What the loop has to do instead of parsing where workers do it.
        source: Rows per second that storage delivers.
        consumer: Of the consumer's work on a row.
        workers: Processors that workers can have.
        jitter: How much the source's rate varies.
        others: Of the workers' time: what other steps take.
    """

    parse: float
    rest: float
    hand: float = 0.5
    source: float = math.inf
    consumer: float = 0.0
    workers: float = 2.0
    jitter: float = 0.0
    others: float = 0.0

    def rate(self, place: int, rng: Random | None = None) -> float:
        """Rows per second."""
        on_loop = self.parse if place == LOOP else self.hand
        limits = [1e6 / (self.rest + on_loop), self.source]
        if rng is not None and self.jitter:
            limits[1] *= rng.lognormvariate(0, self.jitter)
        if self.consumer:
            limits.append(1e6 / self.consumer)
        if place == WORKERS:
            limits.append(1e6 * self.workers * (1 - self.others) / self.parse)
        return min(limits)


WORKS: dict[str, tuple[Work, ...]] = {
    "many values": (Work(parse=3.3, rest=1.0),),
    "few values": (Work(parse=0.6, rest=1.0, hand=0.9),),
    "a small part of the loop's work": (Work(parse=1.0, rest=4.0),),
    "payloads that are dear to hand over": (Work(parse=6.0, rest=20.0, hand=25.0),),
    "handing over costs as much": (Work(parse=3.0, rest=3.0, hand=2.9),),
    "one processor": (Work(parse=3.3, rest=1.0, workers=0.4),),
    "workers are busy": (Work(parse=3.3, rest=1.0, others=0.95),),
    "link-bound": (Work(parse=5.0, rest=5.0, source=30_000, jitter=0.2),),
    "link-bound, a busy loop": (Work(parse=5.0, rest=5.0, source=90_000, jitter=0.1),),
    "consumer-bound": (Work(parse=5.0, rest=5.0, consumer=30.0),),
    "records grow half-way": (Work(parse=1.0, rest=3.0, consumer=8.0), Work(parse=20.0, rest=3.0, consumer=8.0)),
    "records shrink half-way": (Work(parse=20.0, rest=3.0, consumer=8.0), Work(parse=1.0, rest=3.0, consumer=8.0)),
    "the link opens half-way": (Work(parse=5.0, rest=1.0, source=10_000), Work(parse=5.0, rest=1.0)),
}


def run(works: tuple[Work, ...], seed: int, place: int | None = None, begin: int = LOOP) -> tuple[list[float], int]:
    """Rows by tick, and how often the parser moved; with a fixed place, or one that is found."""
    rng = Random(seed)
    placement = Placement(begin)
    started_s = -1.0
    rows: list[float] = []
    moves = 0
    for tick in range(round(SECONDS / TICK_S)):
        now = tick * TICK_S
        work = works[tick * len(works) // round(SECONDS / TICK_S)]
        wished = placement.place if place is None else place
        if wished == WORKERS and started_s < 0:
            started_s = now + START_S
        at = WORKERS if wished == WORKERS and now >= started_s else LOOP
        rate = work.rate(at, rng) * rng.lognormvariate(0, 0.03)
        rows.append(rate * TICK_S)
        on_loop = work.rest + (work.parse if at == LOOP else work.hand)
        look = Look(
            seconds=TICK_S,
            place=at,
            rows=int(rows[-1]),
            waiting_s=TICK_S * max(0.0, 1 - rate * work.consumer / 1e6),
            loop_s=TICK_S * min(1.0, rate * on_loop / 1e6),
            own_s=TICK_S * rate * work.parse / 1e6,
            workers=work.others + (rate * work.parse / 1e6 / work.workers if at == WORKERS else 0),
        )
        moves += placement.decide(look, rests=rng.random() < 0.02)
    return rows, moves


def total(rows: list[float], begin_s: float, end_s: float) -> float:
    """Rows between two times."""
    return sum(rows[round(begin_s / TICK_S) : round(end_s / TICK_S)])


@pytest.mark.parametrize("begin", [LOOP, WORKERS])
@pytest.mark.parametrize("name", WORKS)
def test_it_comes_near_the_better_place_within_ten_seconds(name: str, begin: int) -> None:
    """From ten seconds after the beginning, or a change, on: 0.95 of the better fixed place, wherever it began."""
    works = WORKS[name]
    part = SECONDS / len(works)
    for number in range(len(works)):
        window = number * part + 10, (number + 1) * part
        best = max(total(run(works, 0, place)[0], *window) for place in (LOOP, WORKERS))
        for seed in range(samples(5, 200)):
            assert total(run(works, seed, begin=begin)[0], *window) >= 0.95 * best, (window, seed)


@pytest.mark.parametrize("name", WORKS)
def test_it_loses_nothing_to_the_loop(name: str) -> None:
    """With everything that trials cost, the whole run is at most 3 % slower than one on the loop; moves are few."""
    for seed in range(samples(5, 200)):
        fixed, _ = run(WORKS[name], seed, LOOP)
        found, moves = run(WORKS[name], seed)
        assert sum(found) >= 0.97 * sum(fixed), seed
        assert moves <= SECONDS / 5, seed


@pytest.mark.parametrize("name", ["link-bound", "consumer-bound", "workers are busy"])
def test_nothing_is_started_where_the_loop_does(name: str) -> None:
    """Workers that are not needed are not started."""
    for seed in range(samples(5, 200)):
        assert run(WORKS[name], seed)[1] == 0


def test_what_has_room_goes_back_to_the_loop() -> None:
    """The loop costs least: nobody has to wait for it to be chosen."""
    for name in ("link-bound", "consumer-bound"):
        assert run(WORKS[name], 1, begin=WORKERS)[1] == 1
    calm = Look(seconds=1.0, place=WORKERS, rows=100, loop_s=0.3, own_s=0.3)
    assert reason_to_move(calm).startswith("the loop has room")
    assert not reason_to_move(Look(seconds=1.0, place=WORKERS, rows=100, loop_s=0.3, own_s=0.3, delayed_s=0.3))
    assert not reason_to_move(Look(seconds=1.0, place=LOOP, rows=100, loop_s=0.99, own_s=0.9))


def test_a_trial_that_never_begins_ends() -> None:
    """Workers that do not start leave the parser, and the other settings, where they were."""
    placement = Placement()
    busy = Look(seconds=0.25, rows=1000, waiting_s=0.2, loop_s=0.25, own_s=0.2)
    moves = [tick for tick in range(90) if placement.decide(busy)]
    assert len(moves) == 2
    assert moves[0] < 10
    assert (placement.place, placement.is_trying) == (LOOP, False)


@pytest.mark.parametrize("seed", range(samples(20, 1000)))
def test_whatever_is_seen_a_trial_is_judged(seed: int) -> None:
    """One move at a time, then a judgement; never a move while other things change."""
    rng = Random(seed)
    placement = Placement(rng.choice([LOOP, WORKERS]))
    at = placement.place
    for _ in range(500):
        at = placement.place if rng.random() < 0.8 else at
        rests = rng.random() < 0.1
        before, was_trying = placement.place, placement.is_trying
        moved = placement.decide(
            Look(
                seconds=rng.choice([0.25, 0.3, 3.0]),
                place=at,
                rows=rng.choice([0, 1, 1000]),
                waiting_s=rng.random(),
                loop_s=rng.random(),
                delayed_s=rng.choice([0, rng.random()]),
                own_s=rng.random(),
                workers=rng.random(),
            ),
            rests=rests,
        )
        assert moved == (placement.place != before)
        assert not (moved and rests and at == before)
        assert placement.is_trying == (not was_trying if moved else placement.is_trying)
        assert placement.why
