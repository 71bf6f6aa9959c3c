"""Traces of real pipelines: viewers show all of them, and what they show is what the statistics say."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.integration.shards import BUCKET, gs_storage, put_shards, write_shards
from tests.observe.trace_checker import Checked, check_trace
from tests.samples import samples

OPTIONS = ad.Options(num_workers=1, seed=3, memory_limit_bytes=64 << 20)
ELEMENTS = 240


def double(number: Any) -> Any:
    """A user's function."""
    return number * 2


async def double_async(number: Any) -> Any:
    """The same, awaited."""
    return number * 2


def length(record: bytes) -> int:
    """A function of records."""
    return len(record)


def fail_at_100(number: Any) -> Any:
    """Fails after some batches."""
    return 1 // (100 - int(number))


def die(number: Any) -> Any:
    """Ends its own process, without any warning."""
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def files(folder: Path) -> list[str]:
    """Three of 80 records."""
    return write_shards(folder, 3, ELEMENTS // 3, 200)


def compressed(folder: Path) -> list[str]:
    """One, whose offsets are not those of the stored bytes."""
    path = str(folder / "x.gz")
    with ad.TFRecordWriter(path, "GZIP") as writer:
        writer.write_many([b"x" * 200] * ELEMENTS)
    return [path]


RANGE = ad.Dataset.range(ELEMENTS)
KINDS: dict[str, Callable[[Path], ad.Dataset]] = {
    "range": lambda _folder: RANGE,
    "files": lambda folder: ad.Dataset.from_tensor_slices(files(folder)).interleave(ad.TFRecordDataset, 2),
    "lines": lambda folder: ad.TextLineDataset(_lines(folder)),
    "compressed": lambda folder: ad.TFRecordDataset(compressed(folder), "GZIP"),
    "whole": lambda folder: ad.Dataset.range(80).flat_map(lambda _: ad.FileDataset(sorted(folder.glob("*.tfrecord")))),
    "generator": lambda _folder: ad.Dataset.from_generator(lambda: iter(range(ELEMENTS)), output_types=np.int64),
    "inline": lambda _folder: RANGE.map(double),
    "process": lambda _folder: RANGE.map(double, num_parallel_calls=2),
    "thread": lambda _folder: RANGE.map(double, num_parallel_calls=2, executor="thread"),
    "async": lambda _folder: RANGE.map(double_async, num_parallel_calls=4),
    "zip": lambda _folder: ad.Dataset.zip(RANGE, ad.Dataset.counter()),
    "cache": lambda _folder: ad.Dataset.range(ELEMENTS // 2).cache().repeat(2),
    "sloppy": lambda folder: ad.Dataset.from_tensor_slices(files(folder)).interleave(
        ad.TFRecordDataset, 3, num_parallel_calls=3, deterministic=False
    ),
}
ISOLATED = ("files", "process", "thread")


def _lines(folder: Path) -> str:
    path = folder / "x.txt"
    path.write_text("a line\n" * ELEMENTS)
    return str(path)


def traced(ds: ad.Dataset) -> tuple[Checked, ad.PipelineStats, list[Any]]:
    """Its trace, statistics and elements."""
    with ad.profile(trace=True) as profile:
        elements = [str(element) for element in ds]
    report = profile.report()
    return check_trace(report.to_chrome_trace()), report.pipelines[0].stats, elements


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "isolate"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in ISOLATED[: samples(1, 3)])]
)
def test_spans_are_what_the_statistics_count(kind: str, *, isolate: bool, tmp_path: Path) -> None:
    """Of every kind of pipeline: elements do not change, and rows, steps, waits and tasks add up."""
    if kind == "whole":
        files(tmp_path)
    ds = KINDS[kind](tmp_path).shuffle(50).batch(10).prefetch(2)
    ds = ds.with_options(OPTIONS).with_options(ad.Options(isolate=isolate))
    with ds.iterator(epoch=0) as plain:
        expected = [str(element) for element in plain]
    with ad.profile(trace=True) as profile, ds.iterator(epoch=0) as batches:
        elements = [str(element) for element in batches]
    assert kind == "sloppy" or elements == expected
    report = profile.report()
    stats = report.pipelines[0].stats
    trace = check_trace(report.to_chrome_trace())
    assert trace.other["dropped_spans"] == 0
    rows: Counter[str] = Counter()
    for step in stats.steps:
        rows[step.name] += step.elements
    for name, count in rows.items():
        assert sum(each["args"]["rows"] for each in trace.of(name)) == count, name
    assert sum(each["args"]["rows"] for each in trace.of("delivered batches")) == stats.elements
    spent = Counter[str]()
    for each in trace.of("training loop"):
        spent[each["name"]] += each["dur"]
    assert spent["wait"] / 1e6 == pytest.approx(stats.consumer.wait_s, abs=1e-5)
    assert spent["step"] / 1e6 == pytest.approx(stats.consumer.step_s, abs=1e-5)
    assert len(trace.of("delivered batches")) == len(trace.counters["batches ready"]) / 2
    assert stats.workers is None or len(trace.of("tasks")) == stats.workers.tasks
    processes = {event["args"]["name"] for event in trace.events if event["name"] == "process_name"}
    assert ("loader process" in processes) is isolate


@pytest.mark.sampled
@pytest.mark.parametrize("isolate", [False, True])
def test_arrows_from_the_bucket_to_the_training_step(*, isolate: bool) -> None:
    """Each batch that the loop worked on came from a block, and each block from a request."""
    with FakeGCS(buckets=[BUCKET]) as server:
        put_shards(server, 3, 80, 700)
        urls = ad.Dataset.list_files(f"gs://{BUCKET}/shard-*.tfrecord", shuffle=False)
        ds = urls.interleave(ad.TFRecordDataset, 2).map(length, num_parallel_calls=2).batch(10)
        options = ad.Options(storage=gs_storage(server), num_workers=1, isolate=isolate, chunk_bytes=16 << 10)
        trace, stats, elements = traced(ds.with_options(options))
        asked = [entry for entry in server.journal if entry.operation == "storage.objects.get" and entry.range]
    names = [tuple(_bare(lane) for _, lane in arrow) for arrow in trace.arrows]
    whole = ("requests", "TFRecordDataset", "delivered batches", "training loop")
    delivered = len(trace.of("delivered batches"))
    assert names.count(whole) == delivered
    tasks = {"tasks of asyncdata-w0", "tasks"}
    assert len(names) == delivered + sum(set(lanes) == tasks for lanes in names)
    requests = [each for each in trace.of("requests") if "url" in each.get("args", {})]
    assert len(requests) == len(asked)
    assert sum(each["args"]["bytes"] for each in requests) >= stats.reads.bytes
    assert all(each["args"]["url"].startswith("gs://") for each in requests)
    assert {each["name"] for each in trace.of("requests")} >= {"first byte", "body", "shard-000.tfrecord"}
    assert {process for arrow in trace.arrows for process, _ in arrow} == {
        *("training process", "asyncdata-w0"),
        *(["loader process"] if isolate else []),
    }
    assert len(elements) == 24


def _bare(lane: str) -> str:
    head, _, number = lane.rpartition(" #")
    return head if number.isdecimal() else lane


def test_requests_that_fail() -> None:
    """They are said to have failed, and those behind them that they go on."""
    with FakeGCS(buckets=[BUCKET]) as server:
        put_shards(server, 2, 200, 700)
        server.profile = Profile(rules=(Rule(fault=Fault(kind="reset", after_bytes=3000), media_only=True, every=3),))
        retry = ad.RetryOptions(initial_delay_s=0.001, max_delay_s=0.01)
        ds = ad.TFRecordDataset(ad.Dataset.list_files(f"gs://{BUCKET}/shard-*.tfrecord", shuffle=False))
        options = ad.Options(storage=gs_storage(server), retry=retry, chunk_bytes=16 << 10)
        trace, stats, _ = traced(ds.with_options(options))
    requests = [each["args"] for each in trace.of("requests") if "args" in each and "url" in each["args"]]
    assert sum(each.get("failed", False) for each in requests) == stats.reads.retries > 0
    assert any(each.get("resumed") and each["offset"] > 0 for each in requests)


def test_however_it_ends() -> None:
    """Left early, dropped, failed, and one after the other on one Runtime."""
    with ad.profile(trace=True) as profile, ad.Runtime(ad.Options(num_workers=1), pipelines=8):
        with RANGE.batch(10).iterator() as left:
            for _ in range(7):
                next(left)
        for batch in RANGE.map(double, num_parallel_calls=1).batch(10):
            assert len(batch) == 10
            break
        with pytest.raises(ZeroDivisionError):
            list(RANGE.map(fail_at_100, num_parallel_calls=2).batch(10))
        early = check_trace(profile.report().to_chrome_trace())
        list(RANGE.batch(10))
    trace = check_trace(profile.report().to_chrome_trace())
    assert len(trace.of("delivered batches")) > len(early.of("delivered batches"))
    steps = [each for each in trace.of("training loop") if each["name"] == "step"]
    assert len(steps) >= 4
    assert sum(each["args"]["rows"] for each in trace.of("range")) >= ELEMENTS + 10 + 100 + ELEMENTS


def test_a_worker_that_was_killed() -> None:
    """The task that it was in is there, to the end."""
    ds = ad.Dataset.range(1).map(die, num_parallel_calls=1).with_options(ad.Options(num_workers=1))
    with ad.profile(trace=True) as profile, pytest.raises(ad.WorkerDiedError):
        list(ds)
    trace = check_trace(profile.report().to_chrome_trace())
    killed = [each for each in trace.events if each.get("args", {}).get("killed")]
    runs = [
        each
        for (process, lane), spans in trace.spans.items()
        if lane == "tasks" and process.startswith("asyncdata-w")
        for each in spans
    ]
    assert len(killed) == len(runs) == 2  # it was tried again
    assert {each["name"] for each in killed} == {each["name"] for each in runs} == {"map(die)"}
    assert len(trace.arrows) == 2


def test_a_loader_that_was_killed() -> None:
    """What it had noted until then is there."""
    ds = ad.Dataset.counter().batch(10).with_options(ad.Options(isolate=True))
    with ad.profile(trace=True) as profile, ds.iterator() as batches:
        next(batches)
        loader = batches.stats().loader_pid
        assert loader is not None
        os.kill(loader, signal.SIGKILL)
        with pytest.raises(ad.WorkerDiedError):
            list(batches)
    trace = check_trace(profile.report().to_chrome_trace())
    assert {each["pid"] for each in trace.of("delivered batches")} == {loader}
    assert ("training process", "training loop") in trace.spans


def test_nothing_is_traced_unasked() -> None:
    """Neither before nor after, nor by a profile without; the Runtime is the same."""
    slow = RANGE.map(double, num_parallel_calls=1).batch(10)
    with ad.Runtime(ad.Options(num_workers=1)):
        list(slow)
        with ad.profile(trace=True, sample_hz=0) as profile:
            list(slow)
            before = len(check_trace(profile.report().to_chrome_trace()).events)
        list(slow)
        with ad.profile() as other:
            list(slow)
    trace = check_trace(profile.report().to_chrome_trace())
    assert sum(each["args"]["rows"] for each in trace.of("range")) == ELEMENTS
    assert abs(len(trace.events) - before) <= 2  # the last look at the memory
    with pytest.raises(ValueError, match="trace=True"):
        other.report().to_chrome_trace()


def test_the_file(tmp_path: Path) -> None:
    """Written when the block ends, also by an error; what is wrong with the path is said at once."""
    path = tmp_path / "trace.json"
    with pytest.raises(ZeroDivisionError), ad.profile(trace=path) as profile:
        list(RANGE.map(fail_at_100))
    assert path.read_text() == profile.report().to_chrome_trace()
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]
    with pytest.raises(ValueError, match="trace must end in"):
        ad.profile(trace=tmp_path / "trace.html")
    with pytest.raises(FileNotFoundError, match="trace="):
        ad.profile(trace=tmp_path / "missing" / "trace.json")


def test_no_secret(tmp_path: Path) -> None:
    """Signed URLs lose their signatures, also where a read fails."""
    secret = "s3cr3t-password"
    files(tmp_path)
    options = ad.Options(
        storage={"http": {"headers": {"Authorization": secret}}}, retry=ad.RetryOptions(max_attempts=1)
    )
    with ad.profile(trace=True) as profile:
        list(ad.TFRecordDataset(f"{tmp_path}/shard-000.tfrecord"))
        for url in (f"http://127.0.0.1:9/x?Signature={secret}", f"http://me:{secret}@127.0.0.1:9/x#{secret}"):
            with pytest.raises(ad.StorageError):
                list(ad.TFRecordDataset(url).with_options(options))
    text = profile.report().to_chrome_trace()
    check_trace(text)
    assert "127.0.0.1:9/x" in text
    assert secret not in text
    assert secret not in repr(profile.report())
