"""Functions that do not return in a worker process: the element is named, no other is lost, the epoch goes on."""

from __future__ import annotations

import ctypes
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad

LIMIT_S = 1.0
"""Long enough for a call that does nothing, on a machine that does much else."""

COUNT = 40
HANGING = (5, 17)

pytestmark = pytest.mark.slow


def options(**changes: Any) -> ad.Options:
    return ad.Options(**{"num_workers": 2, "task_timeout_s": LIMIT_S, **changes})


def block() -> None:
    threading.Event().wait()


def hold_the_gil() -> None:
    ctypes.PyDLL(None).pause()


def hanging(how: Callable[[], None], numbers: tuple[int, ...] = HANGING) -> Callable[[bytes], int]:
    def decode(record: bytes) -> int:
        if int(record) in numbers:
            how()
        return int(record)

    return decode


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = str(tmp_path / "numbers.tfrecord")
    with ad.TFRecordWriter(path) as writer:
        writer.write_many([b"%04d" % i for i in range(COUNT)])
    return path


@pytest.mark.sampled
@pytest.mark.parametrize(("how", "isolate"), [(hold_the_gil, False), (block, True)], ids=["here", "isolated"])
def test_the_error_names_the_record_and_shows_where_it_hung(shard: str, how: Callable[[], None], isolate: bool) -> None:
    """All records before it are delivered; the error has URL, offset, record and the Python stack, and survives."""
    ds = ad.TFRecordDataset(shard).map(hanging(how), num_parallel_calls=4)
    with ds.with_options(options(isolate=isolate)).iterator() as records:
        assert [int(next(records)) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(ad.TaskTimeoutError, match=r"within task_timeout_s=1, at .*test_task_timeout\.py") as caught:
            next(records)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.url, error.record, error.offset, error.stage) == (shard, 5, 5 * 20, "map(hanging.decode)")
        assert f"in {how.__name__}\n" in error.stack
        assert "in decode" in error.stack
        assert "_call_each" not in error.stack
        assert f"record 5 of {shard}" in error.__notes__[-1]
    assert isinstance(caught.value, TimeoutError)
    assert f"in {how.__name__}" in str(caught.value.__cause__)


def test_a_policy_leaves_out_the_records_and_nothing_else(shard: str, tmp_path: Path) -> None:
    """Every other record is delivered once and in order; what hung is counted and listed."""
    listed = tmp_path / "quarantine.jsonl"
    policy = ad.ErrorPolicy(max_skipped=len(HANGING), quarantine=listed)
    ds = ad.TFRecordDataset(shard).map(hanging(block), num_parallel_calls=4)
    with ds.with_options(options(errors=policy, isolate=True)).iterator() as records:
        assert [int(record) for record in records] == [i for i in range(COUNT) if i not in HANGING]
        stats = records.stats()
    assert stats.skipped.steps == {"map(hanging.decode)": len(HANGING)}
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert [(line["url"], line["record"]) for line in lines] == [(shard, i) for i in HANGING]
    assert all("TaskTimeoutError" in line["error"] for line in lines)


def test_one_that_hangs_beyond_the_quota_ends_the_pipeline(shard: str) -> None:
    """As any other failure that is one too many; the same Runtime works afterwards."""
    with ad.Runtime(options()):
        policy = ad.ErrorPolicy(max_skipped=1)
        ds = ad.TFRecordDataset(shard).map(hanging(block), num_parallel_calls=4)
        with pytest.raises(ad.TooManyErrorsError) as caught:
            list(ds.with_options(options(errors=policy)))
        assert isinstance(caught.value.__cause__, ad.TaskTimeoutError)
        assert caught.value.record == HANGING[1]
        assert [int(x) for x in ad.TFRecordDataset(shard).map(hanging(block, ()), 4)] == list(range(COUNT))


@pytest.mark.sampled
@pytest.mark.parametrize("errors", [None, ad.ErrorPolicy()], ids=["none", "policy"])
def test_a_map_in_front_of_a_batch(shard: str, errors: ad.ErrorPolicy | None) -> None:
    """Whole batches before it are delivered; with a policy batches are filled from the records that are left."""
    ds = ad.TFRecordDataset(shard).map(hanging(block), num_parallel_calls=4).batch(4)
    with ds.with_options(options(errors=errors)).iterator() as batches:
        if errors is None:
            assert next(batches).tolist() == [0, 1, 2, 3]
            with pytest.raises(ad.TaskTimeoutError) as caught:
                next(batches)
            assert caught.value.record == 5
        else:
            left = [i for i in range(COUNT) if i not in HANGING]
            assert np.concatenate(list(batches)).tolist() == left


@pytest.mark.sampled
@pytest.mark.parametrize("errors", [None, ad.ErrorPolicy()], ids=["none", "policy"])
def test_a_map_of_batches(shard: str, errors: ad.ErrorPolicy | None) -> None:
    """The element is the batch: it is named by its first record, and left out as a whole."""

    def total(batch: Any) -> int:
        numbers = [int(record) for record in batch]
        if 5 in numbers:
            block()
        return sum(numbers)

    ds = ad.TFRecordDataset(shard).batch(4).map(total, num_parallel_calls=4)
    sums = [sum(range(start, start + 4)) for start in range(0, COUNT, 4)]
    with ds.with_options(options(errors=errors)).iterator() as totals:
        assert int(next(totals)) == sums[0]
        if errors is None:
            with pytest.raises(ad.TaskTimeoutError) as caught:
                next(totals)
            assert caught.value.record == 4
        else:
            assert [int(x) for x in totals] == sums[2:]


def test_without_an_order_the_others_come_first_and_once(shard: str) -> None:
    """Nothing is delivered twice although the other records of the task are worked on again."""
    several = (0, 1, 17)  # the first two in one task
    ds = ad.TFRecordDataset(shard).map(hanging(block, several), num_parallel_calls=4, deterministic=False)
    got = [int(x) for x in ds.with_options(options(errors=ad.ErrorPolicy()))]
    assert sorted(got) == [i for i in range(COUNT) if i not in several]


def test_functions_that_cannot_be_ended_have_no_limit(shard: str) -> None:
    """In threads, and inline, a call takes what it takes: here longer than the limit, for the event of another."""
    for arguments in ({"num_parallel_calls": 2, "executor": "thread"}, {}):
        waited = threading.Event()

        def slow(record: bytes, waited: threading.Event = waited) -> int:
            if record == b"0003":
                waited.wait(0.2)
            return int(record)

        ds = ad.TFRecordDataset(shard).map(slow, **arguments)  # type: ignore[arg-type]  # of either kind
        assert [int(x) for x in ds.with_options(options(task_timeout_s=0.05))] == list(range(COUNT))


@pytest.mark.parametrize("limit", [0, -1.0, float("inf"), float("nan"), "1", True])
def test_limits_that_are_none_are_refused(limit: Any) -> None:
    """A number of seconds, or None."""
    with pytest.raises((ValueError, TypeError), match="task_timeout_s"):
        ad.Options(task_timeout_s=limit)
