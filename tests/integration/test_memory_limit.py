"""Inside any legal memory limit a pipeline finishes or says what it needs; it never hangs, and never takes more."""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.formats.tfrecord import encode
from asyncdata.runtime.stages.work import worker_map
from asyncdata.storage.policy.hedge import hedge_bytes
from benchmarks import memory
from benchmarks.measure import Sampler, tree_own_bytes
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.integration.shards import write_shards
from tests.samples import SOAK, samples

MIB = 1 << 20
SHARDS = 6
SIZES = {40: 1000, 5000: 100, 300_000: 8}  # bytes of a record: records of a shard


def widen(x: int) -> Any:
    """32 KiB."""
    return np.full(4096, x, np.int64)


def head(record: bytes) -> Any:
    """A few bytes of a record."""
    return np.frombuffer(record, np.uint8)[:4].copy()


async def length(record: bytes) -> int:
    """Awaited."""
    return len(record)


def listed(paths: list[str]) -> ad.Dataset:
    """The shards' names in some order."""
    return ad.Dataset.list_files(str(Path(paths[0]).parent / "*"), shuffle=True, seed=1)


# Each with the number of elements it yields, of `n` records in all.
PIPELINES: dict[str, tuple[Callable[[list[str]], ad.Dataset], Callable[[int], int]]] = {
    "records": (ad.TFRecordDataset, lambda n: n),
    "interleaved": (
        lambda paths: listed(paths).interleave(ad.TFRecordDataset, cycle_length=4, block_length=2).batch(8),
        lambda n: -(-n // 8),
    ),
    "sloppy": (
        lambda paths: (
            listed(paths).interleave(ad.TFRecordDataset, cycle_length=4, deterministic=False).map(head, 4).batch(8)
        ),
        lambda n: -(-n // 8),
    ),
    "everything": (
        lambda paths: (
            listed(paths)
            .interleave(ad.TFRecordDataset, cycle_length=6)
            .shuffle(30, seed=3)
            .map(head, 4)
            .batch(8)
            .prefetch(2)
        ),
        lambda n: -(-n // 8),
    ),
    "awaited": (lambda paths: ad.TFRecordDataset(paths).map(length, 8).batch(8), lambda n: -(-n // 8)),
    "repeated": (
        lambda paths: ad.TFRecordDataset(paths, num_parallel_reads=3).shuffle(10, seed=1).repeat(2).batch(8),
        lambda n: -(-2 * n // 8),
    ),
    "threads": (
        lambda paths: ad.TFRecordDataset(paths).map(head, ad.AUTOTUNE, executor="thread").prefetch(ad.AUTOTUNE),
        lambda n: n,
    ),
    "wide": (lambda _: ad.Dataset.range(300).map(widen, 4).batch(8), lambda _: 38),
    "wide inline": (lambda _: ad.Dataset.range(300).map(widen).batch(8).prefetch(4), lambda _: 38),
}

_ALL = list(itertools.product([1, 4, 8, 16, 64], SIZES, [64 << 10, 8 << 20], PIPELINES))
CASES = _ALL if SOAK else random.Random(7).sample(_ALL, 24)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """Shards by the size of their records."""
    return {
        size: write_shards(tmp_path_factory.mktemp(f"records-{size}"), SHARDS, count, size)
        for size, count in SIZES.items()
    }


@pytest.mark.sampled
@pytest.mark.parametrize(("limit_mib", "size", "chunk_bytes", "name"), CASES)
def test_a_pipeline_finishes_or_says_what_it_needs(
    limit_mib: int, size: int, chunk_bytes: int, name: str, shards: dict[int, list[str]]
) -> None:
    """Complete, or one MemoryLimitError; what is charged never exceeds the limit, and is nothing at the end."""
    make, expected = PIPELINES[name]
    options = ad.Options(memory_limit_bytes=limit_mib * MIB, chunk_bytes=chunk_bytes, num_workers=1)
    count = 0
    too_small: ad.MemoryLimitError | None = None
    with ad.Runtime(options, pipelines=1) as runtime:
        try:
            for _ in make(shards[size]):
                count += 1
                assert runtime.budgets.used_bytes <= limit_mib * MIB
        except ad.MemoryLimitError as error:
            too_small = error
    if too_small is None:
        assert count == expected(SHARDS * SIZES[size])
    else:
        assert "memory_limit_bytes" in str(too_small)
        assert limit_mib < 16, too_small


def test_a_batch_that_cannot_fit_is_said_to() -> None:
    """One batch larger than the limit names the stage and what it needs."""
    dataset = ad.Dataset.range(1000).map(widen, 2).batch(500).with_options(ad.Options(memory_limit_bytes=4 * MIB))
    with pytest.raises(ad.MemoryLimitError, match="memory_limit_bytes=4194304") as caught:
        list(dataset)
    assert "batch(500)" in str(caught.value)


@pytest.mark.sampled
@pytest.mark.parametrize("pipelines", [1, 3])
def test_following_the_advice_is_enough(pipelines: int, tmp_path: Path) -> None:
    """The limit that an error names is the option's, for all pipelines of the Runtime; with it the pipeline runs."""
    shards = write_shards(tmp_path, 100, 2, 100)
    many = ad.Dataset.from_tensor_slices(shards).interleave(ad.TFRecordDataset, cycle_length=100)
    wide = ad.Dataset.range(3).map(lambda x: np.full(500_000, x)).batch(3)
    apart = ad.Dataset.range(200).map(lambda x: np.full(25_000, x)).batch(64).unbatch().shuffle(50, seed=1).batch(2)
    for dataset, count in ((many, 200), (wide, 1), (apart.unbatch().batch(4), 50)):
        limit = pipelines * 4 * MIB
        for _ in range(3):
            try:
                with ad.Runtime(ad.Options(memory_limit_bytes=limit, num_workers=0), pipelines=pipelines):
                    assert sum(1 for _ in dataset) == count
                break
            except ad.MemoryLimitError as error:
                limit = int(re.findall(rf"memory_limit_bytes={limit}\b.*at least (\d+)", str(error))[0])
        else:
            pytest.fail(f"a limit that was named was too small: {limit}")
        assert limit < pipelines * 128 * MIB, "elements behind unbatch are as small as in front of batch"


def grow(x: int) -> Any:
    """One element that is larger than all memory."""
    return np.zeros(2_000_000 if x == 7 else 10)


async def grow_async(x: int) -> Any:
    """The same, awaited."""
    return grow(x)


@pytest.mark.sampled
@pytest.mark.parametrize("place", ["thread", "process", "process, batched", "inline", "async", "padded", "ragged"])
def test_an_element_that_cannot_fit_is_named(place: str) -> None:
    """Or those that it is among, where they are written together."""
    numbers = ad.Dataset.range(10)
    datasets = {
        "thread": numbers.map(grow, 2, executor="thread"),
        "process": numbers.map(grow, 2),
        "process, batched": numbers.map(grow, 2).batch(1),
        "inline": numbers.map(grow).batch(1),
        "async": numbers.map(grow_async, 2).batch(1),
        "padded": numbers.map(grow).padded_batch(2),
        "ragged": numbers.map(grow).ragged_batch(2),
    }
    options = ad.Options(memory_limit_bytes=4 * MIB, num_workers=1, num_threads=1)
    with pytest.raises(ad.MemoryLimitError) as caught:
        list(datasets[place].with_options(options))
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "stage" in text
    found = [int(number) for number in re.findall(r"element (\d+) of range", text)]
    assert found
    assert min(found) <= 7 <= max(found)


def ten(_: int) -> Any:
    """10 MB."""
    return np.zeros(10_000_000, np.uint8)


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_large_elements_are_made_one_at_a_time(executor: str) -> None:
    """As many rows as one task may have do not fit together; results of later tasks leave room for the next."""
    options = ad.Options(memory_limit_bytes=64 * MIB, num_workers=2, num_threads=2)
    dataset = ad.Dataset.range(20).map(ten, 2, executor=executor).with_options(options)
    assert sum(1 for _ in dataset) == 20


def hundred(x: int) -> Any:
    """100 bytes."""
    return np.full(100, x % 251, np.uint8)


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_small_results_are_charged_as_used(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function so slow that each result comes alone: 600 of them would be 40 MB, a slab for each."""
    monkeypatch.setattr(worker_map, "_TASK_SECONDS", 0.0)
    options = ad.Options(memory_limit_bytes=16 * MIB, num_workers=2, num_threads=8)
    dataset = ad.Dataset.range(800).map(hundred, 16, executor=executor).shuffle(600, seed=1).batch(64)
    assert sum(len(batch) for batch in dataset.with_options(options)) == 800


def test_a_quote_that_is_never_closed_names_its_line(tmp_path: Path) -> None:
    """The split takes little beside the record; the error names file, offset, line and limit."""
    path = tmp_path / "open.csv"
    path.write_bytes(b'a,b\n1,x\n2,"y\n' + b"12345,67890\n" * 8_000_000)
    limit = 16 * MIB
    with ad.Runtime(ad.Options(memory_limit_bytes=limit, num_workers=0), pipelines=1):
        list(ad.CsvDataset(__file__, [""], field_delim="\x01", use_quote_delim=False).take(3))
        before = tree_own_bytes(os.getpid())
        with (
            Sampler(lambda: tree_own_bytes(os.getpid()), 0.005) as sampler,
            pytest.raises(ad.MemoryLimitError) as caught,
        ):
            list(ad.CsvDataset(str(path), [1, ""], header=True))
    assert max(sampler.samples) - before <= 1.1 * limit + 6 * MIB
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    for part in (str(path), "offset 8", "line 3", f"memory_limit_bytes={limit}"):
        assert part in text


def test_the_process_tree_stays_inside_the_limit(tmp_path: Path) -> None:
    """Its memory grows by no more than the limit and a tenth of all, from workers ready on."""
    files = memory.write_shards(tmp_path, 250)
    outcome = memory.measure_apart("shuffled", files, 48)
    assert outcome.batches == 63
    assert outcome.peak_bytes <= outcome.allowed_bytes


EAGER = ad.HedgeOptions(max_extra=1.0, least_delay_s=0.05, most_delay_s=0.05)


@pytest.mark.sampled
@pytest.mark.parametrize("limit_mib", [1, 2, 64])
async def test_second_attempts_are_inside_the_limit(limit_mib: int) -> None:
    """What the pipeline and its second attempts ever held is together at most the limit; all of it is given back."""
    async with FakeGCS(buckets=["shards"]) as server:
        expected = list(range(SHARDS * 16))
        for shard in range(SHARDS):
            records = (str(number).encode().ljust(30_000) for number in expected[shard::SHARDS])
            server.put("shards", f"{shard}.tfrecord", b"".join(map(encode, records)))
        server.profile = Profile(
            rules=(Rule(fault=Fault(kind="stall", after_fraction=(0.0, 1.0)), every=5, limit=6, media_only=True),)
        )
        names = [f"gs://shards/{shard}.tfrecord" for shard in range(SHARDS)]
        # Without second attempts, time limits have to do; with them, nothing else may.
        patience_s = 1 if limit_mib == 1 else 600
        options = ad.Options(
            memory_limit_bytes=limit_mib * MIB,
            chunk_bytes=64 << 10,
            hedge=EAGER,
            retry=ad.RetryOptions(initial_delay_s=0.001),
            timeouts=ad.TimeoutOptions(first_byte_s=patience_s, idle_s=patience_s, floor_s=0.5),
            storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
            num_workers=0,
        )
        found = []
        with ad.Runtime(options, pipelines=1) as runtime:
            dataset = ad.Dataset.from_tensor_slices(names).interleave(ad.TFRecordDataset, cycle_length=2)
            async with dataset.iterator() as iterator:
                async for record in iterator:
                    found.append(int(record))
                    stats = iterator.stats()
                    assert stats.used_bytes + stats.fetch["hedge_bytes"] <= limit_mib * MIB
                stats = iterator.stats()
            assert sorted(found) == expected
            assert stats.peak_bytes + stats.fetch["peak_hedge_bytes"] <= limit_mib * MIB
            assert stats.fetch["peak_hedge_bytes"] <= hedge_bytes(options)
            accounts = [account for budget in runtime.budgets._made for account in budget.snapshot().accounts]
            assert sum(one.reserved for one in accounts if one.name.startswith("second attempts")) == hedge_bytes(
                options
            )
            assert (stats.fetch["hedges"] > 0) is (limit_mib > 1)
            assert stats.fetch["failures"]
            assert runtime.io.stats().hedge_bytes == 0


def test_the_rows_of_the_first_block_of_a_shuffle_are_known_when_it_does_not_fit() -> None:
    """Or what is asked for would be taken for one element, and the limit that is named for thousands of such ones."""
    rows = ad.Dataset.zip(*[ad.Dataset.range(9000)] * 14).shuffle(5000, seed=1).batch(4096)
    with pytest.raises(ad.MemoryLimitError) as caught:
        list(rows.with_options(ad.Options(memory_limit_bytes=MIB, num_workers=0)))
    assert int(re.findall(r"at least (\d+)", str(caught.value))[0]) < 20 * MIB


def test_a_batch_of_few_rows_of_many_slabs_fits() -> None:
    """Each of its rows would keep a slab of a thousand times its size."""
    kept = ad.Dataset.range(28_000).map(lambda i: np.full(32, i, np.int64)).cache().repeat()
    ds = kept.filter(lambda row: int(row[0]) % 4000 == 0).batch(100).take(1)
    with ad.Runtime(ad.Options(memory_limit_bytes=64 * MIB, num_workers=0, num_threads=2)):
        assert [batch.shape for batch in ds] == [(100, 32)]


@pytest.mark.parametrize("large", [1, 5])
def test_slices_of_any_kind_come_a_few_at_a_time(large: int) -> None:
    """Byte strings and texts count by their sizes, not as the pointers that an array has of them."""
    sizes = [300_000 if row % large == 0 else 10 for row in range(100)]
    texts = ad.Dataset.from_tensor_slices({"text": ["x" * size for size in sizes], "n": np.arange(100)})
    small = ad.Options(memory_limit_bytes=8 * MIB, num_workers=0)
    found = [len(text) for batch in texts.batch(4).with_options(small) for text in batch["text"]]
    assert found == sizes


def test_a_limit_that_is_a_guess_is_called_one() -> None:
    """How much a cache will keep is known where the number of elements is."""
    options = ad.Options(memory_limit_bytes=32 << 20, num_workers=0)

    def generate() -> Iterator[Any]:
        return (np.full(5000, i) for i in range(2000))

    with pytest.raises(ad.MemoryLimitError, match=r"at least [0-9]+, or more: nobody knows how many elements cache"):
        list(ad.Dataset.from_generator(generate).cache().with_options(options))
    known = ad.Dataset.range(2000).map(lambda i: np.full(5000, i)).cache().with_options(options)
    with pytest.raises(ad.MemoryLimitError) as caught:
        list(known)
    assert "at least" in str(caught.value)
    assert "nobody knows" not in str(caught.value)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(2, 20)))
def test_little_memory_never_means_waiting(seed: int) -> None:
    """Drawn steps that buffer, of records of drawn sizes, end with all elements or with an error."""
    rng = random.Random(seed)
    steps: list[Callable[[ad.Dataset], ad.Dataset]] = [
        lambda ds: ds.batch(rng.randint(2, 6)).unbatch(),
        lambda ds: ds.window(rng.randint(2, 5)).flat_map(lambda window: window),
        lambda ds: ds.shuffle(rng.randint(2, 8), seed=1),
        lambda ds: ds.prefetch(rng.randint(1, 4)),
    ]
    with ad.Runtime(ad.Options(memory_limit_bytes=MIB), pipelines=1):
        for _ in range(40):
            size = rng.choice([20_000, 30_000, 60_000, 100_000])
            ds = ad.Dataset.range(60).map(functools.partial(_some_bytes, size=size))
            for step in rng.choices(steps, k=rng.randint(1, 3)):
                ds = step(ds)
            count = 0
            try:
                for batch in ds.batch(rng.choice([4, 8, 16])):
                    count += len(batch)
            except ad.MemoryLimitError:
                continue
            assert count == 60


def _some_bytes(x: int, size: int) -> bytes:
    return bytes(1 + int(x) * 2654435761 % size)
