"""One of two processes that compute together: ``python -m tests.feed.jax_rank COORDINATOR RANK``.

Prints a line of JSON: by name of a case, the numbers that this process was given in each step.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import product
from typing import Any

import numpy as np

import asyncdata as ad
from asyncdata import feed
from asyncdata.errors import PipelineError
from asyncdata.feed.ranks import Even

COUNTS = [12, 52]
BATCH = 4
WHOLE = 96
EVALUATED = [27, 5, 1]
"""Rows that no number of full batches has; in the end one process has none."""
TABLE = np.arange(8 * BATCH, dtype=np.int32).reshape(2 * BATCH, 4)
"""Its columns are those of both processes."""
EVEN: tuple[Even, ...] = ("drop", "repeat", "pad", "agree")


def cases(rank: int) -> dict[str, Any]:
    """What this process was given, case by case."""
    import jax  # noqa: PLC0415 -- the constants above are of use without it
    from jax.experimental import multihost_utils  # noqa: PLC0415 -- likewise
    from jax.sharding import NamedSharding, PartitionSpec  # noqa: PLC0415 -- likewise

    mesh = jax.make_mesh((4,), ("d",))
    rows, copies = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("d",), (None,)))
    total = jax.jit(lambda batch: batch.sum())

    def mine(array: Any) -> list[int]:
        parts = sorted(array.addressable_shards, key=lambda part: part.index[0].start or 0)
        return [int(value) for part in parts for value in np.asarray(part.data)]

    found: dict[str, Any] = {}
    own = ad.Dataset.range(1000 * rank, 1000 * rank + COUNTS[rank], output_type=np.int32).filter(lambda _: True)
    for even in EVEN:
        found[even] = []
        for element in feed.jax(own.batch(BATCH), sharding=rows, even=even, shard=False):
            batch, mask = element if isinstance(element, tuple) else (element, None)
            total(batch)
            counted = mine(batch) if mask is None else [n for n, ok in zip(mine(batch), mine(mask), strict=True) if ok]
            found[even].append(counted)
    alone = feed.jax(own.batch(BATCH), rank=0, world=1)
    found["alone"] = [len(list(alone)), len(alone.all_ranks().state_dict()["ranks"])]
    ds = ad.Dataset.range(WHOLE, output_type=np.int32).shuffle(WHOLE, seed=1).batch(BATCH)
    batches = list(feed.jax(ds, sharding=rows))
    found["whole"] = [mine(batch) for batch in batches]
    found["sums"] = [int(total(batch)) for batch in batches]
    found["same"] = [np.asarray(batch.addressable_data(0)).tolist() for batch in feed.jax(ds, sharding=copies)]
    columns = NamedSharding(jax.make_mesh((2, 2), ("s", "d")), PartitionSpec("d", "s"))
    table = ad.Dataset.from_tensor_slices(TABLE).batch(2 * BATCH)
    # An array with fewer axes is divided as far as it has them.
    for batch, first in feed.jax(ad.Dataset.zip(table, table.map(lambda batch: batch[:, 0])), sharding=columns):
        gathered = multihost_utils.process_allgather(batch, tiled=True)
        found["columns"] = [gathered.tolist(), list(first.shape)]
    short = ad.Dataset.range(28, output_type=np.int32).batch(BATCH)
    try:
        list(feed.jax(short, sharding=rows))
    except PipelineError as error:
        found["short"] = str(error)
    found["first"] = []
    seven = ad.Dataset.range(7, output_type=np.int32).batch(BATCH).map(lambda batch: batch + 1)
    padded = feed.jax(seven, sharding=rows, even="pad")
    for batch, mask in padded:
        found["first"] += [list(batch.shape), int(total(batch * mask)), padded.state_dict()["rows"]]
    try:
        list(feed.jax(seven, sharding=rows))
    except PipelineError as error:
        found["first"].append(str(error))
    found["evaluated"] = []
    for count, function in product(EVALUATED, (None, lambda _: True)):
        numbers = ad.Dataset.range(count, output_type=np.int32).map(lambda number: {"x": number, "name": f"{number}"})
        ds = (numbers if function is None else numbers.filter(function)).batch(BATCH)
        steps = list(feed.jax(ds, sharding=rows, even="pad"))
        names = [name for batch, mask in steps for name, ok in zip(batch["name"], mine(mask), strict=False) if ok]
        found["evaluated"].append([[int(total(batch["x"] * mask)) for batch, mask in steps], names])
    return found


def missed(rank: int) -> str:
    """What the first process says when the other one has died in the middle of an epoch."""
    steps = iter(feed.jax(ad.Dataset.range(80, output_type=np.int32).filter(lambda _: True).batch(BATCH)))
    next(steps)
    if rank:
        return ""
    try:
        list(steps)
    except PipelineError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    import jax

    jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
    me = int(sys.argv[2])
    found = cases(me)
    found["died"] = missed(me)
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # one process dies, and the other one cannot take leave of it
