"""Checks and nodes of the transformations that depend on an element's position or on earlier elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.dataset.handles import node_of
from asyncdata.plan.combining import SampleFrom
from asyncdata.plan.grouping import MakeDataset
from asyncdata.plan.node import Node
from asyncdata.plan.sequence import AssertCardinality, RejectionResample, Shard
from asyncdata.runtime.stages.rows.scan import ESTIMATED, SMOOTHING, resampling


def shard(node: Node, num_shards: int, index: int) -> Node:
    """`Dataset.shard`."""
    shards = arguments.integer("num_shards", num_shards, least=1)
    chosen = arguments.integer("index", index, least=0)
    if chosen >= shards:
        raise ValueError(f"index must be from 0 to num_shards - 1, not {chosen} of {shards}")
    return Shard(input=node, num_shards=shards, index=chosen)


def assert_cardinality(node: Node, expected_cardinality: int) -> Node:
    """`Dataset.assert_cardinality`."""
    count = arguments.integer("expected_cardinality", expected_cardinality)
    if count < -1:
        raise ValueError(f"expected_cardinality must be INFINITE_CARDINALITY or at least 0, not {count}")
    return AssertCardinality(input=node, count=count)


def resampled(
    make: MakeDataset,
    node: Node,
    class_func: Callable[..., Any],
    target_dist: Sequence[float] | npt.NDArray[Any],
    initial_dist: Sequence[float] | npt.NDArray[Any] | None,
    seed: int | None,
) -> Node:
    """`Dataset.rejection_resample`."""
    arguments.plain_function("class_func", class_func)
    seed = arguments.seed("seed", seed)
    target = _distribution("target_dist", target_dist)
    initial = None if initial_dist is None else _distribution("initial_dist", initial_dist)
    if initial is not None and len(initial) != len(target):
        raise ValueError(f"initial_dist has {len(initial)} classes, target_dist {len(target)}")
    whole, rest = (
        RejectionResample(input=node, function=class_func, target=target, initial=initial, seed=seed, every=every)
        for every in (True, False)
    )
    weights: tuple[float, ...] | None = None
    varying: tuple[Node, ...] = ()
    if initial is None:
        number = _named("resampled.<lambda>", partial(_number))
        varying = (node_of("weights", _weights(make(whole).map(number), np.array(target))),)
    else:
        share = float(resampling(np.array(target), np.array(initial))[0])
        if share in (0.0, 1.0):
            return whole if share else rest
        weights = (share, 1 - share)
    return SampleFrom(
        datasets=(whole, rest), weights=weights, varying=varying, seed=seed, stop_on_empty=True, rerandomize=True
    )


def _weights(classes: Any, target: npt.NDArray[np.float64]) -> Any:
    """Returns the weights of the two parts for each draw, from the classes seen so far."""
    seen = _named("_weights.seen", partial(_seen, target))
    return classes.batch(ESTIMATED).scan(np.full(len(target), SMOOTHING), seen).unbatch()


def _number(number: Any, _: Any) -> Any:
    """The class in what `rejection_resample` gives."""
    return number


def _seen(target: npt.NDArray[np.float64], counts: Any, numbers: Any) -> tuple[Any, Any]:
    counts = counts + np.bincount(numbers, minlength=len(target))
    share = resampling(target, counts)[0]
    return counts, np.tile([share, 1 - share], (ESTIMATED, 1))


def _named(name: str, function: partial[Any]) -> partial[Any]:
    """A function that plain pickle takes, under the name by which saved states know it."""
    vars(function)["__qualname__"] = name
    return function


def _distribution(name: str, values: Sequence[float] | npt.NDArray[Any]) -> tuple[float, ...]:
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a list of numbers, not {arguments.shown(values)}") from None
    if found.ndim != 1 or not np.isfinite(found).all() or (found < 0).any() or not found.sum() > 0:
        raise ValueError(f"{name} must be numbers that are not negative and not all 0, not {arguments.shown(values)}")
    return tuple((found / found.sum()).tolist())
