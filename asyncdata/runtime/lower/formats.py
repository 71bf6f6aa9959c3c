"""Lowering of files of framed formats: one stage over the chunks of one object, and the format's framer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from asyncdata.formats.csv_rows import CsvFramer
from asyncdata.formats.csv_values import Column
from asyncdata.formats.fixed_length import FixedLengthFramer
from asyncdata.formats.framing import Framer, WholeFramer
from asyncdata.formats.json_lines import JsonFramer
from asyncdata.formats.lines import LineFramer
from asyncdata.formats.tar import TarFramer
from asyncdata.formats.tfrecord import TFRecordFramer, payloads_hold
from asyncdata.memory.accounts import Kind
from asyncdata.memory.advance import Rows
from asyncdata.plan import files, sources
from asyncdata.plan.label import label_of
from asyncdata.redaction import redact
from asyncdata.runtime.lower.registry import shares
from asyncdata.runtime.lower.restart import register_file
from asyncdata.runtime.reading.chunks import ChunkReader
from asyncdata.runtime.reading.inflate import InflatedChunks
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.framed import FramedStage
from asyncdata.runtime.stages.sources.parquet import ParquetStage
from asyncdata.runtime.stages.sources.tar import TarStage
from asyncdata.storage.urls import scheme_of

_LEAST_FIRST: Final = 1 << 16
_FIRST_PART: Final = 8
"""The first chunk of the first files is this part of any other."""


def _framed(
    node: Any,
    scope: Scope,
    framer: Framer,
    kind: type[FramedStage] = FramedStage,
    *,
    holds: Callable[[memoryview, Rows], bool] | None = None,
) -> Stage:
    services = scope.services
    io, manifest = scope.access
    budget = services.budget
    in_turn = max(1, scope.shards)
    # Reserves nothing until the file is one of those that are read in turn.
    account = budget.open(f"read {redact(node.url)}", rank=scope.rank, kind=Kind.SOURCE)
    order = services.next_order()
    begins_far = order <= in_turn and not _is_near(node.url)
    at_once = isinstance(node, files.WholeFile)
    chunk_bytes = _chunk_bytes(node.url, scope)
    reader = ChunkReader(
        io,
        budget,
        account,
        manifest.get(node.url, node.url),
        slab_bytes=chunk_bytes,
        window=lambda: io.chunks_ahead(in_turn),
        order=order,
        opened=lambda info: manifest.__setitem__(info.url, info),
        # The first batch waits for all files that are read in turn to begin, none of them for much of it.
        first_bytes=max(_LEAST_FIRST, chunk_bytes // _FIRST_PART) if begins_far and not at_once else None,
        eager=not _is_near(node.url),
    )
    chunks: ChunkReader | InflatedChunks = reader
    if node.compression:
        chunks = InflatedChunks(
            reader,
            node.compression,
            budget,
            account,
            services.threads,
            url=node.url,
            slab_bytes=chunk_bytes,
        )
    return kind(
        label_of(node),
        node.url,
        scope.element,
        chunks,
        framer,
        compressed=bool(node.compression),
        budget=budget,
        account=account,
        reserve_bytes=budget.charge(chunk_bytes) * (2 if node.compression else 1),
        any_order=scope.any_order,
        downstream=scope.rows_account,
        sources=services.sources,
        threads=services.threads,
        guard=scope.guard(node.label),
        at_once=at_once,
        holds=holds,
    )


def _tfrecord(node: sources.TFRecordFile, scope: Scope) -> Stage:
    options = scope.services.options
    # Without workers the records are verified on this loop in any case: it costs least before they are mixed, and while
    # the caches know them.
    here = options.check_crc and (scope.verify or options.num_workers == 0)
    if options.check_crc and not here:
        scope.services.records_come()
    return _framed(node, scope, TFRecordFramer(check=options.check_crc), holds=payloads_hold if here else None)


def _lines(node: files.TextLines, scope: Scope) -> Stage:
    return _framed(node, scope, LineFramer(skip_blank=node.skip_blank))


def _fixed_length(node: files.FixedLengthRecords, scope: Scope) -> Stage:
    framer = FixedLengthFramer(node.record_bytes, header_bytes=node.header_bytes, footer_bytes=node.footer_bytes)
    return _framed(node, scope, framer)


def _whole(node: files.WholeFile, scope: Scope) -> Stage:
    return _framed(node, scope, WholeFramer(node.url if node.with_url else None))


def _json_lines(node: files.JsonLines, scope: Scope) -> Stage:
    return _framed(node, scope, JsonFramer())


def _csv(node: files.CsvRows, scope: Scope) -> Stage:
    framer = CsvFramer(
        [Column(dtype, default) for dtype, default in zip(node.dtypes, node.defaults, strict=True)],
        header=node.header,
        delimiter=node.delimiter,
        quotes=node.quotes,
        na_value=node.na_value,
        selected=node.selected,
        names=node.names,
        by_header=node.by_header,
    )
    return _framed(node, scope, framer)


def _tar(node: files.TarSamples, scope: Scope) -> Stage:
    return _framed(node, scope, TarFramer(), TarStage)


def _chunk_bytes(url: str, scope: Scope) -> int:
    sizes = shares(scope)
    return sizes.chunk_bytes if _is_near(url) else sizes.far_chunk_bytes


def _is_near(url: str) -> bool:
    return scheme_of(url) == "file"


def _parquet(node: files.ParquetRows, scope: Scope) -> Stage:
    services = scope.services
    io, manifest = scope.access
    budget = services.budget
    return ParquetStage(
        label_of(node),
        node.url,
        scope.element,
        manifest.get(node.url, None),
        io,
        columns=node.columns,
        filters=node.filters,
        budget=budget,
        account=budget.open(f"read {redact(node.url)}", rank=scope.rank, kind=Kind.SOURCE),
        piece_bytes=_chunk_bytes(node.url, scope),
        order=services.next_order(),
        any_order=scope.any_order,
        downstream=scope.rows_account,
        sources=services.sources,
        threads=services.threads,
    )


register_file(sources.TFRecordFile, _tfrecord)
register_file(files.ParquetRows, _parquet)
register_file(files.TarSamples, _tar)
register_file(files.TextLines, _lines)
register_file(files.JsonLines, _json_lines)
register_file(files.CsvRows, _csv)
register_file(files.FixedLengthRecords, _fixed_length)
register_file(files.WholeFile, _whole)
