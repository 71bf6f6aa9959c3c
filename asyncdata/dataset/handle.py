"""`Handle`: a node of a plan, and how it is iterated."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from asyncdata.options import Options
from asyncdata.plan import transformations
from asyncdata.plan.node import Node
from asyncdata.runtime.iterate import PipelineIterator
from asyncdata.types import Element

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset

R = TypeVar("R")


class Handle:
    """What the parts of `Dataset` share: the node they append to, and iteration."""

    __slots__ = ("_epochs", "_node")

    def __init__(self, node: Node) -> None:
        """Wraps a node; use the constructors of `Dataset` instead."""
        self._node = node
        self._epochs = itertools.count()

    def _derive(self, node: Node) -> Dataset:
        """A new handle on a node that reads from this one."""
        raise NotImplementedError

    def apply(self, transformation_func: Callable[[Dataset], R]) -> R:
        """``transformation_func(self)``, to keep a chain of calls."""
        return transformation_func(self)  # type: ignore[arg-type]  # only a Dataset is ever made

    def with_options(self, options: Options) -> Dataset:
        """The same dataset run with these options; the outermost ones win."""
        return self._derive(transformations.WithOptions(input=self._node, options=options))

    def iterator(self, epoch: int | None = None) -> PipelineIterator:
        """Starts the pipeline and returns its iterator, for ``with`` or ``async with``.

        Args:
            epoch: Number of the epoch; the handle's next one unless given.
        """
        return PipelineIterator(self._node, next(self._epochs) if epoch is None else epoch)

    def __iter__(self) -> Iterator[Element]:
        return self.iterator()

    def __aiter__(self) -> AsyncIterator[Element]:
        return self.iterator()

    def __repr__(self) -> str:
        return f"<Dataset {self._node.label}>"


class NodeOf:
    """A function that returns a Dataset, as the plan wants it: returning its node. Picklable if the function is."""

    def __init__(self, function: Callable[..., Handle]) -> None:
        self.function = function
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, *element: Any) -> Node:
        """The plan of the dataset that is made of one element."""
        dataset = self.function(*element)
        if not isinstance(dataset, Handle):
            raise TypeError(
                f"the function of interleave or flat_map must return a Dataset, not a {type(dataset).__name__}"
            )
        return dataset._node  # noqa: SLF001 -- the handle and its plan belong together
