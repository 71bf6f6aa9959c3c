"""`adapt` over real pipelines: any batches, any place where summaries are made, the same functions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad

ROWS = 60
DATA = {
    "x": np.random.default_rng(1).normal(5, 3, (ROWS, 3)),
    "n": np.arange(ROWS) % 7,
    "id": np.arange(ROWS),
    "word": np.array([f"w{n % 11}" for n in range(ROWS)]),
}
LEARNERS = {"x": ad.Normalization(), "n": ad.Normalization(None), "word": ad.Vocabulary(memory_limit_bytes=1)}


@pytest.fixture(scope="module")
def runtime() -> Any:
    """Worker processes for all tests of this file."""
    with ad.Runtime(ad.Options(num_workers=2)) as shared:
        list(ad.Dataset.range(2).map(abs, num_parallel_calls=2))  # starts them
        yield shared


@pytest.mark.sampled
@pytest.mark.parametrize("parallel", [None, 2, ad.AUTOTUNE])
@pytest.mark.parametrize("size", [1, 7, ROWS])
def test_neither_batches_nor_workers_matter(runtime: Any, parallel: int | None, size: int) -> None:
    """One pass learns several leaves: here or in worker processes, of batches of any size."""
    ds = ad.Dataset.from_tensor_slices(DATA).batch(size)
    seen: list[int] = []
    learned = ad.adapt(ds, LEARNERS, num_parallel_calls=parallel, progress=seen.append)
    np.testing.assert_allclose(learned["x"].mean, DATA["x"].mean(axis=0))
    np.testing.assert_allclose(learned["n"].variance, DATA["n"].var())
    assert learned["word"].vocabulary == ["w4", "w3", "w2", "w1", "w0", "w9", "w8", "w7", "w6", "w5", "w10"]
    assert seen == list(range(1, -(-ROWS // size) + 1))
    batches = list(ds.map(learned, num_parallel_calls=parallel))
    assert np.concatenate([batch["id"] for batch in batches]).tolist() == DATA["id"].tolist()
    whole = np.concatenate([batch["x"] for batch in batches])
    np.testing.assert_allclose(whole.std(axis=0), 1, rtol=1e-5)


def numbers_of(index: int) -> Any:
    """Many in the first element, so that it is summarized last where nothing keeps the order."""
    return np.random.default_rng(index).normal(1000, size=1_000_000 if index == 0 else 3)


@pytest.mark.sampled
@pytest.mark.parametrize("learner", [ad.Normalization(None), ad.Quantiles(4)])
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_last_bit_does_not_depend_on_workers(runtime: Any, learner: Any, *, deterministic: bool) -> None:
    """Summaries are merged in the order of the elements, though the dataset lets steps in workers change it."""
    ds = ad.Dataset.range(100).map(lambda index: numbers_of(int(index)))
    ds = ds.with_options(ad.Options(deterministic=deterministic))
    here, elsewhere = (ad.adapt(ds, learner, num_parallel_calls=parallel) for parallel in (None, 2))
    assert here.to_json() == elsewhere.to_json()


def test_what_was_read_before_does_not_matter(runtime: Any) -> None:
    """The elements are those of epoch 0, wherever they are summarized, and the epoch is not counted."""
    ds = ad.Dataset.range(100).shuffle(100, seed=1).take(10)
    drawn = list(map(int, ds.iterator(epoch=0)))
    means = [float(ad.adapt(ds, ad.Normalization(None), num_parallel_calls=parallel).mean) for parallel in (None, 2)]
    assert list(map(int, ds)) == drawn
    means.append(float(ad.adapt(ds, ad.Normalization(None)).mean))
    assert means == [sum(drawn) / 10] * 3


def test_learned_functions_run_everywhere(runtime: Any) -> None:
    """Inline, in workers, vectorized, element by element, behind a cache: the same elements."""
    ds = ad.Dataset.from_tensor_slices(DATA)
    learned = ad.adapt(ds.batch(7), LEARNERS)
    expected = list(ds.map(learned).batch(8))
    for other in (
        ds.map(learned, num_parallel_calls=2).batch(8),
        ds.map(learned, vectorized=True).batch(8),
        ds.batch(8).map(learned, num_parallel_calls=2),
        ds.map(learned).cache().batch(8),
    ):
        for batch, same in zip(other, expected, strict=True):
            for name, leaf in batch.items():
                np.testing.assert_array_equal(leaf, same[name])
                assert leaf.dtype == same[name].dtype


def test_a_worker_that_summarizes_loads_no_network_stack() -> None:
    """Neither learners nor functions bring datasets, or what reads storage, into worker processes."""
    ds = ad.Dataset.from_tensor_slices(DATA).batch(7)
    with ad.Runtime(ad.Options(num_workers=1)):
        learned = ad.adapt(ds, LEARNERS, num_parallel_calls=1)
        # A function by value, because this file loads datasets.
        listing = ds.map(learned, num_parallel_calls=1).map(lambda _: " ".join(sys.modules), num_parallel_calls=1)
        modules = next(iter(listing)).split()
    assert "asyncdata.preprocessing.summarize" in modules
    assert set(modules).isdisjoint({"aiohttp", "uvloop", "asyncdata.dataset", "asyncdata.runtime"})


def test_records_of_files_are_learned_from(tmp_path: Path) -> None:
    """TFRecords on their whole way: numbers, byte strings and lists of them that lie where they were received."""
    for shard in range(3):
        with ad.TFRecordWriter(tmp_path / f"{shard}.rec") as writer:
            for n in range(shard, ROWS, 3):
                tags = [b"t%d" % tag for tag in range(n % 4)]
                writer.write(ad.serialize_example({"x": float(n), "word": f"w{n % 5}", "tags": tags}))
    parse = ad.parse_example(
        {
            "x": ad.FixedLenFeature((), float),
            "word": ad.FixedLenFeature((), bytes),
            "tags": ad.VarLenFeature(bytes),
        }
    )
    files = ad.Dataset.list_files(f"{tmp_path}/*.rec", shuffle=False)
    records = files.interleave(ad.TFRecordDataset, cycle_length=3).batch(8)
    learners = {
        "x": ad.Quantiles(4),
        "word": ad.Vocabulary(4),
        "tags": ad.Vocabulary(output_mode="tf_idf", memory_limit_bytes=1),
    }
    weights = np.log(1 + ROWS / (1 + np.array([45, 30, 15])))
    expected = [[0, *(weights[:tags]), *[0] * (3 - tags)] for tags in (n % 4 for n in range(8))]
    with ad.Runtime(ad.Options(num_workers=2)):
        for parallel in (None, 2):
            ds = records.map(parse, parallel)
            learned = ad.adapt(ds, learners, num_parallel_calls=parallel)
            assert learned["x"].boundaries == [14.0, 29.0, 44.0]
            assert learned["word"].vocabulary == ["w4", "w3", "w2"]
            assert learned["tags"].vocabulary == ["t0", "t1", "t2"]
            batch = next(iter(ds.map(learned, parallel)))
            assert batch["x"].tolist() == [0] * 8
            assert batch["word"].tolist() == [0, 0, 3, 2, 1, 0, 0, 3]
            np.testing.assert_allclose(batch["tags"], expected, rtol=1e-6)


async def test_a_coroutine_can_learn() -> None:
    """`adapt` also works inside a running event loop, which it blocks."""
    learned = ad.adapt(ad.Dataset.range(5).batch(2), ad.Normalization(None))
    assert learned.mean == 2


def test_tuples_and_single_leaves_are_learned() -> None:
    """Learners are nested like the elements, None leaves a part out; one learner makes one function."""
    ds = ad.Dataset.from_tensor_slices((DATA["n"], DATA["id"])).batch(8)
    learned = ad.adapt(ds, (ad.Normalization(None), None))
    assert learned[1] is None
    assert learned[0] == ad.adapt(ds.map(lambda n, _: n), ad.Normalization(None))
    alone = ad.adapt(ds.map(lambda n, _: (n,)), (ad.Normalization(None),), num_parallel_calls=1)
    assert alone[0] == learned[0]


PAIRS = ad.Dataset.from_tensor_slices(([0.0, 0.0], [100.0, 100.0])).batch(2)


@pytest.mark.parametrize(
    ("ds", "learners", "message"),
    [
        (ad.Dataset.range(0), ad.Normalization(None), "empty"),
        (ad.Dataset.range(3).repeat(), ad.Normalization(None), "infinite"),
        (ad.Dataset.range(3), {}, "nothing to learn"),
        (ad.Dataset.range(3), {"x": 5}, "leaf 'x'"),
        (ad.Dataset.range(3), ad.Normalization(), "batch"),
        (ad.Dataset.from_tensors({"x": 1}), {"y": ad.Normalization(None)}, "no leaf 'y'"),
        ([1, 2], ad.Normalization(None), "Dataset"),
        (PAIRS, ad.Normalization(None), "nested like the elements"),
        (PAIRS, (ad.Normalization(None),), "tuples of 1 parts"),
        (PAIRS.map(lambda x, y: {"x": x, "y": y}), ad.Normalization(None), "nested like the elements"),
    ],
)
@pytest.mark.parametrize("parallel", [None, 1])
def test_what_cannot_be_learned_is_refused(ds: Any, learners: Any, message: str, parallel: int | None) -> None:
    """The message says why, in this process and in a worker."""
    with pytest.raises((KeyError, TypeError, ValueError), match=message):
        ad.adapt(ds, learners, num_parallel_calls=parallel)


def test_an_error_names_the_leaf() -> None:
    """In this process and in a worker."""
    ds = ad.Dataset.from_tensors({"a": {"x": "text"}})
    mixed = ds.concatenate(ad.Dataset.from_tensors({"a": {"x": 1}}))
    with pytest.raises(TypeError, match="here are both") as caught:
        ad.adapt(mixed, {"a": {"x": ad.Vocabulary()}})
    assert caught.value.__notes__ == ["in the leaf 'a.x'"]
    for parallel in (None, 1):
        with pytest.raises(TypeError, match="numbers are needed") as caught:
            ad.adapt(ds, {"a": {"x": ad.Normalization(None)}}, num_parallel_calls=parallel)
        assert any("'a.x'" in note for note in caught.value.__notes__)
