"""Reads by several processes: the same laws as on one loop, and when another process begins, or dies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.options import AUTOTUNE, Environment, Options, RetryOptions, TimeoutOptions
from asyncdata.runtime.receiving import receiver as receiver_module
from asyncdata.runtime.receiving.receiver import ReceiverProcess
from asyncdata.storage import FailureCause, Fetcher
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.failures import ReadFailedError, read_failed
from asyncdata.storage.reader import RangeReader
from asyncdata.storage.receivers import BodyReader, Receiver, Receivers
from asyncdata.testing import assert_no_leaks
from asyncdata.testing.readers import Store
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.patience import turns, until
from tests.samples import samples
from tests.storage import test_conformance as conformance
from tests.storage.more_receivers import more_receivers, processes
from tests.storage.raw_server import DATA as PLAIN
from tests.storage.raw_server import Peer, RawServer, Request, honest
from tests.storage.test_conformance import opened

DATA = random.Random(3).randbytes(2_000_000)
ASIDE = b"\xa5"


class ElsewhereReader(RangeReader):
    """A reader whose bodies come by another process."""

    def __init__(self, near: RangeReader, far: BodyReader) -> None:
        self._near = near
        self._far = far

    async def stat(self, url: str) -> ObjectInfo:
        return await self._near.stat(url)

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        return await self._near.glob(pattern)

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt | None = None) -> int:
        return await self._far.read_into(info, start, buffer, attempt or Attempt())

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt | None = None) -> tuple[ObjectInfo, int]:
        return await self._far.open_read(url, buffer, attempt or Attempt())

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def elsewhere(place: Any) -> AsyncIterator[Any]:
    """The same store, read by another process."""
    async with processes() as made:
        receiver = await made.begin()
        place.reader = ElsewhereReader(place.reader, receiver.reader(place.spec, place.reader))
        try:
            yield place
        finally:
            await receiver.aclose()


@asynccontextmanager
async def far_reader(server: FakeGCS) -> AsyncIterator[tuple[ObjectInfo, BodyReader, memoryview, ReceiverProcess]]:
    """An object, what reads its body in another process, memory that both have, and the process."""
    server.put("bucket", "x", DATA)
    near, spec = opened("gs://bucket/", {"gs": {"endpoint_url": server.url, "token": "anon"}})
    async with processes() as made:
        process = (await made.begin()).process
        try:
            yield await near.stat("gs://bucket/x"), process.reader(spec, near), made.place(len(DATA)), process
        finally:
            await process.aclose()
            await near.aclose()


class TestGcs(conformance.TestGcs):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with super().store() as place, elsewhere(place) as there:
            yield there


class TestHttp(conformance.TestHttp):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with super().store() as place, elsewhere(place) as there:
            yield there


@pytest.mark.sampled
async def test_what_is_seen_and_asked_goes_both_ways() -> None:
    """Limits and wishes down, times and progress up; an answer that is over cannot be ended any more."""
    stalled = Profile(rules=(Rule(fault=Fault(kind="stall", after_fraction=(0.5, 0.5)), nth=(1,), media_only=True),))
    async with FakeGCS(buckets=["bucket"], profile=stalled) as server, far_reader(server) as (info, reader, buffer, _):
        attempt = Attempt()
        read = asyncio.create_task(reader.read_into(info, 0, buffer, attempt))
        await until(lambda: attempt.wire is not None and attempt.wire.filled >= len(DATA) // 2)
        wire = attempt.wire
        assert wire is not None
        assert 0 <= attempt.asked_at <= attempt.first_byte_at <= asyncio.get_running_loop().time()
        # What may have arrived is looked at first; then it is known that nothing has.
        await until(lambda: not wire.has_input())
        wire.nudge()
        wire.fail(read_failed("enough", FailureCause.OVERTAKEN))
        with pytest.raises(ReadFailedError, match="enough") as caught:
            await read
        assert caught.value.filled == attempt.received >= len(DATA) // 2
        assert buffer[: attempt.received] == DATA[: attempt.received]
        assert attempt.wire is None
        # The old wire belongs to an answer that is over; whoever still has it does no harm to the next one.
        again = Attempt()
        next_read = asyncio.create_task(reader.read_into(info, 0, buffer, again))
        for _ in range(100):
            wire.fail(read_failed("too late", FailureCause.OVERTAKEN))
            await turns(1)
        assert await next_read == len(DATA)
        assert buffer == DATA


async def test_a_read_that_is_ended_between_two_exchanges_ends_at_the_next() -> None:
    """A redirect leads to where the only connection is taken: until it is free, nothing is received that could end."""
    redirected = asyncio.Event()

    async def leads_away(request: Request, peer: Peer) -> None:
        head = f"HTTP/1.1 302 F\r\nLocation: {there.url}/b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        await peer.send(head.encode())
        await peer.reader.read()  # the other side has the answer, and has let go of the connection
        redirected.set()

    async def taken(request: Request, peer: Peer) -> None:
        if request.target == "/x":
            await peer.stall()
        await honest(request, peer)

    async with RawServer(leads_away) as here, RawServer(taken) as there, processes() as made:
        near, spec = opened(f"{here.url}/")
        process = (await made.begin()).process
        reader = process.reader(dataclasses.replace(spec, max_connections=1), near)
        first, attempt = Attempt(), Attempt()
        other = ObjectInfo(url=f"{there.url}/x", size=1000)
        blocking = asyncio.create_task(reader.read_into(other, 0, made.place(1000), first))
        await until(lambda: first.wire is not None)
        info = ObjectInfo(url=f"{here.url}/a", size=len(PLAIN))
        read = asyncio.create_task(reader.read_into(info, 0, made.place(1000), attempt))
        await redirected.wait()
        await until(lambda: attempt.wire is not None)
        assert attempt.wire is not None
        attempt.wire.fail(read_failed("enough", FailureCause.OVERTAKEN))
        blocking.cancel()
        with pytest.raises(ReadFailedError, match="enough"):
            await read
        await asyncio.gather(blocking, return_exceptions=True)
        await process.aclose()
        await near.aclose()


@pytest.mark.sampled
async def test_a_cancelled_read_lets_its_buffer_go_first() -> None:
    """At whatever moment."""
    draw = random.Random(1)
    async with FakeGCS(buckets=["bucket"]) as server, far_reader(server) as (info, reader, buffer, _):
        for _ in range(samples(30, 2000)):
            read = asyncio.create_task(reader.read_into(info, 0, buffer, Attempt()))
            await turns(draw.randrange(60))
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)
            buffer[:] = ASIDE * len(buffer)
            await turns(20)
            assert bytes(buffer).count(ASIDE) == len(buffer)
        assert await reader.read_into(info, 0, buffer, Attempt()) == len(DATA)
        assert buffer == DATA


@pytest.mark.sampled
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_read_fails_when_its_process_dies(how: int) -> None:
    """As if its connection were lost, when nothing writes any more; the next one is made on this loop."""
    slow = Profile(stream_bytes_per_s=1e6)
    async with FakeGCS(buckets=["bucket"], profile=slow) as server, far_reader(server) as (info, reader, buffer, made):
        attempt = Attempt()
        read = asyncio.create_task(reader.read_into(info, 0, buffer, attempt))
        await until(lambda: attempt.wire is not None and attempt.wire.filled > 0)
        os.kill(made.pid, how)
        with pytest.raises(ReadFailedError, match=f"was killed by {signal.Signals(how).name}") as caught:
            await read
        assert caught.value.cause is FailureCause.CONNECTION_LOST
        assert caught.value.filled == 0
        assert not made.is_alive
        server.profile = Profile()
        assert await reader.read_into(info, 0, buffer, Attempt()) == len(DATA)
        assert buffer == DATA


@pytest.mark.sampled
async def test_a_process_that_says_nothing_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read does not wait for it for ever."""
    monkeypatch.setattr(receiver_module, "_SILENT_S", 1.0)
    monkeypatch.setattr(receiver_module, "_HEARTBEAT_S", 0.1)
    async with FakeGCS(buckets=["bucket"]) as server, far_reader(server) as (info, reader, buffer, made):
        os.kill(made.pid, signal.SIGSTOP)
        with pytest.raises(ReadFailedError, match="was killed by SIGKILL"):
            await reader.read_into(info, 0, buffer, Attempt())


class LateLoop:
    """The running loop, on which time passes in which nothing runs."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.late_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    def time(self) -> float:
        return self.loop.time() + self.late_s

    def call_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self.loop.call_at(when - self.late_s, callback)


async def test_a_process_that_was_stopped_with_the_whole_program_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was silent as long as nobody could listen."""
    monkeypatch.setattr(receiver_module, "_HEARTBEAT_S", 0.1)
    async with FakeGCS(buckets=["bucket"]) as server, far_reader(server) as (info, reader, buffer, made):
        await made.ready()
        late = LateLoop()
        monkeypatch.setattr(made, "_loop", late)
        os.kill(made.pid, signal.SIGSTOP)
        read = asyncio.create_task(reader.read_into(info, 0, buffer, Attempt()))
        looks: list[float] = []
        monkeypatch.setattr(made, "look", lambda: looks.append(late.time()))
        for _ in range(3):
            looks.clear()
            late.late_s += 30
            await until(lambda: bool(looks) or not made.is_alive)
        os.kill(made.pid, signal.SIGCONT)
        assert await read == len(DATA)
        assert buffer == DATA


async def test_a_process_that_cannot_open_a_reader_takes_no_reads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ends instead, and says why; the reads are made by this loop."""
    authorities = tmp_path / "ca.pem"
    async with FakeGCS(buckets=["bucket"], tls=True) as server, processes() as made:
        server.put("bucket", "x", DATA)
        authorities.write_bytes(server.certificate)
        near, spec = opened(f"{server.url}/", {"https": {"ca_file": str(authorities)}})
        authorities.unlink()
        process = (await made.begin()).process
        reader = process.reader(spec, near)
        with pytest.raises(OSError, match="exited with code 1 while it started"):
            await process.ready()
        assert "ca.pem" in capfd.readouterr().err
        info = await near.stat(f"{server.url}/bucket/x")
        assert await reader.read_into(info, 0, made.place(len(DATA)), Attempt()) == len(DATA)
        await near.aclose()


async def test_a_buffer_elsewhere_is_filled_by_this_loop() -> None:
    """The process sees the arena only."""
    async with FakeGCS(buckets=["bucket"]) as server, far_reader(server) as (info, reader, _, made):
        elsewhere = bytearray(len(DATA))
        assert await reader.read_into(info, 0, memoryview(elsewhere), Attempt()) == len(DATA)
        assert elsewhere == DATA
        assert await reader.open_read(info.url, memoryview(elsewhere), Attempt()) == (info, len(DATA))
        await made.aclose()


@pytest.mark.sampled
async def test_processes_that_die_are_replaced_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    """No read is lost; and who cannot keep them goes on without."""
    async with FakeGCS(buckets=["bucket"]) as server, processes() as made:
        server.put("bucket", "x", DATA)
        pids: list[int] = []

        async def begin(lost: Callable[[Receiver], None]) -> Receiver:
            receiver = await made.begin(lost)
            pids.append(receiver.process.pid)
            return receiver

        receivers = Receivers(2, begin)
        quick = RetryOptions(max_attempts=20, initial_delay_s=0.002, max_delay_s=0.02)
        fetcher = Fetcher(Options(retry=quick), Environment(storage_emulator_host=server.url), receivers=receivers)
        info = await fetcher.stat("gs://bucket/x")

        async def read() -> None:
            buffers = [bytearray(50_000) for _ in range(16)]
            await asyncio.gather(
                *(fetcher.read(info, 1000 * n, memoryview(buffer)) for n, buffer in enumerate(buffers))
            )
            assert all(buffer == DATA[1000 * n : 1000 * n + 50_000] for n, buffer in enumerate(buffers))

        for _ in range(3):
            while receivers.count < 2:
                await read()
            reading = asyncio.create_task(read())
            await turns(5)
            os.kill(pids[-1], signal.SIGKILL)
            await reading
            while receivers.count > 1:
                await read()
        for _ in range(5):
            await read()
        assert (receivers.count, receivers.most, len(pids)) == (1, 1, 4)
        assert caplog.text.count("its reads are made again") == 3
        await fetcher.aclose()


@pytest.mark.parametrize("error", [TypeError("cannot pickle this"), OSError(errno.EMFILE, "no descriptor")])
async def test_a_process_that_cannot_be_told_what_to_open_is_replaced(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends, and the next one gets its chance."""

    def fail(*_: object) -> BodyReader:
        raise error

    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
    async with FakeGCS(buckets=["bucket"]) as server, processes() as made:
        begun: list[ReceiverProcess] = []

        async def begin(lost: Callable[[Receiver], None]) -> Receiver:
            receiver = await made.begin(lost)
            begun.append(receiver.process)
            if len(begun) == 1:
                monkeypatch.setattr(receiver, "reader", fail)
            return receiver

        receivers = Receivers(2, begin)
        fetcher = Fetcher(Options(), Environment(storage_emulator_host=server.url), receivers=receivers)
        server.put("bucket", "x", DATA)
        info = await fetcher.stat("gs://bucket/x")
        await until(lambda: receivers.choose() is not None and receivers.count == 2)
        buffer = bytearray(50_000)
        await fetcher.read(info, 0, memoryview(buffer))
        assert buffer == DATA[: len(buffer)]
        assert not begun[0].is_alive
        assert told == ([] if isinstance(error, OSError) else ["cannot pickle this"])
        await fetcher.aclose()


async def test_fallbacks_of_processes_that_died_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of the statistics never becomes smaller."""
    async with processes() as made:
        begun: list[tuple[Receiver, Callable[[Receiver], None]]] = []

        async def begin(lost: Callable[[Receiver], None]) -> Receiver:
            receiver = await made.begin()
            monkeypatch.setattr(receiver.process, "fallbacks", {"gzip": 2})
            begun.append((receiver, lost))
            return receiver

        receivers = Receivers(2, begin)
        for number in (1, 2):
            receivers.choose()
            await until(lambda: len(receivers.under_way) == 2)
            assert sum(fallen.get("gzip", 0) for fallen in receivers.fallbacks()) == 2 * number
            receiver, lost = begun[-1]
            lost(receiver)
            assert sum(fallen.get("gzip", 0) for fallen in receivers.fallbacks()) == 2 * number
            await receiver.aclose()
        await receivers.aclose()


@pytest.mark.parametrize("how", ["killed", "stopped", "given up", "left alone"])
async def test_nobody_waits_for_a_process_that_starts(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that dies before it takes reads, or never does, is replaced; closing does not wait for it."""
    if how == "given up":
        monkeypatch.setattr(receiver_module, "_START_S", 0.05)
    async with FakeGCS(buckets=["bucket"]) as server, processes() as made:
        server.put("bucket", "x", DATA)
        begun: list[ReceiverProcess] = []

        async def begin(lost: Callable[[Receiver], None]) -> Receiver:
            receiver = await made.begin(lost)
            begun.append(receiver.process)
            if how != "left alone":
                os.kill(receiver.process.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            return receiver

        receivers = Receivers(2, begin)
        fetcher = Fetcher(Options(), Environment(storage_emulator_host=server.url), receivers=receivers)
        info = await fetcher.stat("gs://bucket/x")
        buffer = bytearray(50_000)
        while not begun:
            await fetcher.read(info, 0, memoryview(buffer))
            await turns(1)
        if how in ("killed", "given up"):
            while receivers.most > 1:
                await fetcher.read(info, 0, memoryview(buffer))
            assert len(begun) == 3
        await fetcher.read(info, 0, memoryview(buffer))
        assert buffer == DATA[: len(buffer)]
        await fetcher.aclose()
        assert not begun[0].is_alive


@pytest.mark.sampled
async def test_as_many_processes_receive_as_are_asked_for() -> None:
    """Begun one by one, and left alone again; what they deliver stays the same, and reads go to all of them."""
    async with FakeGCS(buckets=["bucket"]) as server, more_receivers(AUTOTUNE, most=3) as receivers:
        server.put("bucket", "x", DATA)
        fetcher = Fetcher(Options(), Environment(storage_emulator_host=server.url), receivers=receivers)
        info = await fetcher.stat("gs://bucket/x")

        async def read() -> None:
            buffers = [bytearray(50_000) for _ in range(16)]
            reads = [fetcher.read(info, 1000 * n, memoryview(buffer)) for n, buffer in enumerate(buffers)]
            await asyncio.gather(*reads)
            assert all(buffer == DATA[1000 * n : 1000 * n + 50_000] for n, buffer in enumerate(buffers))

        try:
            for wanted, count in ((1, 1), (3, 3), (2, 2), (50, 3), (0, 1)):
                receivers.ask(wanted)
                while receivers.count != count:
                    await read()
                before = receivers.cpu_each_s()
                await read()
                assert fetcher.stats().receivers == count == len(before)
                assert all(after > before[number] for number, after in receivers.cpu_each_s().items())
                assert set(receivers.under_way) == {0}
        finally:
            await fetcher.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize("isolate", [False, True])
def test_pipelines_with_several_receivers(isolate: bool, tmp_path: Path) -> None:
    """In bad weather, in either order, left early: the same elements, and nothing is left."""
    names = [f"{number:02}.tfrecord" for number in range(6)]
    records = {name: [random.Random(name).randbytes(3000) for _ in range(200)] for name in names}
    rules = (
        Rule(fault=Fault(kind="status", status=503), rate=0.1, media_only=True),
        Rule(fault=Fault(kind="reset", after_fraction=(0.0, 1.0)), rate=0.1, media_only=True),
    )
    with assert_no_leaks(), FakeGCS(buckets=["bucket"], profile=Profile(rules=rules)) as server:
        for name in names:
            with ad.TFRecordWriter(str(tmp_path / name)) as writer:
                writer.write_many(records[name])
            server.put("bucket", name, (tmp_path / name).read_bytes())
        options = ad.Options(
            receivers=3,
            num_workers=0,
            chunk_bytes=64 << 10,
            isolate=isolate,
            retry=RetryOptions(max_attempts=20, initial_delay_s=0.002, max_delay_s=0.02),
            timeouts=TimeoutOptions(connect_s=20, first_byte_s=20, idle_s=20),
            storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
        )
        files = ad.Dataset.list_files("gs://bucket/*.tfrecord", shuffle=False)
        with ad.Runtime(options):
            for deterministic in (True, False):
                ds = files.interleave(ad.TFRecordDataset, 4, deterministic=deterministic)
                expected = [record for name in names for record in records[name]]
                receivers = 0
                while receivers < 3:  # they begin while it reads
                    with ds.iterator() as it:
                        assert sorted(it) == sorted(expected)
                        receivers = it.stats().fetch["receivers"]
                for taken in (0, 1, 300):
                    with ds.iterator() as it:
                        for _ in range(taken):
                            next(it)


def receiving() -> list[int]:
    """Receivers of this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().startswith("asyncdata-io"):
                    found.append(int(child))
    return found


@pytest.mark.sampled
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in procfs")
@pytest.mark.parametrize("deterministic", [True, False])
def test_receivers_that_are_killed_lose_no_read(deterministic: bool, tmp_path: Path) -> None:
    """Again and again while a pipeline runs: each element once, in order where there is one, and nothing is left."""
    records = [random.Random(number).randbytes(3000) for number in range(1200)]
    with assert_no_leaks(), FakeGCS(buckets=["bucket"], profile=Profile(stream_bytes_per_s=4e6)) as server:
        for number in range(6):
            path = tmp_path / f"{number}.tfrecord"
            with ad.TFRecordWriter(str(path)) as writer:
                writer.write_many(records[number::6])
            server.put("bucket", path.name, path.read_bytes())
        options = ad.Options(
            receivers=3,
            num_workers=0,
            chunk_bytes=64 << 10,
            isolate=False,
            retry=RetryOptions(max_attempts=20, initial_delay_s=0.002, max_delay_s=0.02),
            storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
        )
        files = ad.Dataset.list_files("gs://bucket/*.tfrecord", shuffle=False)
        ds = files.interleave(ad.TFRecordDataset, 6, deterministic=deterministic)
        with ad.Runtime(options):
            killed = 0
            while killed < samples(2, 3):
                found = []
                for record in ds:
                    found.append(record)
                    if len(found) % 200 == 100 and (pids := receiving()):
                        os.kill(pids[0], signal.SIGKILL)
                        killed += 1
                assert (found if deterministic else sorted(found)) == (records if deterministic else sorted(records))
