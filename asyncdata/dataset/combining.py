"""Checks and nodes of the transformations that combine several datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.dataset.handles import is_dataset, node_of
from asyncdata.memory.structure import flatten
from asyncdata.plan.combining import ChooseFrom, Concatenate, SampleFrom, Zip
from asyncdata.plan.node import Node
from asyncdata.plan.transformations import Take


def zipped(args: tuple[Any, ...], datasets: Any) -> Node:
    """`Dataset.zip`."""
    if datasets is not None and args:
        raise TypeError("zip takes datasets one by one or as one nest, not both")
    if datasets is None:
        datasets = args[0] if len(args) == 1 else args
    leaves, structure = flatten(datasets)
    if any(isinstance(leaf, list) for leaf in leaves):
        raise TypeError("zip takes datasets in a tuple or dict, not in a list")
    if not leaves:
        raise TypeError("zip needs at least one dataset")
    nodes = tuple(node_of("every argument of zip", leaf) for leaf in leaves)
    return Zip(datasets=nodes, structure=structure)


def concatenated(node: Node, dataset: Any) -> Node:
    """`Dataset.concatenate`: consecutive calls make one node, so that neither building nor running them nests."""
    before = node.datasets if isinstance(node, Concatenate) else (node,)
    return Concatenate(datasets=(*before, node_of("dataset", dataset)))


def sampled(
    datasets: Sequence[Any],
    weights: Sequence[float] | npt.NDArray[Any] | Any | None,
    seed: int | None,
    stop_on_empty_dataset: bool,
    rerandomize_each_iteration: bool | None,
) -> Node:
    """`Dataset.sample_from_datasets`."""
    nodes = _nodes(datasets)
    seed = arguments.seed("seed", seed)
    stop = arguments.flag("stop_on_empty_dataset", stop_on_empty_dataset)
    rerandomize = arguments.flag_or_none("rerandomize_each_iteration", rerandomize_each_iteration)
    varying: tuple[Node, ...] = ()
    chosen: tuple[float, ...] | None = None
    if is_dataset(weights):
        varying = (node_of("weights", weights),)
    else:
        chosen = _weights([1.0] * len(nodes) if weights is None else weights, len(nodes))
        # A dataset that is never drawn must not hide that only one other is left.
        drawn = [node for node, weight in zip(nodes, chosen, strict=True) if weight > 0]
        if not drawn:
            return Take(input=nodes[0], count=0)
        if len(drawn) == 1:
            return drawn[0]
        nodes, chosen = tuple(drawn), tuple(weight for weight in chosen if weight > 0)
    return SampleFrom(
        datasets=nodes, weights=chosen, varying=varying, seed=seed, stop_on_empty=stop, rerandomize=rerandomize
    )


def chosen(datasets: Sequence[Any], choice_dataset: Any, stop_on_empty_dataset: bool) -> Node:
    """`Dataset.choose_from_datasets`."""
    nodes, choice = _nodes(datasets), node_of("choice_dataset", choice_dataset)
    stop = arguments.flag("stop_on_empty_dataset", stop_on_empty_dataset)
    return ChooseFrom(datasets=nodes, choice=choice, stop_on_empty=stop)


def _nodes(datasets: Any) -> tuple[Node, ...]:
    if isinstance(datasets, str | bytes | Mapping) or is_dataset(datasets) or not isinstance(datasets, Iterable):
        raise TypeError(f"datasets must be a list of Datasets, not {arguments.shown(datasets)}")
    nodes = tuple(node_of("every item of datasets", dataset) for dataset in datasets)
    if not nodes:
        raise ValueError("datasets must name at least one Dataset")
    return nodes


def _weights(weights: Sequence[float] | npt.NDArray[Any], count: int) -> tuple[float, ...]:
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"weights must be a list of numbers or a Dataset, not {arguments.shown(weights)}") from None
    if found.shape != (count,):
        raise ValueError(f"{count} datasets need as many weights, not an array of shape {found.shape}")
    if not np.isfinite(found).all() or (found < 0).any():
        raise ValueError(f"weights must be finite and not negative, not {found.tolist()}")
    return tuple(found.tolist())
