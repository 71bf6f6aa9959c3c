from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest

from asyncdata.errors import (
    AccessDeniedError,
    AsyncdataError,
    ObjectChangedError,
    ObjectNotFoundError,
    PipelineClosedError,
    TransientStorageError,
)
from asyncdata.options import Environment, HedgeOptions, Options, RetryOptions, TimeoutOptions
from asyncdata.storage import FailureCause, Fetcher, split_range
from asyncdata.storage.failures import ReadFailedError, read_failed
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS, Fault, Latency, Profile, Rule
from tests.patience import LIMIT_S, turns, until
from tests.samples import samples
from tests.storage.more_receivers import more_receivers
from tests.storage.raw_server import DATA as PLAIN
from tests.storage.raw_server import Peer, RawServer, Request, honest, ranged

pytestmark = pytest.mark.sampled

DATA = random.Random(11).randbytes(3_000_000)
URL = "gs://bucket/x"
QUICK = RetryOptions(max_attempts=8, initial_delay_s=0.002, max_delay_s=0.02)
# Where stalls are counted, or must not be seen, a machine that is busy with other things must not look like one.
PATIENT = TimeoutOptions(connect_s=20, first_byte_s=20, idle_s=20)
SHORT = TimeoutOptions(connect_s=20, first_byte_s=1.0, idle_s=1.0)
HASTY = TimeoutOptions(connect_s=20, first_byte_s=0.4, idle_s=0.4)


@asynccontextmanager
async def fetching(
    server: FakeGCS, *, retry: RetryOptions = QUICK, timeouts: TimeoutOptions = PATIENT, limit: int = 32
) -> AsyncIterator[Fetcher]:
    """A Fetcher whose emulator is the server."""
    options = Options(retry=retry, timeouts=timeouts, max_requests_in_flight=limit)
    async with more_receivers(PLACES.get()) as receivers:
        fetcher = Fetcher(options, Environment(storage_emulator_host=server.url), receivers=receivers)
        try:
            yield fetcher
        finally:
            await fetcher.aclose()


PLACES: ContextVar[int] = ContextVar("places", default=1)


@pytest.fixture(autouse=True, params=[1, 2])
def places(request: pytest.FixtureRequest) -> None:
    """In how many processes bodies are received."""
    PLACES.set(request.param)


async def read_all(fetcher: Fetcher, info: ObjectInfo, chunk: int = 400_000) -> bytes:
    """The whole object by several ranges at a time."""
    buffer = bytearray(info.size)
    view = memoryview(buffer)
    async with asyncio.TaskGroup() as group:
        for number, part in enumerate(split_range(0, info.size, chunk)):
            group.create_task(fetcher.read(info, part.start, view[part.start : part.stop], priority=number))
    return bytes(buffer)


FAULTS = {
    "503": Fault(kind="status", status=503),
    "429": Fault(kind="status", status=429, retry_after_s=0.01),
    "408": Fault(kind="status", status=408),
    "reset at once": Fault(kind="reset"),
    "reset in the body": Fault(kind="reset", after_fraction=(0.0, 1.0)),
    "early end": Fault(kind="truncate", after_fraction=(0.0, 1.0)),
    "stalled head": Fault(kind="stall"),
    "stalled body": Fault(kind="stall", after_fraction=(0.0, 1.0)),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_every_fault_alone_is_overcome(name: str) -> None:
    """Every second read fails once in one way; all bytes arrive, and the counters tell what happened."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, timeouts=SHORT if "stalled" in name else PATIENT) as fetcher:
            info = await fetcher.stat(URL)
            server.profile = Profile(rules=(Rule(fault=FAULTS[name], every=2, limit=4, media_only=True),))
            assert await read_all(fetcher, info) == DATA
            stats = fetcher.stats()
            assert sum(bool(entry.range) for entry in server.journal) == 8 + 4
            # A kept connection that is reset before its first byte is replaced at once, and is no failure.
            uncounted = 4 - stats.retries
            assert uncounted == 0 or (name == "reset at once" and 0 < uncounted <= 4)
            assert stats.retries == sum(stats.failures.values())
            assert stats.requests == 8 + stats.retries
            assert stats.bytes == len(DATA)
            assert stats.in_flight == stats.waiting == 0
            if "stalled" in name:
                assert set(stats.timeouts) <= {FailureCause.FIRST_BYTE_TIMEOUT, FailureCause.IDLE_TIMEOUT}
                assert sum(stats.timeouts.values()) == 4


@pytest.mark.parametrize("rate", [0.01, 0.2])
async def test_mixed_weather_delivers_every_byte(rate: float) -> None:
    """All faults together, seeded: the bytes are right, nothing hangs."""
    for seed in range(samples(2, 40)):
        rules = tuple(Rule(fault=fault, rate=rate / len(FAULTS), media_only=True) for fault in FAULTS.values())
        async with FakeGCS(buckets=["bucket"]) as server:
            server.put("bucket", "x", DATA)
            retry = RetryOptions(max_attempts=30, initial_delay_s=0.001, max_delay_s=0.01)
            async with fetching(server, retry=retry, timeouts=HASTY) as fetcher:
                info = await fetcher.stat(URL)
                server.profile = Profile(rules=rules, seed=seed)
                assert await asyncio.wait_for(read_all(fetcher, info, 50_000), LIMIT_S) == DATA, f"seed {seed}"


async def test_a_broken_body_resumes_at_its_last_good_byte() -> None:
    """No byte is asked for twice."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server) as fetcher:
            info = await fetcher.stat(URL)
            server.profile = Profile(
                rules=(Rule(fault=Fault(kind="truncate", after_bytes=100_000), limit=3, media_only=True),)
            )
            assert await read_all(fetcher, info, len(DATA)) == DATA
            ranges = [entry.range for entry in server.journal if entry.range]
            assert ranges == [f"bytes={start}-{len(DATA) - 1}" for start in (0, 100_000, 200_000, 300_000)]
            stats = fetcher.stats()
            assert (stats.requests, stats.retries, stats.resumes, stats.wasted_bytes) == (4, 3, 3, 0)
            assert stats.failures == {FailureCause.SHORT_BODY: 3}


async def test_an_opening_read_that_breaks_resumes_pinned() -> None:
    """What the first head said about the object holds for the rest, so two versions are never mixed."""
    async with FakeGCS(buckets=["bucket"]) as server:
        generation = server.put("bucket", "x", DATA)
        async with fetching(server) as fetcher:
            server.profile = Profile(
                rules=(Rule(fault=Fault(kind="reset", after_bytes=70_000), nth=(1,), media_only=True),)
            )
            buffer = bytearray(len(DATA) + 5)
            info, filled = await fetcher.open_read(URL, memoryview(buffer))
            assert info == ObjectInfo(url=URL, size=len(DATA), version=str(generation))
            assert filled == len(DATA)
            assert buffer[:filled] == DATA
            media = [entry for entry in server.journal if entry.range]
            assert "generation" not in media[0].target
            assert f"generation={generation}" in media[1].target
            assert fetcher.stats().wasted_bytes == 0


async def test_giving_up_names_place_and_attempts() -> None:
    """When all attempts failed, the last error says where and how often; it holds no header of the request."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, retry=RetryOptions(max_attempts=3, initial_delay_s=0.001)) as fetcher:
            info = await fetcher.stat(URL)
            server.profile = Profile(rules=(Rule(fault=Fault(kind="status", status=503), media_only=True),))
            with pytest.raises(TransientStorageError, match="503") as caught:
                await fetcher.read(info, 1000, memoryview(bytearray(10)))
            assert caught.value.place() == {"url": URL, "version": info.version, "offset": 1000, "attempts": 3}


async def test_an_error_has_no_url_but_its_own() -> None:
    """Which is shown without what is secret in it; what the answer's head said has it as it was given."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        server.profile = Profile(rules=(Rule(fault=Fault(kind="reset", after_bytes=70_000), media_only=True),))
        url = f"{server.url.replace('://', '://me:5ecre7@')}/bucket/x?key=5ecre7"
        async with fetching(server, retry=RetryOptions(max_attempts=1)) as fetcher:
            with pytest.raises(ReadFailedError) as caught:
                await fetcher.open_read(url, memoryview(bytearray(len(DATA))))
        assert "5ecre7" not in repr(vars(caught.value))
        assert b"5ecre7" not in pickle.dumps(caught.value)


async def test_no_try_starts_after_the_deadline() -> None:
    """A server that asks for a long pause is not waited for beyond the deadline."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, retry=RetryOptions(deadline_s=5.0)) as fetcher:
            info = await fetcher.stat(URL)
            busy = Fault(kind="status", status=429, retry_after_s=60)
            server.profile = Profile(rules=(Rule(fault=busy, media_only=True),))
            with pytest.raises(TransientStorageError) as caught:
                await fetcher.read(info, 0, memoryview(bytearray(10)))
            assert caught.value.attempts == 1
            assert caught.value.retry_after_s == 60


@pytest.mark.parametrize("hedged", [False, True])
async def test_the_deadline_ends_a_read_of_which_every_attempt_fails(hedged: bool) -> None:
    """However it fails, with or without progress and second attempts: no number of attempts is waited for."""

    async def ends(name: str) -> None:
        async def script(request: Request, peer: Peer) -> None:
            head, body = ranged(request, extra="x-goog-generation: 1\r\n")
            if name == "busy":
                await peer.send(b"HTTP/1.1 503 No\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")
            elif name != "silent":
                await peer.send(head + body[:100])
            if name == "inch":
                peer.close()
            elif name != "busy":
                await peer.stall()

        async with RawServer(script) as server:
            options = Options(
                retry=RetryOptions(max_attempts=10**6, initial_delay_s=0.01, max_delay_s=0.05, deadline_s=1.0),
                timeouts=TimeoutOptions(connect_s=20, first_byte_s=0.3, idle_s=0.3, floor_s=0.3),
                hedge=HedgeOptions(enabled=hedged, max_extra=1, least_delay_s=0.1, most_delay_s=0.1, probe_bytes=100),
            )
            fetcher = Fetcher(options, Environment(storage_emulator_host=server.url))
            known = ObjectInfo(url=URL, size=2 << 20, version="1")
            try:
                for ask in (
                    fetcher.read(known, 0, memoryview(bytearray(1 << 20))),
                    fetcher.open_read(URL, memoryview(bytearray(1 << 20))),
                ):
                    with pytest.raises(TransientStorageError) as caught:
                        await ask
                    assert caught.value.attempts is not None
            finally:
                await fetcher.aclose()

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(ends(name) for name in ("silent", "busy", "inch", "inch, then silent")))


async def test_a_replaced_object_is_never_mixed() -> None:
    """Replaced before, between or during the reads: the listed generation or ObjectChangedError with both names."""
    async with FakeGCS(buckets=["bucket"]) as server:
        old = server.put("bucket", "x", DATA)
        async with fetching(server) as fetcher:
            info = await fetcher.stat(URL)
            server.profile = Profile(rules=(Rule(fault=Fault(kind="replace"), nth=(1,), media_only=True),))
            buffer = bytearray(len(DATA))
            await fetcher.read(info, 0, memoryview(buffer)[:100_000])
            assert buffer[:100_000] == DATA[:100_000]
            with pytest.raises(ObjectChangedError, match=str(old)) as caught:
                await fetcher.read(info, 100_000, memoryview(buffer)[100_000:])
            now = await fetcher.stat(URL)
            assert now.version is not None
            assert now.version in str(caught.value)
            assert caught.value.attempts == 1
            server.delete("bucket", "x")
            with pytest.raises(ObjectChangedError, match="deleted"):
                await fetcher.read(now, 0, memoryview(buffer))
            with pytest.raises(ObjectNotFoundError):
                await fetcher.stat(URL)


@pytest.mark.parametrize("opening", [False, True])
async def test_the_limit_of_requests_holds_and_the_soonest_needed_goes_first(opening: bool) -> None:
    """Requests reach the server in order of priority, never more than the limit at a time; opening ones likewise."""
    async with FakeGCS(buckets=["bucket"], profile=Profile(latency=Latency(median_s=0.005))) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, limit=1) as fetcher:
            info = await fetcher.stat(URL)
            order: list[int | tuple[int, ...]] = [5, 3, (3, 0), 9, 1, (0, 7)]
            buffers = [bytearray(10) for _ in order]
            async with asyncio.TaskGroup() as group:
                for number, priority in enumerate(order):
                    buffer = memoryview(buffers[number])
                    if opening:
                        server.put("bucket", str(10 * number), DATA)
                        group.create_task(fetcher.open_read(f"gs://bucket/{10 * number}", buffer, priority=priority))
                    else:
                        group.create_task(fetcher.read(info, number * 10, buffer, priority=priority))
            places = [
                entry.object if opening else entry.range[6:].split("-")[0] for entry in server.journal if entry.range
            ]
            asked = [int(place) // 10 for place in places]
            assert asked == [0, 5, 4, 1, 2, 3]
            assert fetcher.stats().peak_in_flight == 1


async def test_listing_and_stat_are_retried() -> None:
    """Metadata are asked for again like bodies."""
    busy = Rule(fault=Fault(kind="status", status=503), every=2)
    async with FakeGCS(buckets=["bucket"]) as server:
        for name in "abc":
            server.put("bucket", name, b"1")
        server.profile = Profile(rules=(Rule(fault=Fault(kind="reset"), nth=(1,)), busy))
        async with fetching(server) as fetcher:
            for _ in range(3):
                assert [info.url for info in await fetcher.glob("gs://bucket/*")] == [
                    f"gs://bucket/{name}" for name in "abc"
                ]
                assert (await fetcher.stat("gs://bucket/b")).size == 1
            assert fetcher.stats().metadata_requests == 6 + fetcher.stats().retries
            assert fetcher.stats().retries >= 3
            assert sum(fetcher.stats().failures.values()) == fetcher.stats().retries


async def test_cancelled_reads_leave_nothing() -> None:
    """Cancelled at any moment, in flight, waiting or between attempts: slots come back, buffers are let go of."""
    draw = random.Random(2)
    rules = (Rule(fault=Fault(kind="status", status=503), rate=0.3, media_only=True),)
    async with FakeGCS(buckets=["bucket"], profile=Profile(rules=rules)) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, limit=4) as fetcher:
            info = await fetcher.stat(URL)
            for _ in range(samples(6, 60)):
                buffers = [bytearray(200_000) for _ in range(12)]
                tasks = [asyncio.create_task(fetcher.read(info, 0, memoryview(buffer))) for buffer in buffers]
                await turns(draw.randrange(400))
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for buffer in buffers:
                    buffer[:] = b"\xa5" * len(buffer)
                await turns(100)
                assert all(buffer.count(0xA5) == len(buffer) for buffer in buffers)
            stats = fetcher.stats()
            assert (stats.in_flight, stats.waiting) == (0, 0)
            assert await read_all(fetcher, info) == DATA


async def test_close_ends_reads_that_still_run() -> None:
    """In flight, waiting for a slot or for a connection: each raises, none hangs."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, limit=2) as fetcher:
            info = await fetcher.stat(URL)
            server.profile = Profile(rules=(Rule(fault=Fault(kind="stall"), media_only=True),))
            reads = [asyncio.create_task(fetcher.read(info, 0, memoryview(bytearray(10)))) for _ in range(6)]
            await asyncio.to_thread(
                server.journal.wait, lambda journal: sum(bool(entry.range) for entry in journal) == 2
            )
        outcomes = await asyncio.wait_for(asyncio.gather(*reads, return_exceptions=True), LIMIT_S)
        assert all(isinstance(outcome, AsyncdataError) for outcome in outcomes)


async def test_senseless_reads_are_refused_at_once() -> None:
    """Outside of the object, into a read-only buffer, after close."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server) as fetcher:
            info = await fetcher.stat(URL)
            for start, size in ((-1, 1), (len(DATA), 1), (0, len(DATA) + 1)):
                with pytest.raises(ValueError, match="outside"):
                    await fetcher.read(info, start, memoryview(bytearray(size)))
            with pytest.raises(ValueError, match="read-only"):
                await fetcher.read(info, 0, memoryview(b"123"))
            await fetcher.read(info, 0, memoryview(bytearray()))
            assert fetcher.stats().requests == 0
        with pytest.raises(PipelineClosedError):
            await fetcher.read(info, 0, memoryview(bytearray(1)))
        with pytest.raises(PipelineClosedError):
            await fetcher.stat(URL)


@pytest.mark.parametrize(
    ("status", "kind"), [(403, AccessDeniedError), (401, AccessDeniedError), (404, ObjectNotFoundError)]
)
async def test_what_another_try_would_not_mend_is_tried_once(status: int, kind: type[Exception]) -> None:
    """Fatal answers end a read at once."""

    async def refuse(request: Request, peer: Peer) -> None:
        await peer.send(f"HTTP/1.1 {status} No\r\nContent-Length: 2\r\n\r\nno".encode())

    async with RawServer(refuse) as server:
        fetcher = Fetcher(Options(retry=QUICK), Environment(storage_emulator_host=server.url))
        with pytest.raises(kind):
            await fetcher.read(ObjectInfo(url=URL, size=10), 0, memoryview(bytearray(10)))
        with pytest.raises(kind):
            await fetcher.stat(URL)
        assert len(server.requests) == 2
        await fetcher.aclose()


async def test_a_server_that_dies_and_comes_back_is_waited_for() -> None:
    """Refused connections are retried until somebody listens again."""
    async with RawServer(honest) as server:
        port = server.port
    fetcher = Fetcher(
        Options(retry=RetryOptions(max_attempts=100, initial_delay_s=0.01, max_delay_s=0.02)),
        Environment(storage_emulator_host=f"127.0.0.1:{port}"),
    )
    buffer = bytearray(1000)
    read = asyncio.create_task(fetcher.read(ObjectInfo(url=URL, size=-1), 0, memoryview(buffer)))
    await until(lambda: bool(fetcher.stats().failures))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        text = (await reader.readuntil(b"\r\n\r\n")).decode()
        head, body = ranged(Request(text))
        writer.write(head + body)
        await writer.drain()
        writer.close()

    back = await asyncio.start_server(answer, "127.0.0.1", port)
    await asyncio.wait_for(read, LIMIT_S)
    assert buffer == bytes(range(256)) * 3 + bytes(range(232))
    assert set(fetcher.stats().failures) == {FailureCause.CONNECT}
    await fetcher.aclose()
    back.close()
    await back.wait_closed()


async def test_one_fetcher_serves_every_scheme() -> None:
    """Readers are opened when first needed, one per scheme, and closed together."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server) as fetcher:
            for url in (URL, __file__, f"file://{__file__}"):
                info = await fetcher.stat(url)
                await fetcher.read(info, 0, memoryview(bytearray(10)))
            assert await fetcher.glob("memory://nothing/*") == []
            assert repr(fetcher).count("Reader") == 3


async def test_a_body_that_drips_is_given_up_and_resumed() -> None:
    """It never falls silent, but comes too slowly: what came is kept, the rest comes over another connection."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        drip = Fault(kind="drip", after_bytes=100_000, bytes_per_s=500)
        timeouts = TimeoutOptions(connect_s=20, first_byte_s=20, idle_s=0.6, least_bytes_per_s=5000)
        async with fetching(server, timeouts=timeouts) as fetcher:
            info = await fetcher.stat(URL)
            server.profile = Profile(rules=(Rule(fault=drip, nth=(1,), media_only=True),))
            assert await asyncio.wait_for(read_all(fetcher, info, len(DATA)), LIMIT_S) == DATA
            stats = fetcher.stats()
            assert stats.failures == {FailureCause.SLOW: 1}
            assert (stats.requests, stats.resumes, stats.wasted_bytes) == (2, 1, 0)


async def test_what_an_attempt_left_survives_the_way_to_another_process() -> None:
    """The server's wish to be left alone, and how far the bytes are good, are pickled with the error."""
    error = read_failed("busy", FailureCause.THROTTLED, filled=7, retry_after_s=3.5, url=URL, offset=10)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.cause, copy.filled, copy.retry_after_s, copy.place()) == (
        FailureCause.THROTTLED,
        7,
        3.5,
        {"url": URL, "offset": 17},
    )


async def test_requests_on_connections_that_the_server_had_closed_are_counted_apart() -> None:
    """It hangs up instead of a second answer: the request is sent again at once, which is no failure and no retry."""

    async def once(request: Request, peer: Peer) -> None:
        if peer.requests > 1:
            peer.close()
        else:
            await honest(request, peer)

    async with RawServer(once) as server:
        fetcher = Fetcher(Options(), Environment())
        info, buffer = ObjectInfo(url=f"{server.url}/o", size=len(PLAIN)), bytearray(1000)
        for number in range(3):
            await fetcher.read(info, number, memoryview(buffer))
            assert buffer == PLAIN[number : number + 1000]
        stats = fetcher.stats()
        assert (stats.resends, stats.requests, stats.retries, dict(stats.failures)) == (2, 3, 0, {})
        await fetcher.aclose()
