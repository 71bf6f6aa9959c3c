"""Lowering of what looks at an element's place in the sequence, or at what came before it; and of endless sources."""

from __future__ import annotations

from asyncdata.plan import sequence
from asyncdata.plan.label import label_of
from asyncdata.planner.shards import shard_label
from asyncdata.runtime.lower.registry import draw_key, lower, register, source_number
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.rows.positions import AssertCardinalityStage, EnumerateStage, ShardStage
from asyncdata.runtime.stages.rows.scan import RejectionStage, ScanStage, TakeWhileStage
from asyncdata.runtime.stages.rows.unique import UniqueStage
from asyncdata.runtime.stages.sources.endless import CounterStage, RandomStage
from asyncdata.runtime.user_code import UserFunction


def _counter(node: sequence.Counter, scope: Scope) -> Stage:
    return CounterStage(label_of(node), source_number(node, scope), node.start, node.step, node.dtype)


def _random(node: sequence.Random, scope: Scope) -> Stage:
    key = draw_key(node, scope, node.seed, fresh=node.rerandomize, order=False)
    return RandomStage(label_of(node), source_number(node, scope), key)


def _enumerate(node: sequence.Enumerate, scope: Scope) -> Stage:
    return EnumerateStage(label_of(node), lower(node.input, scope.below()), node.start)


def _shard(node: sequence.Shard, scope: Scope) -> Stage:
    below = scope.below(sharded=shard_label(node) or scope.sharded)
    return ShardStage(label_of(node), lower(node.input, below), node.num_shards, node.index)


def _take_while(node: sequence.TakeWhile, scope: Scope) -> Stage:
    label = label_of(node)
    predicate = UserFunction(node.predicate, label, scope.services.sources)
    return TakeWhileStage(label, lower(node.input, scope.below()), predicate)


def _scan(node: sequence.Scan, scope: Scope) -> Stage:
    label = label_of(node)
    function = UserFunction(node.function, label, scope.services.sources)
    return ScanStage(label, lower(node.input, scope.below()), node.initial_state, function, scope.block_bytes)


def _unique(node: sequence.Unique, scope: Scope) -> Stage:
    limit_bytes = scope.services.options.memory_limit_bytes
    return UniqueStage(label_of(node), lower(node.input, scope.below()), limit_bytes)


def _assert_cardinality(node: sequence.AssertCardinality, scope: Scope) -> Stage:
    return AssertCardinalityStage(label_of(node), lower(node.input, scope.below()), node.count)


def _rejection_resample(node: sequence.RejectionResample, scope: Scope) -> Stage:
    label = label_of(node)
    function = UserFunction(node.function, label, scope.services.sources)
    key = draw_key(node, scope, node.seed, fresh=True)
    upstream = lower(node.input, scope.below())
    return RejectionStage(label, upstream, function, node.target, node.initial, key, every=node.every)


register(sequence.Counter, _counter)
register(sequence.Random, _random)
register(sequence.Enumerate, _enumerate)
register(sequence.Shard, _shard)
register(sequence.TakeWhile, _take_while)
register(sequence.Scan, _scan)
register(sequence.Unique, _unique)
register(sequence.AssertCardinality, _assert_cardinality)
register(sequence.RejectionResample, _rejection_resample)
