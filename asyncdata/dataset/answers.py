"""Questions about a dataset as a whole, answered without running it or by running it to its end."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from html import escape
from typing import Any, TypeVar, cast

from asyncdata import arguments
from asyncdata.errors import AsyncdataError
from asyncdata.options import Options
from asyncdata.plan.grouping import Contents
from asyncdata.plan.node import INFINITE_CARDINALITY, Node
from asyncdata.planner.cardinality import cardinality
from asyncdata.planner.explain import Explanation, explain
from asyncdata.runtime.consumer.iterate import PipelineIterator
from asyncdata.runtime.life.runtime import active_runtime
from asyncdata.runtime.settings import settings_of
from asyncdata.types import Element

S = TypeVar("S")
Start = Callable[[], PipelineIterator]


class Epochs:
    """Counts the epochs of one handle.

    Attributes:
        following: The number of the next one.
    """

    __slots__ = ("following",)

    def __init__(self) -> None:
        self.following = 0

    def begin(self) -> int:
        """The number of an epoch that begins."""
        number, self.following = self.following, self.following + 1
        return number

    def take_back(self, number: int) -> None:
        """That epoch did not begin; its number is the next one's, unless another one has begun meanwhile."""
        if self.following == number + 1:
            self.following = number

    def go_on(self, number: int) -> None:
        """The next epoch has this number."""
        self.following = number


def started(node: Node, epochs: Epochs, epoch: int | None, state: Mapping[str, Any] | None) -> PipelineIterator:
    """`Dataset.iterator`."""
    if state is not None:
        if epoch is not None:
            raise ValueError("a state says which epoch it is of: give either epoch or state")
        return PipelineIterator(node, 0, state, epochs.go_on)
    chosen = arguments.integer_or_none("epoch", epoch, least=0)
    if chosen is not None:
        return PipelineIterator(node, chosen, None, epochs.go_on)
    number = epochs.begin()
    try:
        return PipelineIterator(node, number, None, epochs.go_on)
    except BaseException:
        epochs.take_back(number)
        raise


def collected(node: Node) -> PipelineIterator | None:
    """Returns the elements of a window, which exist already; None for a dataset that must run.

    Nothing runs that has a state, so this is a plain iterator, in spite of the type that all other datasets have.
    """
    return cast("PipelineIterator", iter(node.rows)) if isinstance(node, Contents) else None


def collected_later(node: Node) -> PipelineIterator | None:
    """The same for ``async for``."""
    return cast("PipelineIterator", _later(node.rows)) if isinstance(node, Contents) else None


async def _later(rows: Iterable[Element]) -> AsyncIterator[Element]:
    for row in rows:
        yield row


def options_in_force(node: Node) -> Options:
    """Those of the plan, and of the Runtime around the caller where there is one."""
    shared = active_runtime()
    return settings_of(node, None if shared is None else shared.options).options


def explained(node: Node) -> Explanation:
    """`Dataset.explain`."""
    shared, options = active_runtime(), options_in_force(node)
    limit_bytes = options.memory_limit_bytes if shared is None else shared.pipeline_limit_bytes
    return explain(node, options, limit_bytes=limit_bytes)


def shown(node: Node, text: str) -> str:
    """A dataset in a notebook: its explanation, or this text where it cannot run."""
    try:
        return explained(node)._repr_html_()
    except AsyncdataError as error:
        return f"<p>{escape(text)}</p><p>{escape(str(error))}</p>"


def count(node: Node) -> int:
    """`Dataset.cardinality`."""
    return cardinality(node, leaves_out=options_in_force(node).errors is not None)


def length(node: Node) -> int:
    """``len`` of a dataset.

    Raises:
        TypeError: It is not known or infinite.
    """
    number = count(node)
    if number < 0:
        known = "infinite" if number == INFINITE_CARDINALITY else "not known without running it"
        raise TypeError(f"the number of elements of this dataset is {known}")
    return number


def reduced(start: Start, initial_state: S, reduce_func: Callable[[S, Any], S]) -> S:
    """`Dataset.reduce`."""
    arguments.plain_function("reduce_func", reduce_func)
    state = initial_state
    with start() as elements:
        for element in elements:
            state = reduce_func(state, element)
    return state


async def reduced_later(start: Start, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
    """`Dataset.areduce`."""
    arguments.function("reduce_func", reduce_func)
    state = initial_state
    async with start() as elements:
        async for element in elements:
            state = reduce_func(state, element)
            if inspect.isawaitable(state):
                state = await state
    return state


def single(start: Start) -> Element:
    """`Dataset.get_single_element`."""
    with start() as elements:
        found = []
        for element in elements:
            found.append(element)
            if len(found) > 1:
                break
    if len(found) != 1:
        raise ValueError(f"the dataset has {'more than one element' if found else 'no element'}, not a single one")
    return found[0]
