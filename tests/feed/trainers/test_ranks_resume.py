"""Real trainers on two ranks with uneven parts: as many steps on both, exact resumes, and another number of ranks."""

from __future__ import annotations

import socket
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.feed.installed import needed_here
from tests.feed.rank_processes import answers_of
from tests.feed.trainers.ranks import CRASHED, STEPS, STOP, places
from tests.feed.trainers.record import EPOCHS, KEPT, UNEVEN, Kind
from tests.feed.trainers.test_resume import QUIET

ALONE = -(-len(KEPT) // 2)
"""Steps of an epoch in a single process."""


def launched(trainer: str, folder: Path, mode: str, world: int) -> list[dict[str, Any]]:
    """What each rank saw. The variables are those that torchrun sets; a single process has none."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    commands = []
    for number in map(str, range(world)):
        sizes = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        ranks = {"RANK": number, "LOCAL_RANK": number, **sizes, **meeting} if world > 1 else {}
        commands.append((("tests.feed.trainers.ranks", trainer, str(folder), mode), {**QUIET, **ranks}))
    return answers_of(commands)


def numbers(steps: list[Any]) -> list[float]:
    """All that were trained on."""
    return list(chain(*(batch for batch, _ in steps)))


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["accelerate", "lightning", "transformers"])
def test_ranks_end_together_and_go_on_exactly(trainer: str, tmp_path: Path) -> None:
    """With "drop", "pad" and "agree": from two ranks to two, also after a crash, from two to one, from one to two."""
    needed_here(trainer)
    first = launched(trainer, tmp_path, "first", 2)
    again = launched(trainer, tmp_path, "again", 2)
    (alone,) = launched(trainer, tmp_path, "alone", 1)
    joined = launched(trainer, tmp_path, "joined", 2)
    for kind in UNEVEN:
        whole = [rank["whole"] for rank in again] if kind == CRASHED else [rank[kind] for rank in first]
        check_steps(kind, whole)
        for before, after, expected in zip(first, again, whole, strict=True):
            if kind == CRASHED:
                assert before[kind] == expected[:STOP]
            for step in places(kind):
                assert after[kind][str(step)] == expected[step:]
        rest, single = alone[kind]
        used = [value for rank in whole for value in numbers(rank[:STOP])]
        assert sorted(used + numbers(rest[:-ALONE])) == KEPT
        assert sorted(numbers(rest[-ALONE:])) == KEPT
        assert len(single) == EPOCHS * ALONE
        rests = [rank[kind] for rank in joined]
        assert len({len(rank) for rank in rests}) == 1
        here = numbers(single[:STOP]) + [value for rank in rests for value in numbers(rank[: -STEPS[kind]])]
        assert len(here) == len(set(here))
        if kind == "pad":
            assert sorted(here) == KEPT


def check_steps(kind: Kind, ranks: list[list[Any]]) -> None:
    """Both ranks take the same number of steps in each epoch, and no number is given twice."""
    assert [len(steps) for steps in ranks] == [EPOCHS * STEPS[kind]] * 2
    for begin in range(0, EPOCHS * STEPS[kind], STEPS[kind]):
        given = [value for steps in ranks for value in numbers(steps[begin : begin + STEPS[kind]])]
        assert len(given) == len(set(given))
        if kind == "pad":
            assert sorted(given) == KEPT
