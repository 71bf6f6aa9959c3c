"""One of several processes that share an Orbax checkpoint.

``python -m tests.feed.orbax_rank FOLDER save|restore WORLD RANK COORDINATOR`` trains two steps and saves, or restores
and trains to the end of the epoch. Prints a line of JSON: what it was given, by a feed, by an iterator, and by a feed
that is rank 0 of 1 in every process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import asyncdata as ad
from asyncdata import feed

COUNT = 40


def given(folder: str, mode: str, world: int, rank: int) -> dict[str, list[int]]:
    """See the module's docstring."""
    import orbax.checkpoint as ocp  # noqa: PLC0415 -- the constants above are of use without it

    ds = ad.Dataset.range(COUNT, output_type=np.int32).shuffle(8, seed=1)
    fed = feed.jax(ds.filter(lambda _: True).batch(3), even="pad")
    iterator = ds.shard(world, rank).batch(3).iterator(epoch=0)
    alone = feed.jax(ds.batch(3), rank=0, world=1)
    found: dict[str, list[int]] = {"feed": [], "iterator": [], "alone": []}

    def padded(element: Any) -> list[int]:
        batch, mask = element if isinstance(element, tuple) else (element, None)
        values = np.asarray(batch)
        return (values if mask is None else values[np.asarray(mask)]).tolist()  # type: ignore[no-any-return]  # numpy's

    with ocp.CheckpointManager(folder) as manager:
        if mode == "save":
            steps = iter(fed)
            for _ in range(2):
                found["feed"] += padded(next(steps))
                found["iterator"] += next(iterator).tolist()
            steps_alone = iter(alone)
            for _ in range(1 + rank):
                found["alone"] += padded(next(steps_alone))
            saved = ocp.args.Composite(
                feed=feed.orbax_save(fed), iterator=feed.orbax_save(iterator), alone=feed.orbax_save(alone)
            )
            next(steps)  # Orbax may save later than it is told
            next(iterator)
            manager.save(2, args=saved)
            manager.wait_until_finished()
        else:
            loaded = ocp.args.Composite(
                feed=feed.orbax_restore(fed), iterator=feed.orbax_restore(iterator), alone=feed.orbax_restore(alone)
            )
            assert manager.restore(2, args=loaded)["feed"] is fed
            for element in fed:
                found["feed"] += padded(element)
            for element in alone:
                found["alone"] += padded(element)
            for batch in iterator:
                found["iterator"] += batch.tolist()
    iterator.close()
    return found


if __name__ == "__main__":
    import jax

    count, me = int(sys.argv[3]), int(sys.argv[4])
    if count > 1:
        jax.distributed.initialize(sys.argv[5], num_processes=count, process_id=me)
    sys.stdout.write(json.dumps(given(sys.argv[1], sys.argv[2], count, me)) + "\n")
    sys.stdout.flush()
    if count > 1:
        jax.distributed.shutdown()
