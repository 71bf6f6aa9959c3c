"""Lowering of nodes with several inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncdata.memory.advance import State
from asyncdata.plan import combining
from asyncdata.plan.node import Node
from asyncdata.planner.sizes import shards_of_inputs
from asyncdata.runtime.lower.registry import begin_track, branch, draw_key, first_of, inside, lower, lowers
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.order.concatenate import ConcatenateStage
from asyncdata.runtime.stages.order.sampling import RandomChoices, SampleStage, VaryingChoices
from asyncdata.runtime.stages.order.zip import ZipStage
from asyncdata.runtime.state.restored import Kept, KeptSideBySide
from asyncdata.runtime.state.resume import Resume, counted, cursor, own


def _side_by_side(node: Node, scope: Scope, kept: Sequence[Kept] | None = None) -> list[Stage]:
    """All inputs, with their parts of the memory for shards that are read in turn.

    Args:
        node: Whose inputs.
        scope: Of the node.
        kept: Which rows are needed of each.
    """
    shards = shards_of_inputs(node, scope.shards)
    for number in range(len(node.inputs)):
        scope.services.occupy(f"{scope.place}.{number}")
    return [
        lower(child, branch(scope, number, shards[number], kept=None if kept is None else kept[number]))
        for number, child in enumerate(node.inputs)
    ]


def _vacate(scope: Scope) -> Callable[[int], None]:
    """What an input that has ended reserved is free."""
    return lambda number: scope.services.vacate(f"{scope.place}.{number}")


@lowers(combining.Zip, resumes=counted())
def _zip(node: combining.Zip, scope: Scope, context: StageContext) -> Stage:
    track, kept = begin_track(node, scope), scope.kept
    together = None if kept is None else KeptSideBySide(kept, [Kept(kept.rows, kept.until) for _ in node.inputs])
    stages = _side_by_side(node, scope._replace(within=inside(track)), together and together.parts)
    return ZipStage(context, stages, node.structure, track, together)


@lowers(combining.Concatenate, resumes=own)
def _concatenate(node: combining.Concatenate, scope: Scope, context: StageContext) -> Stage:
    first, state = first_of(scope, context)
    track = begin_track(node, scope)

    def make(number: int) -> Stage:
        scope.services.occupy(f"{scope.place}.{number}")
        around = scope._replace(within=inside(track, number))
        try:
            return lower(node.datasets[number], branch(around, number, state=state if number == first else None))
        except BaseException:
            scope.services.vacate(f"{scope.place}.{number}")
            raise

    return ConcatenateStage(context, make, len(node.datasets), _vacate(scope), first, track)


@lowers(combining.SampleFrom, resumes=own)
def _sample_from(node: combining.SampleFrom, scope: Scope, context: StageContext) -> Stage:
    key = draw_key(node, scope, node.seed, fresh=bool(node.rerandomize))
    count = len(node.datasets)
    *states, chosen = scope.resume.inputs or [None] * (count + 1)
    choices = chosen or State(None, 0)
    selector: Stage
    if node.weights is not None:
        resume = cursor(node, choices)
        stages = _side_by_side(node, scope)
        selector = RandomChoices(context, key, node.weights)
    else:
        # The selector is no node: the dataset of weights, which is one, begins at what the selector's state says.
        resume = counted()(node, choices)
        inputs = Resume(inputs=(*states, *resume.inputs))
        *stages, upstream = _side_by_side(node, scope._replace(resume=inputs))
        selector = VaryingChoices(context, upstream, key, count)
    if resume.mark is not None:
        selector.restore(resume.mark)
    return _sample(node, scope, context, selector, stages)


@lowers(combining.ChooseFrom, resumes=own)
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
