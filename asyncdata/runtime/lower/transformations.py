"""Lowering of transformations that run on the stage loop."""

from __future__ import annotations

from typing import Final

from asyncdata.memory.accounts import Kind
from asyncdata.memory.advance import Rows
from asyncdata.options import AUTOTUNE, merged_storage
from asyncdata.plan import transformations
from asyncdata.plan.label import label_of
from asyncdata.runtime.lower.registry import (
    around_inner,
    draw_key,
    lower,
    lower_inner,
    lower_into,
    register,
    rows_account,
    tasks_account,
)
from asyncdata.runtime.memory.evacuate import Evacuator
from asyncdata.runtime.memory.landing import LandingAhead
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.batch import BatchStage
from asyncdata.runtime.stages.order.interleave import InterleaveStage
from asyncdata.runtime.stages.order.prefetch import Depth, PrefetchStage
from asyncdata.runtime.stages.order.repeat import RepeatStage
from asyncdata.runtime.stages.order.shuffle import ShuffleStage
from asyncdata.runtime.stages.rows.selection import FilterStage, SkipStage, TakeStage
from asyncdata.runtime.user_code import UserFunction
from asyncdata.types import Element

_PREFETCHED_BYTES: Final = 32 << 20
_PREFETCHED_PART: Final = 16
"""What an autotuned `prefetch` makes ahead, as long as it is more than 8 elements: so many bytes, and this part of the
limit at the most."""
_PREFETCHED_USUAL_PART: Final = 8
"""8 elements are made ahead where they are no more than this part of the limit."""
_MAX_PARALLEL_OPENS: Final = 64


def _filter(node: transformations.Filter, scope: Scope) -> Stage:
    label = label_of(node)
    predicate = UserFunction(node.predicate, label, scope.services.sources)
    return FilterStage(label, lower(node.input, scope.below()), predicate, scope.guard(label))


def _interleave(node: transformations.Interleave, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    function = UserFunction(node.function, label, services.sources)
    shards = scope.shards * node.cycle_length
    around = around_inner(node, scope)

    def make_inner(element: Element, origin: Rows) -> Stage:
        inner = function(element, origin)
        path = (*scope.element, int(origin[0]), int(origin[1]))
        any_order = scope.any_order or not ordered
        return lower_inner(inner, around.below(1, element=path, shards=shards, any_order=any_order))

    ordered = scope.is_ordered(node.deterministic)
    return InterleaveStage(
        label,
        lower(node.input, scope.below()),
        make_inner,
        cycle_length=node.cycle_length,
        block_length=node.block_length,
        ahead=min(node.cycle_length, _MAX_PARALLEL_OPENS),
        ordered=ordered,
        spawn=services.spawn,
    )


def _shuffle(node: transformations.Shuffle, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    rows = rows_account(scope, label)
    upstream = lower_into(node.input, scope, rows)
    key = draw_key(node, scope, node.seed, fresh=node.reshuffle)
    evacuator = Evacuator(services.budget, rows)
    return ShuffleStage(label, upstream, node.buffer_size, key, evacuator, services.budget, rows)


def _batch(node: transformations.Batch, scope: Scope) -> Stage:
    services = scope.services
    label = label_of(node)
    rows = rows_account(scope, f"rows for {label}")
    return BatchStage(
        label,
        lower_into(node.input, scope, rows),
        node.size,
        drop_remainder=node.drop_remainder,
        budget=services.budget,
        account=tasks_account(scope, label),
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
    if node.buffer_size == 0:
        return upstream
    services = scope.services
    limit = services.budget.limit
    autotuned = Depth(min(_PREFETCHED_BYTES, limit // _PREFETCHED_PART), limit // _PREFETCHED_USUAL_PART)
    label = label_of(node)
    account = services.account(f"{scope.place} ahead", label, rank=scope.rank, kind=Kind.FLOW)
    return PrefetchStage(
        label,
        upstream,
        autotuned if node.buffer_size == AUTOTUNE else node.buffer_size,
        services.spawn,
        LandingAhead(services.budget, account),
    )


def _ignore_errors(node: transformations.IgnoreErrors, scope: Scope) -> Stage:
    return lower(node.input, scope.below(errors=scope.services.skips(scope.place, log_warning=node.log_warning)))


def _with_options(node: transformations.WithOptions, scope: Scope) -> Stage:
    return lower(node.input, scope.below(storage=merged_storage(scope.storage, node.options.storage)))


register(transformations.Filter, _filter)
register(transformations.Interleave, _interleave)
register(transformations.Shuffle, _shuffle)
register(transformations.Batch, _batch)
register(transformations.Repeat, _repeat)
register(transformations.Take, _take)
register(transformations.Skip, _skip)
register(transformations.Prefetch, _prefetch)
register(transformations.IgnoreErrors, _ignore_errors)
register(transformations.WithOptions, _with_options)
