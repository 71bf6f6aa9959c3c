"""Lowering of what hands work to workers: maps, batches filled by them, checks of payloads."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from asyncdata.errors import FunctionTransferError
from asyncdata.formats.tfrecord import check_payloads
from asyncdata.memory.accounts import Kind
from asyncdata.memory.wire import as_views
from asyncdata.options import AUTOTUNE
from asyncdata.plan import transformations
from asyncdata.plan.label import function_name, label_of
from asyncdata.planner.check import will_check
from asyncdata.runtime.lower.registry import keys, lower, register, rows_account, tasks_account
from asyncdata.runtime.memory.landing import Landing
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.collecting import Collector
from asyncdata.runtime.stages.order.inputs import HandingOver
from asyncdata.runtime.stages.rows.inline import AsyncMapStage, InlineMapStage
from asyncdata.runtime.stages.rows.vectorized import VectorizedMapStage
from asyncdata.runtime.stages.work.check import CheckStage
from asyncdata.runtime.stages.work.workers import WorkerStage
from asyncdata.runtime.user_code import UserFunction
from asyncdata.workers.program import Program


def _map(node: transformations.Map, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    function = _with_views(node.function) if node.zero_copy else node.function
    if node.executor == "inline":
        called = UserFunction(function, label, services.sources, keys(scope) if node.rng else None, depth=node.depth)
        return InlineMapStage(label, lower(node.input, scope.below()), called, scope.guard(label), scope.block_bytes)
    if node.executor == "vectorized":
        return VectorizedMapStage(
            label, lower(node.input, scope.below()), node.function, services.sources, scope.block_bytes
        )
    if node.executor == "async":
        wished = node.parallelism
        return AsyncMapStage(
            label,
            lower(node.input, scope.below()),
            function,
            parallelism=16 if wished is None or wished == AUTOTUNE else wished,
            ordered=scope.is_ordered(node.deterministic),
            setup=node.setup,
            sources=services.sources,
            spawn=services.spawn,
            keys=keys(scope) if node.rng else None,
            depth=node.depth,
            guard=scope.guard(label),
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
            skip=scope.errors is not None,
        )

    return _worker_stage(node, scope, label, node.executor, node.parallelism, node.deterministic, program, "rows")


def _with_views(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given memoryviews for byte strings as in workers; functions on the loop are given bytes."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        return function(*map(as_views, arguments), **named)

    return called


def _map_batch(node: transformations.MapBatch, scope: Scope) -> Stage:
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
        )

    names = ", ".join(function_name(function) for function in node.functions)
    label = f"map({names}).batch({node.size})" if names else f"batch({node.size})"
    return _worker_stage(node, scope, label, node.executor, node.parallelism, node.deterministic, program, "batch")


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
        return _worker_stage(node, scope, label, node.executor, node.parallelism, node.deterministic, program, "rows")

    filled = dataclasses.replace(node, functions=(), rng=())
    return _batch_of(filled, scope, mapped)


def _batch_of(node: transformations.MapBatch, scope: Scope, mapped: Callable[[Scope], Stage]) -> Stage:
    """Batches that workers put together of elements as they are."""

    def program() -> Program:
        return Program(functions=(), stack=True)

    return _worker_stage(
        node,
        scope,
        f"batch({node.size})",
        node.executor,
        node.parallelism,
        node.deterministic,
        program,
        "batch",
        mapped,
    )


def _check(node: transformations.Check, scope: Scope) -> Stage:
    if scope.services.options.num_workers in (0, AUTOTUNE):
        # Handing records to a worker only to have them verified costs more than verifying them.
        upstream = lower(node.input, scope.below(verify=True))
        return CheckStage("check", upstream, scope.services.sources, scope.guard("check"))

    if will_check(node.input):
        # The workers start while the files are still being listed.
        scope.services.records_come()

    def program() -> Program:
        return Program(functions=(), check=check_payloads, skip=scope.errors is not None)

    return _worker_stage(node, scope, "check", "process", AUTOTUNE, None, program, "checked")


def _worker_stage(
    node: Any,
    scope: Scope,
    label: str,
    kind: str,
    parallelism: int | None,
    deterministic: bool | None,
    program: Callable[[], Program],
    outcome: Any,
    lowered: Callable[[Scope], Stage] | None = None,
) -> Stage:
    services = scope.services
    rows = rows_account(scope, f"rows for {label}")
    inputs = services.account(f"{scope.place} inputs", f"inputs of {label}", rank=scope.rank, kind=Kind.FLOW)
    below = scope.below(rows_account=rows, verify=False)
    upstream = lower(node.input, below) if lowered is None else lowered(below)
    if outcome != "checked":
        upstream = HandingOver(upstream, Landing(services.budget, rows), services.sources)
    workers = max(1, services.runtime.num_workers)
    collector = None
    first_rows, least_rows = 1, 0
    if outcome == "batch":
        least_rows = node.size if node.drop_remainder and node.functions else 0
        collector = Collector(upstream, node.size, drop_remainder=node.drop_remainder and not least_rows)
        first_rows = max(1, -(-node.size // workers))
    try:
        executor = services.executor(scope.place, kind, program, _functions(node))
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
        account=tasks_account(scope, label),
        inputs_account=inputs,
        rows_account=rows,
        sources=services.sources,
        keys=keys(scope),
        with_origin=any(node.rng) if isinstance(node, transformations.MapBatch) else bool(getattr(node, "rng", False)),
        spawn=services.spawn,
        collector=collector,
        least_rows=least_rows,
        first_rows=first_rows,
        guard=None if outcome == "batch" else scope.guard(label),
    )


def _functions(node: Any) -> tuple[Callable[..., Any], ...]:
    if isinstance(node, transformations.MapBatch):
        return node.functions
    return (node.function,) if isinstance(node, transformations.Map) else ()


register(transformations.Map, _map)
register(transformations.MapBatch, _map_batch)
register(transformations.Check, _check)
