"""Inner datasets of one step that differ in their steps, or in how these call one function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.planner.shards import drawn_anew

D = ad.Dataset


def drawn(x: Any, rng: np.random.Generator) -> int:
    """A random number."""
    del x
    return int(rng.integers(1 << 30))


def is_given_numbers(x: Any, rng: np.random.Generator | None = None) -> bool:
    """Whether it is called with random numbers."""
    del x
    return rng is not None


def but_four(x: Any) -> int:
    """Fails for one element."""
    if int(x) == 4:
        raise ValueError("four")
    return int(x)


def lengths(x: Any) -> Any:
    """Rows of unlike lengths."""
    return np.arange(int(x) % 3)


def run(make: Callable[[Any], ad.Dataset], workers: int = 0) -> list[Any]:
    """The elements of two inner datasets."""
    options = ad.Options(seed=1, num_workers=workers)
    return list(D.range(2).flat_map(make).with_options(options))


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_one_function_that_is_called_in_several_ways(executor: Any) -> None:
    """Each dataset calls it in its own way, whichever came first."""
    workers = int(executor == "process")

    def at_depths(where: Any, parallel: int | None) -> Callable[[Any], ad.Dataset]:
        return lambda x: (D.range(4).take(4) if int(x) else D.range(4)).map(drawn, parallel, rng=True, executor=where)

    assert run(at_depths(executor, 2), workers) == run(at_depths(None, None))

    def some_random(x: Any) -> ad.Dataset:
        return D.range(2).map(is_given_numbers, 2, rng=bool(x), executor=executor)

    assert run(some_random, workers) == [False, False, True, True]

    def some_tolerant(x: Any) -> ad.Dataset:
        if int(x):
            return D.range(6).map(but_four, 2, executor=executor).ignore_errors()
        return D.range(3).map(but_four, 2, executor=executor).prefetch(1)

    assert run(some_tolerant, workers) == [0, 1, 2, 0, 1, 2, 3, 5]

    def some_batches(x: Any) -> ad.Dataset:
        if int(x):
            return D.range(6).map(lengths, 2, executor=executor)
        return D.range(0, 6, 3).map(lengths, 2, executor=executor).batch(2)

    assert [each.shape for each in run(some_batches, workers)] == [(2, 0), (0,), (1,), (2,), (0,), (1,), (2,)]


def test_other_steps_where_an_input_has_ended() -> None:
    """What an ended input reserved is free; what another dataset has at its place of the plan is not."""

    def make(x: Any) -> ad.Dataset:
        return D.range(1000).batch(2).prefetch(1) if int(x) else D.range(4).concatenate(D.range(4))

    assert len(run(make)) == 508


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty files in two folders, and a manifest."""
    for number in range(20):
        path = tmp_path / "files" / f"{number % 2}" / f"{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}")
    ad.write_manifest(f"{tmp_path}/files/*/*.txt", f"{tmp_path}/manifest.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: D.list_files(f"{folder}/files/*/*.txt"),
        lambda folder: D.from_manifest(f"{folder}/manifest.jsonl"),
        lambda folder: D.from_manifest(f"{folder}/manifest.jsonl").map(str),
        lambda folder: D.range(9).shuffle(9, reshuffle_each_iteration=False).cache(f"{folder}/cache"),
    ],
    ids=["list_files", "manifest", "map of a manifest", "cache"],
)
def test_shards_of_what_every_process_orders_for_itself(
    make: Callable[[Path], ad.Dataset], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would overlap, also if the order is drawn in an inner dataset."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ad.PipelineError, match="without a seed"):
        list(D.range(1).flat_map(lambda _: make(folder)).shard(2, 1))


def test_a_directory_in_an_order_that_a_process_drew_is_known_to_be(folder: Path) -> None:
    """Another reader would have another order of the same files."""
    made = ad.text_dataset_from_directory(f"{folder}/files", batch_size=None, verbose=False)
    ordered = ad.text_dataset_from_directory(f"{folder}/files", batch_size=None, verbose=False, seed=1)
    assert drawn_anew(made._node, ad.Options()) is not None
    assert drawn_anew(ordered._node, ad.Options()) is None
    assert drawn_anew(made._node, ad.Options(seed=1)) is None
