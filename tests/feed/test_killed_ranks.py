"""Ranks that are killed at any step and moment: all go on, take the same steps, and give no sample twice."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.feed.installed import needed_here
from tests.feed.killed_ranks import BATCH, COUNTS, EPOCHS, EVEN, epochs_of, given, own
from tests.feed.plain import Meeting, on_all_ranks, plain
from tests.feed.rank_processes import answers_of
from tests.samples import samples

WORLDS = {"torch": 4, "jax": 2}
KILLS = samples(2, 10)


def expected(world: int, even: Any) -> list[list[list[Any]]]:
    """By rank, what a run that nobody interrupts is given, from ranks that are threads."""
    meeting = Meeting(world)

    def run(rank: int) -> list[list[Any]]:
        fed = plain(own(rank), rank, meeting, world=world, even=even, shard=False)
        return [[epoch, given(batch)] for epoch, batch in epochs_of(fed)]

    return on_all_ranks(world, run)


@pytest.mark.parametrize("framework", WORLDS)
@pytest.mark.parametrize("seed", range(samples(1, 12)))
def test_killed_ranks_go_on_together(framework: str, seed: int, tmp_path: Path) -> None:
    """Each has the batches of an uninterrupted run; all states of a step know the same of the votes before it."""
    needed_here(framework)
    world = WORLDS[framework]
    words = ("tests.feed.killed_ranks", framework, str(world), str(tmp_path), str(seed), str(KILLS))
    (found_by,) = answers_of([(words, {"GLOO_SOCKET_IFNAME": "lo", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""})])
    ranks: list[list[Any]] = found_by["ranks"]
    batches = [-(-count // BATCH) for count in COUNTS[:world]]
    for even in EVEN:
        steps = EPOCHS * (max(batches) if even == "pad" else min(batches))
        found: list[list[Any]] = [[step["used"][even] for step in rank][:steps] for rank in ranks]
        assert [len(rank) for rank in found] == [steps] * world
        assert not any(step["used"][even] for rank in ranks for step in rank[steps:])
        assert found == expected(world, even)
        for epoch in range(EPOCHS):
            numbers = list(chain(*(used for rank in found for number, used in rank if number == epoch)))
            assert len(set(numbers)) == len(numbers)
            if even == "pad":
                assert len(numbers) == sum(COUNTS[:world])
        for states in zip(*([step["states"][even]["agreed"] for step in rank] for rank in ranks), strict=True):
            assert len(set(map(str, states))) == 1
