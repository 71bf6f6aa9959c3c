"""feed.torch in processes that train together: real gloo groups, uneven parts."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.feed.installed import needed
from tests.feed.rank_processes import answers_of

needed("torch")
from tests.feed.torch_rank import BATCH, COUNTS, EVEN, SHORT_S  # noqa: E402 -- imports torch


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process was given."""
    world = len(COUNTS)
    meeting: Path = tmp_path_factory.mktemp("gloo") / "meeting"
    here = {"WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    words = ("tests.feed.torch_rank", str(meeting))
    return answers_of([(words, {**here, "RANK": str(rank)}) for rank in range(world)])


@pytest.mark.parametrize("even", EVEN)
def test_all_processes_take_the_same_number_of_steps(even: str, ranks: list[dict[str, Any]]) -> None:
    """In each epoch and after a resume; nothing is given twice but by "repeat", which gives everything."""
    batches = [-(-count // BATCH) for count in COUNTS]
    steps = max(batches) if even in ("repeat", "pad") else min(batches)
    for epoch in range(2):
        found = [rank[even][epoch] for rank in ranks]
        assert [len(batches) for batches in found] == [steps] * len(ranks)
        values = list(chain(*chain(*found)))
        if even != "repeat":
            assert len(set(values)) == len(values)
        if even in ("repeat", "pad"):
            assert len(set(values)) == sum(COUNTS)
    rests = [rank[f"{even} again"] for rank in ranks]
    assert [len(rest) for rest in rests] == [max(steps - 2, 0)] * len(ranks)


def test_the_environment_and_the_group_say_which_part_is_whose(ranks: list[dict[str, Any]]) -> None:
    """Each element is given to one process, and every process takes as many steps."""
    assert sorted(chain(*chain(*(rank["sharded"] for rank in ranks)))) == list(range(90))
    assert len({len(rank["sharded"]) for rank in ranks}) == 1


def test_one_checkpoint_has_the_positions_of_all(ranks: list[dict[str, Any]]) -> None:
    """One rank saves what all have said; each goes on with its own."""
    for rank in ranks:
        assert rank["all ranks"]["rest"] == rank["all ranks"]["expected"]
    both = [rank["all ranks"][part] for rank in ranks for part in ("first", "rest")]
    assert sorted(chain(*chain(*both))) == list(range(90))


def test_a_feed_closes_its_connections(ranks: list[dict[str, Any]]) -> None:
    """When nobody refers to it any more, so that a program may make as many as it likes, one after the other."""
    for rank in ranks:
        assert max(rank["descriptors"]) - rank["descriptors"][0] < len(ranks)


def test_a_process_that_fails_takes_the_others_along(ranks: list[dict[str, Any]]) -> None:
    """None waits for it."""
    assert ranks[0]["error"].startswith("ZeroDivisionError")
    for rank in ranks[1:]:
        assert rank["error"].startswith("PipelineError: another rank failed")


def test_a_process_that_leaves_is_missed_after_the_deadline(ranks: list[dict[str, Any]]) -> None:
    """The others say so, and end."""
    for rank in ranks[1:]:
        assert rank["left"].startswith("PipelineError: no answer from the other ranks (how many batches they have)")
        assert f"deadline_s={SHORT_S:g} seconds" in rank["left"]


def test_a_process_that_dies_is_missed(ranks: list[dict[str, Any]]) -> None:
    """In the middle of an epoch, at the beginning of another feed, and when states are asked for; nobody hangs."""
    for rank in ranks[1:]:
        for case, what in (("steps", "how many batches they have"), ("new", "whether they are there")):
            assert rank["died"][case].startswith(f"PipelineError: no answer from the other ranks ({what})")
        assert rank["died"]["states"].startswith("PipelineError: no answer from the other ranks (their states)")
