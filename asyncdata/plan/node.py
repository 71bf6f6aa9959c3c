"""`Node`: one step of a plan: frozen data that knows the number and the spec of its elements.

A plan is a tree of nodes, as deep as there are steps. Code that examines plans never recurses per step, because
Python's stack would not allow it. Nodes know their inputs but not how they run: `asyncdata.planner` rewrites trees, and
``asyncdata.runtime.lower`` turns them into stages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import secrets
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

T = TypeVar("T")

INFINITE_CARDINALITY: Final = -1
"""What `Dataset.cardinality` says of a dataset without an end."""

UNKNOWN_CARDINALITY: Final = -2
"""What `Dataset.cardinality` says when only running the dataset would tell."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """Base of all nodes. A field whose type names `Node`, and whose value is one or a tuple of them, is an input."""

    name: ClassVar[str] = ""
    """What the user wrote to get this node, where that is not its class in small letters."""

    draws: ClassVar[int] = 0
    """1 for a node that draws random numbers of its own."""

    same_elements: ClassVar[bool] = False
    """Whether its elements are made of what the elements of its input are made of."""

    same_number: ClassVar[bool] = False
    """Whether it gives as many elements as its input."""

    def element_spec(self, of: Callable[[Node], Any]) -> Any:
        """What its elements are made of, see `asyncdata.spec`; None where only running would tell.

        Rules for nests of leaves are in `asyncdata.planner.element_spec`: this layer does not know nests.

        Args:
            of: Says it of an input.
        """
        return of(self.inputs[0]) if self.same_elements else None

    def cardinality(self, of: Callable[[Node], int]) -> int:
        """How many elements it gives, or one of the two constants above, by tf.data's rules.

        Args:
            of: Says it of an input.
        """
        return of(self.inputs[0]) if self.same_number else UNKNOWN_CARDINALITY

    @property
    def _field_names(self) -> tuple[str, ...]:
        kind: Any = type(self)  # mypy takes a class for something that cannot be hashed when its objects cannot
        return _fields_of(kind)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes this one reads from, in field order."""
        kind: Any = type(self)
        found: list[Node] = []
        for name in _may_be_inputs(kind):
            value = getattr(self, name)
            if _is_input(value):
                found.extend((value,) if isinstance(value, Node) else value)
        return tuple(found)

    @property
    def settings(self) -> dict[str, Any]:
        """What else it is made of: the fields that are no inputs, by name."""
        found = {name: getattr(self, name) for name in self._field_names}
        return {name: value for name, value in found.items() if not _is_input(value)}

    def with_inputs(self, inputs: tuple[Node, ...]) -> Node:
        """The same node reading from other inputs."""
        rest = list(inputs)
        changes: dict[str, object] = {}
        for name in self._field_names:
            value = getattr(self, name)
            if isinstance(value, Node):
                changes[name] = rest.pop(0)
            elif isinstance(value, tuple) and value and isinstance(value[0], Node):
                changes[name] = tuple(rest.pop(0) for _ in value)
        return dataclasses.replace(self, **changes)

    @property
    def steps(self) -> int:
        """The number of steps of the written plan that this node represents."""
        return 1

    @property
    def depth(self) -> int:
        """Steps from the first source to this node, itself included.

        Neither what reads from the node nor how the planner joins and adds nodes changes it, so that random draws
        keyed by it stay the same.
        """
        return self.steps + sum(node.steps for node in self._first_inputs())

    @property
    def draws_before(self) -> int:
        """How many steps from the first source on draw random numbers, this one not counted."""
        return sum(node.draws for node in self._first_inputs())

    def _first_inputs(self) -> Iterator[Node]:
        """The first input, its first input, and so on to the source."""
        inputs = self.inputs
        while inputs:
            yield inputs[0]
            inputs = inputs[0].inputs

    @property
    def label(self) -> str:
        """The node's name in states and recipes, in tf.data's words where it has one."""
        return self.name or _words(type(self).__name__)

    @property
    def written(self) -> str:
        """The method that the user called for it: its name in descriptions, statistics and errors."""
        return self.label


def _is_input(value: Any) -> bool:
    return isinstance(value, Node) or (isinstance(value, tuple) and bool(value) and isinstance(value[0], Node))


@functools.cache
def _fields_of(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@functools.cache
def _may_be_inputs(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if re.search(r"\bNode\b", str(field.type)))


@functools.cache
def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


_seeds: Final[ContextVar[Callable[[], int] | None]] = ContextVar("asyncdata_seeds", default=None)


def drawn_seed() -> int:
    """A seed for one step of one dataset; the dataset keeps it in other processes."""
    draw = _seeds.get()
    return secrets.randbits(63) if draw is None else draw()


def is_made_inside() -> bool:
    """Whether a running pipeline makes this dataset, of an element."""
    return _seeds.get() is not None


@contextlib.contextmanager
def drawing_seeds(draw: Callable[[], int]) -> Generator[None]:
    """Inside, seeds come from a function: of datasets that a running pipeline has made."""
    before = _seeds.set(draw)
    try:
        yield
    finally:
        _seeds.reset(before)


def upwards(node: Node, rule: Callable[[Node, Callable[[Node], T]], T]) -> dict[int, T]:
    """What a rule says of each node of a plan, by ``id``: asked from the sources on, so that plans may be of any depth.

    Args:
        node: The last one.
        rule: Called with a node, and a function that gives what was said of an input.
    """
    said: dict[int, T] = {}
    for each in reversed(list(walk(node))):
        if id(each) not in said:
            said[id(each)] = rule(each, lambda child: said[id(child)])
    return said


def rebuilt(node: Node, change: Callable[[Node, Node], Node]) -> Node:
    """The plan with every step changed once, the sources first: what several steps read, they read afterwards.

    Args:
        node: The last step.
        change: ``change(old, new)`` is called with a step, and the same step with its inputs changed.
    """
    made: dict[int, Node] = {}
    for old in reversed(list(walk(node))):
        if id(old) in made:
            continue
        new = old
        former = old.inputs
        if former:
            inputs = tuple([made[id(child)] for child in former])
            if any(after is not before for after, before in zip(inputs, former, strict=True)):
                new = old.with_inputs(inputs)
        made[id(old)] = change(old, new)
    return made[id(node)]


def numbered(node: Node, transparent: tuple[type[Node], ...]) -> Iterator[tuple[Node, list[int]]]:
    """The steps of a plan, each once, the sources first, with the numbers of its inputs in this order, from 0.

    Args:
        node: The last step.
        transparent: Steps of these kinds are left out; their input takes their place.
    """
    numbers: dict[int, int] = {}
    count = 0
    for each in reversed(list(walk(node))):
        if id(each) in numbers:
            continue
        inputs = [numbers[id(child)] for child in each.inputs]
        if isinstance(each, transparent):
            numbers[id(each)] = inputs[0]
            continue
        numbers[id(each)] = count
        count += 1
        yield each, inputs


def walk(node: Node) -> Iterator[Node]:
    """The node and everything upstream of it, depth first."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(reversed(found.inputs))
