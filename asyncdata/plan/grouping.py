"""Nodes that combine several elements into one, split one into several, or keep elements for later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from asyncdata.plan.node import Node
from asyncdata.plan.transformations import batches

MakeDataset = Callable[[Node], Any]
"""Wraps a node as the dataset that user code sees; the layers below do not know that class."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unbatch(Node):
    """The rows of every element's leaves, one after the other."""

    input: Node


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rebatch(Node):
    """The rows of batches in batches of other sizes, taken in turn.

    Attributes:
        narrow: As of `Batch`.
    """

    input: Node
    sizes: tuple[int, ...]
    drop_remainder: bool
    narrow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch(Node):
    """`size` consecutive elements stacked, each leaf padded to one shape.

    Attributes:
        shapes: None, or nested like the elements: per leaf a shape, whose entries are numbers or None for the longest
            of the batch; None in a leaf's place does this with every axis.
        values: None, or nested like the elements (or one for all leaves): the padding.
        longest: Stands in for lengths that are not given; None for the longest of the batch.
        narrow: As of `Batch`.
    """

    input: Node
    size: int
    shapes: Any
    values: Any
    drop_remainder: bool
    longest: int | None
    narrow: bool = False

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return batches(of(self.input), self.size, drop_remainder=self.drop_remainder)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RaggedBatch(Node):
    """`size` consecutive elements, each leaf that has axes as a RaggedArray.

    Attributes:
        splits_dtype: Of the row splits: ``<i8`` or ``<i4``.
        ranks: Nested like the elements: how many axes of a leaf become ragged, 0 for none; None for all.
    """

    input: Node
    size: int
    drop_remainder: bool
    splits_dtype: str
    ranks: Any

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return batches(of(self.input), self.size, drop_remainder=self.drop_remainder)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window(Node):
    """Nests of datasets, each of which holds `size` elements, `stride` apart; the next begins `shift` further.

    Attributes:
        make: See `MakeDataset`.
    """

    input: Node
    size: int
    shift: int
    stride: int
    drop_remainder: bool
    make: MakeDataset

    def cardinality(self, of: Callable[[Node], int]) -> int:
        there = of(self.input)
        if there < 0:
            return there
        if not self.drop_remainder:
            return -(-there // self.shift)
        reach = (self.size - 1) * self.stride + 1
        return max(0, (there - reach) // self.shift + 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupByWindow(Node):
    """Elements are collected per key; a full window becomes the dataset that `reduce` makes of it.

    Attributes:
        key: ``key(*element)`` returns an integer.
        function: ``function(key, dataset of the window)`` returns the node of the inner dataset.
        window_size: ``window_size(key)`` returns how many elements a window has.
        make: See `MakeDataset`.
        buckets: Whether it was written as `bucket_by_sequence_length`.
    """

    input: Node
    key: Callable[..., Any]
    function: Callable[..., Node]
    window_size: Callable[[Any], Any]
    make: MakeDataset
    buckets: bool = False

    @property
    def written(self) -> str:
        return "bucket_by_sequence_length" if self.buckets else self.label


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents(Node):
    """Elements that a running pipeline has collected: what a window holds.

    Attributes:
        rows: The runtime's own; has a length.
    """

    rows: Any

    def cardinality(self, of: Callable[[Node], int]) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cache(Node):
    """What the input delivered in its first complete run.

    Attributes:
        filename: Where it is kept; None for memory.
        cell: The runtime's own: holds the elements, shared by every run of this node.
        recipe: The planner's own: what the elements in a file are made of.
    """

    same_elements: ClassVar[bool] = True
    same_number: ClassVar[bool] = True

    input: Node
    filename: str | None
    cell: Any
    recipe: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredFile(Node):
    """The elements of one file that was written by `Snapshot`."""

    name: ClassVar[str] = "snapshot shard"

    path: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot(Node):
    """What the input delivered in its first complete run, in a directory of shards.

    Attributes:
        path: The directory.
        codec: What is written is packed by this; None writes it as it is.
        shard: ``shard(*element)`` returns the number of the shard an element goes to; None for one shard.
        function: Makes the node that is read of a dataset of one dataset per shard; None for their elements in turn.
        make: See `MakeDataset`.
        node_of: Gives the node of a dataset that was made so.
        recipe: As of `Cache`.
    """

    same_elements: ClassVar[bool] = True
    same_number: ClassVar[bool] = True

    input: Node
    path: str
    codec: str | None
    shard: Callable[..., Any] | None
    function: Callable[..., Node] | None
    make: MakeDataset
    node_of: Callable[..., Node]
    recipe: Any = None
