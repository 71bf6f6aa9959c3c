"""The number of a plan's elements, as far as it is known without running the plan. The rules are tf.data's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from asyncdata.memory.structure import flatten
from asyncdata.plan.files import WholeFile
from asyncdata.plan.grouping import Unbatch
from asyncdata.plan.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Node, upwards
from asyncdata.plan.transformations import Map
from asyncdata.planner.element_spec import element_specs


def cardinality(node: Node, *, leaves_out: bool) -> int:
    """The number of elements, or `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`.

    Args:
        node: The last step.
        leaves_out: Whether an error policy is in force: how many elements it leaves out is not known.
    """
    specs = functools.cache(lambda: element_specs(node))

    def rule(each: Node, of: Callable[[Node], int]) -> int:
        if isinstance(each, Unbatch):
            return _unbatched(of(each.input), specs()[id(each.input)])
        count = each.cardinality(of)
        if leaves_out and count > 0 and isinstance(each, Map | WholeFile):
            return UNKNOWN_CARDINALITY
        return count

    return upwards(node, rule)[id(node)]


def most(node: Node) -> int:
    """The same if no element fails."""
    return cardinality(node, leaves_out=False)


def _unbatched(there: int, spec: Any) -> int:
    shapes = [getattr(leaf, "shape", None) for leaf in flatten(spec)[0]]
    rows = next((shape[0] for shape in shapes if shape and shape[0] is not None), None)
    if there == UNKNOWN_CARDINALITY or rows is None:
        return UNKNOWN_CARDINALITY
    return INFINITE_CARDINALITY if there == INFINITE_CARDINALITY else there * rows
