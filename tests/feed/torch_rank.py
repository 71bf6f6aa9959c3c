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

COUNTS = [7, 31, 12]
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
    found["error"] = raised(feed.torch(own(rank).map(lambda batch: batch if rank else 1 // 0), shard=False))
    torch.distributed.barrier()
    leaving = feed.torch(own(rank).repeat(3), shard=False, deadline_s=SHORT_S)
    steps = iter(leaving)
    next(steps)
    if rank:  # rank 0 leaves its loop
        found["left"] = raised(steps)
    torch.distributed.barrier()
    return found


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
    sys.stdout.write(json.dumps(cases(me)) + "\n")
    torch.distributed.destroy_process_group()
