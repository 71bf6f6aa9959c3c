"""Batches that are written in numbers of 32 bits: the same as those that are converted behind the pipeline."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.dataset.handles import node_of
from asyncdata.errors import UnbatchableError
from asyncdata.memory.narrow import half_of, halved
from asyncdata.memory.structure import flatten, leaf_names
from asyncdata.planner.fingerprint import fingerprint
from asyncdata.planner.fuse import with_narrow_batches
from tests.samples import samples

TYPES = ["?", "i1", "i4", "u2", "f2", "f4", "c8", "i8", ">i8", "u8", "f8", ">f8", "c16", "M8[s]", "int", "float", "str"]
LARGE: dict[str, Any] = {
    "i8": -(2**40),
    ">i8": 2**31,
    "u8": 2**32,
    "f8": 1e39,
    ">f8": -1e300,
    "c16": 1e60j,
    "int": 2**31,
}
COUNT = 23

Change = Callable[[ad.Dataset], ad.Dataset]

BATCHES: dict[str, Change] = {
    "batch": lambda ds: ds.batch(4),
    "batch drops": lambda ds: ds.batch(5, drop_remainder=True),
    "padded_batch": lambda ds: ds.padded_batch(4),
    "rebatch": lambda ds: ds.batch(3).rebatch([2, 5]),
    "ragged_batch": lambda ds: ds.ragged_batch(4),
}
PASS_ON: dict[str, Change] = {
    "prefetch": lambda ds: ds.prefetch(2),
    "repeat": lambda ds: ds.repeat(2),
    "take": lambda ds: ds.take(4),
    "options": lambda ds: ds.with_options(ad.Options(seed=4)),
    "shuffle": lambda ds: ds.shuffle(3, seed=1),
}
MAY_READ: dict[str, Change] = {
    "map": lambda ds: ds.map(dict),
    "filter": lambda ds: ds.filter(lambda _: True),
    "enumerate": lambda ds: ds.enumerate().map(lambda _, batch: batch),
    "skip": lambda ds: ds.skip(1),
    "cache": lambda ds: ds.cache(),
}


class Element:
    """What the pipeline is made of: a dict of one leaf per type.

    Args:
        types: Of the leaves.
        large: Which element has a value that does not fit, and in which leaf.
        uneven: Whether lengths differ.
    """

    def __init__(self, types: list[str], large: tuple[int, str] | None, *, uneven: bool) -> None:
        self.types = types
        self.large = large
        self.uneven = uneven

    def __call__(self, number: int) -> dict[str, Any]:
        """One element."""
        number = int(number)
        return {kind: self.leaf(number, kind) for kind in self.types}

    def leaf(self, number: int, kind: str) -> Any:
        """A number, an array, or a text."""
        if kind == "str":
            return f"number {number}"
        value = LARGE[kind] if self.large == (number, kind) else number
        if kind in ("int", "float"):
            return float(value) if kind == "float" else value
        shape = (3 + (number % 3 if self.uneven else 0),) if len(kind) > 2 or self.uneven else ()
        array = np.zeros(shape, kind)
        array[...] = value
        return array if shape else array[()]


def drawn(seed: int) -> tuple[ad.Dataset, bool]:
    """A dataset of batches, and whether they can be written in half the size."""
    draw = random.Random(seed)
    grouping = draw.choice(list(BATCHES))
    types = draw.sample(TYPES, draw.randint(1, 4))
    wide = [kind for kind in types if kind in LARGE]
    large = (draw.randrange(COUNT), draw.choice(wide)) if wide and draw.random() < 0.4 else None
    element = Element(types, large, uneven=grouping in ("padded_batch", "ragged_batch") and draw.random() < 0.5)
    executor: Any = draw.choice(["inline", "thread", "either"])
    ds = ad.Dataset.range(COUNT)
    ds = ds.map(element) if executor == "inline" else ds.map(element, 2, executor="thread")
    if executor == "either":
        ds = ds.shuffle(1)  # so that the batch is a step of its own
    ds = BATCHES[grouping](ds)
    behind = {**PASS_ON, **(MAY_READ if draw.random() < 0.3 else {})}
    steps = draw.sample(list(behind), draw.randint(0, 3))
    if large:
        steps = [step for step in steps if step != "shuffle"]  # it meets a bad batch before it hands out good ones
    for step in steps:
        ds = behind[step](ds)
    pushed = grouping != "ragged_batch" and not any(step in MAY_READ for step in steps)
    return ds.with_options(ad.Options(num_workers=0)), pushed


def read(ds: ad.Dataset, change: Callable[[Any], Any]) -> tuple[list[Any], str]:
    """The batches, and the error behind them."""
    found: list[Any] = []
    try:
        with ds.iterator(epoch=0) as batches:
            for batch in batches:
                found.append([batch.keys(), *map(shown, flatten(change(batch))[0])])  # noqa: PERF401 -- those before an error count
    except UnbatchableError as error:
        return found, f"{error.message} in {error.leaf}"
    return found, ""


def shown(leaf: Any) -> Any:
    """What can be compared."""
    return (leaf.dtype, leaf.shape, leaf.tolist()) if isinstance(leaf, np.ndarray) else str(leaf)


def converted(batch: Any) -> Any:
    """Behind the pipeline."""
    leaves, structure = flatten(batch, whole_ragged=True)
    names = leaf_names(structure)
    made = {}
    for name, leaf in zip(names, leaves, strict=True):
        try:
            wide = isinstance(leaf, np.ndarray) and half_of(leaf.dtype) is not leaf.dtype
            made[name] = halved(leaf, half_of(leaf.dtype)) if wide else leaf
        except UnbatchableError as error:
            error.complete(leaf=name)
            raise
    return made


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(25, 3000)))
def test_batches_are_those_that_would_be_converted(seed: int) -> None:
    """Whatever makes and passes them on; a value that does not fit is the same error behind the same batches."""
    ds, pushed = drawn(seed)
    narrow = ad.Dataset(with_narrow_batches(node_of("dataset", ds)))
    assert read(narrow, converted) == read(ds, converted)
    copies: list[Any] = []

    def noted(batch: Any) -> Any:
        copies.extend(leaf for leaf in flatten(batch)[0] if isinstance(leaf, np.ndarray))
        return batch

    if pushed:
        read(narrow, noted)
        assert all(half_of(leaf.dtype) is leaf.dtype for leaf in copies)
        assert read(narrow, noted) == read(ds, converted)


def test_a_state_is_of_both() -> None:
    """What a consumer wants written is no part of the dataset: one goes on where the other was."""
    ds = ad.Dataset.range(20).map(lambda i: {"i8": np.int64(i)}, 2, executor="thread").batch(3)
    narrow = ad.Dataset(with_narrow_batches(node_of("dataset", ds)))
    assert fingerprint(node_of("dataset", narrow)) == fingerprint(node_of("dataset", ds))
    assert ds.element_spec == narrow.element_spec
    for one, other in ((ds, narrow), (narrow, ds)):
        with one.iterator() as batches:
            next(batches)
            state = batches.state_dict()
        with other.iterator(state=state) as rest:
            assert [batch["i8"].tolist() for batch in rest] == [[*range(i, min(i + 3, 20))] for i in range(3, 20, 3)]


@pytest.mark.parametrize("executor", ["inline", "thread"])
@pytest.mark.parametrize("number", [5, 6])
def test_types_differ_in_what_they_are_written_from(executor: Any, number: int) -> None:
    """Elements that could not be batched cannot be batched narrowly, whichever task meets them."""
    ds = ad.Dataset.range(8).map(lambda i: np.int32(i) if i == number else np.int64(i), 2, executor=executor).batch(8)
    narrow = ad.Dataset(with_narrow_batches(node_of("dataset", ds)))
    with pytest.raises(UnbatchableError, match=r"int64\[\] in the batch's first element but int32\[\] in element"):
        list(narrow)


def test_padding_must_fit_where_there_is_any() -> None:
    """A value that is padded with is a value of the batch; one that is not is none."""
    ds = ad.Dataset.range(1, 7).map(np.arange).padded_batch(3, padding_values=2**40)
    narrow = ad.Dataset(with_narrow_batches(node_of("dataset", ds)))
    with pytest.raises(UnbatchableError, match="too large for int32"):
        list(narrow)
    even = ad.Dataset.range(6).map(lambda i: np.full(2, i)).padded_batch(3, padding_values=2**40)
    narrow = ad.Dataset(with_narrow_batches(node_of("dataset", even)))
    assert [batch.dtype for batch in narrow] == [np.int32] * 2
