"""Plans as lists of steps, because pickle can only follow a few hundred levels of nesting."""

from __future__ import annotations

from dataclasses import dataclass

from asyncdata.plan.node import Node, walk


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hole(Node):
    """Stands for an input that is elsewhere in the list.

    Attributes:
        index: Its place there.
    """

    index: int


def flattened(node: Node) -> tuple[Node, ...]:
    """The steps of a plan, sources first, with holes for inputs."""
    steps: list[Node] = []
    places: dict[int, int] = {}
    for each in reversed(list(walk(node))):
        if id(each) not in places:
            holes = tuple(Hole(index=places[id(child)]) for child in each.inputs)
            places[id(each)] = len(steps)
            steps.append(each.with_inputs(holes) if holes else each)
    return tuple(steps)


def restored(steps: tuple[Node, ...]) -> Node:
    """The last step, with all its inputs."""
    made: list[Node] = []
    for step in steps:
        inputs = tuple(made[hole.index] for hole in step.inputs if isinstance(hole, Hole))
        made.append(step.with_inputs(inputs) if inputs else step)
    return made[-1]
