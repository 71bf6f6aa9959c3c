"""Lowering of what reads the rows of a shuffle's buffer where they lie."""

from __future__ import annotations

from typing import Any

from asyncdata.errors import StateError
from asyncdata.memory.accounts import Kind
from asyncdata.memory.advance import Rows
from asyncdata.plan.files import PickedRows
from asyncdata.plan.node import Node
from asyncdata.plan.sources import Items
from asyncdata.plan.transformations import Interleave, Map, Prefetch, Shuffle, WithOptions
from asyncdata.planner.picking import file_of, is_pickable
from asyncdata.runtime.lower.files import framer_of
from asyncdata.runtime.lower.registry import around_inner, lower, lower_into, lowers, made_inside, note_lying, picker
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.order.picked import PickedFile, PickedStage
from asyncdata.runtime.state.places import Places
from asyncdata.runtime.state.restored import Pick
from asyncdata.runtime.state.resume import again
from asyncdata.runtime.user_code import UserFunction
from asyncdata.types import Element


def left_for_buffer(node: Shuffle, scope: Scope) -> Places | None:
    """What is left of a shuffle's input and lies in files, where elements have no fixed order: it begins with these.

    So its first element does not wait until they are read. Each of them is all that an element of the input uses up.
    The order log has no word for what is read twice, by steps between the input and the shuffle.
    """
    services, part = scope.services, scope.part
    if scope.within is None or part is None or services.tracks.in_order or services.choices is not None:
        return None
    if not is_pickable(node.input):
        return None
    below = node.input
    while id(below) in part.steps and isinstance(below, Map | Prefetch | WithOptions):
        below = below.input
    of_datasets = id(below) in part.steps
    if of_datasets:
        if not isinstance(below, Interleave):
            return None
        below = below.input
        while id(below) in part.steps and isinstance(below, Prefetch | Shuffle | WithOptions):
            below = below.input
        if id(below) in part.steps:
            return None
    return services.tracks.take_left(scope.within, part.numbers[id(below)], node.buffer_size, of_datasets=of_datasets)


def buffer_picker(node: Node, scope: Scope, context: StageContext, *, begins_anew: bool) -> Pick | None:
    """How rows of a shuffle's input are read by themselves; None where they cannot be.

    Args:
        node: The input.
        scope: Of the shuffle.
        context: Of its stage.
        begins_anew: Whether elements have no fixed order: then nothing but what was delivered is known of them.
    """
    is_tracked = scope.within is not None
    if begins_anew:
        return None
    pick = picker(node, scope, lambda rows, anew: lower_into(rows, anew, context, context.kept))

    def read(places: Places) -> Stage:
        assert pick is not None
        if (places.used is not None) != is_tracked:
            raise StateError("the state is damaged: the buffer's elements have positions, or miss them")
        return pick.read(places)

    return None if pick is None else pick._replace(read=read)


@lowers(PickedRows, resumes=again)
def _picked(node: PickedRows, scope: Scope, context: StageContext) -> Stage:
    source: Any = node.source
    several = isinstance(source, Interleave)
    function = UserFunction(source.function, context) if several else None
    around = around_inner(source, scope) if several else scope

    wanted = set(node.places.files)

    def opened(element: Element, origin: Rows) -> PickedFile | None:
        inner, inside = source, scope
        if function is not None:
            inner = made_inside(function, element, origin, scope)
            inside = around.below(1, element=(*scope.element, int(origin[0]), int(origin[1])))
        file: Any = file_of(inner)
        number = None if file is None else SourceTable.number(inside.element, file.url)
        if number is None or number not in wanted:
            return None
        note_lying(inner, inside)
        access = inside.access
        return PickedFile(
            number=number,
            url=file.url,
            path=inside.element,
            framer=framer_of(file, inside),
            io=access.io,
            info=access.manifest.get(file.url, None),
        )

    budget = context.budget
    names = source.input if several else Items(items=(source.url,))
    return PickedStage(
        context,
        node.places,
        lower(names, scope.below(tasks_verify=False)),
        opened,
        account=budget.open(f"read the buffer of {context.label}", rank=scope.rank, kind=Kind.SOURCE),
        downstream=scope.rows_account,
        piece_bytes=scope.shares.chunk_bytes // 2,
    )
