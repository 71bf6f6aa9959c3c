"""How many elements a plan gives, as far as that is known without running it. The rules are tf.data's."""

from __future__ import annotations

from typing import Final

from asyncdata.memory.structure import flatten
from asyncdata.plan.grouping import Unbatch
from asyncdata.plan.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Node
from asyncdata.planner.element_spec import element_spec
from asyncdata.planner.upwards import Upwards


def _rule(node: Node) -> int:
    return _unbatched(node) if isinstance(node, Unbatch) else node.cardinality(cardinality)


cardinality: Final = Upwards[int](_rule)
"""The number of elements, or `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`."""


def _unbatched(node: Unbatch) -> int:
    there = cardinality(node.input)
    shapes = [getattr(leaf, "shape", None) for leaf in flatten(element_spec(node.input))[0]]
    rows = next((shape[0] for shape in shapes if shape and shape[0] is not None), None)
    if there == UNKNOWN_CARDINALITY or rows is None:
        return UNKNOWN_CARDINALITY
    return INFINITE_CARDINALITY if there == INFINITE_CARDINALITY else there * rows
