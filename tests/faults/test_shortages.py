"""What the system refuses (room on a disk, memory, descriptors, threads): the error names path, stage and cure."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.consumer.gauges import Gauges
from asyncdata.testing import procfs
from fake_gcs import FakeGCS, Latency, Profile
from tests.faults.programs import run
from tests.integration.shards import BUCKET, records, shard_bytes
from tests.patience import wait_until

pytestmark = pytest.mark.sampled

_LIMIT = """
import resource

def limit(name, most):
    resource.setrlimit(getattr(resource, name), (most, most))

def refused(function, number, *words):
    try:
        function()
    except ad.SystemResourceError as error:
        text = str(error)
        assert isinstance(error, OSError) and error.errno == number, repr(error)
        assert error.stage and all(word in text for word in words), text
        assert text.count(": ") and ";" in text, text
    else:
        raise AssertionError("it went well")
"""


def check(body: str) -> None:
    """Runs a program that limits itself, and ends cleanly."""
    code, out, err = run(_LIMIT + body)
    assert (code, out, err) == (0, "", "")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with hardly any room."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def _wide(i: int) -> np.ndarray:
    return np.full(2000, i)


def manifest(path: Path) -> None:
    many = path.parents[1] / "many"
    many.mkdir()
    for n in range(1000):
        (many / f"{n}").touch()
    ad.write_manifest(f"{many}/*", path)


def state(path: Path) -> None:
    """A large one: of each element that was delivered it has 16 bytes."""
    numbers = ad.Dataset.range(10_000).map(abs, 2, deterministic=False, executor="thread").unique()
    with numbers.iterator() as iterator:
        for _ in range(3000):
            next(iterator)
        ad.state.save(str(path), iterator.state_dict())


def report(path: Path) -> None:
    with ad.profile(path):
        pass


WHOLE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "manifest": ("write_manifest", manifest),
    "report.html": ("profile", report),
    "function": ("preprocessing", lambda path: ad.Bucketize((np.arange(100_000) / 3).tolist()).save(path)),
    "state": ("state.save", state),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_full_disk_for_files_that_are_replaced(full_disk: Path, name: str) -> None:
    """The old one stays, and the error names it, who writes it, and what to do."""
    path = full_disk / name
    path.write_bytes(b"old")
    (full_disk / "rest").write_bytes(bytes(100 << 10))
    stage, write = WHOLE[name]
    with pytest.raises(ad.SystemResourceError, match="free space on its file system") as caught:
        write(path)
    assert caught.value.errno == errno.ENOSPC
    assert (caught.value.url, caught.value.stage) == (str(path), stage)
    assert path.read_bytes() == b"old"
    assert sorted(found.name for found in full_disk.iterdir()) == sorted([name, "rest"])


@pytest.mark.parametrize("kind", ["cache", "snapshot", "writer"])
def test_a_full_disk(full_disk: Path, kind: str) -> None:
    """What is written to it: the error names the file, and nothing is left of it."""
    path = full_disk / kind
    rows = ad.Dataset.range(100).map(_wide)

    def write() -> None:
        if kind == "writer":
            with ad.TFRecordWriter(path) as writer:
                writer.write_many([b"x" * 1000] * 1000)
        else:
            list(rows.cache(path) if kind == "cache" else rows.snapshot(path))

    with pytest.raises(ad.SystemResourceError, match="free space on its file system") as caught:
        write()
    assert caught.value.errno == errno.ENOSPC
    assert str(caught.value.url).startswith(str(path))
    assert kind in str(caught.value.stage).lower()
    assert not [found for found in full_disk.rglob("*") if found.is_file()]


def test_no_room_for_what_is_skipped(full_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The quarantine list never ends a pipeline; lines that are lost are counted and warned of."""
    (full_disk / "filler").write_bytes(bytes(os.statvfs(full_disk).f_bavail * os.statvfs(full_disk).f_frsize))
    errors = ad.ErrorPolicy(max_skipped=None, quarantine=full_disk / "list")
    dataset = ad.Dataset.range(50).map(lambda x: 1 // int(x * 0)).with_options(ad.Options(errors=errors))
    with dataset.iterator() as elements:
        assert list(elements) == []
    assert elements.stats().skipped.lines_lost == 50
    assert str(full_disk / "list") in caplog.text


def test_a_limit_of_the_size_of_files(tmp_path: Path) -> None:
    """For the file of a cache, for shards of a snapshot, and for the memory that processes share."""
    check(
        f"folder = {str(tmp_path)!r}\n"
        """
rows = pipeline("inline", 10_000)
with ad.Runtime():
    next(iter(rows))
    limit("RLIMIT_FSIZE", 1 << 16)
    refused(lambda: list(rows.cache(folder + "/c")), 27, folder + "/c", "stage cache", "ulimit -f")
    refused(lambda: list(rows.snapshot(folder + "/s")), 27, folder + "/s/shard-0", "stage snapshot", "ulimit -f")
refused(lambda: list(rows), 27, "memfd:asyncdata", "ulimit -f")
assert not [name for _, _, names in os.walk(folder) for name in names]
"""
    )


def test_no_memory_for_the_arena() -> None:
    """Of the process itself, and of an isolated loader."""
    check("""
limit("RLIMIT_AS", 4 << 30)
refused(lambda: list(pipeline("inline", 8)), 12, "memfd:asyncdata", "memory_limit_bytes", "ulimit -v")
isolated = pipeline("inline", 8).with_options(ad.Options(isolate=True))
refused(lambda: list(isolated), 12, "memfd:asyncdata", "memory_limit_bytes", "ulimit -v")
""")


@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
def test_descriptors_run_out(executor: str) -> None:
    """Whatever needs one first; with more of them the same pipeline runs."""
    step = 7 if executor == "process" else 1
    check(f"""
dataset = pipeline("{executor}", 8).with_options(ad.Options(num_workers=4))
started = len(os.listdir("/proc/self/fd"))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for more in range(1, 40, {step}):
    resource.setrlimit(resource.RLIMIT_NOFILE, (started + more, hard))
    try:
        assert len(list(dataset)) == 1
    except ad.SystemResourceError as error:
        assert error.errno == 24 and error.stage and "ulimit -n" in str(error), error
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert len(list(dataset)) == 1
""")


class FewThreads:
    """Some threads may not start.

    Args:
        name: How the names of these threads begin.
        monkeypatch: Puts back the start of threads.

    Attributes:
        left: How many of them may still start; None: any number.
    """

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        start = threading.Thread.start

        def start_or_refuse(thread: threading.Thread) -> None:
            if self.left is not None and thread.name.startswith(name):
                if not self.left:
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_or_refuse)


@pytest.mark.parametrize("started", [0, 1])
def test_no_threads_for_functions(started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The iteration that finds out raises; later ones in the same Runtime use those that started, or start all."""
    threads = FewThreads("asyncdata-map", monkeypatch)
    dataset = ad.Dataset.range(4).map(abs, 2, executor="thread").batch(4)
    with ad.Runtime(ad.Options(num_threads=2)):
        threads.left = started
        with pytest.raises(ad.SystemResourceError, match="threads cannot be started"):
            list(dataset)
        threads.left = None
        assert [batch.tolist() for batch in dataset] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("name", ["asyncdata-spawner", "asyncdata-wait"])
def test_no_threads_for_worker_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The iteration raises when some starts have failed, and leaves no process; a later one finds them."""
    monkeypatch.delattr("os.pidfd_open")  # as on systems where a thread waits for each process
    threads = FewThreads(name, monkeypatch)
    dataset = ad.Dataset.range(4).map(abs, 1).batch(4)
    threads.left = 0

    def children() -> set[int]:
        return {process.pid for process in procfs.processes() if process.parent == os.getpid()}

    others = children()  # of other tests
    with ad.Runtime(ad.Options(num_workers=1)):
        left: list[tuple[set[int], set[int]]] = []
        for _ in range(2):
            with pytest.raises(ad.SystemResourceError, match="cannot be started: can't start new thread; "):
                list(dataset)
            left.append((set(procfs.descriptors()), children()))
        assert left[0] == left[1]
        assert left[0][1] <= others
        threads.left = None
        assert [batch.tolist() for batch in dataset] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("started", [0, 1])
@pytest.mark.parametrize("name", ["asyncdata-quarantine", "asyncdata-close"])
def test_no_threads_for_the_quarantine_list(
    name: str, started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which opens, writes or closes it: each iteration gives its part of the memory back, and leaves nothing open."""
    threads = FewThreads(name, monkeypatch)
    errors = ad.Options(errors=ad.ErrorPolicy(quarantine=tmp_path / "list"))
    dataset = ad.Dataset.range(4).batch(4).with_options(errors)
    with ad.Runtime(pipelines=2):
        list(dataset)
        before = set(procfs.descriptors())
        for _ in range(3):
            threads.left = started
            with contextlib.suppress(ad.SystemResourceError, RuntimeError):
                list(dataset)
        threads.left = None
        assert len(list(dataset)) == 1
        wait_until(lambda: "asyncdata-quarantine" not in [thread.name for thread in threading.enumerate()])
        assert set(procfs.descriptors()) == before


def test_statistics_that_cannot_be_read_keep_no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones of a pipeline: the iteration raises, and everything is put back."""

    def fail(_gauges: Gauges) -> None:
        raise MemoryError

    dataset = ad.Dataset.range(4).batch(4)
    with ad.Runtime(pipelines=1):
        with monkeypatch.context() as patch:
            patch.setattr(Gauges, "read", fail)
            for _ in range(2):
                with contextlib.suppress(MemoryError):
                    list(dataset)
        assert len(list(dataset)) == 1


def test_no_descriptor_for_what_is_recorded_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They work all the same; their lines and tasks are not in the profile."""
    names: list[str] = []

    def refuse(name: str) -> int:
        names.append(name)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("asyncdata.workers.worker.open_nameless_file", refuse)
    dataset = ad.Dataset.range(4).map(abs, 1).batch(4)
    with ad.Runtime(ad.Options(num_workers=1)), ad.profile():
        for _ in range(2):  # with a worker that becomes ready, and with one that is
            assert len(list(dataset)) == 1
    assert names.count("asyncdata-lines") == 2


def test_a_loader_process_without_descriptors() -> None:
    """It cannot hear of another pipeline: all pipelines of its Runtime say why, and it ends."""
    check("""
def exhaust(x):
    if x:
        return x
    used = [int(fd) for fd in os.listdir("/proc/self/fd")]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(used) + 4, max(used) + 4))
    try:
        while True:
            os.dup(0)
    except OSError:
        return x

with ad.Runtime(ad.Options(isolate=True), pipelines=2):
    first = ad.Dataset.range(1 << 40).map(exhaust).batch(1000).iterator()  # what is in the arena needs no file
    next(first)
    refused(lambda: list(pipeline("inline", 8)), 24, "the loader process cannot go on", "ulimit -n")
    refused(lambda: list(first), 24, "the loader process cannot go on", "ulimit -n")
""")


def test_a_consumer_without_descriptors() -> None:
    """It cannot receive a long batch of objects; the loader process is not to blame, and works on."""
    check("""
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
with ad.Runtime(ad.Options(isolate=True), pipelines=2):
    rows = ad.Dataset.range(100).map(lambda x: set(range(int(x) * 50_000)))
    for end in (list, lambda sets: sets.close()):
        sets = rows.iterator()
        next(sets)
        used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        if end is list:
            refused(lambda: list(sets), 24, "a batch cannot be received", "ulimit -n")
        else:
            sets.close()
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list(pipeline("inline", 8))) == 1
""")


@pytest.mark.parametrize("workers", [0, 2])
def test_few_descriptors_are_enough_for_many_distant_files(workers: int) -> None:
    """Connections take half of them: what functions open, import and start has the rest."""
    with FakeGCS(buckets=[BUCKET]) as server:
        for shard in range(64):
            server.put(BUCKET, f"shard-{shard:03d}.tfrecord", shard_bytes(records(shard, 20, 1000)))
        server.profile = Profile(latency=Latency(median_s=0.05))
        check(f"""
limit("RLIMIT_NOFILE", 64)

def opens(batch):
    files = [open("/dev/null") for _ in range(4)]
    return len(batch) * len(files)

storage = {{"gs": {{"endpoint_url": "{server.url}", "token": "anon"}}}}
options = ad.Options(storage=storage, num_workers={workers}, num_threads=2)
files = ad.Dataset.list_files("gs://{BUCKET}/*", shuffle=False)
rows = files.interleave(ad.TFRecordDataset, cycle_length=64, deterministic=False).batch(64)
assert sum(rows.map(opens, ad.AUTOTUNE).with_options(options)) == 64 * 20 * 4
""")


@pytest.mark.parametrize("path", ["/proc/x", "/sys/x"])
def test_what_cannot_be_written_to(path: str) -> None:
    """A cache and a snapshot name their path and what to do."""
    for make in (ad.Dataset.range(3).cache, ad.Dataset.range(3).snapshot):
        with pytest.raises(ad.SystemResourceError, match="use a path") as caught:
            list(make(path))
        assert str(caught.value.url).startswith(path)
        assert path in str(caught.value.stage)
