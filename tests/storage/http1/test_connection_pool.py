from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncdata.errors import PipelineClosedError, StorageError
from asyncdata.options import TimeoutOptions
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.http1.connection_pool import ConnectionPool
from asyncdata.storage.http1.tls import make_tls_context
from asyncdata.storage.http1.tls_transport import TlsTransport
from asyncdata.storage.urls import Origin
from tests.patience import LIMIT_S, until
from tests.storage.certificate import make_certificate
from tests.storage.http1.range_requests import build_get
from tests.storage.http1.tls_clients import accept_all
from tests.storage.raw_server import DATA, RawServer, honest


@asynccontextmanager
async def pool_of(limit: int, limits: TimeoutOptions | None = None) -> AsyncIterator[ConnectionPool]:
    """A pool that is closed."""
    pool = ConnectionPool(limits=limits or TimeoutOptions(), max_per_origin=limit, tls_context=None)
    try:
        yield pool
    finally:
        await pool.aclose()


async def test_connections_are_kept_and_the_latest_is_taken_first() -> None:
    """A clean connection is used again; only as many are opened as are used at a time."""
    async with RawServer(honest) as server, pool_of(4) as pool:
        origin = Origin("127.0.0.1", server.port, False)
        first = await pool.acquire(origin)
        second = await pool.acquire(origin)
        assert "2 busy, 0 idle, 2 opened" in repr(pool)
        pool.release(first)
        pool.release(second)
        assert await pool.acquire(origin) is second
        assert await pool.acquire(origin) is first
        pool.release(first)
        pool.release(second)
        assert pool.connects == 2


@pytest.mark.parametrize("seed", range(10))
async def test_the_limit_holds_and_cancellation_loses_no_turn(seed: int) -> None:
    """Never more connections than the limit; after any cancellations everybody else still gets one."""
    draw = random.Random(seed)
    held = 0
    async with RawServer(honest) as server, pool_of(3) as pool:
        origin = Origin("127.0.0.1", server.port, False)

        async def use(turns: int, *, spoil: bool) -> None:
            nonlocal held
            connection = await pool.acquire(origin)
            held += 1
            try:
                assert held <= 3
                for _ in range(turns):
                    await asyncio.sleep(0)
                if spoil:
                    connection.close()
            finally:
                held -= 1
                pool.release(connection)

        tasks = [asyncio.create_task(use(draw.randrange(4), spoil=draw.random() < 0.3)) for _ in range(30)]
        for _ in range(20):
            draw.choice(tasks).cancel()
            await asyncio.sleep(0)
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LIMIT_S)
        assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        assert None in outcomes
        assert held == 0


async def test_a_connection_the_server_closed_is_not_handed_out() -> None:
    """Kept connections that ended meanwhile are replaced."""
    async with RawServer(honest) as server, pool_of(2) as pool:
        origin = Origin("127.0.0.1", server.port, False)
        first = await pool.acquire(origin)
        pool.release(first)
        first.close()
        second = await pool.acquire(origin)
        assert second is not first
        pool.release(second)


async def test_refused_connections_are_transient_and_free_their_place() -> None:
    """Nobody listens: a typed error, and the place under the limit is free again."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    async with pool_of(1) as pool:
        for _ in range(3):
            with pytest.raises(ReadFailedError) as caught:
                await pool.acquire(Origin("127.0.0.1", port, False))
            assert caught.value.cause is FailureCause.CONNECT


async def test_an_unknown_host_is_transient() -> None:
    """Name servers fail for a while, too."""
    async with pool_of(1) as pool:
        with pytest.raises(ReadFailedError) as caught:
            await pool.acquire(Origin("no-such-host.invalid", 80, False))
        assert caught.value.cause is FailureCause.CONNECT


async def test_a_handshake_that_does_not_end_hits_the_connect_limit(tmp_path: Path) -> None:
    """The limit covers TLS: a server that accepts and says nothing is given up."""
    certificate, _ = make_certificate(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        origin = Origin("127.0.0.1", silent.getsockname()[1], True)
        pool = ConnectionPool(
            limits=TimeoutOptions(connect_s=0.1),
            max_per_origin=1,
            tls_context=make_tls_context(verify=True, ca_file=str(certificate)),
        )
        for _ in range(2):
            with pytest.raises(ReadFailedError) as caught:
                await pool.acquire(origin)
            assert caught.value.cause is FailureCause.CONNECT_TIMEOUT
        await pool.aclose()


@pytest.mark.sampled
async def test_a_connection_given_up_half_made_closes_nobody_elses(tmp_path: Path) -> None:
    """Whenever it is cancelled while it connects, the next ones, which get its descriptor's number, are well."""
    certificate, context = make_certificate(tmp_path)
    tls_context = make_tls_context(verify=True, ca_file=str(certificate))
    async with RawServer(honest, tls=context) as server:
        origin = Origin("127.0.0.1", server.port, True)
        pool = ConnectionPool(limits=TimeoutOptions(), max_per_origin=8, tls_context=tls_context)
        for turns in range(60):
            given_up = asyncio.ensure_future(pool.acquire(origin))
            for _ in range(turns % 20):
                await asyncio.sleep(0)
            given_up.cancel()
            (outcome,) = await asyncio.gather(given_up, return_exceptions=True)
            several = await asyncio.gather(*(pool.acquire(origin) for _ in range(3)))
            for connection in (*several, outcome):
                if not isinstance(connection, BaseException):
                    connection.close()
        await pool.aclose()


async def test_an_untrusted_certificate_is_refused_for_good(tmp_path: Path) -> None:
    """TLS is verified unless told otherwise, and a retry would not help."""
    certificate, context = make_certificate(tmp_path)
    async with RawServer(honest, tls=context) as server:
        origin = Origin("127.0.0.1", server.port, True)
        for verify, ca_file, good in ((True, None, False), (True, str(certificate), True), (False, None, True)):
            pool = ConnectionPool(
                limits=TimeoutOptions(), max_per_origin=1, tls_context=make_tls_context(verify=verify, ca_file=ca_file)
            )
            if good:
                pool.release(await pool.acquire(origin))
            else:
                with pytest.raises(StorageError, match="not trusted") as caught:
                    await pool.acquire(origin)
                assert not isinstance(caught.value, ReadFailedError)
            await pool.aclose()


async def test_later_connections_go_on_with_the_session_of_the_first(tmp_path: Path) -> None:
    """The server's certificate is sent and verified once, however often connections to it are opened."""
    certificate, context = make_certificate(tmp_path)
    tls_context = make_tls_context(verify=True, ca_file=str(certificate))
    async with RawServer(honest, tls=context) as server:
        origin = Origin("127.0.0.1", server.port, True)
        pool = ConnectionPool(limits=TimeoutOptions(), max_per_origin=2, tls_context=tls_context)
        resumed = []
        for _ in range(3):
            connection = await pool.acquire(origin)
            assert isinstance(connection.transport, TlsTransport)
            resumed.append(connection.transport.resumed)
            buffer = memoryview(bytearray(10))
            answer = await connection.ask(build_get(origin, "/o", (), 0, 10), 0, buffer, accept_all, None)
            assert (answer.filled, bytes(buffer)) == (10, DATA[:10])
            pool.release(connection)
            connection.close()
        assert resumed == [False, True, True]
        await pool.aclose()


async def test_close_ends_everything_at_once() -> None:
    """Busy exchanges fail, waiters are refused, and no connection is left when close returns."""
    async with RawServer(honest) as server:
        pool = ConnectionPool(limits=TimeoutOptions(), max_per_origin=1, tls_context=None)
        origin = Origin("127.0.0.1", server.port, False)
        connection = await pool.acquire(origin)
        waiting = asyncio.create_task(pool.acquire(origin))
        await asyncio.sleep(0)
        await pool.aclose()
        with pytest.raises(PipelineClosedError):
            await waiting
        with pytest.raises(PipelineClosedError):
            await pool.acquire(origin)
        assert not connection.is_clean
        pool.release(connection)


async def test_idle_connections_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody used for the idle limit is closed, without anybody asking."""
    monkeypatch.setattr("asyncdata.storage.http1.connection_pool.IDLE_LIMIT_S", 0.05)
    async with RawServer(honest) as server, pool_of(2) as pool:
        origin = Origin("127.0.0.1", server.port, False)
        connection = await pool.acquire(origin)
        pool.release(connection)
        assert connection.is_clean
        await until(lambda: not connection.is_clean)


async def test_old_connections_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end with the exchange they are in; the next one finds the server's name anew."""
    async with RawServer(honest) as server, pool_of(2) as pool:
        origin = Origin("127.0.0.1", server.port, False)
        connection = await pool.acquire(origin)
        monkeypatch.setattr("asyncdata.storage.http1.connection_pool.AGE_LIMIT_S", -1.0)
        pool.release(connection)
        assert not connection.is_clean
        assert await pool.acquire(origin) is not connection


async def test_connections_may_be_opened_ahead() -> None:
    """As many as asked for or allowed, those that exist counted; the next requests take them."""
    async with RawServer(honest) as server, pool_of(3) as pool:
        origin = Origin("127.0.0.1", server.port, False)
        used = await pool.acquire(origin)
        await pool.warm(origin, 2)
        assert "1 busy, 1 idle, 2 opened" in repr(pool)
        await pool.warm(origin, 99)
        assert "1 busy, 2 idle, 3 opened" in repr(pool)
        await pool.warm(origin, 99)
        await pool.acquire(origin)
        assert pool.connects == 3
        pool.release(used)


async def test_a_server_that_cannot_be_reached_is_left_to_the_first_request() -> None:
    """Warming up is no place for errors; nothing is kept of it."""
    async with pool_of(3) as pool:
        origin = Origin("127.0.0.1", 1, False)
        await pool.warm(origin, 3)
        assert "0 busy, 0 idle, 0 opened" in repr(pool)
        with pytest.raises(ReadFailedError, match="cannot connect"):
            await pool.acquire(origin)
