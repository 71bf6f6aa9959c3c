"""Nodes that depend on an element's position in the sequence or on earlier elements; and endless sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from asyncdata.plan.node import INFINITE_CARDINALITY, Node, drawn_seed
from asyncdata.spec import ArraySpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counter(Node):
    """``start, start + step, …`` without an end, of one dtype."""

    start: float
    step: float
    dtype: str

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return ArraySpec((), self.dtype)

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return INFINITE_CARDINALITY


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Random(Node):
    """Integers drawn from ``0 … 2**32 - 1`` without an end."""

    draws: ClassVar[int] = 1

    seed: int | None
    rerandomize: bool
    drawn: int = field(default_factory=drawn_seed)

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return ArraySpec((), np.int64)

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return INFINITE_CARDINALITY


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Enumerate(Node):
    """``(start + i, element i)``."""

    same_number: ClassVar[bool] = True

    input: Node
    start: int

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return ArraySpec((), np.int64), of(self.input)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnumeratePicked(Enumerate):
    """The same for elements that are read by themselves; the planner makes it for `PickedRows`.

    Attributes:
        places: Where the elements lie, and their numbers.
    """

    name: ClassVar[str] = "enumerate"

    places: Any

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return ArraySpec((), np.int64), of(self.input)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard(Node):
    """Every `num_shards`-th element, beginning with number `index`.

    Attributes:
        apart: Whether other processes are known to read the other shards, of a dataset that each of them makes.
    """

    same_elements: ClassVar[bool] = True

    input: Node
    num_shards: int
    index: int
    apart: bool = False

    @property
    def steps(self) -> int:
        """Changes no element: functions are given the same random numbers however many readers there are."""
        return 0

    def cardinality(self, of: Callable[[Node], int]) -> int:
        there = of(self.input)
        if there < 0:
            return there
        return there // self.num_shards + (self.index < there % self.num_shards)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TakeWhile(Node):
    """The elements before the first one for which the predicate is false."""

    same_elements: ClassVar[bool] = True

    input: Node
    predicate: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scan(Node):
    """``state, output = function(state, element)``, from `initial_state` on; the outputs."""

    same_number: ClassVar[bool] = True

    input: Node
    initial_state: Any
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unique(Node):
    """Each element the first time it comes."""

    same_elements: ClassVar[bool] = True

    input: Node


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssertCardinality(Node):
    """The input, which must have `count` elements (-1: no end)."""

    same_elements: ClassVar[bool] = True

    input: Node
    count: int

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return self.count


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

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        return ArraySpec((), np.int64), of(self.input)
