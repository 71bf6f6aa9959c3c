"""A training step that keeps the interpreter's lock: the reading thread is late, and nothing is blamed on the server.

The server has a process of its own, whose journal tells when each answer was out; its clock is this process's. Every
answer fits into a socket's buffers, so that it leaves the server at once whether or not somebody reads it. A second
attempt, or an end by a time limit, is *false* where the whole answer had left the server before the loop looked. So
the law holds on a machine of any speed: where the server is late itself, being impatient is right.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from asyncdata.errors import StorageError
from asyncdata.options import Environment, HedgeOptions, Options, RetryOptions, TimeoutOptions
from asyncdata.storage import Fetcher
from asyncdata.storage.attempt import ReadLimits
from asyncdata.storage.failures import TIMEOUT_CAUSES, ReadFailedError
from asyncdata.storage.http1.connection import RangeConnection
from asyncdata.storage.http1.watchdog import Watchdog
from asyncdata.storage.policy.hedge import Hedger, Racing
from asyncdata.testing import run_virtual
from fake_gcs import FakeGCSProcess, Latency, Profile
from tests.patience import virtual_time
from tests.samples import samples

SIZE = 32 << 10
URL = "gs://bucket/x"
WARM = 100
READS = samples(40, 3000)
DATA = random.Random(5).randbytes((WARM + READS) * SIZE)
HOLD_US = 350_000
# Limits are learned, and shorter than the lock is held; hedging may be as frequent as it likes.
OPTIONS = Options(
    max_requests_in_flight=16,
    retry=RetryOptions(initial_delay_s=0.001),
    timeouts=TimeoutOptions(floor_s=0.25),
    hedge=HedgeOptions(max_extra=1.0),
)


def python_loop() -> None:
    """Pure Python: gives the lock up when it is asked for, every few milliseconds."""
    total = 0
    for number in range(200_000):
        total ^= number


def numpy_loop() -> None:
    """Small operations that keep the lock, and products that give it up."""
    square = np.ones((192, 192), np.float32)
    for _ in range(50):
        np.matmul(square, square).sum()


def long_call() -> None:
    """One call into C that keeps the lock for longer than a read may be silent."""
    ctypes.PyDLL(None).usleep(HOLD_US)
    time.sleep(0.01)  # the rest of the step: without it the reader would get the lock for one move at a time


@dataclass
class Impatience:
    """Reads that were given up, or asked for once more: (first byte of the range, when the loop looked)."""

    hedged: list[tuple[int, float]] = field(default_factory=list)
    ended: list[tuple[int, float]] = field(default_factory=list)


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> Impatience:
    """Notes what the two watchers decide."""
    seen = Impatience()
    hedge, fail = Hedger._hedge, RangeConnection.fail

    def noting_hedge(self: Hedger, racing: Racing, offset: int, most: int, now: float) -> None:
        if isinstance(racing.wire, RangeConnection):
            seen.hedged.append((racing.wire._start, now))
        hedge(self, racing, offset, most, now)

    def noting_end(self: RangeConnection, error: StorageError) -> None:
        if isinstance(error, ReadFailedError) and error.cause in TIMEOUT_CAUSES:
            seen.ended.append((self._start, asyncio.get_running_loop().time()))
        fail(self, error)

    monkeypatch.setattr(Hedger, "_hedge", noting_hedge)
    monkeypatch.setattr(RangeConnection, "fail", noting_end)
    return seen


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGCSProcess]:
    """Answers begin after 30 ms."""
    with FakeGCSProcess(profile=Profile(latency=Latency(median_s=0.03)), buckets=["bucket"]) as running:
        upload = f"{running.url}/upload/storage/v1/b/bucket/o?uploadType=media&name=x"
        urllib.request.urlopen(urllib.request.Request(upload, DATA, method="POST")).close()
        yield running


async def read(fetcher: Fetcher, first: int, last: int) -> None:
    """Ranges of the object, as many at a time as may be; each is compared."""
    info = await fetcher.stat(URL)

    async def one(number: int) -> None:
        buffer = bytearray(SIZE)
        await fetcher.read(info, number * SIZE, memoryview(buffer), priority=number)
        assert buffer == DATA[number * SIZE : (number + 1) * SIZE]

    async with asyncio.TaskGroup() as group:
        for number in range(first, last):
            group.create_task(one(number))


@pytest.mark.sampled
@pytest.mark.parametrize("step", [python_loop, numpy_loop, long_call])
def test_a_late_process_blames_no_server(
    step: Callable[[], None], server: FakeGCSProcess, impatience: Impatience
) -> None:
    """No second attempt and no end by a time limit for an answer that had left the server; every byte is right."""
    warm = threading.Event()
    errors: list[BaseException] = []
    stats = []

    async def reading() -> None:
        fetcher = Fetcher(OPTIONS, Environment(storage_emulator_host=server.url))
        try:
            await read(fetcher, 0, WARM)
            impatience.hedged.clear()
            impatience.ended.clear()
            server.clear_journal()
            warm.set()
            await read(fetcher, WARM, WARM + READS)
            stats.append(fetcher.stats())
        finally:
            warm.set()
            await fetcher.aclose()

    def thread() -> None:
        try:
            asyncio.run(reading())
        except BaseException as error:  # noqa: BLE001 -- raised in the test's thread
            errors.append(error)

    reader = threading.Thread(target=thread)
    reader.start()
    warm.wait()
    while reader.is_alive():
        step()
    reader.join()
    if errors:
        raise errors[0]
    out: dict[int, float] = {}
    for entry in server.entries():
        if entry.range and entry.ended_s is not None:
            out.setdefault(int(entry.range.removeprefix("bytes=").partition("-")[0]), entry.ended_s)
    assert len(out) >= READS
    for decided in (impatience.hedged, impatience.ended):
        # The first decision about a range is about its first attempt, which the journal has first.
        firsts = dict(reversed(decided))
        false = [(start, now - out[start]) for start, now in firsts.items() if start in out and out[start] < now]
        assert not false, f"(first byte, seconds since the answer had left the server): {false}"
    assert stats[0].bytes >= READS * SIZE


class Unread:
    """An exchange whose bytes wait in the kernel, for the loop has had no time for them."""

    def __init__(self) -> None:
        self.quiet_since, self.seen = 0.0, -1
        self.paced_since, self.paced_from, self.spared = 0.0, 0, 0
        self.limits: ReadLimits | None = None
        self.awaits_head, self.in_body = True, False
        self.progress, self.waiting = 0, True
        self.errors: list[StorageError] = []

    def release_low_water(self) -> bool:
        """There is no mark."""
        return False

    def has_input(self) -> bool:
        """Until they are read."""
        return self.waiting

    def fail(self, error: StorageError) -> None:
        """The end."""
        self.errors.append(error)


def test_bytes_that_wait_in_the_kernel_are_no_silence() -> None:
    """An exchange that is overdue has a few looks to read them; when they are read, its time begins anew."""

    async def scenario() -> None:
        unread = Unread()
        watchdog = Watchdog(TimeoutOptions(first_byte_s=1, idle_s=1, floor_s=1), lambda: [unread])
        watchdog.wake()
        await virtual_time(1.3)
        unread.progress, unread.waiting = 1, False
        await virtual_time(0.9)
        assert not unread.errors
        await virtual_time(1)
        assert unread.errors
        watchdog.close()

    run_virtual(scenario())
