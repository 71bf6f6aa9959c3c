"""Several datasets made one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.dataset.handle import Handle
from asyncdata.memory.structure import flatten
from asyncdata.plan import combining
from asyncdata.plan.node import Node
from asyncdata.plan.transformations import Take

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


class Combining(Handle):
    """The part of `Dataset` with several inputs."""

    __slots__ = ()

    def zip(*args: Any, datasets: Any = None) -> Dataset:
        """Elements made of one element of each dataset, until the shortest ends.

        Args:
            *args: Datasets, whose elements become a tuple; or one nest (tuple, namedtuple, dict) of datasets, whose
                elements nest in the same way. Called on a dataset, that one comes first.
            datasets: The nest, instead.

        Raises:
            TypeError: Something else than a Dataset is in the nest.

        Example:
            >>> import asyncdata as ad
            >>> numbers, letters = ad.Dataset.range(3), ad.Dataset.from_tensor_slices(["a", "b"])
            >>> list(ad.Dataset.zip({"n": numbers, "l": letters}))
            [{'n': np.int64(0), 'l': 'a'}, {'n': np.int64(1), 'l': 'b'}]
            >>> list(letters.zip(numbers))
            [('a', np.int64(0)), ('b', np.int64(1))]
        """
        if datasets is not None and args:
            raise TypeError("zip takes datasets one by one or as one nest, not both")
        if not args and datasets is None:
            raise TypeError("zip needs at least one dataset")
        if datasets is None:
            datasets = args[0] if len(args) == 1 else args
        leaves, structure = flatten(datasets)
        for leaf in leaves:
            if isinstance(leaf, list):
                raise TypeError("zip takes datasets in a tuple or dict, not in a list")
        if not leaves:
            raise TypeError("zip needs at least one dataset")
        _check(leaves, "every part of what zip takes")
        return _joined(leaves, lambda nodes: combining.Zip(datasets=nodes, structure=structure))

    def concatenate(self, dataset: Handle) -> Dataset:
        """The elements of this dataset, then those of the other.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(2).concatenate(ad.Dataset.range(5, 7))]
            [0, 1, 5, 6]
        """
        _check([dataset], "dataset")
        own = self._node
        # Many in a row are one node: neither building nor running them nests.
        before = own.datasets if isinstance(own, combining.Concatenate) else (own,)
        return self._derive(combining.Concatenate(datasets=(*before, dataset._node)))  # noqa: SLF001 -- of this class

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Handle],
        weights: Sequence[float] | npt.NDArray[Any] | Handle | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Each element comes from one of the datasets, drawn at random; the order within each is kept.

        Args:
            datasets: What is drawn from.
            weights: How likely each is, not normalized; all alike unless given. A Dataset gives the weights of each
                draw, and ends it.
            seed: Of the draws; unless given (or `Options.seed`) one is drawn for this dataset.
            stop_on_empty_dataset: Whether everything ends when a dataset is drawn that has ended, so that the weights
                hold to the end. Otherwise it is passed over.
            rerandomize_each_iteration: Whether epochs differ; they do not unless it is True.

        Example:
            >>> import asyncdata as ad
            >>> tens = [ad.Dataset.range(10 * i, 10 * i + 3) for i in range(3)]
            >>> ds = ad.Dataset.sample_from_datasets(tens, weights=[0.5, 0.5, 0.0], seed=1)
            >>> sorted(int(x) for x in ds)
            [0, 1, 2, 10, 11, 12]
        """
        first, *others = _listed(datasets)
        handles = [first, *others]
        seed = arguments.seed("seed", seed)
        stop = arguments.flag("stop_on_empty_dataset", stop_on_empty_dataset)
        rerandomize = arguments.flag_or_none("rerandomize_each_iteration", rerandomize_each_iteration)
        varying: tuple[Node, ...] = ()
        chosen: tuple[float, ...] | None = None
        if isinstance(weights, Handle):
            varying = (weights._node,)  # noqa: SLF001 -- of this class
        else:
            chosen = _weights([1.0] * len(handles) if weights is None else weights, len(handles))
            # One that is never drawn must not keep the others from being all that is left.
            handles = [handle for handle, weight in zip(handles, chosen, strict=True) if weight > 0]
            chosen = tuple(weight for weight in chosen if weight > 0)
            if not handles:
                return first._derive(Take(input=first._node, count=0))  # noqa: SLF001 -- of this class
            if len(handles) == 1:
                return handles[0]._derive(handles[0]._node)  # noqa: SLF001 -- of this class
        return _joined(
            handles,
            lambda nodes: combining.SampleFrom(
                datasets=nodes,
                weights=chosen,
                varying=varying,
                seed=seed,
                stop_on_empty=stop,
                rerandomize=rerandomize,
            ),
        )

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Handle], choice_dataset: Handle, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        """Each element comes from the dataset whose number the next element of another dataset gives.

        Args:
            datasets: What is chosen from.
            choice_dataset: Gives integers from 0 to ``len(datasets) - 1``; its end is the end.
            stop_on_empty_dataset: Whether everything ends when a dataset is chosen that has ended; otherwise it is
                passed over.

        Raises:
            PipelineError: While iterating, when a choice is none of these integers.

        Example:
            >>> import asyncdata as ad
            >>> words = [ad.Dataset.from_tensors(word).repeat() for word in ("a", "b", "c")]
            >>> list(ad.Dataset.choose_from_datasets(words, ad.Dataset.range(3).repeat(2)))
            ['a', 'b', 'c', 'a', 'b', 'c']
        """
        handles = _listed(datasets)
        _check([choice_dataset], "choice_dataset")
        choice = choice_dataset._node  # noqa: SLF001 -- of this class
        stop = arguments.flag("stop_on_empty_dataset", stop_on_empty_dataset)
        return _joined(handles, lambda nodes: combining.ChooseFrom(datasets=nodes, choice=choice, stop_on_empty=stop))


def _joined(handles: Sequence[Any], make: Callable[[tuple[Node, ...]], Node]) -> Dataset:
    first: Handle = handles[0]
    return first._derive(make(tuple(handle._node for handle in handles)))  # noqa: SLF001 -- of this class


def _listed(datasets: Any) -> list[Handle]:
    if isinstance(datasets, str | bytes | Mapping | Handle) or not isinstance(datasets, Iterable):
        raise TypeError(f"datasets must be a list of Datasets, not {arguments.shown(datasets)}")
    handles = list(datasets)
    if not handles:
        raise ValueError("datasets must name at least one Dataset")
    _check(handles, "every item of datasets")
    return handles


def _check(handles: Sequence[Any], name: str) -> None:
    for handle in handles:
        arguments.instance(name, handle, Handle, "a Dataset")


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
