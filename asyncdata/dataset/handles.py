"""Datasets as arguments of other datasets, and the nodes behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncdata import arguments
from asyncdata.plan.node import Node
from asyncdata.wording import kind_of


def node_of(name: str, dataset: Any) -> Node:
    """Returns the node of a Dataset that was passed as this argument.

    Raises:
        TypeError: The argument is not a Dataset.
    """
    node = _node(dataset)
    if node is None:
        raise TypeError(f"{name} must be a Dataset, not {arguments.shown(dataset)}")
    return node


def is_dataset(value: Any) -> bool:
    """Returns whether this is a Dataset."""
    return _node(value) is not None


def _node(value: Any) -> Node | None:
    node = getattr(value, "_node", None)  # the class is made of what is defined here
    return node if isinstance(node, Node) else None


class NodeOf:
    """Wraps a function that returns a Dataset: the plan needs its node. Picklable if the function is."""

    def __init__(self, function: Callable[..., Any], of: str = "interleave or flat_map") -> None:
        self.function = function
        self.of = of
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)
        self.__element_spec__ = getattr(function, "__element_spec__", None)
        # Not if it is inherited, because a subclass may do more than read files.
        self.__checksums__ = getattr(function, "__dict__", {}).get("__checksums__", False)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function whose signature counts."""
        return self.function

    def __call__(self, *element: Any) -> Node:
        """Returns the plan of the dataset made of one element."""
        dataset = self.function(*element)
        node = _node(dataset)
        if node is None:
            raise TypeError(f"the function of {self.of} must return a Dataset, not {kind_of(dataset)}")
        return node
