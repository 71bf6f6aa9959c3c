"""aiohttp's path is watched as the range client's is: limits, second attempts, resumes, all through a real proxy."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from asyncdata.errors import AccessDeniedError, ObjectNotFoundError, TransientStorageError
from asyncdata.options import Environment, HedgeOptions, Options, RetryOptions, TimeoutOptions
from asyncdata.storage import FailureCause, Fetcher
from asyncdata.storage.aiohttp_bodies import LenientWire, client_failure
from asyncdata.storage.attempt import Attempt, ReadLimits
from asyncdata.storage.failures import TIMEOUT_CAUSES, read_failed
from asyncdata.testing import run_virtual
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.patience import LIMIT_S
from tests.storage.forwarding_proxy import ForwardingProxy
from tests.storage.raw_server import DATA as PLAIN
from tests.storage.raw_server import Peer, RawServer, Request

pytestmark = pytest.mark.sampled

SIZE = 200_000
DATA = random.Random(11).randbytes(100 * SIZE)
URL = "gs://bucket/x"
EAGER = HedgeOptions(max_extra=1.0, least_delay_s=0.1, most_delay_s=0.2, probe_bytes=64 << 10)
PATIENT = TimeoutOptions(connect_s=600, first_byte_s=600, idle_s=600, floor_s=600)
STALLS = [Fault(kind="stall"), Fault(kind="stall", after_bytes=50_000)]


@asynccontextmanager
async def proxied(
    timeouts: TimeoutOptions = PATIENT, hedge: HedgeOptions = EAGER, reads: int = 20
) -> AsyncIterator[tuple[FakeGCS, Fetcher, ObjectInfo]]:
    """A server behind a proxy, and a Fetcher that has read a little."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with ForwardingProxy({"storage.test": server.port}) as proxy:
            gs = {"endpoint_url": "http://storage.test", "token": "anon", "proxy": proxy.url}
            retry = RetryOptions(initial_delay_s=0.001)
            options = Options(storage={"gs": gs}, retry=retry, timeouts=timeouts, hedge=hedge)
            fetcher = Fetcher(options, Environment())
            try:
                info = await fetcher.stat(URL)
                await read(fetcher, info, 0, reads)
                yield server, fetcher, info
            finally:
                await fetcher.aclose()


async def read(fetcher: Fetcher, info: ObjectInfo, first: int, last: int) -> None:
    """Ranges of the object, many at a time, and compares them."""
    buffer = bytearray((last - first) * SIZE)
    view = memoryview(buffer)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for number in range(first, last):
            at = (number - first) * SIZE
            group.create_task(fetcher.read(info, number * SIZE, view[at : at + SIZE], priority=number))
    assert buffer == DATA[first * SIZE : last * SIZE]


@pytest.mark.parametrize("fault", STALLS, ids=["head", "body"])
async def test_a_silent_read_is_overtaken(fault: Fault) -> None:
    """A second attempt goes the same way; nothing but it could have ended the stalls."""
    async with proxied() as (server, fetcher, info):
        server.profile = Profile(rules=(Rule(fault=fault, every=9, limit=3, media_only=True),))
        await read(fetcher, info, 20, 60)
        stats = fetcher.stats()
        # One of the three may strike a second attempt, which is then replaced.
        assert stats.hedges_won >= 1
        assert set(stats.failures) == {FailureCause.OVERTAKEN}
        assert stats.bytes == 60 * SIZE
        assert stats.fallbacks["proxy"] == stats.requests


async def test_a_read_that_opens_an_object_is_overtaken() -> None:
    """Before its head and behind it."""
    async with proxied() as (server, fetcher, _):
        for fault in STALLS:
            server.profile = Profile(rules=(Rule(fault=fault, nth=(1,), media_only=True),))
            buffer = bytearray(SIZE)
            async with asyncio.timeout(LIMIT_S):
                info, filled = await fetcher.open_read(URL, memoryview(buffer))
            assert (info.size, filled) == (len(DATA), SIZE)
            assert buffer == DATA[:SIZE]
        assert fetcher.stats().hedges_won >= 2


@pytest.mark.parametrize(
    ("fault", "timeouts", "cause"),
    [
        (STALLS[0], TimeoutOptions(first_byte_s=0.3, idle_s=600, floor_s=0.3), FailureCause.FIRST_BYTE_TIMEOUT),
        (STALLS[1], TimeoutOptions(first_byte_s=600, idle_s=0.3, floor_s=0.3), FailureCause.IDLE_TIMEOUT),
        (
            Fault(kind="drip", after_bytes=50_000, bytes_per_s=500),
            TimeoutOptions(first_byte_s=600, idle_s=0.5, floor_s=0.5, least_bytes_per_s=4000),
            FailureCause.SLOW,
        ),
    ],
    ids=["head", "body", "drip"],
)
async def test_each_limit_of_time_holds(fault: Fault, timeouts: TimeoutOptions, cause: FailureCause) -> None:
    """First byte, idle and pace are limits of their own; what came is kept, and only the rest is asked for again."""
    async with proxied(timeouts, HedgeOptions(enabled=False), reads=0) as (server, fetcher, info):
        server.profile = Profile(rules=(Rule(fault=fault, nth=(1,), media_only=True),))
        await read(fetcher, info, 0, 1)
        stats = fetcher.stats()
        assert stats.failures[cause] >= 1
        assert set(stats.failures) <= set(TIMEOUT_CAUSES)
        assert stats.bytes == SIZE
        assert cause is FailureCause.FIRST_BYTE_TIMEOUT or stats.resumes >= 1


async def test_a_flood_of_interim_heads_ends_by_the_limit_of_first_bytes() -> None:
    """However fast they come: none of them is an answer."""

    async def flooding(request: Request, peer: Peer) -> None:
        while "far.test" in request.target:
            await peer.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)

    async with RawServer(flooding) as server:
        limits = TimeoutOptions(first_byte_s=0.3, idle_s=30, floor_s=0.3)
        hedge, retry = HedgeOptions(enabled=False), RetryOptions(max_attempts=1)
        storage = {"http": {"proxy": server.url}}
        fetcher = Fetcher(Options(timeouts=limits, hedge=hedge, retry=retry, storage=storage), Environment())
        info = ObjectInfo(url="http://far.test/o", size=len(PLAIN))
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(TransientStorageError):
                await fetcher.read(info, 0, memoryview(bytearray(100)))
        assert set(fetcher.stats().timeouts) == {FailureCause.FIRST_BYTE_TIMEOUT}
        await fetcher.aclose()


async def test_limits_are_learned_from_it() -> None:
    """First-byte times are told: a limit that is far longer at the beginning ends a stall soon."""
    timeouts = TimeoutOptions(first_byte_s=600, idle_s=600, floor_s=0.3)
    async with proxied(timeouts, HedgeOptions(enabled=False), reads=60) as (server, fetcher, info):
        server.profile = Profile(rules=(Rule(fault=STALLS[0], nth=(1,), media_only=True),))
        await read(fetcher, info, 60, 61)
        assert fetcher.stats().timeouts[FailureCause.FIRST_BYTE_TIMEOUT] >= 1


async def test_skipping_to_the_range_is_not_silence() -> None:
    """A server without ranges sends what nobody wants first: neither a limit nor a second attempt ends that."""

    async def whole(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PLAIN))
        for at in range(0, len(PLAIN), 1 << 18):
            await peer.send(PLAIN[at : at + (1 << 18)])
            await peer.pause(0.1)

    async with RawServer(whole) as server:
        limits = TimeoutOptions(first_byte_s=60, idle_s=60, floor_s=60)
        hedge = HedgeOptions(max_extra=1.0, least_delay_s=0.05, most_delay_s=0.05)
        fetcher = Fetcher(Options(timeouts=limits, hedge=hedge), Environment())
        try:
            buffer = bytearray(1000)
            info = ObjectInfo(url=f"{server.url}/o", size=len(PLAIN))
            await fetcher.read(info, len(PLAIN) - 1000, memoryview(buffer))
            assert buffer == PLAIN[-1000:]
            stats = fetcher.stats()
            assert (stats.hedges, dict(stats.failures)) == (0, {})
            assert stats.fallbacks == {"range_ignored": 1}
        finally:
            await fetcher.aclose()


@pytest.mark.parametrize("status", ["404 Not Found", "403 Forbidden"])
async def test_an_error_whose_text_breaks_off_stays_that_error(status: str) -> None:
    """Of a request for metadata, and of a body through a proxy: one attempt, and the status decides."""

    async def failing(request: Request, peer: Peer) -> None:
        await peer.send(f"HTTP/1.1 {status}\r\nContent-Length: 50\r\n\r\nhalf".encode())
        peer.close()

    kind = ObjectNotFoundError if status.startswith("404") else AccessDeniedError
    async with RawServer(failing) as server:
        gs = {"endpoint_url": server.url, "token": "anon"}
        fetcher = Fetcher(Options(storage={"gs": gs, "http": {"proxy": server.url}}), Environment())
        with pytest.raises(kind):
            await fetcher.stat(URL)
        with pytest.raises(kind):
            await fetcher.read(ObjectInfo(url="http://far.test/o", size=100), 0, memoryview(bytearray(100)))
        assert len(server.requests) == 2
        await fetcher.aclose()


@pytest.mark.parametrize("stalls_after", [None, 0, 4 << 20])
def test_sending_is_not_silence(stalls_after: int | None) -> None:
    """A write takes many times the limit, most of it in the kernel; what neither leaves nor is answered still ends."""
    data = bytes(12 << 20)

    async def slow(request: Request, peer: Peer) -> None:
        # What lies in the server's own kernel has left.
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 << 10)
        left = int(request.header("content-length") or 0)
        while left:
            if stalls_after is not None and len(data) - left >= stalls_after:
                await peer.stall()
            left -= len(await peer.reader.readexactly(min(left, 256 << 10)))
            await peer.pause(0.2)
        answer = b'{"size": "%d", "generation": "7"}' % len(data)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))

    async def scenario() -> None:
        async with RawServer(slow) as server:
            limits = TimeoutOptions(first_byte_s=1, idle_s=1, floor_s=1)
            storage = {"gs": {"endpoint_url": server.url, "token": "anon"}}
            fetcher = Fetcher(
                Options(timeouts=limits, storage=storage, retry=RetryOptions(max_attempts=1)), Environment()
            )
            try:
                await fetcher.write(URL, data)
            finally:
                assert dict(fetcher.stats().timeouts) == (
                    {} if stalls_after is None else {FailureCause.FIRST_BYTE_TIMEOUT: 1}
                )
                await fetcher.aclose()

    if stalls_after is None:
        run_virtual(scenario())
    else:
        with pytest.raises(TransientStorageError, match="no response within 1 s"):
            run_virtual(scenario())


async def test_a_wire_that_is_ended_twice_tells_the_first_error() -> None:
    """And the task is not left cancelled."""
    limits = ReadLimits(connect_s=1, first_byte_s=1, idle_s=1)
    wire = LenientWire(Attempt(), limits, lambda _: None)

    async def ended() -> None:
        with wire:
            wire.begin(None)
            wire.filled = 7
            asyncio.get_running_loop().call_soon(wire.fail, read_failed("first", FailureCause.OVERTAKEN))
            asyncio.get_running_loop().call_soon(wire.fail, read_failed("second", FailureCause.SLOW))
            await asyncio.Event().wait()

    with pytest.raises(TransientStorageError, match="first") as caught:
        await ended()
    assert getattr(caught.value, "filled", None) == 7
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    wire.fail(read_failed("too late", FailureCause.SLOW))
    await asyncio.sleep(0)


async def test_a_cancellation_from_elsewhere_goes_on() -> None:
    """Also when the attempt was ended at the same moment."""
    wire = LenientWire(Attempt(), ReadLimits(connect_s=1, first_byte_s=1, idle_s=1), lambda _: None)

    async def ended() -> None:
        with wire:
            await asyncio.Event().wait()

    task = asyncio.create_task(ended())
    await asyncio.sleep(0)
    task.cancel()
    wire.fail(read_failed("at the same time", FailureCause.OVERTAKEN))
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_refused_connection_says_where_and_why() -> None:
    """As the range client's own connections do."""
    key = ConnectionKey("127.0.0.1", 9, False, True, None, None, None)
    error = client_failure(aiohttp.ClientConnectorError(key, ConnectionRefusedError(111, "Connection refused")))
    assert str(error).startswith("cannot connect to 127.0.0.1:9: Connection refused")
