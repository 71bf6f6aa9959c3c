"""Whether the states of N readers of one source can become states of M readers, and where a plan is divided for it.

    source ─▶ shard(N, i) ─▌─▶ interleave ─▶ map ─▶ shuffle ─▶ batch ─▶ reader i
    one order for all       ▌  each element is made of one element of the shard
    readers

What was delivered is tracked from `shard` on. Element p of reader i is element p * N + i of the source, so what all
readers have delivered is a set of elements of the source, and the rest of them can be divided anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from asyncdata.plan.grouping import PaddedBatch, RaggedBatch
from asyncdata.plan.label import label_of
from asyncdata.plan.node import Node, walk
from asyncdata.plan.sequence import Shard
from asyncdata.plan.transformations import (
    Batch,
    Filter,
    IgnoreErrors,
    Interleave,
    Map,
    MapBatch,
    Prefetch,
    Repeat,
    Shuffle,
    WithOptions,
)
from asyncdata.planner.fingerprint import drawn_seeds
from asyncdata.planner.unordered import UnorderedPart, unordered_part

_BEHIND: Final = (
    *(Batch, Filter, IgnoreErrors, Interleave, Map, MapBatch),
    *(PaddedBatch, Prefetch, RaggedBatch, Repeat, Shuffle, WithOptions),
)
"""What these steps make of an element does not depend on how many other elements its reader has."""


@dataclass(frozen=True, slots=True)
class Readers:
    """See the module's docstring.

    Attributes:
        part: The part of the plan in which elements are tracked.
        shard: Where the plan is divided among readers; None if states cannot be divided.
        refused: Why they cannot.
        drawn: A step that gives random values to elements of which datasets are made, by the seed of the pipeline.
    """

    part: UnorderedPart
    shard: Shard | None
    refused: str | None
    drawn: str | None = None

    @property
    def is_tracked(self) -> bool:
        """Whether states say which elements were delivered."""
        return self.part.refused is None and (self.shard is not None or bool(self.part.steps))

    def division(self, seed: int | None, refused: str | None) -> dict[str, Any]:
        """What a state says for those who divide it, as JSON can hold it.

        Args:
            seed: The seed of the options.
            refused: Why this state cannot be divided, beside what the plan says.
        """
        refused = self.refused or refused
        if refused is None and seed is None and self.drawn is not None:
            refused = f"what datasets are made of is drawn by {self.drawn} without a seed. Set Options(seed=...)"
        if self.shard is None or refused is not None:
            return {"refused": refused}
        # All readers must have this in common, because it is what the order of the shard's input is drawn from.
        return {"step": self.part.numbers[id(self.shard)], "order": [seed, *drawn_seeds(self.shard.input)]}


def readers_of(plan: Node, *, deterministic: bool) -> Readers:
    """How a plan is divided among readers.

    Args:
        plan: The last step.
        deterministic: What holds where a step does not say.
    """
    found = _divided_at(plan)
    if isinstance(found, Shard):
        part = unordered_part(plan, deterministic=deterministic, behind=found)
        if part.refused is None:
            makers = [node for node in walk(plan) if isinstance(node, Interleave) and id(node) in part.steps]
            drawn = [node for maker in makers for node in walk(maker.input) if isinstance(node, Map) and node.rng]
            return Readers(part, found, None, label_of(drawn[0]) if drawn else None)
        found = part.refused
    return Readers(unordered_part(plan, deterministic=deterministic), None, found)


def shards_of(plan: Node) -> list[list[int]]:
    """Number of shards and index of each `shard` of a plan, the last one first."""
    return [[node.num_shards, node.index] for node in walk(plan) if isinstance(node, Shard)]


def shard_name(num_shards: int, index: int) -> str:
    """As it is written."""
    return f"shard({num_shards}, {index})"


def _label(node: Shard) -> str:
    return shard_name(node.num_shards, node.index)


def _divided_at(plan: Node) -> Shard | str:
    """The only shard of a plan, or why states cannot be divided at it."""
    shards = [node for node in walk(plan) if isinstance(node, Shard)]
    if len(shards) != 1:
        return f"the pipeline has {len(shards)} steps shard(...), and must have one"
    (shard,) = shards
    node = plan
    while node is not shard:
        if not isinstance(node, _BEHIND):
            return f"{label_of(node)} behind {_label(shard)} counts or collects elements of one reader"
        (node,) = node.inputs
    return shard
