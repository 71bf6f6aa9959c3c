"""Random numbers of `map(rng=True)` belong to one element of one repetition or window, wherever `repeat` is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad

D = ad.Dataset


def drawn(element: Any, rng: Any) -> tuple[bytes, int]:
    """An element and a number that no other one is given."""
    return str(element).encode(), int(rng.integers(1 << 62))


def names(folder: Path) -> ad.Dataset:
    """Of the files."""
    return D.list_files(f"{folder}/*.txt", shuffle=False)


KINDS: dict[str, Callable[[Path], ad.Dataset]] = {
    "behind repeat": lambda _: D.range(60).repeat(4),
    "repeat of repeat": lambda _: D.range(60).repeat(2).repeat(2),
    "batches of repetitions": lambda _: D.range(60).repeat(4).batch(3).unbatch(),
    "cache": lambda _: D.range(60).cache().repeat(4),
    "datasets of repeated elements": lambda _: D.range(6).repeat(4).interleave(lambda _: D.range(10), 3),
    "datasets of rows of a batch": lambda _: (
        D.from_tensors([[0] * 12] * 2).unbatch().unbatch().interleave(lambda _: D.range(10), 3)
    ),
    "windows that overlap": lambda _: D.range(63).window(4, 1, drop_remainder=True).flat_map(lambda w: w),
    "inside datasets": lambda _: D.range(6).interleave(lambda _: D.range(10).repeat(4), 3),
    "lines": lambda p: ad.TextLineDataset(f"{p}/0.txt").repeat(8),
    "names": lambda p: names(p).repeat(4).interleave(ad.TextLineDataset, 2),
    "names, as they are ready": lambda p: (
        names(p).repeat(4).interleave(ad.TextLineDataset, 3, num_parallel_calls=3, deterministic=False)
    ),
    "objects": lambda p: ad.FileDataset(names(p).repeat(120)),
    "shuffle": lambda p: names(p).interleave(ad.TextLineDataset, 2).repeat(4).shuffle(50, seed=3),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of 30 lines."""
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number}:{line}\n" for line in range(30)))
    return tmp_path


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_two_elements_are_given_the_same_numbers(kind: str, executor: str, folder: Path) -> None:
    """However often an element comes; in every run, and wherever the function runs, the same."""
    options = ad.Options(seed=7, num_workers=1)

    def run(executor: str) -> list[tuple[bytes, int]]:
        dataset = KINDS[kind](folder).map(drawn, executor=executor, rng=True).with_options(options)
        return [(bytes(element), int(number)) for element, number in dataset.iterator(epoch=1)]

    with ad.Runtime(options):
        found = run(executor)
        assert len({number for _, number in found}) == len(found) == 240
        if executor != "inline":
            assert sorted(found) == sorted(run("inline"))


def test_datasets_of_repeated_elements_draw_anew(folder: Path) -> None:
    """Shuffles and random functions inside, and a repetition of names opens the same files."""

    def make(url: str) -> ad.Dataset:
        return ad.TextLineDataset(url).shuffle(30, seed=4).map(drawn, rng=True)

    dataset = names(folder).repeat(3).interleave(make, 1).with_options(ad.Options(seed=7, num_workers=0))
    found = [(bytes(element), int(number)) for element, number in dataset.iterator(epoch=1)]
    orders = [tuple(line for line, _ in found[start : start + 30]) for start in range(0, 180, 30)]
    assert len(set(orders)) == 6
    assert len({frozenset(order) for order in orders}) == 2
    assert len({number for _, number in found}) == 180
