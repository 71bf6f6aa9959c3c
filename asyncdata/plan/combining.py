"""Nodes that read from several datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from asyncdata.plan.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Node, drawn_seed
from asyncdata.plan.sequence import RejectionResample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Zip(Node):
    """One element of every input, until one of them ends; `structure` says how the inputs nest."""

    datasets: tuple[Node, ...]
    structure: Any

    def cardinality(self, of: Callable[[Node], int]) -> int:
        counts = [of(child) for child in self.datasets]
        if UNKNOWN_CARDINALITY in counts:
            return UNKNOWN_CARDINALITY
        return min((count for count in counts if count >= 0), default=INFINITE_CARDINALITY)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Concatenate(Node):
    """One input after the other."""

    datasets: tuple[Node, ...]

    def cardinality(self, of: Callable[[Node], int]) -> int:
        counts = [of(child) for child in self.datasets]
        for special in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY):
            if special in counts:
                return special
        return sum(counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleFrom(Node):
    """Each element comes from an input drawn at random.

    Attributes:
        datasets: The inputs.
        weights: How likely each of them is, not normalized; None when `varying` says it.
        varying: A tuple of one dataset whose elements are the weights of one draw each; empty when `weights` says it.
        seed: Of the draws.
        stop_on_empty: Whether the first draw of an input that has ended is the end.
        rerandomize: Whether epochs differ; None, when nobody said so, means that they do not.
        drawn: As of `Shuffle`.
    """

    name: ClassVar[str] = "sample_from_datasets"
    draws: ClassVar[int] = 1

    datasets: tuple[Node, ...]
    weights: tuple[float, ...] | None
    varying: tuple[Node, ...]
    seed: int | None
    stop_on_empty: bool
    rerandomize: bool | None
    drawn: int = field(default_factory=drawn_seed)

    @property
    def written(self) -> str:
        return "rejection_resample" if isinstance(self.datasets[0], RejectionResample) else self.label

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return _drawn(map(of, self.datasets), map(of, self.varying), every=self.stop_on_empty)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChooseFrom(Node):
    """Each element comes from the input whose number `choice` gives."""

    name: ClassVar[str] = "choose_from_datasets"

    datasets: tuple[Node, ...]
    choice: Node
    stop_on_empty: bool

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return _drawn(map(of, self.datasets), [of(self.choice)], every=self.stop_on_empty)


def _drawn(counts: Iterable[int], choices: Iterable[int], *, every: bool) -> int:
    """Without an end where neither choices end nor the inputs: every one of them, or any."""
    enough = all if every else any
    endless = all(c == INFINITE_CARDINALITY for c in choices) and enough(c == INFINITE_CARDINALITY for c in counts)
    return INFINITE_CARDINALITY if endless else UNKNOWN_CARDINALITY
