"""Lowering of nodes with several inputs."""

from __future__ import annotations

from collections.abc import Callable

from asyncdata.plan import combining
from asyncdata.plan.label import label_of
from asyncdata.plan.node import Node
from asyncdata.planner.sizes import shards_of_inputs
from asyncdata.runtime.lower.registry import branch, draw_key, lower, register
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
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


def _zip(node: combining.Zip, scope: Scope) -> Stage:
    return ZipStage(label_of(node), _side_by_side(node, scope), node.structure)


def _concatenate(node: combining.Concatenate, scope: Scope) -> Stage:
    def make(number: int) -> Callable[[], Stage]:
        def lowered() -> Stage:
            scope.services.occupy(f"{scope.place}.{number}")
            return lower(node.datasets[number], branch(scope, number))

        return lowered

    return ConcatenateStage(label_of(node), [make(number) for number in range(len(node.datasets))], _vacate(scope))


def _sample_from(node: combining.SampleFrom, scope: Scope) -> Stage:
    label = label_of(node)
    key = draw_key(node, scope, node.seed, fresh=bool(node.rerandomize))
    stages = _side_by_side(node, scope)
    count = len(node.datasets)
    selector: Stage
    if node.weights is not None:
        selector = RandomChoices(label, key, node.weights)
    else:
        selector = VaryingChoices(label, stages[count], key, count)
    return SampleStage(label, selector, stages[:count], stop_on_empty=node.stop_on_empty, ended=_vacate(scope))


def _choose_from(node: combining.ChooseFrom, scope: Scope) -> Stage:
    stages = _side_by_side(node, scope)
    return SampleStage(
        label_of(node),
        stages[-1],
        stages[:-1],
        stop_on_empty=node.stop_on_empty,
        ended=_vacate(scope),
    )


register(combining.Zip, _zip)
register(combining.Concatenate, _concatenate)
register(combining.SampleFrom, _sample_from)
register(combining.ChooseFrom, _choose_from)
