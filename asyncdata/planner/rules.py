"""The order of the rewrites, the driver that applies them from the sources upwards, and where functions run.

It also decides where checksums of payloads are verified.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from asyncdata.arguments import is_async
from asyncdata.options import AUTOTUNE, Options
from asyncdata.plan.combining import Concatenate
from asyncdata.plan.grouping import Cache, Snapshot
from asyncdata.plan.node import Node, rebuilt, walk
from asyncdata.plan.sequence import Shard
from asyncdata.plan.sources import TFRecordFile
from asyncdata.plan.transformations import Interleave, Map, Prefetch, Repeat, Shuffle, WithOptions
from asyncdata.planner.fuse import fuse_map_batch, fuse_maps, gather_maps, reads_rows
from asyncdata.planner.recipe import keep_recipe
from asyncdata.planner.shards import NOTHING_BEHIND, Behind, refuse_overlap

Rule = Callable[[Node, Options], Node]

CHECKSUMS: Final = "__checksums__"
"""Attribute of a function: whether the dataset that it returns consists of the records of TFRecord files."""

_PASS_EVERY_ROW: Final = (Concatenate, Prefetch, Repeat, Shuffle, WithOptions)


def place_map(node: Node, options: Options) -> Node:
    """Fills in the executor of a `Map`, and makes its parallelism definite.

    A plain function runs in the worker processes when it is parallel, else inline. An ``async def`` function is
    awaited. Without worker processes (``num_workers=0``) threads take their place. Where a ready-made parser runs is
    found while it does (``either``), if AUTOTUNE is asked for, and what the loop does at a time can be made short.
    """
    if not isinstance(node, Map):
        return node
    executor = node.executor
    if is_async(node.function):
        executor = "async"
    elif executor is None:
        executor = "inline" if node.parallelism is None else "process"
        is_cut_short = reads_rows(node.function) and getattr(node.function, "dense", False)
        if node.parallelism == AUTOTUNE and is_cut_short and not node.rng:
            executor = "either"
    if executor == "process" and options.num_workers == 0:
        executor = "thread"
    parallelism = node.parallelism
    if parallelism is None and executor not in ("inline", "vectorized"):
        parallelism = 1 if executor == "async" else AUTOTUNE
    if executor == node.executor and parallelism == node.parallelism:
        return node
    return dataclasses.replace(node, executor=executor, parallelism=parallelism)


RULES: Final[tuple[Rule, ...]] = (keep_recipe, place_map, gather_maps, fuse_map_batch, fuse_maps)

_REWRITTEN: Final = (Cache, Map, Snapshot)
"""Plans without any of these are left as they are by all rules."""


def rewrite(node: Node, options: Options, behind: Behind = NOTHING_BEHIND) -> Node:
    """The plan that is run instead: the same elements in the same order.

    Args:
        node: The last node of the plan.
        options: In force for it.
        behind: What comes after the plan.

    Raises:
        PipelineError: A shard comes after an order that differs from process to process.
    """
    # Inner datasets are made by the thousand, and most of them have nothing to rewrite.
    kinds = {type(each) for each in walk(node)}
    if not kinds.isdisjoint(_REWRITTEN):
        for rule in RULES:
            node = _apply(rule, node, options)
    if behind.shard or Shard in kinds:
        refuse_overlap(node, options, behind)
    return node


def _apply(rule: Rule, node: Node, options: Options) -> Node:
    def change(_: Node, new: Node) -> Node:
        return rule(new, options)

    return rebuilt(node, change)


def tasks_verify(node: Node) -> bool:
    """Whether the worker tasks that read from this node verify payload checksums, not the framers of its files.

    They do where every record of TFRecord files comes to them, and nothing else does. A step that may drop a record,
    read it, or mix it with other elements needs to have it verified before: a damaged record fails also if it would
    have been dropped.
    """
    waiting = [node]
    while waiting:
        found = waiting.pop()
        if isinstance(found, _PASS_EVERY_ROW):
            waiting.extend(found.inputs)
        elif not isinstance(found, TFRecordFile) and not _reads_files(found):
            return False
    return True


def _reads_files(node: Node) -> bool:
    return isinstance(node, Interleave) and getattr(node.function, CHECKSUMS, False) is True
