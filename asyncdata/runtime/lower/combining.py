"""Lowering of nodes with several inputs."""

from __future__ import annotations

from collections.abc import Callable

from asyncdata.plan import combining
from asyncdata.plan.node import Node
from asyncdata.planner.sizes import shards_of_inputs
from asyncdata.runtime.lower.registry import branch, draw_key, lower, lowers
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.order.concatenate import ConcatenateStage
from asyncdata.runtime.stages.order.sampling import RandomChoices, SampleStage, VaryingChoices
from asyncdata.runtime.stages.order.zip import ZipStage


def _side_by_side(node: Node, scope: Scope) -> list[Stage]:
    """All inputs, with their parts of the memory for shards that are read in turn."""
    shards = shards_of_inputs(node, scope.shards)
    for number in range(len(node.inputs)):
        scope.services.occupy(f"{scope.place}.{number}")
    return [lower(child, branch(scope, number, shards[number])) for number, child in enumerate(node.inputs)]


def _vacate(scope: Scope) -> Callable[[int], None]:
    """What an input that has ended reserved is free."""
    return lambda number: scope.services.vacate(f"{scope.place}.{number}")


@lowers(combining.Zip)
def _zip(node: combining.Zip, scope: Scope, context: StageContext) -> Stage:
    return ZipStage(context, _side_by_side(node, scope), node.structure)


@lowers(combining.Concatenate)
def _concatenate(node: combining.Concatenate, scope: Scope, context: StageContext) -> Stage:
    def make(number: int) -> Stage:
        scope.services.occupy(f"{scope.place}.{number}")
        return lower(node.datasets[number], branch(scope, number))

    return ConcatenateStage(context, make, len(node.datasets), _vacate(scope))


@lowers(combining.SampleFrom)
def _sample_from(node: combining.SampleFrom, scope: Scope, context: StageContext) -> Stage:
    key = draw_key(node, scope, node.seed, fresh=bool(node.rerandomize))
    stages = _side_by_side(node, scope)
    count = len(node.datasets)
    if node.weights is not None:
        return _sample(node, scope, context, RandomChoices(context, key, node.weights), stages)
    return _sample(node, scope, context, VaryingChoices(context, stages[count], key, count), stages[:count])


@lowers(combining.ChooseFrom)
def _choose_from(node: combining.ChooseFrom, scope: Scope, context: StageContext) -> Stage:
    *stages, selector = _side_by_side(node, scope)
    return _sample(node, scope, context, selector, stages)


def _sample(
    node: combining.SampleFrom | combining.ChooseFrom,
    scope: Scope,
    context: StageContext,
    selector: Stage,
    stages: list[Stage],
) -> Stage:
    return SampleStage(context, selector, stages, stop_on_empty=node.stop_on_empty, ended=_vacate(scope))
