"""Rejects shards of an order that differs from process to process, because they would overlap.

`shard` takes every n-th element, so the n parts fit together only if all of them see one order. An order that is drawn
without a seed, or that is an order of arrival, differs in every process and in every iteration.

Fixed orders (``reshuffle_each_iteration=False``) are accepted, because splits of one dataset in one process share them,
unless several processes are known to train together. A seed that is drawn inside a function of the plan is drawn anew
in every iteration.

Whether the steps before a cache or snapshot in files run at all is known only later, so the check is repeated when they
run. A cache in memory keeps the order of one process, so the steps before it always count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from asyncdata.errors import PipelineError
from asyncdata.options import Options
from asyncdata.plan.combining import ChooseFrom, SampleFrom
from asyncdata.plan.grouping import Cache, GroupByWindow, Rebatch, Snapshot, Unbatch
from asyncdata.plan.node import Node
from asyncdata.plan.sequence import Random, RejectionResample, Shard, TakeWhile, Unique
from asyncdata.plan.sources import ListFiles, ManifestFile, TensorSlices
from asyncdata.plan.transformations import IN_ORDER, Filter, IgnoreErrors, Interleave, Map, MapBatch, Shuffle
from asyncdata.planner.fingerprint import draws_once

_VALUES_DECIDE: Final = (
    *(ChooseFrom, Filter, GroupByWindow, IgnoreErrors, Interleave),
    *(Rebatch, RejectionResample, SampleFrom, TakeWhile, Unbatch, Unique),
)
"""Which elements these give, and where, depends on the values that they get, on how many rows these have, or on which
elements fail."""


class Behind(NamedTuple):
    """What comes after a step, as far as it matters for the order of that step.

    Attributes:
        shard: The nearest shard, such as ``shard(4, 1)``; empty if there is none, or if a step between the two keeps
            one order for all processes.
        decides: Whether a step between the two decides by values.
        redrawn: Whether a seed that the step drew when it was made differs from reader to reader, because each of them
            makes the step: it is part of an inner dataset, or there are several processes.
        divided: Whether there is a shard, also one of a single reader, whose place several may take.
    """

    shard: str = ""
    decides: bool = False
    redrawn: bool = False
    divided: bool = False

    def before(self, node: Node) -> Behind:
        """What comes after the inputs of a step that this comes after."""
        shard = shard_label(node) or self.shard
        if isinstance(node, Snapshot) or (isinstance(node, Cache) and node.filename is not None):
            shard = ""
        decides = bool(shard) and (self.decides or isinstance(node, _VALUES_DECIDE))
        apart = isinstance(node, Shard) and node.apart
        found = Behind(shard, decides, self.redrawn or apart, self.divided or isinstance(node, Shard))
        return self if found == self else found


NOTHING_BEHIND: Final = Behind()


def refuse_overlap(node: Node, options: Options, behind: Behind) -> None:
    """Raises an error if a shard comes after an order that differs from process to process.

    Args:
        node: The last node of a plan, after the rewrites.
        options: In force for it.
        behind: What comes after the plan.

    Raises:
        PipelineError: The parts would overlap.
    """
    for each, after in _walk(node, behind):
        if after.shard:
            _refuse(each, options, after)


def drawn_anew(node: Node, options: Options) -> Node | None:
    """The first step by whose random numbers the order of an inner dataset differs from process to process, or None.

    A seed that a step of it drew when it was made differs, too: the dataset is made in each process.

    Args:
        node: The last node of its plan.
        options: In force for it.
    """
    if options.seed is not None:
        return None
    for each, after in _walk(node, Behind("shard")):
        has_drawn = draws_once(each) or getattr(each, "drawn_by", None) is not None
        if has_drawn or _draws_order(each, options, after):
            return each
    return None


def _walk(node: Node, behind: Behind) -> Iterator[tuple[Node, Behind]]:
    """Each step, and what comes after it."""
    waiting = [(node, behind)]
    seen = set()
    while waiting:
        each, after = waiting.pop()
        if (id(each), after) in seen:
            continue
        seen.add((id(each), after))
        yield each, after
        before = after.before(each)
        waiting.extend((child, before) for child in each.inputs)


def shard_label(node: Node) -> str:
    """The name of a step that leaves elements to other shards; empty for any other step."""
    return f"shard({node.num_shards}, {node.index})" if isinstance(node, Shard) and node.num_shards > 1 else ""


def _refuse(node: Node, options: Options, behind: Behind) -> None:
    name = node.written
    if isinstance(node, TensorSlices) and node.drawn_by is not None:
        name = node.drawn_by
        why = "which draws random numbers without a seed"
        cure = f"Give {name} a seed"  # it has drawn before there are options
    elif options.seed is None and _draws_order(node, options, behind):
        why = "which draws random numbers without a seed"
        own = not isinstance(node, Map | MapBatch)  # those take the seed of the options
        cure = f"Give {name} a seed or set Options(seed=...)" if own else "Set Options(seed=...)"
    elif _delivers_as_ready(node, options):
        why = "which delivers elements as they are ready (deterministic=False)"
        cure = "Set deterministic=True"
    else:
        return
    instead = f", or put shard before {name}" if node.inputs else ""
    raise PipelineError(
        f"{behind.shard} comes after {name}, {why}. Every process then has another order, so some elements would be "
        f"read by several shards and others by none. {cure}{instead}",
        stage=behind.shard,
    )


def _draws_order(node: Node, options: Options, behind: Behind) -> bool:
    if isinstance(node, ListFiles | ManifestFile):
        return node.shuffle and node.seed is None
    if isinstance(node, Shuffle):
        return (node.reshuffle or behind.redrawn) and node.seed is None
    if isinstance(node, SampleFrom):
        # Only who says so knows that each process has an order of its own.
        return (node.rerandomize is not False or behind.redrawn) and node.seed is None
    if isinstance(node, RejectionResample):
        return node.seed is None
    # An element that fails because of a random number is left out.
    decides = behind.decides or options.errors is not None
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
