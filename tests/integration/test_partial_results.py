"""What a consumer has received when an error is raised: everything before the element that failed, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.formats.tfrecord import encode_many
from tests.samples import samples

COUNT = 400


def received(ds: ad.Dataset) -> tuple[list[Any], Exception]:
    """All elements, and the error behind them."""
    found = []
    with ds.iterator() as elements:
        try:
            for element in elements:
                found.append(element)  # noqa: PERF402 -- what came before an error is wanted
        except Exception as error:  # noqa: BLE001 -- what is looked at
            return found, error
    raise AssertionError("no error was raised")


def failing_at(bad: int) -> Any:
    def work(value: Any) -> Any:
        number = int(value)
        if number == bad:
            raise ValueError(f"bad {number}")
        return {"n": number, "text": str(number) * (number % 50)}

    return work


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_failing_function_ends_the_output_at_its_element(workers: int) -> None:
    """For every executor, with and without batches, and wherever it fails: the exact place."""
    with ad.Runtime(ad.Options(num_workers=workers, memory_limit_bytes=32 << 20)):
        for seed in range(samples(6, 200)):
            draw = random.Random(1000 * workers + seed)
            bad, size = draw.randrange(COUNT), draw.choice([1, 7, 64])
            executor = draw.choice([None, "thread", "inline"])
            parallel = None if executor == "inline" else draw.choice([2, ad.AUTOTUNE])
            mapped = ad.Dataset.range(COUNT).map(failing_at(bad), num_parallel_calls=parallel, executor=executor)
            found, error = received(mapped)
            assert [int(element["n"]) for element in found] == list(range(bad)), f"seed {seed}"
            assert isinstance(error, ValueError)
            assert error.args == (f"bad {bad}",)
            found, error = received(mapped.batch(size))
            assert [n for batch in found for n in batch["n"].tolist()] == list(range(bad // size * size))
            assert error.args == (f"bad {bad}",)


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_record_ends_the_output_at_its_place(tmp_path: Path, workers: int) -> None:
    """Whether records are shown, mapped or batched, and whatever is damaged first of several."""
    with ad.Runtime(ad.Options(num_workers=workers, memory_limit_bytes=32 << 20)):
        for seed in range(samples(4, 100)):
            draw = random.Random(1000 * workers + seed)
            records = [str(number).encode() * draw.randrange(1, 200) for number in range(COUNT)]
            data = bytearray(encode_many(records))
            starts = [0]
            for record in records:
                starts.append(starts[-1] + len(record) + 16)
            bad = sorted(draw.sample(range(COUNT), 3))
            for number in bad:
                data[starts[number] + 12] ^= 4
            path = tmp_path / f"shard{seed}.tfrecord"
            path.write_bytes(data)
            options = ad.Options(chunk_bytes=draw.choice([4096, 16384, 1 << 20]))
            source = ad.TFRecordDataset(str(path)).with_options(options)
            for ds, size in ((source, 1), (source.map(len, num_parallel_calls=2), 1), (source.batch(9), 9)):
                found, error = received(ds)
                assert len(found) == bad[0] // size, f"seed {seed}"
                assert isinstance(error, ad.CorruptRecordError)
                assert (error.url, error.record, error.offset) == (str(path), bad[0], starts[bad[0]])
                assert error.stage is not None
