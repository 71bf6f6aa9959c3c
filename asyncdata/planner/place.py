"""Where each user function runs: inline, awaited on the loop, in threads or in worker processes."""

from __future__ import annotations

import dataclasses

from asyncdata.arguments import is_async
from asyncdata.options import AUTOTUNE, Options
from asyncdata.plan.node import Node
from asyncdata.plan.transformations import Map


def place_map(node: Node, options: Options) -> Node:
    """Fills in the executor of a `Map`, and makes its parallelism definite.

    A plain function runs in the worker processes when it is parallel, else inline; an ``async def`` function is
    awaited. Without worker processes (``num_workers=0``) threads take their place.
    """
    if not isinstance(node, Map):
        return node
    executor = node.executor
    if is_async(node.function):
        executor = "async"
    elif executor is None:
        executor = "inline" if node.parallelism is None else "process"
    if executor == "process" and options.num_workers == 0:
        executor = "thread"
    parallelism = node.parallelism
    if parallelism is None and executor not in ("inline", "vectorized"):
        parallelism = 1 if executor == "async" else AUTOTUNE
    if executor == node.executor and parallelism == node.parallelism:
        return node
    return dataclasses.replace(node, executor=executor, parallelism=parallelism)
