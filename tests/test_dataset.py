"""The fluent handle: tf.data's names, arguments and edges, run for real."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.formats.tfrecord import encode_many
from asyncdata.runtime.consumer.iterate import PipelineIterator
from tests.runtime.stages import oracle

D = ad.Dataset


@pytest.fixture(autouse=True)
def small_runtime() -> Any:
    """One Runtime per test, without worker processes."""
    with ad.Runtime(ad.Options(num_workers=0, memory_limit_bytes=64 << 20)) as runtime:
        yield runtime


def ints(ds: ad.Dataset) -> list[int]:
    return [int(x) for x in ds]


@pytest.mark.parametrize("arguments", [(5,), (0,), (2, 7), (7, 2), (0, 10, 3), (10, 0, -3), (-3,)])
def test_range(arguments: tuple[int, ...]) -> None:
    """The numbers of Python's range, as scalars of the wanted type."""
    assert ints(D.range(*arguments)) == list(range(*arguments))
    assert all(type(x) is np.int64 for x in D.range(*arguments))
    options: dict[str, Any] = {"output_type": np.float32}
    assert all(type(x) is np.float32 for x in D.range(*arguments, **options))


def test_tensor_slices() -> None:
    """Rows of arrays, in the nest they were given in; texts and byte strings keep their length."""
    assert [row.tolist() for row in D.from_tensor_slices(np.arange(6).reshape(3, 2))] == [[0, 1], [2, 3], [4, 5]]
    assert list(D.from_tensor_slices({"a": [1, 2], "b": ["x", ""]})) == [{"a": 1, "b": "x"}, {"a": 2, "b": ""}]
    assert list(D.from_tensor_slices([b"\0a\0", b""])) == [b"\0a\0", b""]
    assert list(D.from_tensor_slices([])) == []
    words = np.array([["x", "y"], ["z", ""]], object)
    assert [row.tolist() for row in D.from_tensor_slices(words)] == [["x", "y"], ["z", ""]]
    assert all(isinstance(row, np.ndarray) for row in D.from_tensor_slices(words))


def test_the_users_array_is_not_the_plans() -> None:
    """Elements cannot write into the plan, and batches are the consumer's own."""
    ds = D.from_tensor_slices(np.zeros((4, 2)))
    for row in ds:
        assert not row.flags.writeable
    for batch in ds.batch(2):
        batch[...] = 1
    assert sum(float(row.sum()) for row in ds) == 0


def test_from_tensors_is_one_element() -> None:
    """Whatever is given is the element."""
    assert list(D.from_tensors((1, "a"))) == [(1, "a")]
    assert list(D.from_tensors({"k": ["a", 2]}).repeat(2)) == [{"k": ["a", 2]}] * 2


def test_generators_begin_anew() -> None:
    """Every iteration calls the function again."""
    calls = 0

    def counting(n: int) -> Any:
        nonlocal calls
        calls += 1
        yield from range(n)

    ds = D.from_generator(counting, args=(3,))
    assert list(ds) == list(ds) == [0, 1, 2]
    assert calls == 2
    with pytest.raises(TypeError, match="wrap it"):
        D.from_generator([1, 2])  # type: ignore[arg-type]  # must be refused


@pytest.mark.parametrize("count", [-1, 0, 1, 4, 5, 6])
def test_take_and_skip(count: int) -> None:
    """-1 is all for take and everything for skip; more than there is does no harm."""
    values = list(range(5))
    assert ints(D.range(5).take(count)) == oracle.take(values, count)
    assert ints(D.range(5).skip(count)) == oracle.skip(values, count)


@pytest.mark.parametrize("drop", [False, True])
def test_batches(drop: bool) -> None:
    """The last, smaller batch comes unless it is to be dropped."""
    found = [batch.tolist() for batch in D.range(7).batch(3, drop_remainder=drop)]
    assert found == oracle.batch(range(7), 3, drop_remainder=drop)
    assert list(D.range(2).batch(3, drop_remainder=True)) == []


def test_repeating() -> None:
    """None and -1 are for ever, 0 is nothing, and nothing repeated is nothing."""
    assert ints(D.range(2).repeat(3)) == [0, 1] * 3
    assert ints(D.range(2).repeat(0)) == []
    assert ints(D.range(0).repeat()) == []
    assert ints(D.range(2).repeat().take(5)) == [0, 1, 0, 1, 0]
    assert ints(D.range(2).repeat(-1).take(3)) == [0, 1, 0]


def test_interleaving() -> None:
    """The order is tf.data's; flat_map is one dataset after the other."""

    def inner(x: Any) -> ad.Dataset:
        return D.range(10 * x, 10 * x + x)

    def rows(x: int) -> list[int]:
        return list(range(10 * x, 11 * x))

    for cycle, block in [(1, 1), (2, 1), (3, 2), (9, 4)]:
        found = ints(D.range(6).interleave(inner, cycle, block))
        assert found == oracle.interleave(range(6), rows, cycle, block)
    assert ints(D.range(6).flat_map(inner)) == [y for x in range(6) for y in rows(x)]
    sloppy = ints(D.range(6).interleave(inner, 3, 2, deterministic=False))
    assert Counter(sloppy) == Counter(y for x in range(6) for y in rows(x))


def test_interleave_wants_datasets() -> None:
    """Returning anything else names the mistake."""
    with pytest.raises(TypeError, match="must return a Dataset, not a list"):
        list(D.range(2).interleave(lambda x: [x]))  # type: ignore[arg-type, return-value]  # must be refused


def test_shuffling_by_seed_and_epoch() -> None:
    """Every iteration has its own order; the same seed and epoch give the same one, in any handle and Runtime."""
    ds = D.range(50).shuffle(50, seed=3)
    first, second = ints(ds), ints(ds)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))
    again = D.range(50).shuffle(50, seed=3)
    assert ints(again) == first
    with again.iterator(epoch=1) as it:
        assert [int(x) for x in it] == second
    fixed = D.range(50).shuffle(50, seed=3, reshuffle_each_iteration=False)
    assert ints(fixed) == ints(fixed) == first
    assert ints(D.range(50).shuffle(50, seed=4)) != first
    repeated = ints(D.range(50).shuffle(50, seed=3).repeat(2))
    assert repeated[:50] != repeated[50:]
    assert sorted(repeated[:50]) == sorted(repeated[50:]) == list(range(50))
    unseeded = D.range(50).shuffle(50)
    assert ints(unseeded) != ints(unseeded)


def test_an_iterator_that_could_not_start_is_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one has its number, also after a state; others that begin meanwhile keep theirs."""
    folder = tmp_path / "missing"
    ds = D.range(50).shuffle(50, seed=3).with_options(ad.Options(order_log=folder / "log"))
    with D.range(50).shuffle(50, seed=3).iterator(epoch=4) as it:
        of_epoch_4 = it.state_dict()
    for state in (None, of_epoch_4):
        with pytest.raises(ad.SystemResourceError, match="order log"):
            ds.iterator(state=state)
    folder.mkdir()
    with ds.iterator() as it:
        assert it.epoch == 0

    real = PipelineIterator._begin

    def fails(*_: Any) -> None:
        monkeypatch.setattr(PipelineIterator, "_begin", real)
        with ds.iterator() as other:
            assert other.epoch == 2
        raise KeyError("stop")

    monkeypatch.setattr(PipelineIterator, "_begin", fails)
    with pytest.raises(KeyError):
        ds.iterator()
    with ds.iterator() as it:
        assert it.epoch == 3


@pytest.mark.parametrize("step", ["take", "prefetch", "map", "batch"])
def test_what_follows_a_shuffle_does_not_change_its_order(step: str) -> None:
    """A seeded order is the shuffle's own: steps behind it, and how they are run, leave it alone."""
    shuffled = D.range(20).shuffle(20, seed=3)
    expected = ints(D.range(20).shuffle(20, seed=3))
    found = {
        "take": lambda: ints(shuffled.take(20)),
        "prefetch": lambda: ints(shuffled.prefetch(2)),
        "map": lambda: ints(shuffled.map(int, 2)),
        "batch": lambda: [int(x) for batch in shuffled.batch(5) for x in batch],
    }[step]()
    assert found == expected


def test_maps_wherever_they_run() -> None:
    """Inline, in threads and awaited give the same."""

    async def later(x: Any) -> int:
        return int(x) + 1

    expected = list(range(1, 31))
    assert list(D.range(30).map(lambda x: int(x) + 1)) == expected
    assert ints(D.range(30).map(lambda x: int(x) + 1, ad.AUTOTUNE)) == expected
    assert ints(D.range(30).map(lambda x: int(x) + 1, executor="thread")) == expected
    assert list(D.range(30).map(later)) == list(D.range(30).map(later, 5)) == expected


def test_elements_of_unlike_structure_pass() -> None:
    """Nests that differ travel side by side through every stage that does not stack them."""
    items = [1, (2, "b"), {"k": 3}, [4], b"5"] * 4

    def yields() -> Any:
        yield from items

    ds = (
        D.from_generator(yields)
        .prefetch(3)
        .take(20)
        .interleave(lambda *parts: D.from_generator(lambda: [parts if len(parts) > 1 else parts[0]]), 4, 2)
    )
    assert Counter(map(repr, ds)) == Counter(map(repr, items))
    assert Counter(map(repr, D.from_generator(yields).shuffle(7, seed=1))) == Counter(map(repr, items))


def test_files(tmp_path: Path) -> None:
    """Files are listed by URL, or shuffled; their records are read one file after the other, or in turn."""
    for i in range(3):
        (tmp_path / f"s{i}.tfrecord").write_bytes(encode_many([b"%d-%d" % (i, j) for j in range(2)]))
    pattern = f"{tmp_path}/s*.tfrecord"
    urls = list(D.list_files(pattern, shuffle=False))
    assert [url[-10:] for url in urls] == ["0.tfrecord", "1.tfrecord", "2.tfrecord"]
    assert sorted(D.list_files(pattern, seed=1)) == urls
    assert list(D.list_files([pattern, pattern], shuffle=False)) == urls
    in_order = [b"%d-%d" % (i, j) for i in range(3) for j in range(2)]
    in_turn = [b"%d-%d" % (i, j) for j in range(2) for i in range(3)]
    assert list(ad.TFRecordDataset(urls[0])) == in_order[:2]
    assert list(ad.TFRecordDataset(urls)) == in_order
    assert list(ad.TFRecordDataset(D.list_files(pattern, shuffle=False), num_parallel_reads=3)) == in_turn
    assert list(ad.TFRecordDataset(urls, num_parallel_reads=ad.AUTOTUNE)) == in_turn
    assert [b.tolist() for b in ad.TFRecordDataset(urls).batch(4)] == [in_order[:4], in_order[4:]]
    with pytest.raises(ad.errors.ObjectNotFoundError, match="no file matches"):
        list(D.list_files(f"{tmp_path}/nothing*"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D.range(3).batch(0), "batch_size"),
        (lambda: D.range(3).shuffle(0), "buffer_size"),
        (lambda: D.range(3).interleave(D.range, 0), "cycle_length"),
        (lambda: D.range(3).interleave(D.range, 1, 0), "block_length"),
        (lambda: D.range(3).interleave(D.range, num_parallel_calls=0), "num_parallel_calls"),
        (lambda: D.range(3).map(int, 0), "num_parallel_calls"),
        (lambda: D.range(3).map(int, executor="gpu"), "executor"),
        (lambda: D.range(3).prefetch(-2), "buffer_size"),
        (lambda: D.list_files([]), "at least one"),
        (lambda: D.from_tensor_slices(5), "at least one axis"),
        (lambda: D.from_tensor_slices(np.ma.masked_array([1, 2], [False, True])), r"mask .*array\.filled"),
        (lambda: D.from_tensor_slices({"a": [np.ma.masked_array([1, 2], [False, True])]}), r"mask .*array\.filled"),
        (lambda: D.from_tensor_slices({1, 2}), "a list of it"),
        (lambda: D.from_tensor_slices(i for i in range(2)), "a list of it"),
        (lambda: D.from_tensor_slices(([1], [1, 2])), "one length"),
        (lambda: D.from_tensor_slices(()), "at least one array"),
        (lambda: ad.TFRecordDataset(["a"], "LZMA"), "LZMA"),
        (lambda: ad.TFRecordDataset([5]), "filenames"),  # type: ignore[list-item]  # must be refused
    ],
)
def test_mistakes_are_told_at_once(make: Any, message: str) -> None:
    """Arguments that cannot work are refused where they are written."""
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_handles_are_values() -> None:
    """A handle can be copied, pickled and applied to; steps leave the one they start from alone."""
    ds = D.range(4)
    longer = ds.map(abs).batch(2)
    assert ints(ds) == [0, 1, 2, 3]
    for again in (copy.copy(longer), pickle.loads(pickle.dumps(longer))):
        assert [batch.tolist() for batch in again] == [[0, 1], [2, 3]]
    assert ints(ds.apply(lambda d: d.take(2))) == [0, 1]
    assert repr(longer) == "<Dataset range(4) → map(abs) → batch(2)>"
    assert repr(pickle.loads(pickle.dumps(ad.TFRecordDataset("x")))) == "<Dataset TFRecordDataset(x)>"


def jitter(_x: Any, rng: np.random.Generator) -> float:
    """Draws once."""
    return float(rng.random())


def jitter_more(x: Any, rng: np.random.Generator) -> float:
    """Draws once more."""
    return float(x) + float(rng.random())


def test_random_numbers_do_not_depend_on_where_functions_run() -> None:
    """With one seed and epoch: inline, in workers, fused with a batch, awaited; and another epoch differs."""

    async def awaited(_x: Any, rng: np.random.Generator) -> float:
        return float(rng.random())

    def run(ds: ad.Dataset, epoch: int = 0) -> list[float]:
        elements = list(ds.with_options(ad.Options(seed=5)).iterator(epoch=epoch))
        return [float(x) for element in elements for x in np.atleast_1d(element)]

    base = D.range(20)
    inline = run(base.map(jitter, rng=True))
    assert run(base.map(jitter, 2, rng=True)) == inline
    assert run(base.map(jitter, 2, rng=True).batch(7)) == inline
    assert run(base.map(awaited, 4, rng=True)) == inline
    assert run(base.map(jitter, rng=True), epoch=1) != inline
    twice = run(base.map(jitter, rng=True).map(jitter_more, rng=True))
    assert run(base.map(jitter, 2, rng=True).map(jitter_more, 2, rng=True).batch(7)) == twice
