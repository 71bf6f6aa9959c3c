"""Lowering of what hands work to workers: maps, batches filled by them, checks of payloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncdata.errors import FunctionTransferError
from asyncdata.formats.tfrecord import check_payloads
from asyncdata.memory.accounts import Kind
from asyncdata.options import AUTOTUNE
from asyncdata.plan import transformations
from asyncdata.runtime.lower.registry import keys, label_of, lower, register, rows_account, tasks_account
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.batch import Collector
from asyncdata.runtime.stages.inline import AsyncMapStage, InlineMapStage
from asyncdata.runtime.stages.workers import WorkerStage
from asyncdata.runtime.usercode import UserFunction, function_name
from asyncdata.workers.program import Program


def _map(node: transformations.Map, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    if node.executor == "inline":
        function = UserFunction(
            node.function, label, services.sources, keys(scope) if node.rng else None, depth=node.depth
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
            keys=keys(scope) if node.rng else None,
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
    rows = rows_account(scope, f"rows for {label}")
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
        account=tasks_account(scope, label),
        inputs_account=inputs,
        rows_account=rows,
        sources=services.sources,
        keys=keys(scope),
        with_origin=any(node.rng) if isinstance(node, transformations.MapBatch) else bool(getattr(node, "rng", False)),
        spawn=services.spawn,
        occupancy=services.occupancy(kind),
        collector=collector,
        first_rows=first_rows,
    )


register(transformations.Map, _map)
register(transformations.MapBatch, _map_batch)
register(transformations.Check, _check)
