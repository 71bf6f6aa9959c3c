"""Nodes that look at where an element stands in the sequence, or at what came before it; and endless sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from asyncdata.plan.node import Node, drawn_seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counter(Node):
    """``start, start + step, …`` without an end, of one dtype."""

    start: int
    step: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Random(Node):
    """Integers drawn from ``0 … 2**32 - 1`` without an end."""

    draws: ClassVar[int] = 1

    seed: int | None
    rerandomize: bool
    drawn: int = field(default_factory=drawn_seed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Enumerate(Node):
    """``(start + i, element i)``."""

    input: Node
    start: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard(Node):
    """Every `num_shards`-th element, beginning with number `index`."""

    input: Node
    num_shards: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TakeWhile(Node):
    """The elements before the first one for which the predicate is false."""

    input: Node
    predicate: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scan(Node):
    """``state, output = function(state, element)``, from `initial_state` on; the outputs."""

    input: Node
    initial_state: Any
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unique(Node):
    """Each element the first time it comes."""

    input: Node


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssertCardinality(Node):
    """The input, which must have `count` elements (-1: no end)."""

    input: Node
    count: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RejectionResample(Node):
    """``(class, element)``, of all elements or of those chosen by what their classes lack.

    Attributes:
        function: Gives the class of an element, an integer.
        target: How often each class is wished for, not normalized.
        initial: How often each class comes in the input; None to count as elements come.
        seed: Of the draws.
        every: Whether all elements are kept.
    """

    draws: ClassVar[int] = 1

    input: Node
    function: Callable[..., Any]
    target: tuple[float, ...]
    initial: tuple[float, ...] | None
    seed: int | None
    every: bool
