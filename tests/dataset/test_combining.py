"""Datasets of several datasets, as a user sees them."""

from __future__ import annotations

import collections
import pickle
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import asyncdata as ad
from tests.samples import samples

D = ad.Dataset


class Point(NamedTuple):
    """A namedtuple of datasets, or of their elements."""

    x: Any
    y: Any


def ints(ds: ad.Dataset) -> list[int]:
    return [int(x) for x in ds]


def test_zip_nests_as_its_datasets_do() -> None:
    """Tuples, namedtuples, dicts, one dataset alone; as a method the dataset comes first."""
    a, b, c = D.range(3), D.range(10, 14), D.from_tensor_slices(["x", "y", "z"])
    assert list(D.zip(a, b)) == [(0, 10), (1, 11), (2, 12)]
    assert list(D.zip((a, b))) == list(a.zip(b)) == list(D.zip(a, b))
    assert list(D.zip(a)) == list(a)
    assert list(D.zip((a,))) == [(0,), (1,), (2,)]
    points = list(D.zip(Point(a, {"b": b, "c": c})))
    assert points == [((0), {"b": 10, "c": "x"}), ((1), {"b": 11, "c": "y"}), ((2), {"b": 12, "c": "z"})]
    assert all(type(point) is Point for point in points)
    assert list(D.zip(a, D.zip(b, c)).map(lambda x, pair: (x, pair[1]))) == [(0, "x"), (1, "y"), (2, "z")]


def test_zip_of_one_dataset_with_itself() -> None:
    """A dataset may be read twice; unseeded shuffles of one dataset differ, seeded ones move alike."""
    ds = D.range(100)
    assert all(x == y for x, y in D.zip(ds, ds))
    assert not all(x == y for x, y in D.zip(ds.shuffle(100), ds.shuffle(100)))
    loaded = ds.map(lambda x: x * 2).filter(lambda _: True)
    assert all(x == 2 * y for x, y in D.zip(loaded.shuffle(30, seed=5), ds.shuffle(30, seed=5)))
    twice = D.zip(ds.shuffle(100, seed=5), ds.shuffle(100, seed=5)).repeat(2)
    pairs = list(twice)
    assert all(x == y for x, y in pairs)
    assert pairs[:100] != pairs[100:]


@pytest.mark.parametrize("wrong", [[], [[D.range(1)]], [(D.range(1), 5)], [{"a": [D.range(1)]}], [()]])
def test_zip_refuses_what_is_no_dataset(wrong: list[Any]) -> None:
    """Nothing, lists and other leaves are errors of the call."""
    with pytest.raises(TypeError):
        D.zip(*wrong)


def test_a_long_chain_of_concatenations_is_one_step() -> None:
    """Thousands of datasets in a row neither nest nor slow down."""
    ds = D.range(1)
    for i in range(3000):
        ds = ds.concatenate(D.range(i, i + 1))
    assert ints(ds) == [0, *range(3000)]
    assert len(ds) == 3001


def test_concatenate_and_shuffles() -> None:
    """Shuffled parts stay apart; a shuffle behind mixes them; epochs of each differ."""
    parts = D.range(20).shuffle(20, seed=1).concatenate(D.range(20, 40).shuffle(20, seed=1))
    first, second = ints(parts), ints(parts)
    assert sorted(first[:20]) == list(range(20))
    assert sorted(first[20:]) == list(range(20, 40))
    assert first != second
    # One seed, the same moves.
    assert [x + 20 for x in first[:20]] == first[20:]
    mixed = ints(parts.shuffle(40, seed=2))
    assert sorted(mixed) == list(range(40))
    assert sorted(mixed[:20]) != list(range(20))


def test_sampling_keeps_each_order_and_loses_nothing() -> None:
    """Every element comes once, in the order of its dataset, whatever is drawn."""
    parts = [D.range(100 * i, 100 * i + 10 * i) for i in range(5)]
    found = ints(D.sample_from_datasets(parts, seed=3))
    for i in range(5):
        assert [x for x in found if x // 100 == i] == list(range(100 * i, 100 * i + 10 * i))
    assert len(found) == 100


def test_sampling_stops_where_it_is_told_to() -> None:
    """With stop_on_empty_dataset nothing comes behind the end of the first dataset that is drawn in vain."""
    found = ints(D.sample_from_datasets([D.range(5), D.range(100, 10_000)], [0.5, 0.5], 1, stop_on_empty_dataset=True))
    assert [x for x in found if x < 100] == list(range(5))
    assert len(found) < 100


def test_draws_of_epochs() -> None:
    """Epochs are drawn alike unless rerandomized; without a seed each dataset has draws of its own."""
    parts = [D.range(50), D.range(100, 150)]
    alike = D.sample_from_datasets(parts, seed=4)
    assert ints(alike) == ints(alike)
    fresh = D.sample_from_datasets(parts, seed=4, rerandomize_each_iteration=True)
    assert ints(fresh) != ints(fresh)
    assert [int(x) for x in fresh.iterator(epoch=1)] == [int(x) for x in fresh.iterator(epoch=1)]
    unseeded = D.sample_from_datasets(parts)
    assert ints(unseeded) == ints(unseeded)
    assert ints(unseeded) != ints(D.sample_from_datasets(parts))
    unseeded = D.sample_from_datasets(parts, rerandomize_each_iteration=True)
    assert ints(unseeded) != ints(unseeded)
    numbers = D.random(seed=4).take(5)
    assert ints(numbers.repeat(2)) == ints(numbers) * 2
    again = D.random(seed=4, rerandomize_each_iteration=True).take(5)
    assert ints(again.repeat(2)) != ints(again) * 2
    unseeded = D.random().take(5)
    assert ints(unseeded.repeat(2)) == ints(unseeded) * 2 != ints(D.random().take(5)) * 2
    columns = D.zip(D.random(), D.random()).take(5).with_options(ad.Options(seed=1))
    assert all(a != b for a, b in columns)


def test_weights() -> None:
    """Weights may be any numbers, an array, or a dataset; wrong ones are refused."""
    parts = [D.range(3), D.range(10, 13), D.range(20, 23)]
    assert ints(D.sample_from_datasets(parts, np.array([0, 7, 0]))) == [10, 11, 12]
    assert ints(D.sample_from_datasets(parts, [0, 0, 0])) == []
    varying = D.from_tensor_slices([[1.0, 0, 0], [0, 0, 1.0]]).repeat(2)
    assert ints(D.sample_from_datasets(parts, varying)) == [0, 20, 1, 21]
    for wrong in ([1], [1, 1, -1], [1, 1, float("nan")], [1, 1, float("inf")]):
        with pytest.raises(ValueError, match="weights"):
            D.sample_from_datasets(parts, wrong)
    with pytest.raises(ValueError, match="at least one"):
        D.sample_from_datasets([])
    with pytest.raises(ad.PipelineError, match="2 weights for 3"):
        list(D.sample_from_datasets(parts, D.from_tensor_slices([[1.0, 1.0]])))


def test_choosing() -> None:
    """Choices are followed until they end; what is no choice is named."""
    parts = [D.range(3), D.range(10, 13)]
    assert ints(D.choose_from_datasets(parts, D.from_tensor_slices([1, 1, 0, 1]))) == [10, 11, 0, 12]
    choices = D.from_tensor_slices(np.array([1, 1, 1, 1, 0, 0], np.uint8))
    assert ints(D.choose_from_datasets(parts, choices)) == [10, 11, 12]
    assert ints(D.choose_from_datasets(parts, choices, stop_on_empty_dataset=False)) == [10, 11, 12, 0, 1]
    chosen = D.choose_from_datasets(parts, D.range(5))
    with chosen.iterator() as it:
        assert [next(it), next(it)] == [0, 10]
        with pytest.raises(ad.PipelineError, match="no dataset 2: there are 2"):
            next(it)
    with pytest.raises(ad.PipelineError, match="integers"):
        list(D.choose_from_datasets(parts, D.from_tensor_slices([0.5])))
    with pytest.raises(TypeError, match="Dataset"):
        D.choose_from_datasets(parts, [0, 1])  # type: ignore[arg-type]  # must fail
    with pytest.raises(ValueError, match="at least one"):
        D.choose_from_datasets([], D.range(1))


@pytest.mark.parametrize("stops", [True, False])
def test_choices_of_short_datasets(stops: bool) -> None:
    """Each choice takes the next element of its dataset; where there is none it is passed over, or it is the end."""
    drawn = random.Random(1)
    for _ in range(samples(40, 1000)):
        sizes = [drawn.randrange(6) for _ in range(3)]
        choices = [drawn.randrange(3) for _ in range(12)]
        parts = [iter(range(100 * number, 100 * number + size)) for number, size in enumerate(sizes)]
        wanted = [next(parts[choice], None) for choice in choices]
        if stops and None in wanted:
            wanted = wanted[: wanted.index(None)]
        datasets = [D.range(100 * number, 100 * number + size) for number, size in enumerate(sizes)]
        chosen = D.choose_from_datasets(datasets, D.from_tensor_slices(choices), stop_on_empty_dataset=stops)
        assert ints(chosen) == [number for number in wanted if number is not None]


def test_records_of_files_side_by_side(tmp_path: Path) -> None:
    """References of several files meet in one element, are checked, mapped in workers, batched and delivered."""
    urls = [str(tmp_path / f"{i}.tfrecord") for i in range(3)]
    for i, url in enumerate(urls):
        with ad.TFRecordWriter(url) as writer:
            writer.write_many(b"%d-%d" % (i, j) for j in range(20 + i))
    files = [ad.TFRecordDataset(url) for url in urls]
    expected = [tuple(b"%d-%d" % (i, j) for i in range(3)) for j in range(20)]
    assert list(D.zip(*files)) == expected
    joined = D.zip(*files).map(lambda *parts: b"+".join(parts), num_parallel_calls=2).batch(7)
    assert [item for batch in joined for item in batch] == [b"+".join(parts) for parts in expected]
    together = files[0].concatenate(files[1]).concatenate(files[0]).shard(2, 0)
    assert (
        list(together)
        == [*(b"0-%d" % j for j in range(20)), *(b"1-%d" % j for j in range(21)), *(b"0-%d" % j for j in range(20))][
            ::2
        ]
    )
    sampled = D.sample_from_datasets(files, seed=1).batch(4)
    records = [item for batch in sampled for item in batch]
    assert collections.Counter(records) == collections.Counter(
        b"%d-%d" % (i, j) for i in range(3) for j in range(20 + i)
    )


def test_damage_in_one_input_is_named(tmp_path: Path) -> None:
    """A corrupt record of a zipped file is found, and said to be that file's."""
    good, bad = str(tmp_path / "good"), str(tmp_path / "bad")
    for url in (good, bad):
        with ad.TFRecordWriter(url) as writer:
            writer.write_many([b"payload"] * 3)
    data = bytearray(Path(bad).read_bytes())
    data[-6] ^= 1
    Path(bad).write_bytes(data)
    with pytest.raises(ad.CorruptRecordError) as caught:
        list(D.zip(ad.TFRecordDataset(good), ad.TFRecordDataset(bad)))
    assert caught.value.url == bad
    assert caught.value.record == 2


def test_random_numbers_of_map_differ_between_inputs() -> None:
    """Elements of equal sources in different branches have provenance of their own."""
    drawn = D.range(5).map(lambda _, rng: int(rng.integers(1 << 60)), rng=True)
    pairs = list(D.zip(drawn, drawn))
    assert len({x for pair in pairs for x in pair}) == 10
    assert len(set(ints(drawn.concatenate(drawn)))) == 10


def test_plans_of_several_datasets_travel() -> None:
    """They can be pickled as others can."""
    ds = D.zip({"a": D.range(3), "b": D.sample_from_datasets([D.range(2), D.range(5, 7)], seed=1)})
    assert list(pickle.loads(pickle.dumps(ds))) == list(ds)


def test_inner_datasets_may_be_of_several() -> None:
    """interleave of a function that zips, concatenates or samples."""

    def pair(x: Any) -> ad.Dataset:
        return D.zip(D.range(x, x + 2), D.range(x).concatenate(D.range(50, 52)))

    found = list(D.range(1, 4).interleave(pair, cycle_length=2))
    assert sorted(found) == sorted(element for x in range(1, 4) for element in pair(x))


@pytest.mark.parametrize("failing_first", [True, False])
@pytest.mark.parametrize("parallel", [None, 2])
def test_an_input_of_zip_fails_where_another_one_ends(failing_first: bool, parallel: int | None) -> None:
    """The end counts, whichever comes first: nobody would have been given the element that failed."""

    def fails_at_three(x: int) -> int:
        if x == 3:
            raise ValueError("three")
        return int(x)

    for count in range(6):
        failing = ad.Dataset.range(9).map(fails_at_three, num_parallel_calls=parallel, executor="thread")
        inputs = (failing, ad.Dataset.range(count)) if failing_first else (ad.Dataset.range(count), failing)
        found: list[Any] = []
        try:
            found.extend(ad.Dataset.zip(inputs))
        except ValueError:
            assert count > 3
        else:
            assert count <= 3
        assert [int(pair[0]) for pair in found] == list(range(min(count, 3)))
