"""Lowering of nodes that give work to workers: maps, and batches that maps fill."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from asyncdata.errors import FunctionTransferError
from asyncdata.formats.tfrecord import check_payloads
from asyncdata.memory.wire import as_views
from asyncdata.options import AUTOTUNE
from asyncdata.plan import transformations
from asyncdata.plan.label import function_name
from asyncdata.planner.autotune import CALLS, tasks, thread_tasks
from asyncdata.planner.fuse import joined_name, reads_rows
from asyncdata.planner.placement import LOOP, WORKERS
from asyncdata.planner.rules import tasks_verify
from asyncdata.runtime.lower.registry import keys, lower, lowers, resumed
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.group.collecting import Collector
from asyncdata.runtime.stages.order.inputs import HandingOver
from asyncdata.runtime.stages.order.repeated import RepeatedOrderStage
from asyncdata.runtime.stages.rows.inline import AsyncMapStage, InlineMapStage
from asyncdata.runtime.stages.rows.parsed import ParserStage
from asyncdata.runtime.stages.rows.vectorized import VectorizedMapStage
from asyncdata.runtime.stages.work.placed import PlacedStage
from asyncdata.runtime.stages.work.tasks import Executor
from asyncdata.runtime.stages.work.worker_map import WorkerStage
from asyncdata.runtime.state.resume import batches, passed_on, selected
from asyncdata.runtime.tuning.knob import Knob
from asyncdata.workers.program import Program


@lowers(transformations.Map, resumes=passed_on)
def _map(node: transformations.Map, scope: Scope, context: StageContext) -> Stage:
    function = _with_views(node.function) if node.zero_copy else node.function
    with_rng = keys(scope) if node.rng else None
    keeps_order = node.executor in transformations.IN_ORDER
    choices = scope.choices(node, context, is_needed=not keeps_order)
    if choices is not None:
        context = dataclasses.replace(context, choices=choices, ordered=choices.repeats)

    def lowered(below: Scope) -> Stage:
        upstream = lower(node.input, below)
        if choices is None or not choices.repeats:
            return upstream
        return RepeatedOrderStage(context, upstream, choices)

    if node.executor == "inline":
        upstream = lowered(scope.below())
        if reads_rows(node.function) and not node.rng:
            return ParserStage(context, upstream, node.function, function)
        return InlineMapStage(context, upstream, function, with_rng, node.depth)
    if node.executor == "vectorized":
        return VectorizedMapStage(context, lowered(scope.below()), node.function)
    if node.executor == "async":
        wished = node.parallelism
        assert wished is not None
        return AsyncMapStage(
            context,
            lowered(scope.below()),
            function,
            parallelism=scope.knob(context, "calls", CALLS, context.meter.calls) if wished == AUTOTUNE else wished,
            setup=node.setup,
            keys=with_rng,
            depth=node.depth,
        )

    def program() -> Program:
        return Program(
            functions=(node.function,),
            rng=(node.rng,),
            depth=node.depth,
            zero_copy=node.zero_copy,
            check=check_payloads,
            stack=False,
            skip=scope.errors is not None,
        )

    if node.executor == "either":
        return _placed(node, scope, context, function, program, lowered)
    assert node.executor is not None
    return _worker_stage(node, scope, context, node.executor, node.parallelism, program, "rows", lowered)


def _placed(
    node: transformations.Map,
    scope: Scope,
    context: StageContext,
    function: Callable[..., Any],
    program: Callable[[], Program],
    lowered: Callable[[Scope], Stage],
) -> Stage:
    """A ready-made parser on the loop or in workers."""
    workers = scope.services.runtime.num_workers
    in_order = dataclasses.replace(context, ordered=True, choices=None)

    def executor() -> Executor:
        return scope.services.executor(scope.place, "process" if workers else "thread", program, (node.function,))

    def on_loop(gate: Stage) -> Stage:
        return ParserStage(context, gate, node.function, function)

    def in_workers(gate: Stage) -> Stage:
        return WorkerStage(
            in_order,
            HandingOver(context, gate, context.rows),
            executor=executor(),
            outcome="rows",
            parallelism=tasks(max(1, workers)).first,
        )

    return PlacedStage(
        context,
        lowered(scope.below(rows_account=context.rows)),
        place=scope.placing_knob(context, LOOP if getattr(node.function, "light", False) else WORKERS),
        executor=executor,
        on_loop=on_loop,
        in_workers=in_workers,
    )


def _with_views(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given memoryviews for byte strings as in workers; functions on the loop are given bytes."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        return function(*map(as_views, arguments), **named)

    return called


@lowers(transformations.MapBatch, label=joined_name, resumes=batches)
def _map_batch(node: transformations.MapBatch, scope: Scope, context: StageContext) -> Stage:
    if scope.errors is not None and node.functions:
        return _map_then_batch(node, scope)

    def program() -> Program:
        return Program(
            functions=node.functions,
            rng=node.rng,
            depth=node.depth - len(node.functions),
            zero_copy=node.zero_copy,
            check=check_payloads,
            stack=True,
            narrow=node.narrow,
        )

    def lowered(below: Scope) -> Stage:
        return lower(node.input, below)

    return _worker_stage(node, scope, context, node.executor, node.parallelism, program, "batch", lowered)


def _map_then_batch(node: transformations.MapBatch, scope: Scope) -> Stage:
    """The same in two steps, where elements may be left out: a batch is filled from those that are left."""

    def program() -> Program:
        return Program(
            functions=node.functions,
            rng=node.rng,
            depth=node.depth - len(node.functions),
            zero_copy=node.zero_copy,
            check=check_payloads,
            skip=True,
        )

    def mapped(scope: Scope) -> Stage:
        label = f"map({', '.join(function_name(function) for function in node.functions)})"
        context = scope.context(label, label, node.deterministic)
        return _worker_stage(node, scope, context, node.executor, node.parallelism, program, "rows", lowered)

    def lowered(below: Scope) -> Stage:
        return lower(node.input, below)

    filled = dataclasses.replace(node, functions=(), rng=())
    context = scope.context(joined_name(filled), joined_name(filled), node.deterministic)

    def stacking() -> Program:
        """Batches that workers put together of elements as they are."""
        return Program(functions=(), stack=True, narrow=node.narrow)

    def rows(below: Scope) -> Stage:
        return resumed(
            selected,
            node,
            scope.resume.inputs,
            lambda resume: mapped(below._replace(resume=resume)),
        )

    return _worker_stage(filled, scope, context, node.executor, node.parallelism, stacking, "batch", rows)


def _worker_stage(
    node: Any,
    scope: Scope,
    context: StageContext,
    kind: str,
    parallelism: int | None,
    program: Callable[[], Program],
    outcome: Any,
    lowered: Callable[[Scope], Stage],
) -> Stage:
    services = scope.services
    below = scope.below(rows_account=context.rows, tasks_verify=tasks_verify(node.input))
    upstream = HandingOver(context, lowered(below), context.rows)
    workers = max(1, services.runtime.num_workers)
    collector = None
    first_rows, least_rows = 1, 0
    if outcome == "batch":
        least_rows = node.size if node.drop_remainder and node.functions else 0
        collector = Collector(context, upstream, (node.size,), drop_remainder=node.drop_remainder and not least_rows)
        first_rows = max(1, -(-node.size // workers))
    try:
        executor = services.executor(scope.place, kind, program, _functions(node))
    except FunctionTransferError as error:
        error.stage = context.label
        raise
    rng = getattr(node, "rng", False)
    return WorkerStage(
        context,
        upstream,
        executor=executor,
        outcome=outcome,
        parallelism=_at_a_time(parallelism, kind, scope, context),
        keys=keys(scope) if (any(rng) if isinstance(rng, tuple) else rng) else None,
        collector=collector,
        least_rows=least_rows,
        first_rows=first_rows,
    )


def _at_a_time(wished: int | None, kind: str, scope: Scope, context: StageContext) -> int | Knob:
    """Tasks under way at a time."""
    runtime = scope.services.runtime
    found = thread_tasks(runtime.num_threads) if kind == "thread" else tasks(max(1, runtime.num_workers))
    if wished is None or wished == AUTOTUNE:
        return scope.knob(context, "calls", found, context.meter.calls)
    return min(wished, found.first) if kind == "process" else wished


def _functions(node: Any) -> tuple[Callable[..., Any], ...]:
    return (node.function,) if isinstance(node, transformations.Map) else node.functions
