from __future__ import annotations

import asyncio
import select
import shutil
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncdata.options import TimeoutOptions
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.http1.connection import RangeConnection
from asyncdata.storage.http1.connection_pool import ConnectionPool
from asyncdata.storage.http1.tls import make_tls_context
from asyncdata.storage.http1.tls_transport import open_tls
from asyncdata.storage.urls import Origin
from tests.patience import LIMIT_S, turns
from tests.storage.http1.range_requests import build_get
from tests.storage.http1.sealing_server import SealingPeer, SealingServer
from tests.storage.http1.tls_clients import accept_all, dialled

# --- the handshake ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("sent", [0, 1, 5, 100, 700])
async def test_a_handshake_that_stops_hits_the_connect_limit(
    sent: int, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    """Wherever it stops; nothing is left of it."""

    async def half(peer: SealingPeer) -> None:
        left = sent
        whole = peer.send

        async def some(data: bytes) -> None:
            nonlocal left
            await whole(data[:left])
            left -= len(data[:left])

        peer.send = some  # type: ignore[method-assign,assignment]  # of this one object
        await peer.shake_hands()

    async with SealingServer(half, certificate[1], shakes_hands=False) as server:
        pool = ConnectionPool(
            limits=TimeoutOptions(connect_s=0.1),
            max_per_origin=1,
            tls_context=make_tls_context(verify=True, ca_file=str(certificate[0])),
        )
        with pytest.raises(ReadFailedError) as caught:
            await pool.acquire(Origin("127.0.0.1", server.port, True))
        assert caught.value.cause is FailureCause.CONNECT_TIMEOUT
        await pool.aclose()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x28"])
async def test_what_is_no_handshake_is_a_failed_connection(
    answer: bytes, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    """An end, plain text, an alert: transient, as any other connection that cannot be made."""

    async def plain(peer: SealingPeer) -> None:
        await peer.reader.read(100)
        await peer.send(answer)

    async with SealingServer(plain, certificate[1], shakes_hands=False) as server:
        pool = ConnectionPool(
            limits=TimeoutOptions(),
            max_per_origin=1,
            tls_context=make_tls_context(verify=True, ca_file=str(certificate[0])),
        )
        with pytest.raises(ReadFailedError, match="cannot connect") as caught:
            await pool.acquire(Origin("127.0.0.1", server.port, True))
        assert caught.value.cause is FailureCause.CONNECT
        await pool.aclose()


async def test_an_encrypted_origin_never_gets_plain_text() -> None:
    """A pool that was given no TLS context does not connect to one."""
    pool = ConnectionPool(limits=TimeoutOptions(), max_per_origin=1, tls_context=None)
    with pytest.raises(RuntimeError, match="without a TLS context"):
        await pool.acquire(Origin("127.0.0.1", 1, True))
    await pool.aclose()


# --- TLS's own business ----------------------------------------------------------------------------------------------


class OpensslServer:
    """The openssl program as a server: it sends what it is given, prints what it receives, and obeys short lines.

    Lines that it finds together it takes for one: the next is given only when the client has seen what came of the
    last, and an answer only when its request has arrived. An answer that overtook its request, in a negotiation,
    would leave the client with bytes of that negotiation, which look like what comes of the next command.
    """

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self._requests = asyncio.Semaphore(0)

    async def hear(self) -> None:
        """Reads what it prints: whenever it has to wait it says so, and in the end would wait for a reader."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line.startswith(b"GET "):
                self._requests.release()

    def say(self, words: bytes) -> None:
        """Gives it a command, or something to send."""
        assert self.process.stdin is not None
        self.process.stdin.write(words)

    async def answer(self) -> None:
        """Sends an answer to the next request that arrives."""
        await self._requests.acquire()
        self.say(b"HTTP/1.1 206 OK\r\nContent-Length: 8\r\nContent-Range: bytes 0-7/9\r\n\r\n.......\n")


@asynccontextmanager
async def openssl_server(version: str, folder: Path) -> AsyncIterator[OpensslServer]:
    """Runs until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_server", f"-{version}", "-accept", "127.0.0.1:0", "-cert", folder / "certificate.pem"),
        *("-key", folder / "key.pem"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    hearing: asyncio.Future[None] | None = None
    try:
        line = b""
        while not line.startswith(b"ACCEPT "):
            line = await process.stdout.readline()
            assert line, "openssl ended"
        server = OpensslServer(process, int(line.rpartition(b":")[2]))
        hearing = asyncio.ensure_future(server.hear())
        yield server
    finally:
        process.kill()
        await process.wait()
        process.stdin.close()
        if hearing is not None:
            await hearing


has_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl program is not installed")


@pytest.mark.sampled
@has_openssl
@pytest.mark.parametrize(("version", "command"), [("tls1_3", b"k\n"), ("tls1_3", b"K\n"), ("tls1_2", b"r\n")])
@pytest.mark.parametrize("seen_by_loop", [True, False])
async def test_new_keys_on_an_idle_connection_are_no_answer(
    version: str, command: bytes, seen_by_loop: bool, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    """A key update, also one that wants another in return, or a renegotiation: the next range comes as if none were."""
    async with openssl_server(version, certificate[0].parent) as server:
        lost = asyncio.Event()
        connection = RangeConnection(lambda _: lost.set())
        client = make_tls_context(verify=True, ca_file=str(certificate[0]))
        await open_tls(connection, await dialled(server.port), client, "127.0.0.1")
        for turn in range(3):
            buffer = bytearray(8)
            asked = connection.ask(
                build_get(Origin("127.0.0.1", server.port, True), "/o", (), 0, 8),
                0,
                memoryview(buffer),
                accept_all,
                None,
            )
            await server.answer()
            assert (await asked).filled == 8
            assert buffer == b".......\n"
            if turn < 2:
                server.say(command)
                assert select.select([connection.fileno()], [], [], LIMIT_S)[0]
                if seen_by_loop:
                    await turns(20)
        assert connection.exchanges == 3
        connection.close()
        await lost.wait()


@pytest.mark.sampled
@has_openssl
@pytest.mark.parametrize("stops", [True, False], ids=["stops", "says nothing"])
async def test_a_server_that_is_lost_in_a_renegotiation_hits_the_limit(
    stops: bool, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    """It stops in the middle, so that the request cannot even be sent; or it ends it and answers nothing."""
    async with openssl_server("tls1_2", certificate[0].parent) as server:
        pool = ConnectionPool(
            limits=TimeoutOptions(first_byte_s=0.2),
            max_per_origin=1,
            tls_context=make_tls_context(verify=True, ca_file=str(certificate[0])),
        )
        origin = Origin("127.0.0.1", server.port, True)
        connection = await pool.acquire(origin)
        server.say(b"r\n")
        assert select.select([connection.fileno()], [], [], LIMIT_S)[0]
        if stops:
            server.process.send_signal(signal.SIGSTOP)
        buffer = bytearray(8)
        request = build_get(origin, "/o", (), 0, 8)
        with pytest.raises(ReadFailedError) as caught:
            await connection.exchange(request, 0, memoryview(buffer), accept_all)
        assert caught.value.cause is FailureCause.FIRST_BYTE_TIMEOUT
        pool.release(connection)
        await pool.aclose()
