from __future__ import annotations

import asyncio
import select
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from asyncdata.options import TimeoutOptions
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.http1.client import build_get
from asyncdata.storage.http1.connection import RangeConnection
from asyncdata.storage.http1.pool import ConnectionPool
from asyncdata.storage.http1.tls import make_tls_context
from asyncdata.storage.http1.tls_transport import open_tls
from asyncdata.storage.urls import Origin
from tests.samples import SOAK
from tests.storage.http1.sealing_server import SealingPeer, SealingServer
from tests.storage.http1.tls_clients import accept_all, dialled

# --- the handshake ---------------------------------------------------------------------------------------------------


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


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl program is not installed")
@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("tls1_3", b"k\n"),
        ("tls1_3", b"K\n"),
        pytest.param(
            "tls1_2",
            b"r\n",
            # Told an answer while it negotiates, on a busy machine, the program was seen to keep it for itself.
            marks=pytest.mark.skipif(not SOAK, reason="runs only with ASYNCDATA_SOAK=1 (make soak)"),
        ),
    ],
)
@pytest.mark.parametrize("seen_by_loop", [True, False])
async def test_new_keys_on_an_idle_connection_are_no_answer(
    version: str, command: bytes, seen_by_loop: bool, certificate: tuple[Path, ssl.SSLContext], tmp_path: Path
) -> None:
    """A key update, also one that wants another in return, or a renegotiation: the next range comes as if none were."""
    folder = certificate[0].parent
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        *("openssl", "s_server", f"-{version}", "-accept", f"127.0.0.1:{port}", "-cert", folder / "certificate.pem"),
        *("-key", folder / "key.pem"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    heard: asyncio.Future[bytes] | None = None
    try:
        while b"ACCEPT" not in await server.stdout.readline():
            pass
        # It says whenever it has to wait, over and over, and would in the end wait for somebody to read that.
        heard = asyncio.ensure_future(server.stdout.read())
        lost = asyncio.Event()
        connection = RangeConnection(lambda _: lost.set())
        client = make_tls_context(verify=True, ca_file=str(certificate[0]))
        await open_tls(connection, await dialled(port), client, "127.0.0.1")
        answer = b"HTTP/1.1 206 OK\r\nContent-Length: 8\r\nContent-Range: bytes 0-7/9\r\n\r\n.......\n"
        for turn in range(3):
            buffer = bytearray(8)
            asked = connection.ask(
                build_get(Origin("127.0.0.1", port, True), "/o", (), 0, 8), 0, memoryview(buffer), accept_all, None
            )
            server.stdin.write(answer)
            assert (await asked).filled == 8
            assert buffer == b".......\n"
            if turn < 2:
                server.stdin.write(command)
                await server.stdin.drain()
                # Told together with the next answer, the program would take both for the command.
                assert select.select([connection.fileno()], [], [], 20)[0]
                if seen_by_loop:
                    await asyncio.sleep(0.01)
        assert connection.exchanges == 3
        connection.close()
        await lost.wait()
    finally:
        server.kill()
        await server.wait()
        server.stdin.close()
        if heard is not None:
            await heard
