"""Lowering of nodes that group elements, split groups, or keep elements for later."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from asyncdata.errors import ObjectNotFoundError, PipelineError
from asyncdata.memory.advance import FILLING, Mark, Rows
from asyncdata.plan import grouping, transformations
from asyncdata.plan.node import Node
from asyncdata.plan.sources import Items
from asyncdata.plan.transformations import Interleave
from asyncdata.planner.cardinality import cardinality
from asyncdata.planner.shards import refuse_overlap
from asyncdata.runtime.lower.registry import around_inner, lower, lower_inner, lower_into, lowers, made_inside, resumed
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.group.batch import BatchStage
from asyncdata.runtime.stages.group.group_by_window import GroupByWindowStage
from asyncdata.runtime.stages.group.materialized import ContentsStage, Materialized
from asyncdata.runtime.stages.group.padding import Padding
from asyncdata.runtime.stages.group.raggedness import Ragging
from asyncdata.runtime.stages.group.uneven import UnevenBatchStage
from asyncdata.runtime.stages.group.windows import WindowStage
from asyncdata.runtime.stages.rows.unbatch import UnbatchStage
from asyncdata.runtime.stages.store.cache import CacheStage
from asyncdata.runtime.stages.store.freshness import Freshness, Reads
from asyncdata.runtime.stages.store.recording import IMAGE_BYTES
from asyncdata.runtime.stages.store.snapshot_directory import SnapshotStage
from asyncdata.runtime.stages.store.stored import ElementStore, FileStore, MemoryCell, MemoryStore
from asyncdata.runtime.state.filling import Filling, Told
from asyncdata.runtime.state.resume import again, batches, counted, cursor, selected
from asyncdata.runtime.user_code import UserFunction, as_int


def _rows_into(node: Any, scope: Scope, context: StageContext) -> Stage:
    return lower_into(node.input, scope, context, context.rows)


@lowers(transformations.Batch, resumes=batches)
def _batch(node: transformations.Batch, scope: Scope, context: StageContext) -> Stage:
    upstream = _rows_into(node, scope, context)
    return BatchStage(context, upstream, (node.size,), drop_remainder=node.drop_remainder, narrow=node.narrow)


@lowers(grouping.Unbatch, resumes=selected)
def _unbatch(node: grouping.Unbatch, scope: Scope, context: StageContext) -> Stage:
    return UnbatchStage(context, lower(node.input, scope.below()))


def _rows_of(node: grouping.Rebatch, mark: Mark, skip: int) -> int:
    sizes = node.sizes
    cycles, rest = divmod(skip, len(sizes))
    first = mark["batch"]
    return cycles * sum(sizes) + sum(sizes[batch % len(sizes)] for batch in range(first, first + rest))


@lowers(grouping.Rebatch, label=lambda node: f"rebatch({', '.join(map(str, node.sizes))})", resumes=counted(_rows_of))
def _rebatch(node: grouping.Rebatch, scope: Scope, context: StageContext) -> Stage:
    rows = resumed(
        selected,
        node,
        scope.resume.inputs,
        lambda resume: UnbatchStage(context, _rows_into(node, scope._replace(resume=resume), context)),
    )
    return BatchStage(context, rows, node.sizes, drop_remainder=node.drop_remainder, narrow=node.narrow)


@lowers(grouping.PaddedBatch, resumes=batches)
def _padded_batch(node: grouping.PaddedBatch, scope: Scope, context: StageContext) -> Stage:
    padding = Padding(node.shapes, node.values, node.longest, narrow=node.narrow)
    upstream = _rows_into(node, scope, context)
    return UnevenBatchStage(context, upstream, node.size, padding, drop_remainder=node.drop_remainder)


@lowers(grouping.RaggedBatch, resumes=batches)
def _ragged_batch(node: grouping.RaggedBatch, scope: Scope, context: StageContext) -> Stage:
    ragging = Ragging(node.splits_dtype, node.ranks)
    upstream = _rows_into(node, scope, context)
    return UnevenBatchStage(context, upstream, node.size, ragging, drop_remainder=node.drop_remainder)


@lowers(grouping.Window, resumes=counted(lambda node, _mark, skip: skip * node.shift))
def _window(node: grouping.Window, scope: Scope, context: StageContext) -> Stage:
    return WindowStage(
        context,
        _rows_into(node, scope, context),
        size=node.size,
        shift=node.shift,
        stride=node.stride,
        drop_remainder=node.drop_remainder,
        wrap=_Wrap(node.make),
    )


class _Wrap:
    """Makes the dataset that user code sees of what a window holds."""

    def __init__(self, make: grouping.MakeDataset) -> None:
        self._make = make

    def __call__(self, contents: Materialized) -> Any:
        return self._make(grouping.Contents(rows=contents))


@lowers(grouping.Contents, resumes=cursor)
def _contents(node: grouping.Contents, scope: Scope, context: StageContext) -> Stage:
    stage = ContentsStage(context, node.rows)
    # An element may be in several windows.
    stage.sub_index = SourceTable.number((*scope.epoch[1:], *scope.element), "contents")
    return stage


@lowers(grouping.GroupByWindow, resumes=again)
def _group_by_window(node: grouping.GroupByWindow, scope: Scope, context: StageContext) -> Stage:
    around = around_inner(node, scope)
    wrap = _Wrap(node.make)
    function = UserFunction(node.function, context, given="two arguments, the key and the Dataset of its window")

    def reduce(value: int, contents: Materialized, number: int, origin: Rows) -> Stage:
        inner = made_inside(function, (value, wrap(contents)), origin, scope)
        return lower_inner(inner, around.below(1, element=(*scope.element, number)))

    return GroupByWindowStage(
        context,
        _rows_into(node, scope, context),
        key=IntegerOf(node.key, "key_func"),
        window_size=node.window_size,
        reduce=reduce,
    )


class IntegerOf:
    """A user's function whose answer must be an integer."""

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        self._function = self.__wrapped__ = function  # whose signature counts
        self._what = what

    def __call__(self, *element: Any) -> int:
        """The integer."""
        return as_int(self._function(*element), self._what)


# --- what is kept --------------------------------------------------------------------------------------------------


@lowers(
    grouping.Cache, label=lambda node: "cache" if node.filename is None else f"cache({node.filename})", resumes=again
)
def _cache(node: grouping.Cache, scope: Scope, context: StageContext) -> Stage:
    services = scope.services
    store: ElementStore
    if node.filename is None:
        cell, filling = node.cell, _filling(node.cell, scope)
        if cell.images is not None and cell.filling != filling:
            cell = cell.empty()  # another run has filled it
        if cell.images is not None and scope.services.options.seed != filling.seed:
            # It was filled before there was the seed.
            unseeded = dataclasses.replace(scope.services.options, seed=None)
            refuse_overlap(node.input, unseeded, scope.behind)
        used, scope = scope, scope._replace(**filling.run)
        elements = cardinality(node.input, leaves_out=services.options.errors is not None)
        is_named = _naming(used) is not None
        reads = Reads(outer=scope.reads)
        noted = (reads, around_inner(node, scope).access.manifest)
        store = MemoryStore(context, cell, services.charges(cell), elements, filling, is_named=is_named, reads=noted)
    else:
        used = scope
        told, filling, scope = _told(scope, _own_run(scope, inside=node.cell.inside))
        freshness = _freshness(node, f"delete {node.filename}, or name another file", scope, context, told, filling)
        reads = freshness.reads
        store = FileStore(context, node.filename, services.io, services.next_order(), freshness)
    make_input = functools.partial(_kept_input, node, scope, filling, reads)
    moved = _moved(used, filling)
    return CacheStage(context, store, make_input, image_bytes=_image_bytes(scope), moved=moved)


def _moved(used: Scope, filling: Filling) -> int:
    """What tells the elements of one use from those of another: random numbers are keyed by their provenance."""
    if used.element == filling.element or any(number < 0 for number in filling.element):
        return 0  # of a state of an earlier version: the elements are those of one use
    return used.services.sources.move(used.element)


def _own_run(scope: Scope, *, inside: bool) -> Filling:
    """The run in which what is kept is filled here, wherever the dataset is used."""
    element = tuple(number for number in scope.element if number >= 0) if inside else ()
    return Filling(scope.seed, _epoch(scope), element)


def _epoch(scope: Scope) -> tuple[int, ...]:
    """In whose order elements are kept: where shards of them are read, the first one's, whichever is complete first.

    Else a process that has kept them would read another order than one that has not.
    """
    return (0, *scope.epoch[1:]) if scope.behind.divided else scope.epoch


def _naming(scope: Scope) -> Mark:
    """The mark of a cache that says in which run its elements were made; None if there is none."""
    mark = None if scope.state is None else scope.state.mark
    return mark if mark is not None and FILLING in mark else None


def _filling(cell: MemoryCell, scope: Scope) -> Filling:
    """The run in which a cell is filled: the first one, also where the state of a later run brings it back."""
    mark = _naming(scope)
    if mark is not None:
        filling = Filling.from_mark(mark[FILLING])
        if mark.get("kept") and cell.images is None:
            # It was complete: this run may end before the input does, and leave it to later ones to fill it.
            cell.filling = filling
        return filling
    return cell.filling or _own_run(scope, inside=cell.inside)


def _image_bytes(scope: Scope) -> int:
    return min(IMAGE_BYTES, scope.shares.task_bytes // 2)


def _freshness(
    node: grouping.Cache | grouping.Snapshot,
    cure: str,
    scope: Scope,
    context: StageContext,
    told: Told | None,
    filling: Filling,
    *,
    in_turn: bool = True,
) -> Freshness:
    return Freshness(
        context,
        node.recipe,
        cure,
        access=around_inner(node, scope).access,
        outer=scope.reads,
        filling=filling,
        told=told,
        in_turn=in_turn,
        resumed=scope.services.is_resumed,
        drawn=scope.services.options.seed is None,
    )


def _told(scope: Scope, own: Filling) -> tuple[Told | None, Filling, Scope]:
    """What the state says about what is kept in files, the run in which it is written, and the scope of that run."""
    told = None if scope.state is None else Told.of(scope.state.mark)
    filling = (told and told.filling) or own
    return told, filling, scope._replace(**filling.run)


def _kept_input(node: grouping.Cache | grouping.Snapshot, scope: Scope, filling: Filling, reads: Reads) -> Stage:
    """The input, which turned out to be needed."""
    refuse_overlap(node.input, scope.services.options, scope.behind)
    return lower(node.input, scope.below(state=filling.input, reads=reads))


@lowers(grouping.Snapshot, label=lambda node: f"snapshot({node.path})", resumes=again)
def _snapshot(node: grouping.Snapshot, scope: Scope, context: StageContext) -> Stage:
    def make_reader(files: list[str]) -> Stage:
        items = tuple(node.make(grouping.StoredFile(path=file)) for file in files)
        reader: Node = Interleave(
            input=Items(items=items),
            function=node.node_of,
            cycle_length=max(1, len(items)),
            block_length=1,
            parallelism=None,
            deterministic=True,
        )
        if node.function is not None:
            reader = node.function(node.make(Items(items=items)))
        return lower_inner(reader, around_inner(node, scope).below(1))

    # Each use in a run of its own: shards are read in another order than the one in which they were written.
    told, filling, made_in = _told(scope, Filling(scope.seed, _epoch(scope), scope.element))
    in_turn = node.shard is None and node.function is None
    cure = f"delete the directory {node.path}, or name another one"
    freshness = _freshness(node, cure, made_in, context, told, filling, in_turn=in_turn)

    def make_input() -> Stage:
        if scope.behind.shard and not in_turn:
            raise PipelineError(
                f"{scope.behind.shard} comes after snapshot({node.path}), which is not complete. Processes that write "
                "it have another order than those that read it with shard_func or reader_func, so some elements would "
                "be read by several shards and others by none. Write it with one process first, which iterates it "
                "without shard, or put shard before it and give each process a directory of its own",
                stage=scope.behind.shard,
            )
        return _kept_input(node, made_in, filling, freshness.reads)

    return SnapshotStage(
        context,
        node.path,
        None if node.shard is None else IntegerOf(node.shard, "shard_func"),
        make_input,
        make_reader,
        _image_bytes(scope),
        node.codec,
        freshness,
    )


@lowers(grouping.StoredFile, resumes=again)
def _stored_file(node: grouping.StoredFile, scope: Scope, context: StageContext) -> Stage:
    def missing() -> Stage:
        raise ObjectNotFoundError("a shard of the snapshot is missing", url=node.path, stage=context.label)

    store = FileStore(context, node.path, scope.services.io, scope.services.next_order())
    return CacheStage(context, store, missing, image_bytes=IMAGE_BYTES)
