"""Lowering of files: one source stage per format over chunks of one object."""

from __future__ import annotations

from asyncdata.memory.accounts import Kind
from asyncdata.plan import sources
from asyncdata.runtime.chunks import ChunkReader
from asyncdata.runtime.inflate import InflatedChunks
from asyncdata.runtime.lower.registry import label_of, shares
from asyncdata.runtime.lower.restart import register_file
from asyncdata.runtime.scope import Scope
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.tfrecord import TFRecordStage


def _tfrecord(node: sources.TFRecordFile, scope: Scope) -> Stage:
    services = scope.services
    budget = services.budget
    sizes = shares(scope)
    # Reserves nothing until the file is one of those that are read in turn.
    account = budget.open(f"read {node.url}", rank=scope.rank, kind=Kind.SOURCE)
    in_turn = max(1, scope.shards)
    reader = ChunkReader(
        services.io,
        budget,
        account,
        services.manifest.get(node.url, node.url),
        slab_bytes=sizes.chunk_bytes,
        window=lambda: services.io.chunks_ahead(in_turn),
        order=services.next_order(),
        opened=lambda info: services.manifest.__setitem__(info.url, info),
    )
    if services.options.check_crc:
        services.records_come()
    chunks: ChunkReader | InflatedChunks = reader
    if node.compression:
        chunks = InflatedChunks(
            reader,
            node.compression,
            budget,
            account,
            services.threads,
            url=node.url,
            slab_bytes=sizes.chunk_bytes,
        )
    return TFRecordStage(
        label_of(node),
        node.url,
        scope.element,
        chunks,
        compressed=bool(node.compression),
        check=services.options.check_crc,
        budget=budget,
        account=account,
        reserve_bytes=budget.charge(sizes.chunk_bytes) * (2 if node.compression else 1),
        any_order=scope.any_order,
        downstream=scope.rows_account,
        sources=services.sources,
    )


register_file(sources.TFRecordFile, _tfrecord)
