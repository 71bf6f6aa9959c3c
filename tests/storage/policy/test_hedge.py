from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.arena import GRANULE
from asyncdata.options import Environment, HedgeOptions, Options, RetryOptions, TimeoutOptions
from asyncdata.storage import Fetcher
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.counters import FetchCounters
from asyncdata.storage.policy.hedge import HedgeBudget, HedgeMemory, Hedger, Racing, hedge_bytes
from asyncdata.testing import VirtualClockLoop, run_virtual
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.patience import LIMIT_S, until, virtual_time
from tests.storage.raw_server import DATA as PLAIN
from tests.storage.raw_server import Peer, RawServer, Request, ranged

pytestmark = pytest.mark.sampled

SIZE = 300_000
DATA = random.Random(3).randbytes(200 * SIZE)
URL = "gs://bucket/x"
# Nothing but hedging may mend a stall within the time of a test.
PATIENT = TimeoutOptions(connect_s=600, first_byte_s=600, idle_s=600, floor_s=600)
EAGER = HedgeOptions(least_delay_s=0.1, most_delay_s=0.2, probe_bytes=64 << 10)


@given(
    max_extra=st.floats(0, 0.2),
    costs=st.lists(st.tuples(st.integers(0, 30), st.sampled_from([1, 2])), max_size=60),
)
def test_hedging_adds_no_more_requests_than_allowed(max_extra: float, costs: list[tuple[int, int]]) -> None:
    """At every moment what was spent is at most the allowed part of the requests that were needed anyway."""
    budget = HedgeBudget(HedgeOptions(max_extra=max_extra, max_at_once=1))
    requests = spent = 0
    for more, cost in costs:
        requests += more
        assert not budget.spend(requests, cost, 1)
        if budget.spend(requests, cost, 0):
            spent += cost
            requests += cost
        assert spent <= max_extra * (requests - spent)


@given(
    limit_bytes=st.integers(0, 1 << 21),
    steps=st.lists(st.tuples(st.integers(1, 1 << 20), st.booleans()), max_size=60),
)
def test_second_attempts_hold_no_more_than_their_share(limit_bytes: int, steps: list[tuple[int, bool]]) -> None:
    """At every moment; each gets what it wants, or enough to be worth a request, or nothing."""
    memory = HedgeMemory(limit_bytes)
    held: list[int] = []
    for wanted, gives in steps:
        if gives and held:
            memory.give(held.pop())
        fitting = memory.fits(wanted)
        assert fitting in (0, wanted) or 16 << 10 <= fitting < wanted
        assert fitting or sum(held) + min(wanted, 16 << 10) > limit_bytes
        if fitting:
            memory.take(fitting)
            held.append(fitting)
        assert memory.used_bytes == sum(held) <= memory.peak_bytes <= limit_bytes


def test_of_twenty_requests_one_may_be_a_second_attempt() -> None:
    """Unless other options say so: a hedge of two requests has to wait for forty."""
    budget = HedgeBudget(HedgeOptions())
    assert [budget.spend(requests, 1, 0) for requests in (19, 20, 40, 41)] == [False, True, False, True]
    assert [budget.spend(requests, 2, 0) for requests in (81, 82)] == [False, True]


@given(limit_bytes=st.integers(1 << 20, 1 << 40), at_once=st.integers(1, 100), probe=st.integers(1, 1 << 24))
def test_their_share_is_small(limit_bytes: int, at_once: int, probe: int) -> None:
    """At most 1/32 of the memory limit, and hardly more than all of them can use; nothing where there are none."""
    hedge = HedgeOptions(max_at_once=at_once, probe_bytes=probe)
    share = hedge_bytes(Options(memory_limit_bytes=limit_bytes, hedge=hedge))
    assert share <= limit_bytes // 32
    assert share < at_once * probe + GRANULE
    assert hedge_bytes(Options(memory_limit_bytes=limit_bytes, hedge=HedgeOptions(enabled=False))) == 0


async def test_without_memory_there_is_no_second_attempt() -> None:
    """It does not wait for memory; when that of others is given back, it is made, with the bytes that fit."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        hedge = dataclasses.replace(EAGER, max_extra=1.0, probe_bytes=64 << 10)
        async with fetching(server, hedge, hedge_memory=100 << 10) as (fetcher, info):
            # The first attempts of three reads, and the second ones of two of these.
            server.profile = Profile(rules=(Rule(fault=Fault(kind="stall"), limit=5, media_only=True),))
            reading = asyncio.create_task(read_all(fetcher, info, 60, 63))
            assert await asyncio.wait_for(reading, LIMIT_S) == DATA[60 * SIZE : 63 * SIZE]
            stats = fetcher.stats()
            assert stats.hedges >= 5
            assert stats.peak_hedges_in_flight == 2
            assert stats.peak_hedge_bytes == 100 << 10
            await until(lambda: fetcher.stats().hedge_bytes == 0)


class Line:
    """A wire that shows what it is told to."""

    def __init__(self, *, waiting: bool = False) -> None:
        self.filled = self.nudges = 0
        self.waiting = waiting

    def has_input(self) -> bool:
        """Whether something waits in the kernel."""
        return self.waiting

    def nudge(self) -> None:
        """Too little to wake anybody."""
        self.nudges += 1

    def fail(self, error: Exception) -> None:
        """Not used."""


def test_silence_is_counted_from_the_last_sign_of_life() -> None:
    """From the request on, then from the head, then from the last byte; without a wire there is none."""

    async def again(offset: int, buffer: memoryview, attempt: Attempt) -> ObjectInfo | None:
        raise AssertionError

    racing = Racing(None, 100, again, 0.0, 1.0)
    assert not racing.is_silent(50.0)
    line = Line()
    racing.wire, racing.asked_at = line, 50.0
    assert not racing.is_silent(50.9)
    assert racing.is_silent(51.0)
    racing.first_byte_at = 51.2
    assert not racing.is_silent(51.3)
    line.filled = 10
    assert not racing.is_silent(52.2)
    assert not racing.is_silent(53.1)
    assert racing.is_silent(53.2)


class Silent:
    """A read that falls silent at once, and its Hedger; on a loop whose time is virtual."""

    def __init__(
        self, line: Line, after_s: Callable[[int], float] = lambda _size: 0.3, *, has_room: bool = False
    ) -> None:
        async def again(offset: int, buffer: memoryview, attempt: Attempt) -> ObjectInfo | None:
            return None

        self._counters = FetchCounters()
        self._counters.began()
        options = HedgeOptions(max_extra=1.0)
        self._hedger = Hedger(options, HedgeMemory(1 << 20), self._counters, after_s, lambda: has_room)
        racing = Racing(None, 100, again, 0.0, 0.3)
        racing.wire, racing.asked_at = line, 0.0
        self._hedger.watch(racing)

    @property
    def hedges(self) -> int:
        """Second attempts so far."""
        return self._counters.snapshot(waiting=0, limit=1).hedges

    async def aclose(self) -> None:
        """Ends them."""
        await self._hedger.aclose()


def test_what_waits_in_the_kernel_is_looked_at_before_a_second_attempt() -> None:
    """It is delivered, however long the silence; when nothing waits any more, the server is silent."""

    async def scenario() -> None:
        line = Line(waiting=True)
        silent = Silent(line)
        await virtual_time(1)
        assert (silent.hedges, line.nudges > 0) == (0, True)
        line.waiting = False
        await virtual_time(0.5)
        assert silent.hedges == 1
        await silent.aclose()

    run_virtual(scenario())


def test_a_silent_read_hears_what_others_have_told_since_it_began() -> None:
    """One that began when nothing was known need not wait for as long as that would take."""

    async def scenario() -> None:
        known = 2.0
        silent = Silent(Line(), lambda _size: known)
        await virtual_time(0.5)
        assert silent.hedges == 0
        known = 0.3
        await virtual_time(0.1)
        assert silent.hedges == 1
        await silent.aclose()

    run_virtual(scenario())


def test_a_second_attempt_that_takes_nobodys_place_comes_sooner() -> None:
    """After half of the time, of the least one as well, where fewer requests are in flight than may be."""

    async def scenario(after_s: float, has_room: bool) -> float:
        loop = asyncio.get_running_loop()
        silent = Silent(Line(), lambda _size: after_s, has_room=has_room)
        await until(lambda: silent.hedges == 1)
        await silent.aclose()
        return loop.time()

    for after_s, has_room, expected_s in ((0.9, False, 0.9), (0.9, True, 0.45), (0.15, False, 0.2), (0.15, True, 0.1)):
        assert run_virtual(scenario(after_s, has_room)) == pytest.approx(expected_s, abs=0.06)


def test_a_process_that_was_late_itself_waits_for_the_next_look() -> None:
    """What it did not look at in time may have arrived meanwhile."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        silent = Silent(Line())
        await virtual_time(0.06)
        loop._now_s += 1  # somebody keeps the loop for a second
        await virtual_time(0.01)
        assert silent.hedges == 0
        await virtual_time(0.1)
        assert silent.hedges == 1
        await silent.aclose()

    run_virtual(scenario())


@asynccontextmanager
async def fetching(
    server: FakeGCS, hedge: HedgeOptions, limit: int = 16, hedge_memory: int | None = None
) -> AsyncIterator[tuple[Fetcher, ObjectInfo]]:
    """A Fetcher that has read enough to afford second attempts, and what it reads."""
    options = Options(
        retry=RetryOptions(initial_delay_s=0.001), timeouts=PATIENT, hedge=hedge, max_requests_in_flight=limit
    )
    fetcher = Fetcher(options, Environment(storage_emulator_host=server.url), hedge_memory=hedge_memory)
    try:
        info = await fetcher.stat(URL)
        assert await read_all(fetcher, info, 0, 60) == DATA[: 60 * SIZE]
        yield fetcher, info
    finally:
        await fetcher.aclose()


async def read_all(fetcher: Fetcher, info: ObjectInfo, first: int, last: int) -> bytes:
    """Ranges of the object, many at a time."""
    buffer = bytearray((last - first) * SIZE)
    view = memoryview(buffer)
    async with asyncio.TaskGroup() as group:
        for number in range(first, last):
            at = (number - first) * SIZE
            group.create_task(fetcher.read(info, number * SIZE, view[at : at + SIZE], priority=number))
    return bytes(buffer)


@pytest.mark.parametrize("fault", [Fault(kind="stall"), Fault(kind="stall", after_fraction=(0.0, 1.0))], ids=str)
async def test_stalled_reads_are_overtaken(fault: Fault) -> None:
    """Stalls that would last for ever cost a fraction of a second; every byte is right, and is counted once."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, EAGER) as (fetcher, info):
            before = fetcher.stats()
            server.profile = Profile(rules=(Rule(fault=fault, every=47, limit=3, media_only=True),))
            assert await asyncio.wait_for(read_all(fetcher, info, 60, 200), LIMIT_S) == DATA[60 * SIZE :]
            stats = fetcher.stats()
            assert stats.hedges_won >= 1
            assert stats.hedges <= 0.05 * stats.requests
            assert stats.bytes - before.bytes == 140 * SIZE
            assert stats.in_flight == stats.hedges_in_flight == 0
            assert not stats.timeouts


@pytest.mark.parametrize(("limit", "requests"), [(1, 3), (16, 2)])
async def test_where_places_are_free_one_request_brings_all_that_is_missing(limit: int, requests: int) -> None:
    """Else the second attempt asks for a part, and a third request for the rest."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, EAGER, limit=limit) as (fetcher, info):
            before = fetcher.stats()
            server.profile = Profile(rules=(Rule(fault=Fault(kind="stall"), nth=(1,), media_only=True),))
            assert await asyncio.wait_for(read_all(fetcher, info, 60, 61), LIMIT_S) == DATA[60 * SIZE : 61 * SIZE]
            stats = fetcher.stats()
            # A second attempt that a busy machine delays is replaced by another one.
            more = stats.hedges - before.hedges - 1
            assert more >= 0
            assert (stats.hedges_won - before.hedges_won, stats.requests - before.requests - more) == (1, requests)


async def test_without_hedging_time_limits_do_it() -> None:
    """Switched off, no second attempt is made, and the limits of time end the stall."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA[:SIZE])
        options = Options(
            retry=RetryOptions(initial_delay_s=0.001),
            timeouts=TimeoutOptions(first_byte_s=0.5, idle_s=0.5, floor_s=0.5),
            hedge=HedgeOptions(enabled=False),
        )
        fetcher = Fetcher(options, Environment(storage_emulator_host=server.url))
        try:
            info = await fetcher.stat(URL)
            server.profile = Profile(rules=(Rule(fault=Fault(kind="stall"), nth=(1,), media_only=True),))
            assert await read_all(fetcher, info, 0, 1) == DATA[:SIZE]
            stats = fetcher.stats()
            assert stats.hedges == 0
            assert sum(stats.timeouts.values()) == 1
        finally:
            await fetcher.aclose()


async def test_a_stalled_opening_read_is_overtaken() -> None:
    """An unknown object smaller than a second attempt asks for: nothing beyond its end is touched."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        generation = server.put("bucket", "small", DATA[:1000])
        async with fetching(server, EAGER) as (fetcher, _):
            server.profile = Profile(rules=(Rule(fault=Fault(kind="stall"), nth=(1,), media_only=True),))
            buffer = bytearray(b"\xa5" * 5000)
            info, filled = await asyncio.wait_for(fetcher.open_read("gs://bucket/small", memoryview(buffer)), LIMIT_S)
            assert info == ObjectInfo(url="gs://bucket/small", size=1000, version=str(generation))
            assert filled == 1000
            assert buffer == DATA[:1000] + b"\xa5" * 4000
            assert fetcher.stats().hedges_won == 1


@pytest.mark.parametrize("name", ["x", "small"])
async def test_an_opening_read_that_stalls_behind_its_head_is_overtaken(name: str) -> None:
    """What follows is asked for by offset and version; an object smaller than what was asked for ends where it ends."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        server.put("bucket", "small", DATA[:50_000])
        async with fetching(server, EAGER) as (fetcher, _):
            fault = Fault(kind="stall", after_bytes=20_000)
            server.profile = Profile(rules=(Rule(fault=fault, nth=(1,), media_only=True),))
            buffer = bytearray(b"\xa5" * SIZE)
            info, filled = await asyncio.wait_for(fetcher.open_read(f"gs://bucket/{name}", memoryview(buffer)), LIMIT_S)
            assert filled == min(info.size, SIZE)
            assert buffer[:filled] == DATA[:filled]
            assert buffer[filled:] == b"\xa5" * (SIZE - filled)
            stats = fetcher.stats()
            assert (stats.hedges, stats.hedges_won) == (1, 1)
            assert stats.hedge_bytes == 0


@pytest.mark.parametrize("size", ["*", "200"])
async def test_an_object_is_opened_by_one_answer(size: str) -> None:
    """The first one stalls after all when the second is asked for: they may be of two versions, and are not mixed."""
    asked_again, go_on = asyncio.Event(), asyncio.Event()
    head = "HTTP/1.1 206 Partial Content\r\nContent-Length: 100\r\n"

    async def answer(request: Request, peer: Peer) -> None:
        if len(server.requests) == 1:
            await asked_again.wait()
            await peer.send((head + f"Content-Range: bytes 0-99/{size}\r\n\r\n" + "A" * 10).encode())
            await peer.stall()
        else:
            asked_again.set()
            await go_on.wait()
            await peer.send((head + "Content-Range: bytes 0-99/100\r\n\r\n" + "B" * 100).encode())

    async with RawServer(answer) as server:
        fetcher = Fetcher(Options(timeouts=PATIENT, hedge=dataclasses.replace(EAGER, max_extra=1.0)), Environment())
        try:
            buffer = bytearray(100)
            reading = asyncio.create_task(fetcher.open_read(f"{server.url}/o", memoryview(buffer)))
            running = fetcher._attempts._hedger.running
            await until(lambda: [racing.wire and racing.wire.filled for racing in running] == [10])
            go_on.set()
            info, filled = await asyncio.wait_for(reading, LIMIT_S)
            assert (info.size, filled, bytes(buffer)) == (100, 100, b"B" * 100)
            stats = fetcher.stats()
            assert (stats.hedges_won, stats.bytes, stats.wasted_bytes) == (1, 100, 10)
        finally:
            await fetcher.aclose()


async def test_a_cancelled_read_ends_its_second_attempt() -> None:
    """Nothing is left running, and nothing writes into the buffer any more."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, EAGER) as (fetcher, info):
            server.profile = Profile(rules=(Rule(fault=Fault(kind="stall"), media_only=True),))
            buffer = bytearray(SIZE)
            task = asyncio.create_task(fetcher.read(info, 0, memoryview(buffer)))
            await until(lambda: fetcher.stats().hedges_in_flight == 1)
            assert fetcher.stats().in_flight == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert fetcher.stats().in_flight == 0
            await until(lambda: fetcher.stats().hedges_in_flight == 0)
            assert fetcher.stats().hedges == 1
            assert fetcher.stats().hedges_won == 0
            assert not any(buffer)


async def test_second_attempts_run_beside_the_limit_and_are_counted_apart() -> None:
    """A read that is hedged keeps its one place; so the limit bounds reads, and ``max_at_once`` second attempts."""
    # Late ones, so that a busy machine sees two that stall before others take their places.
    hedge = dataclasses.replace(EAGER, least_delay_s=0.5, most_delay_s=0.5, max_extra=1.0, max_at_once=2)
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        async with fetching(server, hedge, limit=4) as (fetcher, info):
            # The first attempts of four reads and two of their second attempts stall.
            server.profile = Profile(rules=(Rule(fault=Fault(kind="stall"), limit=6, media_only=True),))
            reading = asyncio.create_task(read_all(fetcher, info, 60, 72))
            await until(lambda: fetcher.stats().hedges_in_flight == 2)
            now = fetcher.stats()
            assert (now.in_flight, now.waiting) == (4, 8)
            assert await asyncio.wait_for(reading, LIMIT_S) == DATA[60 * SIZE : 72 * SIZE]
            stats = fetcher.stats()
            assert (stats.peak_in_flight, stats.limit) == (4, 4)
            assert stats.peak_hedges_in_flight == 2
            assert (stats.in_flight, stats.waiting) == (0, 0)
            await until(lambda: fetcher.stats().hedges_in_flight == 0)


async def test_what_a_second_attempt_brought_in_vain_is_counted() -> None:
    """The first one goes on after all, and is done while the other lacks a byte."""
    go_on = asyncio.Event()

    async def answer(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        if len(server.requests) == 1:
            await peer.send(head + body[:1000])
            await go_on.wait()
            await peer.send(body[1000:])
        else:
            await peer.send(head + body[:-1])
            await peer.pause(0.1)
            go_on.set()
            await peer.stall()

    async with RawServer(answer) as server:
        hedge = dataclasses.replace(EAGER, max_extra=1.0, probe_bytes=1 << 20)
        fetcher = Fetcher(Options(timeouts=PATIENT, hedge=hedge), Environment())
        try:
            buffer = bytearray(300_000)
            info = ObjectInfo(url=f"{server.url}/o", size=len(PLAIN))
            await asyncio.wait_for(fetcher.read(info, 0, memoryview(buffer)), LIMIT_S)
            assert buffer == PLAIN[:300_000]
            await until(lambda: fetcher.stats().hedges_in_flight == 0)
            stats = fetcher.stats()
            assert (stats.hedges_won, stats.bytes) == (0, 300_000)
            assert 0 < stats.wasted_bytes <= 300_000 * stats.hedges
        finally:
            await fetcher.aclose()
