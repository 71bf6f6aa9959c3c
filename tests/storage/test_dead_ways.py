"""Ways that lead nowhere and do not say so: addresses, kept connections and proxies that swallow what they are sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from asyncdata.errors import TransientStorageError
from asyncdata.options import Environment, HedgeOptions, Options, RetryOptions, TimeoutOptions
from asyncdata.storage import FailureCause, Fetcher
from asyncdata.storage.http1.connection_pool import dial
from asyncdata.types import ObjectInfo
from tests.patience import LIMIT_S
from tests.storage.raw_server import DATA, Peer, RawServer, Request, ranged

pytestmark = pytest.mark.sampled

INFO = ObjectInfo(url="gs://bucket/x", size=len(DATA), version="1")
QUICK = RetryOptions(max_attempts=20, initial_delay_s=0.001, max_delay_s=0.01)
NO_HEDGES = HedgeOptions(enabled=False)
GENERATION = "x-goog-generation: 1\r\n"


@asynccontextmanager
async def fetching(options: Options, url: str = "") -> AsyncIterator[Fetcher]:
    """A Fetcher that is closed."""
    fetcher = Fetcher(options, Environment(storage_emulator_host=url))
    try:
        async with asyncio.timeout(LIMIT_S):
            yield fetcher
    finally:
        await fetcher.aclose()


@contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that takes no connection and refuses none: its queue is full, and nobody takes from it."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.2", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield listener.getsockname()


@pytest.mark.parametrize("first", ["black hole", "refused"])
async def test_a_name_with_an_address_that_leads_nowhere(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address serves, within the same attempt."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                request = Request((await reader.readuntil(b"\r\n\r\n")).decode())
                writer.write(b"".join(ranged(request, extra=GENERATION)))
        writer.close()

    with black_hole() as (dead, port):
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        broken = dead if first == "black hole" else "127.0.0.3"
        loop = asyncio.get_running_loop()
        look_up = loop.getaddrinfo

        async def resolve(host: str, port: int, **hints: Any) -> list[tuple[Any, ...]]:
            if host != "two.test":
                return [*await look_up(host, port, **hints)]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in (broken, "127.0.0.1")]

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        try:
            options = Options(retry=QUICK, timeouts=TimeoutOptions(connect_s=20), hedge=NO_HEDGES)
            async with fetching(options, f"http://two.test:{port}") as fetcher:
                buffer = bytearray(1000)
                await fetcher.read(INFO, 0, memoryview(buffer))
                assert buffer == DATA[:1000]
                assert not fetcher.stats().failures
        finally:
            server.close()
            await server.wait_closed()


@pytest.mark.parametrize("hedged", [False, True])
async def test_kept_connections_that_died_unnoticed_cost_one_attempt(hedged: bool) -> None:
    """A router that forgets connections forgets all: when one is silent, those that were idle as long are not tried."""
    seen: set[Peer] = set()
    dead: set[Peer] = set()
    all_there = asyncio.Event()

    async def script(request: Request, peer: Peer) -> None:
        seen.add(peer)
        if peer in dead:
            await peer.stall()
        if len(seen) == 12:
            all_there.set()
        await all_there.wait()
        await peer.send(b"".join(ranged(request, extra=GENERATION)))

    # Until the network fails nothing is late, however busy the machine is.
    timeouts = TimeoutOptions(connect_s=20, first_byte_s=2, idle_s=20, floor_s=2)
    hedge = HedgeOptions(max_extra=1.0, least_delay_s=1.2, most_delay_s=1.2) if hedged else NO_HEDGES
    async with RawServer(script) as server:
        options = Options(retry=QUICK, timeouts=timeouts, hedge=hedge, max_requests_in_flight=12)
        async with fetching(options, server.url) as fetcher:
            async with asyncio.TaskGroup() as group:
                for number in range(12):
                    group.create_task(fetcher.read(INFO, number, memoryview(bytearray(1000))))
            assert len(seen) >= 12
            before = sum(fetcher.stats().failures.values())
            dead.update(seen)
            buffer = bytearray(1000)
            await fetcher.read(INFO, 0, memoryview(buffer))
            assert buffer == DATA[:1000]
            assert sum(fetcher.stats().failures.values()) == before + 1
            assert fetcher.stats().hedges_won <= hedged


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 200 Fine\r\nX-Word: ", b"HTTP/1.1 200 Fine\r\n\r\n"])
async def test_a_tunnel_that_is_never_finished_ends_by_the_limit_of_connects(says: bytes) -> None:
    """A proxy that takes CONNECT and is silent, drips, or opens a way to nobody."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(says)
            while says.endswith(b" "):
                writer.write(b"a")
                await writer.drain()
                await Peer.pause(0.01)
            await reader.read()
        writer.close()

    proxy = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    gs = {"endpoint_url": "https://storage.test", "token": "anon", "proxy": f"http://127.0.0.1:{port}"}
    options = Options(
        storage={"gs": gs}, retry=RetryOptions(max_attempts=1), timeouts=TimeoutOptions(connect_s=0.3), hedge=NO_HEDGES
    )
    try:
        async with fetching(options) as fetcher:
            for ask in (fetcher.read(INFO, 0, memoryview(bytearray(10))), fetcher.stat(INFO.url)):
                with pytest.raises(TransientStorageError):
                    await ask
            assert fetcher.stats().failures == {FailureCause.CONNECT_TIMEOUT: 2}
    finally:
        proxy.close()
        await proxy.wait_closed()


async def test_names_that_are_unknown_for_a_while_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that fails is waited for like any other; what failed is counted, and the read succeeds."""
    failures = 5

    async def failing(host: str, port: int) -> socket.socket:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return await dial(host, port)

    async def named(request: Request, peer: Peer) -> None:
        await peer.send(b"".join(ranged(request, extra=GENERATION)))

    monkeypatch.setattr("asyncdata.storage.http1.connection_pool.dial", failing)
    async with RawServer(named) as server, fetching(Options(retry=QUICK, hedge=NO_HEDGES), server.url) as fetcher:
        buffer = bytearray(1000)
        await fetcher.read(INFO, 0, memoryview(buffer))
        assert buffer == DATA[:1000]
        assert fetcher.stats().failures == {FailureCause.CONNECT: 5}
