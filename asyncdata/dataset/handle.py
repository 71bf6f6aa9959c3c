"""`Handle`: a node of a plan, and how it is iterated."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from asyncdata import arguments
from asyncdata.options import Options
from asyncdata.plan import transformations
from asyncdata.plan.grouping import Contents
from asyncdata.plan.label import steps_of
from asyncdata.plan.node import Node
from asyncdata.runtime.consumer.iterate import PipelineIterator
from asyncdata.storage.known_options import check_storage
from asyncdata.types import Element

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset

R = TypeVar("R")


class Handle:
    """What the parts of `Dataset` share: the node they append to, and iteration."""

    __slots__ = ("_epochs", "_node")

    def __init_subclass__(cls) -> None:
        """Errors name a method as users know it, and a keyword that it has."""
        _name_methods(cls)

    def __init__(self, node: Node) -> None:
        """Wraps a node; use the constructors of `Dataset` instead."""
        self._node = node
        self._epochs = itertools.count()

    def _derive(self, node: Node) -> Dataset:
        """A new handle on a node that reads from this one."""
        raise NotImplementedError

    def apply(self, transformation_func: Callable[[Dataset], R]) -> R:
        """``transformation_func(self)``, to keep a chain of calls.

        Example:
            >>> import asyncdata as ad
            >>> def every_other(ds):
            ...     return ds.filter(lambda x: x % 2 == 0)
            >>> [int(x) for x in ad.Dataset.range(5).apply(every_other)]
            [0, 2, 4]
        """
        arguments.function("transformation_func", transformation_func)
        return transformation_func(self)  # type: ignore[arg-type]  # only a Dataset is ever made

    def with_options(self, options: Options) -> Dataset:
        """The same dataset run with these options; what they do not say, earlier calls say.

        Options of all calls are merged field by field, ``storage`` by scheme and key; the later call wins. The
        ``storage`` of one input of `zip` or `concatenate`, or of an inner dataset of `interleave`, holds for that one
        alone; all other options hold for the whole pipeline.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(3).with_options(ad.Options(memory_limit_bytes=64 << 20, num_workers=0))
            >>> [int(x) for x in ds]
            [0, 1, 2]
        """
        arguments.instance("options", options, Options, "Options")
        check_storage(options.storage)
        return self._derive(transformations.WithOptions(input=self._node, options=options))

    def iterator(self, epoch: int | None = None) -> PipelineIterator:
        """Starts the pipeline and returns its iterator, for ``with`` or ``async with``.

        Args:
            epoch: Number of the epoch; the handle's next one unless given.

        Example:
            >>> import asyncdata as ad
            >>> with ad.Dataset.range(3).iterator() as numbers:
            ...     int(next(numbers)), int(next(numbers))
            (0, 1)
        """
        chosen = arguments.integer_or_none("epoch", epoch, least=0)
        return PipelineIterator(self._node, next(self._epochs) if chosen is None else chosen)

    def __iter__(self) -> Iterator[Element]:
        return iter(self._node.rows) if isinstance(self._node, Contents) else self.iterator()

    def __aiter__(self) -> AsyncIterator[Element]:
        return _later(self._node.rows) if isinstance(self._node, Contents) else self.iterator()

    def __repr__(self) -> str:
        return f"<Dataset {steps_of(self._node)}>"


async def _later(rows: Iterable[Element]) -> AsyncIterator[Element]:
    """Elements that are at hand, for ``async for``."""
    for row in rows:
        yield row


def _name_methods(cls: type[Handle]) -> None:
    for name, method in list(vars(cls).items()):
        public = not name.startswith("_")
        if isinstance(method, staticmethod):
            setattr(cls, name, staticmethod(_suggesting(method.__func__, f"Dataset.{name}")))
        elif inspect.isfunction(method) and (public or name == "__init__"):
            setattr(cls, name, _suggesting(method, f"Dataset.{name}" if public else cls.__name__))


def _suggesting(function: Callable[..., R], name: str) -> Callable[..., R]:
    """The function under a name for errors; a wrong keyword is answered with the nearest one that it takes."""
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]
    function.__qualname__ = name
    if name.startswith("Dataset."):
        function.__module__ = "asyncdata.dataset.dataset"  # where the name leads, for pickle

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> R:
        try:
            return function(*args, **given)
        except TypeError:
            for word in given:
                if word not in parameters:
                    raise arguments.unexpected_keyword(name, word, parameters) from None
            raise

    return call


_name_methods(Handle)


class NodeOf:
    """A function that returns a Dataset, as the plan wants it: returning its node. Picklable if the function is."""

    def __init__(self, function: Callable[..., Handle], of: str = "interleave or flat_map") -> None:
        self.function = function
        self.of = of
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)
        self.__element_spec__ = getattr(function, "__element_spec__", None)
        self.__checksums__ = getattr(function, "__checksums__", False)

    @property
    def __wrapped__(self) -> Callable[..., Handle]:
        """Whose signature counts."""
        return self.function

    def __call__(self, *element: Any) -> Node:
        """The plan of the dataset that is made of one element."""
        dataset = self.function(*element)
        if not isinstance(dataset, Handle):
            raise TypeError(f"the function of {self.of} must return a Dataset, not a {type(dataset).__name__}")
        return dataset._node  # noqa: SLF001 -- the handle and its plan belong together
