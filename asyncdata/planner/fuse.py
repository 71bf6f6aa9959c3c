"""Joins steps that are cheaper together, and has batches written as their consumer needs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from asyncdata.options import AUTOTUNE, Options
from asyncdata.plan.grouping import PaddedBatch, Rebatch
from asyncdata.plan.label import function_name
from asyncdata.plan.node import Node
from asyncdata.plan.sequence import AssertCardinality, Shard
from asyncdata.plan.transformations import (
    Batch,
    IgnoreErrors,
    Map,
    MapBatch,
    Prefetch,
    Repeat,
    Shuffle,
    Take,
    WithOptions,
)

_POOLED = ("process", "thread")

_PASS_BATCHES_ON: Final = (AssertCardinality, IgnoreErrors, Prefetch, Repeat, Shuffle, Take, WithOptions)
"""Steps that give the consumer every batch that is made for them, as it is.

Those that skip batches are none of them: a value that does not fit would be an error in a batch that nobody reads.
"""


def gather_maps(node: Node, options: Options) -> Node:
    """Options that stand among the maps in front of a `Batch` go before them, so that the maps can become one task.

    Options of the pipeline hold wherever they stand, and those of storage for sources, of which a map is none.
    """
    del options
    if not isinstance(node, Batch):
        return node
    steps: list[Map | WithOptions] = []
    below = node.input
    while isinstance(below, Map | WithOptions):
        steps.append(below)
        below = below.input
    gathered = [step for step in steps if isinstance(step, Map)] + [step for step in steps if not isinstance(step, Map)]
    if gathered == steps:
        return node
    for step in reversed(gathered):
        below = step.with_inputs((below,))
    return node.with_inputs((below,))


def fuse_map_batch(node: Node, options: Options) -> Node:
    """`Map` in workers followed by `Batch`: the workers write the rows of the finished batch themselves."""
    if not isinstance(node, Batch) or not isinstance(node.input, Map) or node.input.executor not in _POOLED:
        return node
    first = node.input
    # What mixes elements stays a step of its own where its choices are noted: what is joined depends on the executor.
    ordered = options.deterministic if first.deterministic is None else first.deterministic
    if not ordered and (options.order_log is not None or options.replay is not None):
        return node
    assert first.executor is not None
    return MapBatch(
        input=first.input,
        functions=(first.function,),
        rng=(first.rng,),
        parallelism=AUTOTUNE if first.parallelism is None else first.parallelism,
        deterministic=first.deterministic,
        executor=first.executor,
        zero_copy=first.zero_copy,
        size=node.size,
        drop_remainder=node.drop_remainder,
        narrow=node.narrow,
    )


def fuse_maps(node: Node, options: Options) -> Node:
    """Every `Map` in workers in front of a `MapBatch` with the same settings: one task applies all their functions.

    A ready-made function that takes blocks of records stays a step of its own where it comes first: as one of several
    functions it would be called record by record.
    """
    del options
    while isinstance(node, MapBatch) and isinstance(first := node.input, Map) and _goes_with(first, node):
        leads = first.zero_copy or not _goes_with(first.input, node)
        if leads and reads_rows(first.function):
            break
        node = MapBatch(
            input=first.input,
            functions=(first.function, *node.functions),
            rng=(first.rng, *node.rng),
            parallelism=node.parallelism,
            deterministic=node.deterministic,
            executor=node.executor,
            zero_copy=first.zero_copy,
            size=node.size,
            drop_remainder=node.drop_remainder,
            narrow=node.narrow,
        )
    return node


def with_narrow_batches(node: Node) -> Node:
    """The plan with the last batches written in numbers of 32 bits instead of 64, see `asyncdata.memory.narrow`.

    The same plan if there is a step behind them that might read or keep them.
    """
    *behind, node = _passed_on(node)
    if isinstance(node, Batch | PaddedBatch | Rebatch):
        node = dataclasses.replace(node, narrow=True)
    for each in reversed(behind):
        node = each.with_inputs((node,))
    return node


def rows_of_batches(node: Node) -> int | None:
    """How many rows the batches of a plan have, but for shorter ones at an end; None if that is not known."""
    *_, last = _passed_on(node)
    if isinstance(last, Rebatch):
        return max(last.sizes)
    return last.size if isinstance(last, Batch | PaddedBatch) else None


def _passed_on(node: Node) -> list[Node]:
    """The steps at the end of a plan that give every batch on as it is, the last one first, and the one before them."""
    found = [node]
    while isinstance(node, _PASS_BATCHES_ON) or (isinstance(node, Shard) and node.num_shards == 1):
        node = node.inputs[0]
        found.append(node)
    return found


def joined_name(node: MapBatch) -> str:
    """How such a step is named: ``map(decode, augment).batch(64)``."""
    names = ", ".join(function_name(function) for function in node.functions)
    return f"map({names}).batch({node.size})" if names else f"batch({node.size})"


def reads_rows(function: Callable[..., Any]) -> bool:
    """Whether a function is a ready-made one that can be given records where they lie, many at once."""
    return getattr(function, "accepts_rows", False) is True


def _goes_with(first: Node, node: MapBatch) -> bool:
    """Whether a step can be done in the tasks that fill the batches; those that ask for views take them from slabs."""
    return (
        isinstance(first, Map)
        and first.executor == node.executor
        and first.parallelism == node.parallelism
        and first.deterministic == node.deterministic
        and not node.zero_copy
    )
