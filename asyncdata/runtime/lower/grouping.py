"""Lowering of what groups elements, takes groups apart, or keeps elements for later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncdata.errors import ObjectNotFoundError
from asyncdata.memory.accounts import Account, Kind
from asyncdata.memory.advance import Rows
from asyncdata.plan import grouping
from asyncdata.plan.label import function_name, label_of
from asyncdata.plan.node import Node
from asyncdata.plan.sources import Items
from asyncdata.plan.transformations import Interleave
from asyncdata.planner.cardinality import cardinality
from asyncdata.planner.shards import refuse_overlap
from asyncdata.runtime.lower.registry import (
    around_inner,
    lower,
    lower_inner,
    lower_into,
    register,
    rows_account,
    shares,
    tasks_account,
)
from asyncdata.runtime.memory.evacuate import Evacuator
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.batch import BatchStage
from asyncdata.runtime.stages.group.collecting import Collector, Collects
from asyncdata.runtime.stages.group.contents import ContentsStage
from asyncdata.runtime.stages.group.group_by_window import GroupByWindowStage
from asyncdata.runtime.stages.group.materialized import Contents
from asyncdata.runtime.stages.group.padding import Padding
from asyncdata.runtime.stages.group.raggedness import Ragging
from asyncdata.runtime.stages.group.rebatch import Cycle, stacked
from asyncdata.runtime.stages.group.uneven import Lay, UnevenBatchStage
from asyncdata.runtime.stages.group.window import WindowStage
from asyncdata.runtime.stages.rows.unbatch import UnbatchStage
from asyncdata.runtime.stages.store.cache import CacheStage
from asyncdata.runtime.stages.store.freshness import Freshness
from asyncdata.runtime.stages.store.recording import IMAGE_BYTES
from asyncdata.runtime.stages.store.snapshot import SnapshotStage
from asyncdata.runtime.stages.store.stored import FileStore, MemoryStore, Store
from asyncdata.runtime.user_code import UserFunction, as_int


def _unbatch(node: grouping.Unbatch, scope: Scope) -> Stage:
    return UnbatchStage(label_of(node), lower(node.input, scope.below()), scope.services.sources)


def _rebatch(node: grouping.Rebatch, scope: Scope) -> Stage:
    services = scope.services
    label = f"rebatch({', '.join(map(str, node.sizes))})"
    rows = rows_account(scope, f"rows for {label}")
    upstream = UnbatchStage(label, lower_into(node.input, scope, rows), services.sources)
    if len(node.sizes) > 1:
        return _uneven_stage(
            label, upstream, Cycle(upstream, node.sizes, drop_remainder=node.drop_remainder), stacked, rows, scope
        )
    return BatchStage(
        label,
        upstream,
        node.sizes[0],
        drop_remainder=node.drop_remainder,
        budget=services.budget,
        account=tasks_account(scope, label),
        rows_account=rows,
        sources=services.sources,
    )


def _padded_batch(node: grouping.PaddedBatch, scope: Scope) -> Stage:
    return _uneven(node, scope, Padding(node.shapes, node.values, node.longest))


def _ragged_batch(node: grouping.RaggedBatch, scope: Scope) -> Stage:
    return _uneven(node, scope, Ragging(node.splits_dtype, node.ranks))


def _uneven(node: grouping.PaddedBatch | grouping.RaggedBatch, scope: Scope, lay: Lay) -> Stage:
    label = label_of(node)
    rows = rows_account(scope, f"rows for {label}")
    upstream = lower_into(node.input, scope, rows)
    collector = Collector(upstream, node.size, drop_remainder=node.drop_remainder)
    return _uneven_stage(label, upstream, collector, lay, rows, scope)


def _uneven_stage(label: str, upstream: Stage, collector: Collects, lay: Lay, rows: Account, scope: Scope) -> Stage:
    services = scope.services
    return UnevenBatchStage(
        label,
        upstream,
        collector,
        lay,
        budget=services.budget,
        account=tasks_account(scope, label),
        rows_account=rows,
        sources=services.sources,
    )


def _window(node: grouping.Window, scope: Scope) -> Stage:
    label = label_of(node)
    rows = rows_account(scope, f"rows for {label}")
    return WindowStage(
        label,
        lower_into(node.input, scope, rows),
        size=node.size,
        shift=node.shift,
        stride=node.stride,
        drop_remainder=node.drop_remainder,
        wrap=_Wrap(node.make),
        budget=scope.services.budget,
        rows_account=rows,
    )


class _Wrap:
    """Makes the dataset that user code sees of what a window holds."""

    def __init__(self, make: grouping.MakeDataset) -> None:
        self._make = make

    def __call__(self, contents: Contents) -> Any:
        return self._make(grouping.Contents(rows=contents))


def _contents(node: grouping.Contents, scope: Scope) -> Stage:
    return ContentsStage(label_of(node), node.rows, scope.services.budget.slabs, scope.block_bytes)


def _group_by_window(node: grouping.GroupByWindow, scope: Scope) -> Stage:
    services = scope.services
    label = f"{node.label}({function_name(node.function)})"
    rows = rows_account(scope, f"rows for {label}")
    around = around_inner(node, scope)
    wrap = _Wrap(node.make)
    key = UserFunction(IntegerOf(node.key, "key_func"), label, services.sources)
    function = UserFunction(node.function, label, services.sources)

    def reduce(value: int, contents: Contents, number: int, origin: Rows) -> Stage:
        inner = function((value, wrap(contents)), origin)
        return lower_inner(inner, around.below(1, element=(*scope.element, number)))

    return GroupByWindowStage(
        label,
        lower_into(node.input, scope, rows),
        key=key,
        window_size=node.window_size,
        reduce=reduce,
        evacuate=Evacuator(services.budget, rows),
        budget=services.budget,
        rows_account=rows,
        guard=scope.guard(label),
    )


def _cache(node: grouping.Cache, scope: Scope) -> Stage:
    services = scope.services
    label = "cache" if node.filename is None else f"cache({node.filename})"
    blocks = tasks_account(scope, label)
    freshness = None
    store: Store
    if node.filename is None:
        account = services.account(f"{scope.place} kept", label, rank=scope.rank, kind=Kind.ASSEMBLER)
        store = MemoryStore(
            node.cell, services.charges(node.cell), services.budget, account, blocks, cardinality(node.input)
        )
    else:
        freshness = _freshness(node, label, f"delete {node.filename}, or name another file", scope)
        order = services.next_order()
        store = FileStore(
            node.filename, label, services.io, services.threads, services.budget, blocks, order, freshness
        )
    return CacheStage(
        label,
        store,
        lambda: _kept_input(node, scope, freshness),
        image_bytes=min(IMAGE_BYTES, shares(scope).task_bytes // 2),
    )


def _freshness(node: grouping.Cache | grouping.Snapshot, label: str, cure: str, scope: Scope) -> Freshness:
    services = scope.services
    io, manifest = around_inner(node, scope).access
    return Freshness(
        node.recipe,
        label,
        cure,
        manifest=manifest,
        io=io,
        threads=services.threads,
        outer=scope.reads,
    )


def _kept_input(node: grouping.Cache | grouping.Snapshot, scope: Scope, freshness: Freshness | None) -> Stage:
    """The input, which turned out to be needed."""
    refuse_overlap(node.input, scope.services.options, sharded=scope.sharded)
    return lower(node.input, scope.below(reads=scope.reads if freshness is None else freshness.reads))


def _snapshot(node: grouping.Snapshot, scope: Scope) -> Stage:
    services = scope.services
    label = f"snapshot({node.path})"
    shard = None
    if node.shard is not None:
        shard = UserFunction(IntegerOf(node.shard, "shard_func"), label, services.sources)

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

    freshness = _freshness(node, label, f"delete the directory {node.path}, or name another one", scope)
    return SnapshotStage(
        label,
        node.path,
        shard,
        lambda: _kept_input(node, scope, freshness),
        make_reader,
        services.threads,
        min(IMAGE_BYTES, shares(scope).task_bytes // 2),
        node.codec,
        freshness,
    )


def _stored_file(node: grouping.StoredFile, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    blocks = tasks_account(scope, label)
    store = FileStore(node.path, label, services.io, services.threads, services.budget, blocks, services.next_order())

    def missing() -> Stage:
        raise ObjectNotFoundError("a shard of the snapshot is gone", url=node.path, stage=label)

    return CacheStage(label, store, missing, image_bytes=IMAGE_BYTES)


class IntegerOf:
    """A user's function whose answer must be an integer."""

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        self._function = self.__wrapped__ = function  # whose signature counts
        self._what = what

    def __call__(self, *element: Any) -> int:
        """The integer."""
        return as_int(self._function(*element), self._what)


register(grouping.Unbatch, _unbatch)
register(grouping.Rebatch, _rebatch)
register(grouping.PaddedBatch, _padded_batch)
register(grouping.RaggedBatch, _ragged_batch)
register(grouping.Window, _window)
register(grouping.Contents, _contents)
register(grouping.GroupByWindow, _group_by_window)
register(grouping.Cache, _cache)
register(grouping.Snapshot, _snapshot)
register(grouping.StoredFile, _stored_file)
