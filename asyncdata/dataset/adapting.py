"""`adapt`: one pass over a dataset, from which map functions are learned.

    element ──summaries (here, or in worker processes)──▶ merged, in order ──▶ functions

Each learner makes a small summary of a leaf. Summaries are merged in the order of the elements, so the result does not
depend on where they are made. Merging is associative, so apart from rounding, and from the error that quantiles may
have, the result does not depend on the size of batches either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncdata import arguments
from asyncdata.dataset.dataset import Dataset
from asyncdata.plan.node import INFINITE_CARDINALITY
from asyncdata.preprocessing.nest import ByLeaf, Nest, filled, leaves_of, name_of, named
from asyncdata.preprocessing.summarize import Partial, Summarize


@arguments.suggests
def adapt(
    dataset: Dataset,
    learners: Nest,
    *,
    num_parallel_calls: int | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Any:
    """Learns map functions from a dataset, in one pass.

    Elements are best batches, because a batch is summarized in few steps of numpy. Single elements give the same. The
    elements are those of epoch 0, which is not counted: training on the same handle begins with epoch 0, too. The call
    returns when the dataset has ended; in an asyncio program use ``asyncio.to_thread``.

    Args:
        dataset: What to learn from; it must end.
        learners: `Normalization`, `Vocabulary`, `TextVocabulary` or `Quantiles`; or dicts and tuples of them, nested
            like the elements. A dict needs not name all keys. None in a tuple means a leaf that does not change.
        num_parallel_calls: Summarize so many elements at a time in worker processes, or `AUTOTUNE`. None: here.
        progress: Called with the number of elements after each of them.

    Returns:
        A map function for one learner, a `ByLeaf` for a nest of them. Either is picklable, and has a method ``save``.

    Raises:
        ValueError: The dataset is infinite or empty, or a leaf does not suit its learner.
        SystemResourceError: The temporary file of a large vocabulary cannot be written.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0]).batch(2)
        >>> seen = []
        >>> normalize = ad.adapt(ds, ad.Normalization(axis=None), progress=seen.append)
        >>> float(normalize.mean), seen
        (2.5, [1, 2])
    """
    arguments.instance("dataset", dataset, Dataset, "a Dataset")
    found = list(leaves_of(learners))
    for path, learner in found:
        if not hasattr(learner, "learned"):
            raise TypeError(
                f"a learner such as Normalization() is needed{_place(path)}, not {arguments.shown(learner)}"
            )
    if not found:
        raise ValueError("there is nothing to learn: learners names no leaf")
    if dataset.cardinality() == INFINITE_CARDINALITY:
        raise ValueError("the dataset is infinite: call take(count) first")
    total = _summarized(dataset, learners, num_parallel_calls, progress)
    functions = []
    try:
        for (path, learner), summary in zip(found, total.summaries, strict=True):
            with named(path):
                functions.append(learner.learned(summary))
    finally:
        total.close()
    nest = filled(learners, iter(functions))
    return ByLeaf(nest) if isinstance(nest, dict | tuple) else nest


def _summarized(
    dataset: Dataset, learners: Nest, parallel: int | None, progress: Callable[[int], Any] | None
) -> Partial:
    """The merged summaries of all elements."""
    summarize = Summarize(learners)
    elsewhere = parallel is not None
    total: Partial | None = None
    try:
        # In order even if the dataset has none: sums are rounded in the same way, wherever their parts are made.
        parts = dataset.map(summarize, parallel, deterministic=True) if elsewhere else dataset
        with parts.iterator(epoch=0) as elements:
            for number, element in enumerate(elements, 1):
                part = element if elsewhere else summarize.of(element)
                if total is None:
                    total = part
                else:
                    total.merge(part, learners)
                if progress is not None:
                    progress(number)
    except BaseException:
        if total is not None:
            total.close()
        raise
    if total is None:
        raise ValueError("there is nothing to learn from: the dataset is empty")
    return total


def _place(path: tuple[Any, ...]) -> str:
    return f" for the leaf {name_of(path)!r}" if path else ""
