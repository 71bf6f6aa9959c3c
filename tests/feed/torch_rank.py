"""One of several processes that train together: ``python -m tests.feed.torch_rank FILE``, rank in the environment.

Prints a line of JSON: by name of a case, the numbers that this rank was given, or its error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch.distributed

import asyncdata as ad
from asyncdata import feed
from asyncdata.feed.ranks import Even

COUNTS = [7, 31, 12, 23]
BATCH = 4
SHORT_S = 1.0
EVEN: tuple[Even, ...] = ("drop", "repeat", "pad", "agree")


def own(rank: int) -> ad.Dataset:
    """So many numbers that no other rank has; nobody knows in advance how many."""
    numbers = ad.Dataset.range(1000 * rank, 1000 * rank + COUNTS[rank]).shuffle(64, seed=1)
    return numbers.filter(lambda _: True).batch(BATCH)


def given(batches: Any) -> list[list[int]]:
    """The numbers of each step that count; every step exchanges something, as training does."""
    found = []
    for element in batches:
        batch, mask = element if isinstance(element, list | tuple) else (element, None)
        torch.distributed.all_reduce(torch.ones(1))
        found.append((batch if mask is None else batch[mask]).tolist())
    return found


def cases(rank: int) -> dict[str, Any]:
    """What this rank was given, case by case."""
    found: dict[str, Any] = {}
    for even in EVEN:
        batches = feed.torch(own(rank), even=even, shard=False)
        found[even] = [given(batches), given(batches)]
        steps = iter(batches)
        for _ in range(2):
            next(steps)
        again = feed.torch(own(rank), even=even, shard=False)
        again.load_state_dict(json.loads(json.dumps(batches.state_dict())))
        found[f"{even} again"] = given(again)
    whole = ad.Dataset.range(90).shuffle(90, seed=1).filter(lambda _: True).batch(BATCH)
    found["sharded"] = given(feed.torch(whole, even="pad"))
    found["all ranks"] = through_one_checkpoint(rank, whole)
    found["descriptors"] = [after_a_feed(rank) for _ in range(6)]
    found["error"] = raised(feed.torch(own(rank).map(lambda batch: batch if rank else 1 // 0), shard=False))
    torch.distributed.barrier()
    leaving = feed.torch(own(rank).repeat(3), shard=False, deadline_s=SHORT_S)
    steps = iter(leaving)
    next(steps)
    if rank:  # rank 0 leaves its loop
        found["left"] = raised(steps)
    torch.distributed.barrier()
    return found


def after_a_feed(rank: int) -> int:
    """How many descriptors this process has behind the epoch of a feed that nobody refers to any more."""
    given(feed.torch(own(rank), shard=False))
    return len(os.listdir("/proc/self/fd"))


def missed() -> dict[str, str]:
    """What other ranks say when rank 0 has died, behind a step that all of them have taken."""

    def begun() -> tuple[Any, Any]:
        batches = feed.torch(own(torch.distributed.get_rank()).repeat(3), shard=False, deadline_s=SHORT_S)
        steps = iter(batches)
        next(steps)
        return batches, steps

    _, steps = begun()
    asked, _ = begun()
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        return {}
    return {
        "steps": raised(steps),
        "states": raised(asked.all_ranks().state_dict() for _ in range(1)),
        "new": raised(feed.torch(own(1), shard=False, deadline_s=SHORT_S)),
    }


def through_one_checkpoint(rank: int, whole: ad.Dataset) -> dict[str, Any]:
    """Two steps, a state that is saved by one rank for all, and the rest."""
    batches = feed.torch(whole, even="pad")
    steps = iter(batches)
    first = [batch[mask].tolist() for batch, mask in (next(steps), next(steps))]
    said: list[Any] = [json.dumps(batches.all_ranks().state_dict()) if rank == 0 else batches.all_ranks().state_dict()]
    torch.distributed.broadcast_object_list(said)
    again = feed.torch(whole, even="pad")
    again.all_ranks().load_state_dict(json.loads(said[0]))
    return {"first": first, "rest": given(again), "expected": given(steps)}


def raised(batches: Any) -> str:
    """The error of an iteration."""
    try:
        for _ in batches:
            pass
    except Exception as error:  # noqa: BLE001 -- told to the test
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    me, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=me, world_size=world)
    found = cases(me)
    found["died"] = missed()
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the first rank dies, and the others cannot take leave of it
