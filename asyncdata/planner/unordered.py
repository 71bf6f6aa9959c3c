"""Which steps of a plan pass elements on in no fixed order, and where that part of the plan begins.

    list_files ─▶ TFRecord files ─▌─▶ sloppy interleave ─▶ shuffle ─▶ batch
         ordered: a position       ▌       unordered: the elements that were delivered
         describes what is left

Everything that is made of elements in no fixed order has none either. So the unordered part reaches from the first such
step of each branch to the last step, and its inputs are ordered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from asyncdata.plan.combining import Concatenate, Zip
from asyncdata.plan.grouping import PaddedBatch, RaggedBatch
from asyncdata.plan.label import label_of
from asyncdata.plan.node import Node, upwards, walk
from asyncdata.plan.sequence import Enumerate, Scan, Unique
from asyncdata.plan.transformations import (
    Batch,
    Filter,
    IgnoreErrors,
    Interleave,
    Map,
    MapBatch,
    Prefetch,
    Repeat,
    Shuffle,
    Skip,
    Take,
    WithOptions,
)

_COUNTING: Final = (Concatenate, Enumerate, Repeat, Scan, Skip, Take, Unique, Zip)
"""Their outputs depend on how many or which elements have passed, or on which input is read."""

_PASSING: Final = (Concatenate, Filter, IgnoreErrors, Prefetch, Repeat, Shuffle, Skip, Take, WithOptions)
_FROM_ONE: Final = (*_PASSING, Interleave, Map)
"""Each of their elements is made of one element of an input, and is the same in every run."""

_RESUMABLE: Final = (*_FROM_ONE, Batch, Enumerate, MapBatch, PaddedBatch, RaggedBatch, Scan, Unique, Zip)


@dataclass(frozen=True, slots=True)
class UnorderedPart:
    """See the module's docstring.

    Attributes:
        steps: The steps of the part, by ``id``.
        numbers: Of its inputs and of the steps that count, by ``id``; fusion changes none of them. A plan that has a
            fixed order may be an input of another one.
        causes: Labels of the steps that mix elements.
        refused: Why no state can be taken, or None.
    """

    steps: frozenset[int]
    numbers: dict[int, int]
    causes: tuple[str, ...]
    refused: str | None


def unordered_part(
    plan: Node, *, deterministic: bool, is_inner: bool = False, behind: Node | None = None
) -> UnorderedPart:
    """The unordered part of a plan; of no steps where the plan has a fixed order.

    Args:
        plan: The last step.
        deterministic: What holds where a step does not say.
        is_inner: Whether an element of another plan makes this one, whose steps may mix what it gives.
        behind: A step behind which all steps belong to the part, whether or not they have a fixed order.
    """

    def mixes(node: Node) -> bool:
        said: bool | None = getattr(node, "deterministic", True)
        return not (deterministic if said is None else said)

    nodes = list({id(node): node for node in walk(plan)}.values())
    if behind in (None, plan) and not any(map(mixes, nodes)):
        return UnorderedPart(frozenset(), {id(plan): 0}, (), None)  # asked for every inner dataset
    unordered = upwards(
        plan, lambda node, said: mixes(node) or any(child is behind or said(child) for child in node.inputs)
    )
    steps = [node for node in nodes if unordered[id(node)]]
    inputs = {id(child) for node in steps for child in node.inputs if not unordered[id(child)]}
    numbered = [node for node in nodes if id(node) in inputs or (unordered[id(node)] and isinstance(node, _COUNTING))]
    return UnorderedPart(
        frozenset(id(node) for node in steps),
        {id(node): number for number, node in enumerate(numbered)},
        tuple(label_of(node) for node in steps if mixes(node)),
        _refusal(steps, unordered) or _scan_refusal(steps, mixes, is_inner=is_inner),
    )


def _scan_refusal(steps: list[Node], mixes: Callable[[Node], bool], *, is_inner: bool) -> str | None:
    """What a `scan` carries belongs to one order of its elements, which the consumer must be given."""
    if is_inner and (scan := next((node for node in steps if isinstance(node, Scan)), None)) is not None:
        return f"{label_of(scan)} of elements that come as they are ready has no state in an inner dataset"
    for node in steps:
        if isinstance(node, Shuffle | Interleave) or mixes(node):
            scan = next((each for each in walk(node) if isinstance(each, Scan) and each in steps), None)
            if scan is not None:
                return f"{label_of(scan)} between a step without a fixed order and {label_of(node)} has no state"
    return None


def _refusal(steps: list[Node], unordered: dict[int, bool]) -> str | None:
    for node in steps:
        if not isinstance(node, _RESUMABLE):
            return f"{label_of(node)} of elements that come as they are ready has no state"
        if isinstance(node, Interleave) and (grouped := _first_grouped(node.input, unordered)) is not None:
            return (
                f"{label_of(node)} makes datasets of elements of {label_of(grouped)}, which are other ones in every run"
            )
    return None


def _first_grouped(node: Any, unordered: dict[int, bool]) -> Node | None:
    """The first step whose elements are made of several ones that come in no fixed order, or are those that came first.

    A dataset of which some elements were delivered must be made again; `take` might take another element then.
    """
    waiting: list[Node] = [node]
    while waiting:
        each = waiting.pop()
        if not unordered[id(each)]:
            continue
        if not isinstance(each, _FROM_ONE) or (isinstance(each, Take) and each.count >= 0):
            return each
        waiting.extend(each.inputs)
    return None
