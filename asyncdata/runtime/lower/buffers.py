"""Lowering of what reads the rows of a shuffle's buffer where they lie."""

from __future__ import annotations

from typing import Any, cast

from asyncdata.errors import StateError
from asyncdata.memory.accounts import Kind
from asyncdata.memory.advance import Rows
from asyncdata.plan.files import FramedFile, PickedRows, WholeFile
from asyncdata.plan.node import Node
from asyncdata.plan.sources import Items
from asyncdata.plan.transformations import Interleave, Map, Prefetch, Shuffle, WithOptions
from asyncdata.planner.alike import are_alike
from asyncdata.planner.picking import JOINING, file_of, made_of, maps_of, once, picked, source_of
from asyncdata.redaction import redact_url
from asyncdata.runtime.lower.files import framer_of
from asyncdata.runtime.lower.registry import (
    around_inner,
    branch,
    lower,
    lower_inner,
    lower_into,
    lowers,
    made_inside,
    note_lying,
    picker,
)
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.order.picked import PickedFile, PickedInnerStage, PickedStage, TurnsStage
from asyncdata.runtime.state.places import Places
from asyncdata.runtime.state.restored import Pick
from asyncdata.runtime.state.resume import again
from asyncdata.runtime.user_code import UserFunction
from asyncdata.types import Element


def buffer_picker(node: Node, scope: Scope, context: StageContext) -> Pick | None:
    """How rows of a shuffle's input are read by themselves; None where they cannot be."""
    is_tracked = scope.within is not None
    pick = picker(node, scope, lambda rows, anew: lower_into(rows, anew, context, context.kept))

    def read(places: Places) -> Stage:
        assert pick is not None
        if (places.used is not None) != is_tracked:
            raise StateError("the state is damaged: the buffer's elements have positions, or miss them")
        return pick.read(places)

    return None if pick is None else pick._replace(read=read)


def left_for_buffer(node: Shuffle, scope: Scope) -> Places | None:
    """What is left of the input of a shuffle without a fixed order and lies in files: its buffer begins with these.

    So no element waits until all of them are read. Between the inputs of the unordered part and the shuffle there may
    be steps that make one element of one, and count none.
    """
    tracks, part, below = scope.services.tracks, scope.part, node.input
    assert scope.within is not None
    assert part is not None
    # The order log has no word for what a step chooses among elements that are read by themselves.
    if scope.services.choices is not None:
        return None
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
    return tracks.take_left(scope.within, part.numbers[id(below)], node.buffer_size, of_datasets=of_datasets)


@lowers(PickedRows, resumes=again)
def _picked(node: PickedRows, scope: Scope, context: StageContext) -> Stage:
    if node.stage is not None:
        return cast("Stage", node.stage)
    source: Any = node.source
    if isinstance(source, JOINING):
        count = node.parts * len(source.datasets)
        parts = [picked(each, node.places, count, repeated=node.repeated) for each in source.datasets]
        return TurnsStage(context, [lower(each, branch(scope, number)) for number, each in enumerate(parts)])
    several = isinstance(source, Interleave)
    function = UserFunction(source.function, context) if several else None
    around = around_inner(source, scope) if several else scope

    wanted = set(node.places.files)
    first: list[tuple[Node, Scope]] = []

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
        if function is not None:
            first.append((inner, inside))
            del first[1:]
            if not are_alike(maps_of(first[0][0]), maps_of(inner)):
                raise StateError(f"the function makes other steps of {redact_url(file.url)} now", stage=context.label)
        access = inside.access
        return PickedFile(
            number=number,
            url=file.url,
            path=inside.element,
            framer=framer_of(file, inside),
            io=access.io,
            info=access.manifest.get(file.url, None),
            at_once=isinstance(file, WholeFile),
            by_header=isinstance(file, FramedFile) and file.by_header,
        )

    budget = context.budget
    names = once(source.input, repeated=node.repeated) if several else Items(items=(source.url,))
    stage = PickedStage(
        context,
        node.places,
        lower(names, scope.below(tasks_verify=False)),
        opened,
        account=budget.open(f"read the buffer of {context.label}", rank=scope.rank, kind=Kind.SOURCE),
        downstream=scope.rows_account,
        piece_bytes=scope.shares.chunk_bytes // 2 // node.parts,
        is_part=node.parts > 1,
    )

    def make() -> Stage:
        """What the functions inside make of the rows."""
        if not first or not maps_of(first[0][0]):
            return stage
        inner, inside = first[0]
        return lower_inner(made_of(inner, PickedRows(source=source_of(inner), places=node.places, stage=stage)), inside)

    return PickedInnerStage(context, stage, make) if several else stage
