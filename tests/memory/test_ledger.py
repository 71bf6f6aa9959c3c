"""The ledger never exceeds its limit, never stalls a pipeline, and says so truly when the limit is too small."""

from __future__ import annotations

import os
import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncdata.errors import MemoryLimitError, PipelineClosedError
from asyncdata.memory.accounts import Kind, State
from asyncdata.memory.ledger import Ledger
from tests.memory.pipelines import Piece, Plan, Simulation, Starved

SOAK = bool(os.environ.get("ASYNCDATA_SOAK"))


def random_plan(rng: Random, *, rowless: bool = True) -> Plan:
    """A small pipeline of any shape the contract allows."""
    rows = [0, 1, 1, 2, 3] if rowless else [1, 1, 2, 3]
    chunk = rng.choice([1, 4, 10])
    oversize = rng.choice([0.0, 0.0, 0.1, 0.4])

    def piece() -> Piece:
        if rng.random() < oversize:
            return Piece(rng.randint(chunk + 1, 5 * chunk), 1)
        return Piece(rng.randint(1, chunk), rng.choice(rows))

    shards = tuple(tuple(piece() for _ in range(rng.randint(0, 6))) for _ in range(rng.randint(0, 6)))
    tasks = rng.choice([0, 0, 1, 2, 3])
    outputs = tuple(rng.choice([1, 2, 3, 6, 12]) for _ in range(rng.randint(1, 4)))
    kept = rng.randint(0, 2)
    full = rng.random() < 0.5
    return Plan(
        shards=shards,
        chunk=chunk,
        cycle=rng.randint(1, 5),
        block=rng.randint(1, 3),
        sloppy=rng.random() < 0.4,
        shuffle=rng.choice([0, 0, 1, 3, 6]),
        batch=rng.randint(1, 5),
        tasks=tasks,
        ordered=rng.random() < 0.6,
        outputs=outputs,
        prefetch=rng.randint(1, 2),
        kept=kept,
        channel=rng.randint(1, 3),
        depth=rng.randint(0, 3),
        shuffle_reserve=rng.choice([0, 0, 5, 20]),
        batch_reserve=rng.choice([0, 0, 5, 20]),
        output_reserve=max(outputs) if full else rng.randint(0, max(outputs)),
        consumer_reserve=max(outputs) * (kept + 1) if full else rng.choice([0, 5]),
        slack=rng.choice([None, 0, 0, 3]),
    )


def expected(plan: Plan) -> list[tuple[int, int]]:
    """Every row once."""
    return [(n, i) for n, shard in enumerate(plan.shards) for i in range(sum(piece.rows for piece in shard))]


def finish(plan: Plan, limit: int, seed: int) -> Simulation:
    """Runs a plan, and sees all rows delivered, those of one shard in order where nothing reorders them."""
    simulation = Simulation(plan, limit, Random(seed))
    simulation.run()
    assert sorted(simulation.delivered) == expected(plan)
    if not plan.shuffle and (plan.ordered or not plan.tasks):
        for number in range(len(plan.shards)):
            rows = [index for shard, index in simulation.delivered if shard == number]
            assert rows == sorted(rows)
    return simulation


@given(st.integers(0, 1 << 48))
@settings(max_examples=60000 if SOAK else 1200, deadline=None, derandomize=not SOAK)
def test_enough_is_enough(seed: int) -> None:
    """At the limit that the plan needs, every run delivers every row: nothing stalls, nothing fails."""
    plan = random_plan(Random(seed))
    finish(plan, plan.enough(), seed)


@given(st.integers(0, 1 << 48))
@settings(max_examples=60000 if SOAK else 1200, deadline=None, derandomize=not SOAK)
def test_too_little_ends_with_a_true_verdict(seed: int) -> None:
    """Below that limit a run ends as well, or fails when nothing else could have happened, naming more as needed."""
    rng = Random(seed)
    plan = random_plan(rng, rowless=False)
    limit = rng.randint(plan.reserves, max(plan.reserves, plan.enough() - 1))
    for _ in range(100):
        try:
            finish(plan, limit, seed)
        except Starved as starved:
            assert limit < plan.enough()
            found = re.search(r"at least (\d+)", str(starved))
            assert found is not None
            assert limit < int(found[1]) <= plan.enough()
            limit = int(found[1])
        else:
            return
    pytest.fail("each limit that was named was too small")


@given(st.integers(0, 1 << 48))
@settings(max_examples=20000 if SOAK else 300, deadline=None, derandomize=not SOAK)
def test_plenty_is_used(seed: int) -> None:
    """With plenty of memory nothing is ever recalled and no ask within a reserve waits."""
    plan = random_plan(Random(seed))
    simulation = finish(plan, 20 * plan.enough() + 1000, seed)
    assert simulation.ledger.peak <= 20 * plan.enough() + 1000
