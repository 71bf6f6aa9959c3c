"""Rejects shards of an order that differs from process to process, because they would overlap.

`shard` takes every n-th element, so the n parts fit together only if all of them see one order. An order that is drawn
without a seed, or that is an order of arrival, differs in every process and in every iteration.

Fixed orders (``reshuffle_each_iteration=False``) are accepted, because splits of one dataset in one process share them.
Whether the steps before a cache or snapshot run at all is known only later, so the check is repeated when they run.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncdata.errors import PipelineError
from asyncdata.options import Options
from asyncdata.plan.combining import ChooseFrom, SampleFrom
from asyncdata.plan.grouping import Cache, GroupByWindow, Snapshot
from asyncdata.plan.node import Node
from asyncdata.plan.sequence import Random, RejectionResample, Shard, TakeWhile, Unique
from asyncdata.plan.sources import ListFiles, ManifestFile
from asyncdata.plan.transformations import IN_ORDER, Filter, Interleave, Map, MapBatch, Shuffle
from asyncdata.planner.fingerprint import draws_once

_VALUES_DECIDE = (Filter, TakeWhile, Unique, ChooseFrom, SampleFrom, GroupByWindow, Interleave, RejectionResample)
"""Which elements these give, and where, depends on the values that they get."""


def refuse_overlap(node: Node, options: Options, *, sharded: str = "") -> None:
    """Raises an error if a shard comes after an order that differs from process to process.

    Args:
        node: The last node of a plan, after the rewrites.
        options: In force for it.
        sharded: The shard that comes after this plan, such as ``shard(4, 1)``; empty if none does.

    Raises:
        PipelineError: The parts would overlap.
    """
    for each, shard, decides in _walk(node, sharded):
        if shard:
            _refuse(each, options, shard, decides=decides)


def drawn_anew(node: Node, options: Options) -> Node | None:
    """The first step by whose random numbers the order of an inner dataset differs from process to process, or None.

    A seed that a step of it drew when it was made differs, too: the dataset is made in each process.

    Args:
        node: The last node of its plan.
        options: In force for it.
    """
    if options.seed is not None:
        return None
    for each, _, decides in _walk(node, "shard"):
        if draws_once(each) or _draws_order(each, decides=decides):
            return each
    return None


def _walk(node: Node, sharded: str) -> Iterator[tuple[Node, str, bool]]:
    """Each step, the shard that comes after it, and whether a step between the two decides by values."""
    waiting = [(node, sharded, False)]
    seen = set()
    while waiting:
        each, shard, decides = waiting.pop()
        if (id(each), shard, decides) in seen:
            continue
        seen.add((id(each), shard, decides))
        yield each, shard, decides
        shard = shard_label(each) or shard
        if isinstance(each, Cache | Snapshot):
            shard = ""
        decides = bool(shard) and (decides or isinstance(each, _VALUES_DECIDE))
        waiting.extend((child, shard, decides) for child in each.inputs)


def shard_label(node: Node) -> str:
    """The name of a step that leaves elements to other shards; empty for any other step."""
    return f"shard({node.num_shards}, {node.index})" if isinstance(node, Shard) and node.num_shards > 1 else ""


def _refuse(node: Node, options: Options, shard: str, *, decides: bool) -> None:
    if options.seed is None and _draws_order(node, decides=decides):
        why = "which draws random numbers without a seed"
        own = not isinstance(node, Map | MapBatch)  # those take the seed of the options
        cure = f"Give {node.label} a seed or set Options(seed=...)" if own else "Set Options(seed=...)"
    elif _delivers_as_ready(node, options):
        why = "which delivers elements as they are ready (deterministic=False)"
        cure = "Set deterministic=True"
    else:
        return
    raise PipelineError(
        f"{shard} comes after {node.label}, {why}. Every process then has another order, so some elements would be "
        f"read by several shards and others by none. {cure}, or put shard before {node.label}",
        stage=shard,
    )


def _draws_order(node: Node, *, decides: bool) -> bool:
    if isinstance(node, ListFiles | ManifestFile):
        return node.shuffle and node.seed is None
    if isinstance(node, Shuffle):
        return node.reshuffle and node.seed is None
    if isinstance(node, SampleFrom):
        # Only who says so knows that each process has an order of its own.
        return node.rerandomize is not False and node.seed is None
    if isinstance(node, RejectionResample):
        return node.seed is None
    if isinstance(node, Random):
        return decides and node.seed is None
    return decides and ((isinstance(node, Map) and node.rng) or (isinstance(node, MapBatch) and any(node.rng)))


def _delivers_as_ready(node: Node, options: Options) -> bool:
    if not isinstance(node, Interleave | Map | MapBatch):
        return False
    ordered = options.deterministic if node.deterministic is None else node.deterministic
    if isinstance(node, Interleave):
        return not ordered and node.cycle_length > 1
    return not ordered and node.executor not in IN_ORDER and node.parallelism != 1
