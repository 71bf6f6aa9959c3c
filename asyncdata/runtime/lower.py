"""From nodes to stages: the one file that knows both worlds.

Lowering starts nothing. It runs on the stage loop: once for the plan, and again for every inner dataset and every
epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from asyncdata.errors import FunctionTransferError, PipelineError
from asyncdata.formats.tfrecord import check_payloads
from asyncdata.memory.accounts import Account, Kind
from asyncdata.memory.advance import Rows
from asyncdata.options import AUTOTUNE
from asyncdata.plan import sources, transformations
from asyncdata.plan.node import Node
from asyncdata.planner.rules import rewrite
from asyncdata.planner.sizes import Shares, divide
from asyncdata.runtime.chunks import ChunkReader
from asyncdata.runtime.evacuate import Evacuator
from asyncdata.runtime.inflate import InflatedChunks
from asyncdata.runtime.randomness import stage_key
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.arrays import ItemsStage, RangeStage, SlicesStage
from asyncdata.runtime.stages.batch import BatchStage, Collector
from asyncdata.runtime.stages.generator import AsyncGeneratorStage, GeneratorStage, is_async_generator
from asyncdata.runtime.stages.inline import AsyncMapStage, InlineMapStage
from asyncdata.runtime.stages.interleave import InterleaveStage
from asyncdata.runtime.stages.listing import ListFilesStage
from asyncdata.runtime.stages.prefetch import PrefetchStage
from asyncdata.runtime.stages.repeat import RepeatStage
from asyncdata.runtime.stages.selection import FilterStage, SkipStage, TakeStage
from asyncdata.runtime.stages.shuffle import ShuffleStage
from asyncdata.runtime.stages.tfrecord import TFRecordStage
from asyncdata.runtime.stages.workers import WorkerStage
from asyncdata.runtime.usercode import UserFunction, function_name
from asyncdata.types import Element
from asyncdata.workers.program import Program

N = TypeVar("N", bound=Node)

_AUTOTUNED_PREFETCH = 8
_MAX_PARALLEL_OPENS = 64

_LOWERINGS: dict[type[Node], Callable[[Any, Scope], Stage]] = {}


def register(kind: type[N], make: Callable[[N, Scope], Stage]) -> None:
    """Says how nodes of one kind become stages."""
    _LOWERINGS[kind] = make


def lower(node: Node, scope: Scope) -> Stage:
    """The stage that runs a node, with everything upstream of it."""
    make = _LOWERINGS.get(type(node))
    if make is None:
        raise PipelineError(f"there is no stage for {node.label}")
    return make(node, scope)


def label_of(node: Node) -> str:
    """The node's name with what tells it from its like: ``map(decode)``, ``shuffle(1000)``."""
    for field in ("function", "predicate", "functions", "size", "buffer_size", "count", "url"):
        value = getattr(node, field, None)
        if value is not None:
            if callable(value):
                value = function_name(value)
            elif isinstance(value, tuple):
                value = ", ".join(function_name(function) for function in value)
            return f"{node.label}({value})"
    return node.label


# --- sources -----------------------------------------------------------------------------------------------------


def _draws(node: Node) -> str:
    """What sets a step's random draws apart: its place counted from the source, which nothing downstream changes."""
    return f"step {node.depth}"


def _source(node: Node, scope: Scope) -> int:
    return scope.services.sources.add(scope.element, label_of(node))


def _range(node: sources.Range, scope: Scope) -> Stage:
    values = range(node.start, node.stop, node.step)
    return RangeStage(label_of(node), _source(node, scope), values, node.dtype)


def _slices(node: sources.TensorSlices, scope: Scope) -> Stage:
    return SlicesStage(label_of(node), _source(node, scope), node.arrays, node.structure)


def _items(node: sources.Items, scope: Scope) -> Stage:
    return ItemsStage(label_of(node), _source(node, scope), node.items)


def _generator(node: sources.Generator, scope: Scope) -> Stage:
    services = scope.services
    number = _source(node, scope)
    if is_async_generator(node.function):
        return AsyncGeneratorStage(label_of(node), number, node.function, node.args, services.spawn)
    return GeneratorStage(label_of(node), number, node.function, node.args, services.threads)


def _list_files(node: sources.ListFiles, scope: Scope) -> Stage:
    services = scope.services
    seed = services.seed if node.seed is None else node.seed
    key = stage_key(seed, _draws(node), (*scope.epoch, *scope.element)) if node.shuffle else None
    return ListFilesStage(
        label_of(node), _source(node, scope), node.patterns, key, services.io, services.manifest, services.listings
    )


def _tfrecord(node: sources.TFRecordFile, scope: Scope) -> Stage:
    services = scope.services
    budget = services.budget
    shares = _shares(scope)
    # Reserves nothing until the file is one of those that are read in turn.
    account = budget.open(f"read {node.url}", rank=scope.rank, kind=Kind.SOURCE)
    in_turn = max(1, scope.shards)
    reader = ChunkReader(
        services.io,
        budget,
        account,
        services.manifest.get(node.url, node.url),
        slab_bytes=shares.chunk_bytes,
        window=max(2, services.options.max_requests_in_flight // in_turn),
        order=services.next_order(),
        opened=lambda info: services.manifest.__setitem__(info.url, info),
    )
    chunks: ChunkReader | InflatedChunks = reader
    if node.compression:
        chunks = InflatedChunks(
            reader,
            node.compression,
            budget,
            account,
            services.threads,
            url=node.url,
            slab_bytes=shares.chunk_bytes,
        )
    return TFRecordStage(
        label_of(node),
        node.url,
        scope.element,
        chunks,
        compressed=bool(node.compression),
        check=services.options.check_crc,
        budget=budget,
        account=account,
        reserve_bytes=budget.charge(shares.chunk_bytes) * (2 if node.compression else 1),
        any_order=scope.any_order,
        downstream=scope.rows_account,
        sources=services.sources,
    )


def _shares(scope: Scope) -> Shares:
    return divide(scope.services.options, current_shards=scope.shards, worker_stages=scope.worker_stages)


# --- transformations ---------------------------------------------------------------------------------------------


def _rows_account(scope: Scope, name: str) -> Account:
    return scope.services.account(f"{scope.place} rows", name, rank=scope.rank, kind=Kind.ASSEMBLER)


def _tasks_account(scope: Scope, name: str) -> Account:
    reserve = _shares(scope).task_bytes
    return scope.services.account(f"{scope.place} tasks", name, rank=scope.rank, kind=Kind.FLOW, reserved_bytes=reserve)


def _keys(scope: Scope) -> tuple[int, int]:
    return stage_key(scope.services.seed, "map", scope.epoch)


def _map(node: transformations.Map, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    if node.executor == "inline":
        function = UserFunction(
            node.function, label, services.sources, _keys(scope) if node.rng else None, depth=node.depth
        )
        return InlineMapStage(label, lower(node.input, scope.below()), function)
    if node.executor == "async":
        wished = node.parallelism
        return AsyncMapStage(
            label,
            lower(node.input, scope.below()),
            node.function,
            parallelism=16 if wished is None or wished == AUTOTUNE else wished,
            ordered=scope.is_ordered(node.deterministic),
            setup=node.setup,
            sources=services.sources,
            spawn=services.spawn,
            keys=_keys(scope) if node.rng else None,
            depth=node.depth,
        )
    assert node.executor is not None

    def program() -> Program:
        return Program(
            functions=(node.function,),
            rng=(node.rng,),
            depth=node.depth,
            zero_copy=node.zero_copy,
            check=check_payloads,
            stack=False,
        )

    return _worker_stage(node, scope, label, node.executor, node.parallelism, node.deterministic, program, "rows")


def _map_batch(node: transformations.MapBatch, scope: Scope) -> Stage:
    def program() -> Program:
        return Program(
            functions=node.functions,
            rng=node.rng,
            depth=node.depth - len(node.functions),
            zero_copy=node.zero_copy,
            check=check_payloads,
            stack=True,
        )

    names = ", ".join(function_name(function) for function in node.functions)
    label = f"map({names}).batch({node.size})"
    return _worker_stage(node, scope, label, node.executor, node.parallelism, node.deterministic, program, "batch")


def _check(node: transformations.Check, scope: Scope) -> Stage:
    kind = "process" if scope.services.options.num_workers != 0 else "thread"

    def program() -> Program:
        return Program(functions=(), check=check_payloads)

    return _worker_stage(node, scope, "check", kind, AUTOTUNE, None, program, "checked")


def _worker_stage(
    node: Any,
    scope: Scope,
    label: str,
    kind: str,
    parallelism: int | None,
    deterministic: bool | None,
    program: Callable[[], Program],
    outcome: Any,
) -> Stage:
    services = scope.services
    rows = _rows_account(scope, f"rows for {label}")
    inputs = services.account(f"{scope.place} inputs", f"inputs of {label}", rank=scope.rank, kind=Kind.FLOW)
    upstream = lower(node.input, scope.below(rows_account=rows))
    workers = max(1, services.runtime.num_workers)
    collector = None
    first_rows = 8
    if outcome == "batch":
        collector = Collector(upstream, node.size, drop_remainder=node.drop_remainder)
        first_rows = max(1, -(-node.size // workers))
    try:
        executor = services.executor(scope.place, kind, program)
    except FunctionTransferError as error:
        error.stage = label
        raise
    return WorkerStage(
        label,
        upstream,
        executor=executor,
        outcome=outcome,
        parallelism=services.parallelism(AUTOTUNE if parallelism is None else parallelism, kind),
        ordered=scope.is_ordered(deterministic),
        budget=services.budget,
        account=_tasks_account(scope, label),
        inputs_account=inputs,
        rows_account=rows,
        sources=services.sources,
        keys=_keys(scope),
        with_origin=any(node.rng) if isinstance(node, transformations.MapBatch) else bool(getattr(node, "rng", False)),
        spawn=services.spawn,
        occupancy=services.occupancy(kind),
        collector=collector,
        first_rows=first_rows,
    )


def _filter(node: transformations.Filter, scope: Scope) -> Stage:
    label = label_of(node)
    predicate = UserFunction(node.predicate, label, scope.services.sources)
    return FilterStage(label, lower(node.input, scope.below()), predicate)


def _interleave(node: transformations.Interleave, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    function = UserFunction(node.function, label, services.sources)
    shards = scope.shards * node.cycle_length

    def make_inner(element: Element, origin: Rows) -> Stage:
        inner = rewrite(function(element, origin), services.options, inner=True)
        path = (*scope.element, int(origin[0]), int(origin[1]))
        return lower(inner, scope.below(1, element=path, shards=shards, any_order=scope.any_order or not ordered))

    ordered = scope.is_ordered(node.deterministic)
    return InterleaveStage(
        label,
        lower(node.input, scope.below()),
        make_inner,
        cycle_length=node.cycle_length,
        block_length=node.block_length,
        ahead=min(node.cycle_length, _MAX_PARALLEL_OPENS),
        spawn=None if ordered else services.spawn,
    )


def _shuffle(node: transformations.Shuffle, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    seed = services.seed if node.seed is None else node.seed
    epoch = scope.epoch if node.reshuffle else tuple(0 for _ in scope.epoch)
    rows = _rows_account(scope, label)
    upstream = lower(node.input, scope.below(rows_account=rows))
    key = stage_key(seed, _draws(node), (*epoch, *scope.element))
    evacuator = Evacuator(services.budget, rows)
    return ShuffleStage(label, upstream, node.buffer_size, key, evacuator, services.budget, rows)


def _batch(node: transformations.Batch, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    rows = _rows_account(scope, f"rows for {label}")
    return BatchStage(
        label,
        lower(node.input, scope.below(rows_account=rows)),
        node.size,
        drop_remainder=node.drop_remainder,
        budget=services.budget,
        account=_tasks_account(scope, label),
        rows_account=rows,
        sources=services.sources,
    )


def _repeat(node: transformations.Repeat, scope: Scope) -> Stage:
    def make(epoch: int) -> Stage:
        return lower(node.input, scope.below(epoch=(*scope.epoch, epoch)))

    return RepeatStage(label_of(node), make, node.count)


def _take(node: transformations.Take, scope: Scope) -> Stage:
    upstream = lower(node.input, scope.below())
    return upstream if node.count < 0 else TakeStage(label_of(node), upstream, node.count)


def _skip(node: transformations.Skip, scope: Scope) -> Stage:
    upstream = lower(node.input, scope.below())
    # All of them: nothing need be read.
    return TakeStage(label_of(node), upstream, 0) if node.count < 0 else SkipStage(label_of(node), upstream, node.count)


def _prefetch(node: transformations.Prefetch, scope: Scope) -> Stage:
    upstream = lower(node.input, scope.below())
    elements = _AUTOTUNED_PREFETCH if node.buffer_size == AUTOTUNE else node.buffer_size
    if elements == 0:
        return upstream
    return PrefetchStage(label_of(node), upstream, elements, scope.services.spawn)


def _with_options(node: transformations.WithOptions, scope: Scope) -> Stage:
    return lower(node.input, scope.below())


register(sources.Range, _range)
register(sources.TensorSlices, _slices)
register(sources.Items, _items)
register(sources.Generator, _generator)
register(sources.ListFiles, _list_files)
register(sources.TFRecordFile, _tfrecord)
register(transformations.Map, _map)
register(transformations.MapBatch, _map_batch)
register(transformations.Check, _check)
register(transformations.Filter, _filter)
register(transformations.Interleave, _interleave)
register(transformations.Shuffle, _shuffle)
register(transformations.Batch, _batch)
register(transformations.Repeat, _repeat)
register(transformations.Take, _take)
register(transformations.Skip, _skip)
register(transformations.Prefetch, _prefetch)
register(transformations.WithOptions, _with_options)
