"""Divides a dataset among the processes of a training job: finds the place where a shard saves the most reading.

A shard of file names reads only its own files. A shard of batches makes all of them and drops most. So the shard goes
down the plan as long as the steps above it treat elements alike, wherever these come from.

    list_files ─▶ [shard] ─▶ interleave ─▶ shuffle ─▶ map ─▶ batch
    list_files ─▶ take(100) ─▶ [shard] ─▶ interleave ─▶ …         100 files in all, not of each process
"""

from __future__ import annotations

import dataclasses
from typing import Final

from asyncdata.plan.grouping import GroupByWindow, PaddedBatch, RaggedBatch, Rebatch, Unbatch
from asyncdata.plan.node import Node, rebuilt, walk
from asyncdata.plan.sequence import Shard
from asyncdata.plan.transformations import (
    Batch,
    Filter,
    IgnoreErrors,
    Interleave,
    Map,
    Prefetch,
    Repeat,
    Shuffle,
    WithOptions,
)
from asyncdata.planner.cardinality import most
from asyncdata.planner.shards import shard_label

_TREAT_ALIKE: Final = (
    Batch,
    Filter,
    GroupByWindow,
    IgnoreErrors,
    Interleave,
    Map,
    PaddedBatch,
    Prefetch,
    RaggedBatch,
    Rebatch,
    Repeat,
    Shuffle,
    Unbatch,
    WithOptions,
)


def shard_of(node: Node) -> str:
    """The first step of a plan that leaves elements to other shards, such as ``shard(4, 1)``; empty if none does."""
    return next(filter(None, map(shard_label, walk(node))), "")


def read_apart(node: Node) -> Node:
    """The plan of one of several processes that the user has divided with `shard`."""

    def change(_: Node, new: Node) -> Node:
        return dataclasses.replace(new, apart=True) if isinstance(new, Shard) else new

    return rebuilt(node, change)


def sharded(node: Node, num_shards: int, index: int, *, placed_for: int | None = None) -> Node:
    """The plan of one of several processes, which together give each element once.

    Where fewer elements than processes are known to be at a source, as with two files for four processes, the shard is
    placed behind the step that makes more of them.

    Args:
        node: The last step.
        num_shards: How many processes there are.
        index: Number of this process.
        placed_for: The place is that for so many processes, because states are of one place; None: for `num_shards`.
    """
    fewest = num_shards if placed_for is None else placed_for
    above = [node]
    while isinstance(above[-1], _TREAT_ALIKE):
        above.extend(above[-1].inputs)
    while len(above) > 1 and 0 <= most(above[-1]) < fewest:
        above.pop()
    made: Node = Shard(input=above.pop(), num_shards=num_shards, index=index, apart=True)
    for each in reversed(above):
        made = each.with_inputs((made,))
    return made
