"""Lowering of sources that are not files."""

from __future__ import annotations

import logging
from typing import Final

from asyncdata.arguments import is_async_generator
from asyncdata.errors import StateError
from asyncdata.memory.advance import State
from asyncdata.plan import sequence, sources
from asyncdata.plan.label import label_of
from asyncdata.runtime.lower.registry import draw_key, lowers
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.sources.arrays import CounterStage, ItemsStage, RandomStage, RangeStage, SlicesStage
from asyncdata.runtime.stages.sources.generator import (
    AsyncGeneratorStage,
    GeneratorStage,
    OwnState,
)
from asyncdata.runtime.stages.sources.list_files import ListFilesStage
from asyncdata.runtime.stages.store.freshness import find, patterns_of
from asyncdata.runtime.state.resume import Resume, again, cursor

_LOGGER: Final = logging.getLogger(__name__)


@lowers(sources.Range, resumes=cursor)
def _range(node: sources.Range, scope: Scope, context: StageContext) -> Stage:
    del scope
    return RangeStage(context, range(node.start, node.stop, node.step), node.dtype)


@lowers(sequence.Counter, resumes=cursor)
def _counter(node: sequence.Counter, scope: Scope, context: StageContext) -> Stage:
    del scope
    return CounterStage(context, node.start, node.step, node.dtype)


@lowers(sequence.Random, resumes=cursor)
def _random(node: sequence.Random, scope: Scope, context: StageContext) -> Stage:
    key = draw_key(node, scope, node.seed, fresh=node.rerandomize, order=False)
    return RandomStage(context, key)


@lowers(sources.TensorSlices, resumes=cursor)
def _slices(node: sources.TensorSlices, scope: Scope, context: StageContext) -> Stage:
    del scope
    return SlicesStage(context, node.arrays, node.structure)


@lowers(sources.Items, resumes=cursor)
def _items(node: sources.Items, scope: Scope, context: StageContext) -> Stage:
    del scope
    return ItemsStage(context, node.items)


def _told(node: sources.Generator, state: State) -> Resume:
    if not state.mark or "value" not in state.mark:
        return again(node, state)
    if node.set_state is None:
        raise StateError(
            f"{label_of(node)} told its own state when this state was taken: it needs state=(get, set) to begin there"
        )
    return Resume(state.mark, drop=state.skip)


@lowers(sources.Generator, resumes=_told)
def _generator(node: sources.Generator, scope: Scope, context: StageContext) -> Stage:
    services = scope.services
    own = None
    if node.get_state is not None and node.set_state is not None:
        own = OwnState(context.label, node.get_state, node.set_state, node.state_every, services.telling)
    elif scope.resume.drop and not services.said_replayed:
        services.said_replayed = True
        _LOGGER.warning(
            "%s is replayed: %d elements are made again and dropped, to come to where the state was taken; "
            "from_generator(..., state=(get, set)) begins anywhere",
            context.label,
            scope.resume.drop,
        )
    kind = AsyncGeneratorStage if is_async_generator(node.function) else GeneratorStage
    return kind(context, node.function, node.args, own)


def _listing(node: sources.ListFiles | sources.ManifestFile, scope: Scope, context: StageContext) -> Stage:
    manifest, patterns, reads = scope.access.manifest, patterns_of(node), scope.reads

    async def found() -> list[str]:
        if reads is not None:
            reads.listed(patterns, manifest)
        return await find(manifest, patterns)

    key = draw_key(node, scope, node.seed, fresh=True) if node.shuffle else None
    return ListFilesStage(context, key, found)


lowers(sources.ListFiles, resumes=cursor)(_listing)
lowers(sources.ManifestFile, resumes=cursor)(_listing)
