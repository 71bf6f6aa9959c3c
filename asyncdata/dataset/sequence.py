"""Transformations that go by an element's place in the sequence, or by what came before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.dataset.handle import Handle
from asyncdata.plan import sequence
from asyncdata.runtime.stages.rows.scan import ESTIMATED, SMOOTHING, resampling

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


class Sequential(Handle):
    """The part of `Dataset` with what depends on the order."""

    __slots__ = ()

    def enumerate(self, start: int = 0) -> Dataset:
        """Each element with its number: ``(start + i, element)``.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_tensor_slices(["a", "b"]).enumerate(start=5))
            [(np.int64(5), 'a'), (np.int64(6), 'b')]
        """
        return self._derive(sequence.Enumerate(input=self._node, start=arguments.integer("start", start)))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Every `num_shards`-th element, beginning with number `index`.

        Best placed early, on the dataset of file names: the others are made and dropped. Steps before it must not draw
        an order without a seed, nor deliver elements as they are ready: the shards of several processes would overlap.

        Args:
            num_shards: How many such parts there are.
            index: Which of them: 0 to ``num_shards - 1``.

        Raises:
            PipelineError: While iterating, when the order differs from process to process.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(7).shard(num_shards=3, index=1)]
            [1, 4]
        """
        shards = arguments.integer("num_shards", num_shards, least=1)
        chosen = arguments.integer("index", index, least=0)
        if chosen >= shards:
            raise ValueError(f"index must be from 0 to num_shards - 1, not {chosen} of {shards}")
        return self._derive(sequence.Shard(input=self._node, num_shards=shards, index=chosen))

    def take_while(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements before the first one for which the predicate is false; it runs on the pipeline's loop.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(10).take_while(lambda x: x < 3)]
            [0, 1, 2]
        """
        arguments.plain_function("predicate", predicate)
        return self._derive(sequence.TakeWhile(input=self._node, predicate=predicate))

    def scan(self, initial_state: Any, scan_func: Callable[[Any, Any], tuple[Any, Any]]) -> Dataset:
        """A map with a memory: ``state, output = scan_func(state, element)`` for each element; gives the outputs.

        Args:
            initial_state: The first state; must be copyable.
            scan_func: Takes the state and the element (a tuple stays one argument), returns the new state and the
                output. Runs on the pipeline's loop, one element after the other.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(5).scan(0, lambda total, x: (total + x, total + x))]
            [0, 1, 3, 6, 10]
        """
        arguments.plain_function("scan_func", scan_func)
        return self._derive(sequence.Scan(input=self._node, initial_state=initial_state, function=scan_func))

    def unique(self) -> Dataset:
        """Each element the first time it comes.

        Any kind of element will do. What was seen is remembered: about 150 bytes per different element.

        Raises:
            MemoryLimitError: While iterating, when that exceeds `Options.memory_limit_bytes`.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_tensor_slices(["b", "a", "b", "c", "a"]).unique())
            ['b', 'a', 'c']
        """
        return self._derive(sequence.Unique(input=self._node))

    def assert_cardinality(self, expected_cardinality: int) -> Dataset:
        """The same dataset, of which `cardinality` says so many elements, and iterating checks it.

        Args:
            expected_cardinality: How many there are; `INFINITE_CARDINALITY` if they do not end.

        Raises:
            PipelineError: While iterating, when there are more or fewer.

        Example:
            >>> import asyncdata as ad
            >>> len(ad.Dataset.range(10).filter(lambda x: x % 2 == 0).assert_cardinality(5))
            5
        """
        count = arguments.integer("expected_cardinality", expected_cardinality)
        if count < -1:
            raise ValueError(f"expected_cardinality must be INFINITE_CARDINALITY or at least 0, not {count}")
        return self._derive(sequence.AssertCardinality(input=self._node, count=count))

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: Sequence[float] | npt.NDArray[Any],
        initial_dist: Sequence[float] | npt.NDArray[Any] | None = None,
        seed: int | None = None,
    ) -> Dataset:
        """Drops and repeats elements so that classes come as often as wished; gives ``(class, element)``.

        As in tf.data a part of the result is this dataset as it is, and the rest is drawn from it once more, each
        element kept with the probability that fills up what its class lacks. The two are mixed at random until one of
        them ends. So this dataset is read twice (four times without `initial_dist`), and an element may come twice: put
        a `cache` in front where reading is dear. Where a class is not wished for at all, the first part is empty, and
        nothing is read or comes twice.

        Args:
            class_func: The class of an element: an integer from 0 to ``len(target_dist) - 1``. Runs on the pipeline's
                loop.
            target_dist: How often each class is wished for.
            initial_dist: How often each class comes; unless given the elements seen so far are counted.
            seed: Of the draws; without one every iteration differs.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(1000).rejection_resample(lambda x: int(x >= 900), [0.5, 0.5], [0.9, 0.1], seed=1)
            >>> classes = [int(c) for c, x in ds]
            >>> 0.4 < sum(classes) / len(classes) < 0.6
            True
        """
        arguments.plain_function("class_func", class_func)
        seed = arguments.seed("seed", seed)
        target = _distribution("target_dist", target_dist)
        initial = None if initial_dist is None else _distribution("initial_dist", initial_dist)
        if initial is not None and len(initial) != len(target):
            raise ValueError(f"initial_dist has {len(initial)} classes, target_dist {len(target)}")

        def part(*, every: bool) -> Dataset:
            node = sequence.RejectionResample(
                input=self._node, function=class_func, target=target, initial=initial, seed=seed, every=every
            )
            return self._derive(node)

        whole, rest = part(every=True), part(every=False)
        if initial is None:
            weights: Any = _weights(whole.map(lambda number, _: number), np.array(target))
        else:
            share = resampling(np.array(target), np.array(initial))[0]
            if share in (0.0, 1.0):
                return whole if share else rest
            weights = [share, 1 - share]
        return whole.sample_from_datasets([whole, rest], weights, seed, stop_on_empty_dataset=True)


def _weights(classes: Dataset, target: npt.NDArray[np.float64]) -> Dataset:
    """The weights of the two parts for each draw, by the classes seen so far."""

    def seen(counts: Any, numbers: Any) -> tuple[Any, Any]:
        counts = counts + np.bincount(numbers, minlength=len(target))
        share = resampling(target, counts)[0]
        return counts, np.tile([share, 1 - share], (ESTIMATED, 1))

    return classes.batch(ESTIMATED).scan(np.full(len(target), SMOOTHING), seen).unbatch()


def _distribution(name: str, values: Sequence[float] | npt.NDArray[Any]) -> tuple[float, ...]:
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a list of numbers, not {arguments.shown(values)}") from None
    if found.ndim != 1 or not np.isfinite(found).all() or (found < 0).any() or not found.sum() > 0:
        raise ValueError(f"{name} must be numbers that are not negative and not all 0, not {arguments.shown(values)}")
    return tuple((found / found.sum()).tolist())
