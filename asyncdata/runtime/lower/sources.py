"""Lowering of sources that are not files."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from asyncdata.plan import sequence, sources
from asyncdata.runtime.lower.registry import draw_key, lowers
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.sources.arrays import CounterStage, ItemsStage, RandomStage, RangeStage, SlicesStage
from asyncdata.runtime.stages.sources.generator import AsyncGeneratorStage, GeneratorStage, is_async_generator
from asyncdata.runtime.stages.sources.list_files import ListFilesStage
from asyncdata.runtime.state.resume import again, cursor


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


@lowers(sources.Generator, resumes=again)
def _generator(node: sources.Generator, scope: Scope, context: StageContext) -> Stage:
    del scope
    kind = AsyncGeneratorStage if is_async_generator(node.function) else GeneratorStage
    return kind(context, node.function, node.args)


@lowers(sources.ListFiles, resumes=cursor)
def _list_files(node: sources.ListFiles, scope: Scope, context: StageContext) -> Stage:
    return _listing(node, scope, context, functools.partial(scope.access.manifest.matching, node.patterns))


@lowers(sources.ManifestFile, resumes=cursor)
def _manifest(node: sources.ManifestFile, scope: Scope, context: StageContext) -> Stage:
    return _listing(node, scope, context, functools.partial(scope.access.manifest.listed_in, node.url))


def _listing(
    node: sources.ListFiles | sources.ManifestFile,
    scope: Scope,
    context: StageContext,
    find: Callable[[], Awaitable[list[str]]],
) -> Stage:
    key = draw_key(node, scope, node.seed, fresh=True) if node.shuffle else None
    return ListFilesStage(context, key, find)
