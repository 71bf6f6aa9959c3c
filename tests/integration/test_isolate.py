"""What is particular to a loader in a process of its own; that all else is as usual, the other tests' samples show."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.isolate import loader
from asyncdata.testing import assert_no_leaks, procfs
from fake_gcs import FakeGCS
from tests.integration.shards import BUCKET, gs_storage, put_shards, records, shard_bytes, write_shards
from tests.patience import LIMIT_S, turns

MIB = 1 << 20
Pair = namedtuple("Pair", "number square")  # noqa: PYI024 -- what users pass: a plain namedtuple


def isolated(**options: Any) -> ad.Options:
    """The options under test; closing may have to wait until a busy machine has started the process."""
    return ad.Options(isolate=True, num_workers=1, **{"close_timeout_s": LIMIT_S} | options)


def where_am_i(x: int) -> tuple[int, int]:
    """Which process a function runs in."""
    return os.getpid(), int(x)


def children() -> set[int]:
    """Processes of this one."""
    return {process.pid for process in procfs.processes() if process.parent == os.getpid() and process.state != "Z"}


@pytest.fixture
def server() -> Iterator[FakeGCS]:
    """A bucket with shards."""
    with FakeGCS(buckets=[BUCKET]) as server:
        put_shards(server, 3, 120, 700)
        yield server


def test_loops_and_functions_run_in_one_child() -> None:
    """Inline functions, threads and generators in the loader; worker processes below it; nothing here."""
    before = children()

    def generate() -> Iterator[int]:
        yield os.getpid()

    with ad.Runtime(isolated()):
        inline = {pid for pid, _ in ad.Dataset.range(3).map(where_am_i)}
        threads = {pid for pid, _ in ad.Dataset.range(3).map(where_am_i, 2, executor="thread")}
        generator = set(ad.Dataset.from_generator(generate))
        workers = {pid for pid, _ in ad.Dataset.range(3).map(where_am_i, 2)}
        assert inline == threads == generator == children() - before
        assert len(inline) == 1
        assert {procfs_parent(pid) for pid in workers} == inline
        assert not [
            thread.name for thread in threading.enumerate() if thread.name in {"asyncdata-io", "asyncdata-stages"}
        ]
    assert children() == before


def procfs_parent(pid: int) -> int:
    """The parent of a process."""
    return next(process.parent for process in procfs.processes() if process.pid == pid)


def test_epochs_and_pipelines_of_a_runtime_share_the_child_and_its_connections(server: FakeGCS) -> None:
    """The second epoch, and a second dataset, start no process and open no connection."""
    expected = [record for shard in range(3) for record in records(shard, 120, 700)]
    files = ad.Dataset.list_files(f"gs://{BUCKET}/shard-*.tfrecord", shuffle=False)
    dataset = ad.TFRecordDataset(files).batch(50)
    before = children()
    # One request at a time needs one connection; a second attempt, on a machine that is late, would have its own.
    calm = ad.HedgeOptions(enabled=False)
    options = isolated(storage=gs_storage(server), chunk_bytes=16 << 10, hedge=calm, max_requests_in_flight=1)
    with ad.Runtime(options):
        seen: list[set[int]] = []
        for _ in range(3):
            assert [record for batch in dataset for record in batch] == expected
            seen.append({entry.connection for entry in server.journal})
        assert seen[2] == seen[1] == seen[0]
        ours = children()
        with dataset.iterator() as first, ad.TFRecordDataset(files).iterator() as second:
            assert next(first)[0] == next(second) == expected[0]
        assert children() == ours
        assert len(ours - before) == 1


def test_batches_are_views_that_outlive_everything(tmp_path: Path) -> None:
    """Writable, aligned, valid after iterator and loader are gone; their memory goes with the last of them."""
    paths = write_shards(tmp_path, 2, 64, 5000)
    mapped = ad.TFRecordDataset(paths).map(lambda record: np.frombuffer(record, np.uint8)[:5000], 2).batch(16)
    iterator = mapped.with_options(isolated(memory_limit_bytes=64 * MIB)).iterator()
    kept = [next(iterator)[3:5] for _ in range(3)]
    mapping = _mappings()
    iterator.close()
    assert iterator.stats().copies == 0
    expected = records(0, 64, 5000)
    for number, part in enumerate(kept):
        assert part.tobytes() == b"".join(expected[16 * number + 3 : 16 * number + 5])
        assert part.base is not None
        part[:] = 0
    assert _mappings() == mapping == 1
    del kept, part
    assert _mappings() == 0


def _mappings() -> int:
    """Arenas this process has mapped."""
    return sum("memfd:asyncdata " in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_list_of_ten_times_the_memory_limit(tmp_path: Path) -> None:
    """What is kept beyond the consumer's share is copied by the consumer, and the loader's memory is free again."""
    numbers = ad.Dataset.range(1280).map(lambda x: np.full(4096, x), 2).batch(32)
    iterator = numbers.with_options(isolated(memory_limit_bytes=4 * MIB)).iterator()
    batches = list(iterator)
    assert [int(row[7]) for batch in batches for row in batch] == list(range(1280))
    stats = iterator.stats()
    assert stats.copies > 20
    assert stats.elements == stats.deliveries == 40
    assert stats.bytes == 1280 * 4096 * 8
    assert stats.peak_bytes <= stats.limit_bytes == 4 * MIB


def test_released_batches_come_back_whoever_lets_go(samples: Any) -> None:
    """Far more data than memory passes through, batches freed by other threads, by the collector, in any order."""
    numbers = ad.Dataset.range(samples(2400, 40_000)).map(lambda x: np.full(1024, x)).batch(16)
    held: list[Any] = []
    seen = 0
    with numbers.with_options(isolated(memory_limit_bytes=4 * MIB)).iterator() as iterator:
        for batch in iterator:
            assert (batch[:, 5] == np.arange(seen, seen + len(batch))).all()
            seen += len(batch)
            cycle: list[Any] = [batch[0]]
            cycle.append(cycle)
            held.append(batch[1:])
            if len(held) == 3:
                dropped = [held.pop(0), held.pop(1)]
                thread = threading.Thread(target=dropped.clear)
                thread.start()
                thread.join()
            if seen % 320 == 0:
                gc.collect()
            del batch, cycle
        stats = iterator.stats()
        assert stats.peak_bytes <= stats.limit_bytes == 4 * MIB
    assert seen == samples(2400, 40_000)


def test_elements_that_are_no_batches(tmp_path: Path) -> None:
    """Objects, texts, namedtuples, object arrays, large arrays: equal to what they are without isolation."""

    def make(x: int) -> Any:
        number = int(x)
        return {
            "pair": Pair(number, number * number),
            "big": np.full((300, 300), number),
            "text": "é" * number,
            "bytes": bytes(number),
            "list": [number, None, {"a": 1}],
            "complex": np.complex64(number),
            "empty": np.empty((0, 3)),
        }

    dataset = ad.Dataset.range(40).map(make)
    there = list(dataset.with_options(isolated()))
    for mine, theirs in zip(dataset, there, strict=True):
        assert list(mine) == list(theirs)
        assert type(theirs["pair"]) is Pair
        assert type(theirs["complex"]) is np.complex64
        for name, value in mine.items():
            if isinstance(value, np.ndarray):
                assert np.array_equal(theirs[name], value)
                assert theirs[name].flags.writeable
            else:
                assert theirs[name] == value


def test_arrays_of_the_consumer_travel_with_the_plan() -> None:
    """Large ones through a file that both map; they are not pickled element by element."""
    images = np.arange(64 * MIB // 8, dtype=np.int64).reshape(64, -1)
    labels = [f"label {number}" for number in range(64)]
    dataset = (
        ad.Dataset.from_tensor_slices((images, labels)).batch(4).with_options(isolated(memory_limit_bytes=32 * MIB))
    )
    for number, (image, label) in enumerate(dataset):
        assert (image == images[4 * number : 4 * number + 4]).all()
        assert list(label) == labels[4 * number : 4 * number + 4]
    rows = ad.Dataset.from_tensor_slices(images).with_options(isolated(memory_limit_bytes=32 * MIB))
    for mine, theirs in zip(images, rows, strict=True):
        assert (mine == theirs).all()


def test_functions_that_cannot_be_pickled_are_named() -> None:
    """The error says which, and what stands in the way; no process was started for it."""
    lock = threading.Lock()

    def locked(x: int) -> int:
        with lock:
            return x

    def generate() -> Iterator[int]:
        with lock:
            yield 1

    before = children()
    for dataset in (ad.Dataset.range(3).map(locked), ad.Dataset.from_generator(generate)):
        with pytest.raises(ad.FunctionTransferError, match=r"captured variable 'lock' is a _thread.lock") as caught:
            list(dataset.with_options(isolated()))
        assert caught.value.stage is not None
        assert "without isolate=True" in str(caught.value)
    assert children() == before


def test_functions_that_cannot_be_loaded_are_an_error_as_in_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that this process found elsewhere, or later than the loader process was started."""
    (tmp_path / "found_late.py").write_text("def same(x):\n    return x\n")
    with ad.Runtime(isolated()):
        assert list(ad.Dataset.range(1)) == [0]
        monkeypatch.syspath_prepend(tmp_path)
        same = importlib.import_module("found_late").same
        with pytest.raises(
            ad.FunctionTransferError, match=r"loader process .* No module named 'found_late'.*sys\.path"
        ):
            list(ad.Dataset.range(1).map(same))
        assert list(ad.Dataset.range(1)) == [0]


def test_elements_that_cannot_be_pickled_are_named() -> None:
    """An error of the pipeline that says of what type, and where."""

    def make(x: int) -> Any:
        return threading.Lock()

    with pytest.raises(ad.PipelineError, match=r"an element \(lock\) cannot be sent from the loader process"):
        list(ad.Dataset.range(3).map(make).with_options(isolated()))


def test_errors_keep_their_fields_and_the_users_line(tmp_path: Path) -> None:
    """Of storage, of data, of user code in each of its places."""
    data = bytearray(shard_bytes(records(0, 10, 100)))
    data[200] ^= 1
    path = tmp_path / "corrupt"
    path.write_bytes(data)
    with pytest.raises(ad.CorruptRecordError) as here:
        list(ad.TFRecordDataset(str(path)))
    with pytest.raises(ad.CorruptRecordError) as there:
        list(ad.TFRecordDataset(str(path)).with_options(isolated()))
    assert there.value.place() == here.value.place()
    assert str(there.value) == str(here.value)

    def explode(x: int) -> int:
        raise LookupError(f"number {x}")

    with ad.Runtime(isolated()):
        for executor, parallel in (("inline", None), ("thread", 2), ("process", 2)):
            with pytest.raises(LookupError, match="number 0") as raised:
                list(ad.Dataset.range(3).map(explode, parallel, executor=executor))
            notes = raised.value.__notes__
            assert any("in map(" in note and "element 0 of range" in note for note in notes), notes
            assert sum(note.startswith("raised in") for note in notes) == 1, notes
            assert "in explode" in str(raised.value.__cause__)


def test_memory_urls_belong_to_one_process() -> None:
    """What this process has put there is not found, and the error says why; the loader's own is."""
    fsspec.filesystem("memory").pipe_file("/isolate/shard", shard_bytes([b"here"]))
    with pytest.raises(ad.ObjectNotFoundError) as caught:
        list(ad.TFRecordDataset("memory://isolate/shard").with_options(isolated()))
    assert any("belongs to one process" in note for note in caught.value.__notes__)
    fsspec.filesystem("memory").rm("/isolate", recursive=True)

    data = shard_bytes([b"there"])

    def put(x: int) -> str:
        fsspec.filesystem("memory").pipe_file("/isolate/shard", data)
        return "memory://isolate/shard"

    written = ad.TFRecordDataset(ad.Dataset.range(1).map(put))
    assert list(written.with_options(isolated())) == [b"there"]


async def test_the_consumers_loop_goes_on_while_it_waits(server: FakeGCS) -> None:
    """Starting, waiting, leaving: nothing blocks the loop for long; a cancelled wait loses nothing."""

    async def slow(x: int) -> int:
        await asyncio.to_thread(int)
        return int(x)

    seen: list[int] = []
    iterator = ad.Dataset.range(20).map(slow, 1).with_options(isolated()).iterator()
    while True:
        try:
            seen.append(await asyncio.wait_for(anext(iterator), 0.005))
        except TimeoutError:
            continue
        except StopAsyncIteration:
            break
    assert seen == list(range(20))


def test_a_wait_that_died_with_its_loop_takes_nothing(tmp_path: Path) -> None:
    """The element goes to the next one who asks, on another loop."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def hold(x: int) -> int:
        if x == 2:
            await asyncio.to_thread(gate.read_bytes)
        return int(x)

    iterator = ad.Dataset.range(5).map(hold, num_parallel_calls=1).with_options(isolated()).iterator()
    assert [next(iterator), next(iterator)] == [0, 1]
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(iterator.__anext__())
    loop.run_until_complete(turns(20))
    assert not waiting.done()
    waiting.cancel()
    loop.close()  # the cancellation is never delivered
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # as intended here
    gate.write_bytes(b"")
    assert list(iterator) == [2, 3, 4]


def test_close_while_others_wait() -> None:
    """A thread and a task that wait hear of it, and of a pipeline of a shared Runtime everything is put back."""

    async def never(x: int) -> int:
        await asyncio.Event().wait()
        return int(x)

    def wait_here(iterator: ad.PipelineIterator) -> None:
        with pytest.raises(ad.PipelineClosedError):
            next(iterator)

    async def wait(iterator: ad.PipelineIterator) -> None:
        with pytest.raises(ad.PipelineClosedError):
            await anext(iterator)

    async def close(iterator: ad.PipelineIterator) -> None:
        waiting = asyncio.ensure_future(wait(iterator))
        await turns(20)
        await iterator.aclose()
        await waiting

    with ad.Runtime(isolated()):
        for _ in range(2):
            iterator = ad.Dataset.range(1).map(never, 1).iterator()
            thread = threading.Thread(target=wait_here, args=(iterator,))
            thread.start()
            asyncio.run(close(iterator))
            thread.join()
        assert list(ad.Dataset.range(3)) == [0, 1, 2]


def stuck(entered: Path, release: Path) -> Any:
    """A function that stays inside until somebody opens the second file."""

    def stuck_in_the_user_function(x: int) -> int:
        entered.write_bytes(b"")
        release.read_bytes()
        return int(x)

    return stuck_in_the_user_function


@pytest.fixture
def gates(tmp_path: Path) -> tuple[Path, Path]:
    """Two files that whoever opens one for reading and whoever opens it for writing meet at."""
    for name in ("entered", "release"):
        os.mkfifo(tmp_path / name)
    return tmp_path / "entered", tmp_path / "release"


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["thread", "inline"])
def test_user_code_that_is_stuck_is_reported_and_ends_with_its_process(gates: tuple[Path, Path], executor: str) -> None:
    """``close`` raises after the time limit, with the thread's stack; nothing is left behind all the same."""
    before = children()
    dataset = ad.Dataset.range(1).map(stuck(*gates), 1 if executor == "thread" else None, executor=executor)
    iterator = dataset.with_options(isolated(close_timeout_s=0.3)).iterator()
    gates[0].read_bytes()
    with pytest.raises(ad.CloseTimeoutError, match="stuck_in_the_user_function"):
        iterator.close()
    assert children() == before


def test_a_pipeline_of_a_shared_runtime_that_does_not_end_is_reported(gates: tuple[Path, Path]) -> None:
    """The loader says what is stuck; the other pipelines go on."""
    with ad.Runtime(isolated(close_timeout_s=0.3)):
        iterator = ad.Dataset.range(1).map(stuck(*gates), 1, executor="thread").iterator()
        gates[0].read_bytes()
        with pytest.raises(ad.CloseTimeoutError, match="stuck_in_the_user_function"):
            iterator.close()
        assert list(ad.Dataset.range(3)) == [0, 1, 2]
        gates[1].write_bytes(b"")


def test_a_runtime_leaves_nothing_of_iterators_that_are_still_open() -> None:
    """Their sockets and the arena are closed with it; they raise what they raise without isolation."""
    with ad.Runtime(isolated()):  # the process keeps what its first loader loads
        list(ad.Dataset.range(3))
    with assert_no_leaks(), ad.Runtime(isolated()):
        iterator = iter(ad.Dataset.range(1 << 40).batch(4))
        next(iterator)
    with pytest.raises(ad.PipelineClosedError, match="the Runtime was closed while the pipeline was running"):
        next(iterator)
    assert iterator.stats().elements == 1


def test_stream_sockets_where_there_is_nothing_better(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Systems without SOCK_SEQPACKET: the same messages, cut out of a stream."""
    monkeypatch.setattr(loader, "has_seqpacket", lambda: False)
    paths = write_shards(tmp_path, 2, 200, 300)
    dataset = ad.TFRecordDataset(paths).map(len, 2).batch(7).with_options(isolated())
    assert [int(size) for batch in dataset for size in batch] == [300] * 400
    big = ad.Dataset.range(5).map(lambda x: np.full(100_000, x)).with_options(isolated())
    assert [int(array[5]) for array in big] == list(range(5))


def test_what_user_code_prints_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """As from worker processes."""

    def tell(x: int) -> int:
        print("from user code", file=sys.stdout)  # noqa: T201 -- what is tested
        return int(x)

    assert list(ad.Dataset.range(1).map(tell).with_options(isolated())) == [0]
    out, err = capfd.readouterr()
    assert (out, err) == ("", "from user code\n")


def test_options_show_no_storage_secrets() -> None:
    """What is given to a backend may be a password."""
    assert "s3cret" not in repr(ad.Options(storage={"s3": {"secret": "s3cret"}}))


def test_a_snapshot_tells_the_same_from_afar(server: FakeGCS) -> None:
    """Stages, workers and reads of the loader; frozen; at the end, what it was then."""
    dataset = ad.TFRecordDataset([f"gs://{BUCKET}/shard-000.tfrecord"]).map(len, 2).batch(40)
    for isolate in (False, True):
        options = ad.Options(isolate=isolate, num_workers=1, storage=gs_storage(server))
        with dataset.with_options(options).iterator() as iterator:
            next(iterator)
            during = iterator.stats()
            assert repr(iterator).startswith("<PipelineIterator of epoch")
            rest = list(iterator)
        after = iterator.stats()
        assert during.elements == 1
        assert after.elements == after.deliveries == 1 + len(rest) == 3
        assert {stage.name for stage in during.stages} >= {"consumer"}
        assert all(stage.limit_bytes >= stage.used_bytes for stage in during.stages)
        assert during.workers is not None
        assert during.workers.processes == 1
        assert after.fetch["bytes"] > 120 * 700
        assert after.fetch["retries"] == 0
        assert (after.loader_pid is None) is not isolate
        assert "closed" in repr(iterator)
