"""Nodes that read from others. Argument names and meanings are tf.data's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from asyncdata.options import Options
from asyncdata.plan.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Node, drawn_seed

IN_ORDER: Final = ("inline", "vectorized", "either")
"""Executors of a `Map` that keep the order whatever is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Map(Node):
    """``function(element)`` for every element.

    Attributes:
        parallelism: Calls under way at a time; None for one after the other, on the stage loop.
        deterministic: Whether results come in the order of the input; None takes the option's word.
        executor: ``process``, ``thread``, ``inline``, ``vectorized`` (inline, a block of elements at a time),
            ``async``, ``either`` (inline or in workers, as is found while it runs), or None to let the planner choose.
        rng: Whether the function is given a ``numpy.random.Generator`` keyed by the element's provenance.
        zero_copy: Whether byte strings arrive as memoryviews that are valid during the call.
        setup: Function returning an async context manager entered on the stage loop; async functions only.
    """

    same_number: ClassVar[bool] = True

    input: Node
    function: Callable[..., Any]
    parallelism: int | None
    deterministic: bool | None
    executor: str | None
    rng: bool
    zero_copy: bool
    setup: Callable[[], Any] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filter(Node):
    """Only the elements for which the predicate is true."""

    same_elements: ClassVar[bool] = True

    input: Node
    predicate: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interleave(Node):
    """`function` makes a dataset of every element; `cycle_length` of them are read in turn.

    ``function(*element)`` returns the inner plan node.

    Attributes:
        flat: Whether it was written as `flat_map`.
    """

    input: Node
    function: Callable[..., Node]
    cycle_length: int
    block_length: int
    parallelism: int | None
    deterministic: bool | None
    flat: bool = False

    @property
    def written(self) -> str:
        return "flat_map" if self.flat else self.label

    @property
    def reader(self) -> Node | None:
        """How each file is read, where the elements of the input are names of files; see `dataset.files`."""
        return getattr(self.function, "opens", None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shuffle(Node):
    """A buffer of `buffer_size` elements from which the next one is drawn at random.

    Attributes:
        seed: Of the draws; None for one that is drawn.
        reshuffle: Whether epochs differ.
        drawn: Seed of this step alone, where epochs do not differ and nobody gave one.
    """

    draws: ClassVar[int] = 1
    same_elements: ClassVar[bool] = True
    same_number: ClassVar[bool] = True

    input: Node
    buffer_size: int
    seed: int | None
    reshuffle: bool
    drawn: int = field(default_factory=drawn_seed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch(Node):
    """`size` consecutive elements stacked, leaf by leaf.

    Attributes:
        narrow: Whether numbers of 64 bits are written in 32, see `asyncdata.memory.narrow`; no part of a dataset, but
            of what one consumer reads.
    """

    input: Node
    size: int
    drop_remainder: bool
    narrow: bool = False

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return batches(of(self.input), self.size, drop_remainder=self.drop_remainder)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repeat(Node):
    """Repeats the input `count` times; None: forever."""

    same_elements: ClassVar[bool] = True

    input: Node
    count: int | None

    def cardinality(self, of: Callable[[Node], int]) -> int:
        once = of(self.input)
        if self.count == 0 or once == 0:
            return 0
        if self.count is None or once == INFINITE_CARDINALITY:
            return INFINITE_CARDINALITY
        return once if once < 0 else once * self.count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Take(Node):
    """The first `count` elements; all when negative."""

    same_elements: ClassVar[bool] = True

    input: Node
    count: int

    def cardinality(self, of: Callable[[Node], int]) -> int:
        there = of(self.input)
        if self.count < 0 or there == UNKNOWN_CARDINALITY:
            return there
        return self.count if there == INFINITE_CARDINALITY else min(there, self.count)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Skip(Node):
    """All but the first `count` elements; none when negative."""

    same_elements: ClassVar[bool] = True

    input: Node
    count: int

    def cardinality(self, of: Callable[[Node], int]) -> int:
        there = of(self.input)
        if self.count < 0:
            return 0
        return there if there < 0 else max(0, there - self.count)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefetch(Node):
    """Up to `buffer_size` elements made ahead of the consumer."""

    same_elements: ClassVar[bool] = True
    same_number: ClassVar[bool] = True

    input: Node
    buffer_size: int

    @property
    def steps(self) -> int:
        """Changes no element."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IgnoreErrors(Node):
    """Elements that fail upstream of here are left out, however many."""

    same_elements: ClassVar[bool] = True

    input: Node
    log_warning: bool

    @property
    def steps(self) -> int:
        """Changes no element."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WithOptions(Node):
    """Options for the pipeline, and storage options for the branch; what lies downstream wins."""

    same_elements: ClassVar[bool] = True
    same_number: ClassVar[bool] = True

    input: Node
    options: Options

    @property
    def steps(self) -> int:
        """Changes no element."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapBatch(Node):
    """`Map` and `Batch` in one step, made by the planner: one worker task writes rows of one finished batch.

    Attributes:
        functions: Applied in turn.
        rng: Per function, whether it takes a generator.
        size: As of `Batch`, like `drop_remainder` and `narrow`; the other fields are those of `Map`.
    """

    input: Node
    functions: tuple[Callable[..., Any], ...]
    rng: tuple[bool, ...]
    parallelism: int
    deterministic: bool | None
    executor: str
    zero_copy: bool
    size: int
    drop_remainder: bool
    narrow: bool = False

    @property
    def steps(self) -> int:
        """The maps and the batch."""
        return len(self.functions) + 1

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return batches(of(self.input), self.size, drop_remainder=self.drop_remainder)


def batches(there: int, size: int, *, drop_remainder: bool) -> int:
    """How many batches so many elements make."""
    if there < 0:
        return there
    return there // size if drop_remainder else -(-there // size)
