"""Lowering of files. Framed formats share one stage over the chunks of one object, with the format's framer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from asyncdata.formats.framing import Framer, WholeFramer
from asyncdata.formats.framing_task import FramingTask
from asyncdata.formats.sample_framing import SampleFramer
from asyncdata.formats.tar import TarFramer
from asyncdata.formats.tfrecord import TFRecordFramer
from asyncdata.memory.accounts import Kind
from asyncdata.memory.advance import SUB_INDEX, Rows
from asyncdata.memory.leaf import BYTES, UNCHECKED_BYTES
from asyncdata.options import AUTOTUNE
from asyncdata.plan import files, sources
from asyncdata.plan.node import Node
from asyncdata.plan.transformations import Interleave
from asyncdata.planner.placement import LOOP
from asyncdata.redaction import redact_url
from asyncdata.runtime.lower.registry import Make, lowers, note_lying, sub_index_of
from asyncdata.runtime.reading.chunks import ChunkReader
from asyncdata.runtime.reading.inflate import InflatedChunks
from asyncdata.runtime.scope import Access, Scope
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.sources.file import GuardedStage, SourceFile, refuse_changed, refuse_resized
from asyncdata.runtime.stages.sources.framed import FramedStage
from asyncdata.runtime.stages.sources.framed_away import FramedAway
from asyncdata.runtime.stages.sources.parquet_rows import ParquetStage
from asyncdata.runtime.stages.sources.reread import RestartStage
from asyncdata.runtime.stages.sources.tar_samples import TarStage
from asyncdata.runtime.stages.sources.whole_files import Runs
from asyncdata.runtime.stages.work.tasks import Executor
from asyncdata.runtime.state.resume import Rule, alone, at_row, own
from asyncdata.runtime.tuning.knob import Knob
from asyncdata.storage.urls import is_local
from asyncdata.types import Element, ObjectInfo

_LEAST_FIRST: Final = 1 << 16
_FIRST_PART: Final = 8
"""The first chunk of the first files is this part of any other."""


_F = TypeVar("_F", bound=Node)


def _reads(kind: type[_F], resumes: Rule = own) -> Callable[[Make[_F]], Make[_F]]:
    """Like `lowers`, for a node that reads the file of its ``url``; the options may restart it or end it early."""

    def register(make: Make[_F]) -> Make[_F]:
        lowers(kind, resumes=resumes)(functools.partial(_guarded, make))
        return make

    return register


def _guarded(make: Make[Any], node: Any, scope: Scope, context: StageContext) -> Stage:
    if scope.reads is not None:
        scope.reads.read(node.url)
    if scope.services.options.on_change == "raise":
        stage = make(node, scope, context)
    else:
        stage = RestartStage(
            context, functools.partial(make, node, scope, context), functools.partial(_forget, node.url, scope.access)
        )
    if context.guard is None:
        return stage

    def size() -> int | None:
        info = scope.access.manifest.get(node.url, None)
        return None if info is None else info.size

    return GuardedStage(context, stage, context.guard, size)


def _forget(url: str, access: Access) -> None:
    access.manifest.forget(url)
    access.io.note_restart()


def _source_file(node: Any, scope: Scope) -> SourceFile:
    services = scope.services
    if services.runtime.options.receivers == AUTOTUNE and node.url and not is_local(node.url):
        services.knobs.count_receivers(services.runtime)
    # Reserves nothing until the file is one of those that are read in turn.
    name = redact_url(node.url) or "small files"  # which are read together
    account = services.budget.open(f"read {name}", rank=scope.rank, kind=Kind.SOURCE)
    meter = services.meters.get(scope.place)
    if meter is not None:
        account.waits = meter.memory
    return SourceFile(
        url=node.url,
        account=account,
        downstream=scope.rows_account,
        order=services.next_order(),
        any_order=scope.any_order,
        version=scope.access.manifest.before(node.url) if services.options.on_change == "raise" else None,
        size=scope.access.manifest.said_size(node.url),
    )


def _framed(
    node: Any,
    scope: Scope,
    context: StageContext,
    framer: Framer,
    kind: type[FramedStage] = FramedStage,
) -> Stage:
    io, manifest = scope.access
    budget = context.budget
    file = _source_file(node, scope)
    in_turn = max(1, scope.shards)
    begins = file.order <= in_turn
    at_once = isinstance(node, files.WholeFile)
    chunk_bytes = _chunk_bytes(node.url, scope)
    reader = ChunkReader(
        io,
        budget,
        file.account,
        manifest.get(node.url, node.url),
        slab_bytes=chunk_bytes,
        window=lambda: io.chunks_ahead(in_turn),
        order=file.order,
        opened=lambda info: manifest.__setitem__(info.url, info),
        # The first batch waits for all files that are read in turn to begin, none of them for much of it.
        first_bytes=max(_LEAST_FIRST, chunk_bytes // _FIRST_PART) if begins and not at_once else None,
        eager=not is_local(node.url),
    )
    chunks: ChunkReader | InflatedChunks = reader
    if node.compression:
        chunks = InflatedChunks(
            reader,
            node.compression,
            budget,
            file.account,
            scope.services.threads,
            waits=context.meter.calls,
            spawn=context.spawn,
            url=node.url,
            slab_bytes=chunk_bytes,
        )
    return kind(
        context,
        file,
        chunks,
        framer,
        reserve_bytes=budget.charge(chunk_bytes) * (2 if node.compression else 1),
        compressed=bool(node.compression),
        at_once=at_once,
        by_header=isinstance(node, files.FramedFile) and node.by_header,
        away=None if at_once or kind is not FramedStage else _away(framer, scope, context),
    )


def _away(framer: Framer, scope: Scope, context: StageContext) -> FramedAway | None:
    """Where workers find the records of a format that is framed on the loop."""
    services = scope.services
    if framer.in_thread:
        return None
    task = FramingTask(framer)

    def place() -> Knob | None:
        return scope.placing_knob(context, LOOP) if services.has_workers else None

    def executor() -> Executor:
        return services.process_executor(scope.place, task)

    return FramedAway(task, context.meter, place, executor)


def framer_of(
    node: sources.TFRecordFile | files.FramedFile | files.TarSamples | files.WholeFile, scope: Scope
) -> Framer:
    """What finds the records of a file."""
    if isinstance(node, files.TarSamples):
        return SampleFramer()
    if isinstance(node, files.WholeFile):
        return WholeFramer(node.url if node.with_url else None, node.beside)
    if isinstance(node, files.FramedFile):
        framer: Framer = node.framer(**node.arguments)
        return framer
    check = scope.services.options.check_crc
    leaf = UNCHECKED_BYTES if check and scope.tasks_verify else BYTES
    return TFRecordFramer(verify=check and not scope.tasks_verify, leaf=leaf)


def reads_whole_files(node: Interleave) -> bool:
    """Whether each inner dataset is a file that is one element."""
    return isinstance(node.reader, files.WholeFile)


def runs_of_files(node: Interleave, scope: Scope) -> Runs | None:
    """How files are read several at a time; None where each must be read by itself.

    Args:
        node: Reads whole files.
        scope: Of its inner datasets.
    """
    file, services = node.reader, scope.services
    assert isinstance(file, files.WholeFile)
    if file.compression or services.options.on_change != "raise":
        return None
    context = scope.context(file.label, file.label, node=file)
    source, access = _source_file(file, scope), scope.access
    lying: set[int] | None = None

    def enter(info: ObjectInfo, origin: Rows) -> tuple[int, int]:
        nonlocal lying
        refuse_changed(info.url, info.version, access.manifest.before(info.url))
        refuse_resized(info, access.manifest.said_size(info.url))
        inside = (*scope.element, int(origin[0]), int(origin[1]))
        number = services.sources.add(inside, info.url, info.version, is_file=True)
        access.manifest[info.url] = info
        if scope.reads is not None:
            scope.reads.read(info.url)
        if lying is None:
            # What counts for one of them counts for all.
            note_lying(dataclasses.replace(file, url=info.url), scope._replace(element=inside))
            noted = services.sources.lying[len(inside)].numbers
            lying = noted if number in noted else set()
        lying.add(number)
        return number, sub_index_of(scope, int(origin[SUB_INDEX]))

    def near(element: Element) -> files.WholeFile | None:
        try:
            made: Any = node.function(*element) if type(element) is tuple else node.function(element)
            return made if is_local(made.url) else None
        except Exception:  # noqa: BLE001 -- raised where the file is opened by itself
            return None

    return Runs(
        near=near,
        inside=context,
        account=source.account,
        downstream=source.downstream,
        io=access.io,
        manifest=access.manifest,
        most_bytes=scope.shares.chunk_bytes,
        order=source.order,
        enter=enter,
    )


def _consecutive(node: Any, scope: Scope, context: StageContext) -> Stage:
    return _framed(node, scope, context, framer_of(node, scope))


_reads(sources.TFRecordFile)(_consecutive)
_reads(files.FramedFile)(_consecutive)
_reads(files.WholeFile, alone)(_consecutive)


@_reads(files.TarSamples)
def _tar(node: files.TarSamples, scope: Scope, context: StageContext) -> Stage:
    return _framed(node, scope, context, TarFramer(), TarStage)


@_reads(files.ParquetRows, at_row)
def _parquet(node: files.ParquetRows, scope: Scope, context: StageContext) -> Stage:
    io, manifest = scope.access
    return ParquetStage(
        context,
        _source_file(node, scope),
        manifest.get(node.url, None),
        io,
        columns=node.columns,
        filters=node.filters,
        piece_bytes=_chunk_bytes(node.url, scope),
        opened=lambda info: manifest.__setitem__(info.url, info),
    )


def _chunk_bytes(url: str, scope: Scope) -> int:
    sizes = scope.shares
    return sizes.chunk_bytes if is_local(url) else sizes.far_chunk_bytes
