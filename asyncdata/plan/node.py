"""`Node`: one step of a plan, frozen data without behaviour.

A plan is a tree of nodes. Nodes know their inputs and nothing of how they run; `asyncdata.planner` rewrites trees,
``asyncdata.runtime.lower`` turns them into stages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """Base of all nodes. A field whose value is a Node, or a tuple of them, is an input."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes this one reads from, in field order."""
        found: list[Node] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Node):
                found.append(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], Node):
                found.extend(value)
        return tuple(found)

    def with_inputs(self, inputs: tuple[Node, ...]) -> Node:
        """The same node reading from other inputs."""
        rest = list(inputs)
        changes: dict[str, object] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Node):
                changes[field.name] = rest.pop(0)
            elif isinstance(value, tuple) and value and isinstance(value[0], Node):
                changes[field.name] = tuple(rest.pop(0) for _ in value)
        return dataclasses.replace(self, **changes)

    @property
    def label(self) -> str:
        """The node's name in descriptions and errors, in tf.data's words where it has one."""
        name = type(self).__name__
        return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def walk(node: Node) -> Iterator[Node]:
    """The node and everything upstream of it, depth first."""
    yield node
    for child in node.inputs:
        yield from walk(child)
