"""Checks and nodes of the transformations of single elements, and of the order and number of elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from asyncdata import arguments
from asyncdata.dataset.handles import NodeOf
from asyncdata.options import Options
from asyncdata.plan.node import Node
from asyncdata.plan.transformations import Interleave, Map, Repeat, WithOptions
from asyncdata.storage.backends import check_storage

MOST_CYCLE: Final = 1 << 20
"""The most datasets read in turn."""

_CYCLE: Final = 16
"""Datasets read in turn by default."""
_EXECUTORS: Final = ("process", "thread", "inline", None)


def mapped(
    node: Node,
    map_func: Callable[..., Any],
    num_parallel_calls: int | None,
    deterministic: bool | None,
    executor: str | None,
    rng: bool,
    zero_copy: bool,
    setup: Callable[[], Any] | None,
    vectorized: bool,
) -> Node:
    """`Dataset.map`."""
    arguments.function("map_func", map_func)
    arguments.choice("executor", executor, _EXECUTORS)
    parallelism = arguments.integer_or_none("num_parallel_calls", num_parallel_calls, least=1, autotune=True)
    rng, zero_copy = arguments.flag("rng", rng), arguments.flag("zero_copy", zero_copy)
    if arguments.flag("vectorized", vectorized):
        executor = _check_vectorized(map_func, parallelism, executor, rng=rng, zero_copy=zero_copy)
    if arguments.is_async(map_func) and executor is not None:
        raise ValueError(
            f"async functions run on the pipeline's loop; executor={arguments.shown(executor)} is for plain functions"
        )
    if setup is not None and not arguments.is_async(map_func):
        raise ValueError("setup= is only for async functions")
    if setup is not None:
        arguments.function("setup", setup)
    return Map(
        input=node,
        function=map_func,
        parallelism=parallelism,
        deterministic=arguments.flag_or_none("deterministic", deterministic),
        executor=executor,
        rng=rng,
        zero_copy=zero_copy,
        setup=setup,
    )


def _check_vectorized(
    function: Callable[..., Any], parallel: int | None, executor: str | None, *, rng: bool, zero_copy: bool
) -> str:
    """Returns the executor of a vectorized function; rejects arguments that work element by element."""
    if arguments.is_async(function):
        raise TypeError("map_func must be a plain function to be vectorized")
    if parallel is not None or executor not in (None, "inline"):
        raise ValueError(
            "a vectorized function runs on the pipeline's loop, so it takes neither num_parallel_calls nor executor"
        )
    if rng or zero_copy:
        raise ValueError("rng and zero_copy work per element, but a vectorized function is called with many elements")
    return "vectorized"


def interleaved(
    node: Node,
    map_func: Callable[..., Any],
    cycle_length: int | None,
    block_length: int | None,
    num_parallel_calls: int | None,
    deterministic: bool | None,
) -> Interleave:
    """`Dataset.interleave`."""
    cycle = arguments.integer_or_none("cycle_length", cycle_length, least=1, most=MOST_CYCLE, autotune=True)
    block = arguments.integer_or_none("block_length", block_length, least=1)
    return Interleave(
        input=node,
        function=NodeOf(arguments.plain_function("map_func", map_func)),
        cycle_length=_CYCLE if cycle in (None, -1) else cycle,
        block_length=1 if block is None else block,
        parallelism=arguments.integer_or_none("num_parallel_calls", num_parallel_calls, least=1, autotune=True),
        deterministic=arguments.flag_or_none("deterministic", deterministic),
    )


def flattened(node: Node, map_func: Callable[..., Any]) -> Node:
    """`Dataset.flat_map`."""
    return dataclasses.replace(interleaved(node, map_func, 1, 1, None, True), flat=True)


def over_files(
    urls: Node, open_file: Callable[..., Node], num_parallel_reads: int | None, *, deterministic: bool | None = None
) -> Node:
    """Reads files one after the other, or `num_parallel_reads` in turn, one element each."""
    reads = arguments.integer_or_none("num_parallel_reads", num_parallel_reads, least=1, most=MOST_CYCLE, autotune=True)
    return Interleave(
        input=urls,
        function=open_file,
        cycle_length=_CYCLE if reads == -1 else (reads or 1),
        block_length=1,
        parallelism=None,
        # One file after the other is an order, as that of `flat_map`.
        deterministic=True if reads in {None, 1} else deterministic,
    )


def repeated(node: Node, count: int | None) -> Node:
    """`Dataset.repeat`."""
    times = arguments.integer_or_none("count", count)
    return Repeat(input=node, count=None if times is None or times < 0 else times)


def with_options(node: Node, options: Options) -> Node:
    """`Dataset.with_options`."""
    arguments.instance("options", options, Options, "Options")
    check_storage(options.storage)
    return WithOptions(input=node, options=options)
