"""The spec of Parquet rows, from the footer of one file, read when `Dataset.element_spec` is asked for.

The planner does no I/O, so it gets a plan in which the spec of the rows replaces every reader of Parquet files.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from asyncdata import arguments
from asyncdata.formats.parquet import END_BYTES, ParquetFooter, footer_bytes
from asyncdata.options import Options, Storage, merged_storage, read_environment
from asyncdata.plan.files import ParquetRows
from asyncdata.plan.node import Node, walk
from asyncdata.plan.sources import Generator
from asyncdata.plan.transformations import Interleave, Take, WithOptions
from asyncdata.runtime.consumer.iterate import PipelineIterator
from asyncdata.runtime.life.runtime import active_runtime
from asyncdata.runtime.settings import storage_before
from asyncdata.storage.fetch import Fetcher

_TAIL_BYTES: Final = 1 << 16
OPENS_FILES: Final = "opens"
"""Attribute of a function that makes the dataset of one file: the node that reads the file with an empty URL."""


def with_known_rows(plan: Node) -> Node:
    """Returns the plan with Parquet readers replaced by the spec of their rows; the same plan if there are none.

    Raises:
        StorageError: No file can be read.
        TypeError: An element that should name a file has another type.
        DataError: The file is not Parquet, or lacks a selected column.
    """
    if not any(_rows_of(node) for node in walk(plan)):
        return plan
    runtime = active_runtime()
    waiting: list[tuple[Node, Storage]] = [(plan, runtime.options.storage if runtime is not None else {})]
    said: dict[int, Storage] = {}
    while waiting:
        node, storage = waiting.pop()
        said[id(node)] = storage
        behind = merged_storage(storage, node.options.storage) if isinstance(node, WithOptions) else storage
        waiting.extend((child, behind) for child in node.inputs)
    made: dict[int, Node] = {}
    for node in reversed(list(walk(plan))):
        rows, storage = _rows_of(node), said[id(node)]
        if rows is not None:
            made[id(node)] = Generator(function=_nothing, args=(), signature=_spec(node, rows, storage))
        elif node.inputs:
            made[id(node)] = node.with_inputs(tuple(made[id(child)] for child in node.inputs))
        else:
            made[id(node)] = node
    return made[id(plan)]


def _nothing() -> tuple[()]:
    return ()


def _rows_of(node: Node) -> ParquetRows | None:
    """Returns the Parquet reader that a step is, or that it makes of file names."""
    if isinstance(node, ParquetRows):
        return node
    opened = getattr(node.function, OPENS_FILES, None) if isinstance(node, Interleave) else None
    return opened if isinstance(opened, ParquetRows) else None


def _spec(node: Node, rows: ParquetRows, storage: Storage) -> Any:
    if isinstance(node, ParquetRows):
        url = node.url
    else:
        (names,) = node.inputs
        storage = merged_storage(storage, storage_before(node))
        first = Take(input=WithOptions(input=names, options=Options(storage=storage)), count=1)
        urls = list(PipelineIterator(first, 0))
        if not urls:
            return None
        url = arguments.url("an element of filenames", urls[0])
    # A separate thread, so that it also works inside a running event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="asyncdata-spec") as thread:
        return thread.submit(asyncio.run, _read(url, rows, Options(storage=storage))).result()


async def _read(url: str, rows: ParquetRows, options: Options) -> Any:
    fetcher = Fetcher(options, read_environment())
    try:
        info = await fetcher.stat(url)
        tail = bytearray(min(info.size, _TAIL_BYTES))
        await fetcher.read(info, info.size - len(tail), memoryview(tail))
        length = footer_bytes(bytes(tail[-END_BYTES:]), info.size, url=url, version=info.version)
        if length > len(tail):
            tail = bytearray(length)
            await fetcher.read(info, info.size - length, memoryview(tail))
    finally:
        await fetcher.aclose()
    footer = bytes(tail[-length:])
    where = {"size": info.size, "url": url, "version": info.version}
    return ParquetFooter(footer, columns=rows.columns, filters=rows.filters, **where).element_spec  # type: ignore[arg-type]  # of three types
