"""Lowering of sources that are not files."""

from __future__ import annotations

import functools

from asyncdata.plan import sources
from asyncdata.plan.label import label_of
from asyncdata.runtime.lower.registry import draw_key, register, source_number
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.arrays import ItemsStage, RangeStage, SlicesStage
from asyncdata.runtime.stages.sources.generator import AsyncGeneratorStage, GeneratorStage, is_async_generator
from asyncdata.runtime.stages.sources.listing import ListFilesStage


def _range(node: sources.Range, scope: Scope) -> Stage:
    values = range(node.start, node.stop, node.step)
    return RangeStage(label_of(node), source_number(node, scope), values, node.dtype)


def _slices(node: sources.TensorSlices, scope: Scope) -> Stage:
    return SlicesStage(label_of(node), source_number(node, scope), node.arrays, node.structure, scope.block_bytes)


def _items(node: sources.Items, scope: Scope) -> Stage:
    return ItemsStage(label_of(node), source_number(node, scope), node.items)


def _generator(node: sources.Generator, scope: Scope) -> Stage:
    services = scope.services
    number = source_number(node, scope)
    if is_async_generator(node.function):
        return AsyncGeneratorStage(label_of(node), number, node.function, node.args, services.spawn, scope.block_bytes)
    return GeneratorStage(
        label_of(node), number, node.function, node.args, services.threads, services.spawn, scope.block_bytes
    )


def _list_files(node: sources.ListFiles, scope: Scope) -> Stage:
    key = draw_key(node, scope, node.seed, fresh=True) if node.shuffle else None
    return ListFilesStage(
        label_of(node),
        source_number(node, scope),
        key,
        functools.partial(scope.access.manifest.matching, node.patterns),
    )


def _manifest(node: sources.ManifestFile, scope: Scope) -> Stage:
    key = draw_key(node, scope, node.seed, fresh=True) if node.shuffle else None
    return ListFilesStage(
        label_of(node), source_number(node, scope), key, functools.partial(scope.access.manifest.listed_in, node.url)
    )


register(sources.Range, _range)
register(sources.TensorSlices, _slices)
register(sources.Items, _items)
register(sources.Generator, _generator)
register(sources.ListFiles, _list_files)
register(sources.ManifestFile, _manifest)
