from __future__ import annotations

import asyncio
import gc
import random
import ssl
from pathlib import Path

import pytest

from asyncdata.errors import StorageError
from asyncdata.options import TimeoutOptions
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.http1 import tls_transport
from asyncdata.storage.http1.client import RangeClient, build_frame
from asyncdata.storage.http1.connection import StaleConnectionError
from asyncdata.storage.http1.head import ResponseHead
from asyncdata.storage.http1.tls import make_tls_context
from asyncdata.storage.http1.tls_transport import TlsTransport
from asyncdata.storage.urls import Origin
from tests.patience import until
from tests.samples import samples
from tests.storage.certificate import make_certificate
from tests.storage.http1.sealing_server import SealingPeer
from tests.storage.http1.tls_clients import Notes, accept_all, connected, noted
from tests.storage.raw_server import DATA, RawServer, honest, ranged

# --- what arrives, however it is cut ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
async def test_records_may_be_cut_anywhere(version: ssl.TLSVersion, tmp_path: Path) -> None:
    """Head and body in several records, cut in two at every position, then into single bytes: it is the same answer."""
    authority = make_certificate(tmp_path)
    authority[1].maximum_version = version
    exchanges, cuts = 0, 3 * 150 // samples(150, 450)

    async def cutting(peer: SealingPeer) -> None:
        at = 0
        while True:
            head, body = ranged(await peer.request())
            sealed = peer.seal(head) + peer.seal(body[:100]) + peer.seal(body[100:])
            cut = at * cuts % len(sealed)
            step = len(sealed) if at else 1
            await peer.send(sealed[:cut])
            for place in range(cut, len(sealed), step):
                await asyncio.sleep(0)
                await peer.send(sealed[place : place + step])
            at += 1

    async with connected(cutting, authority) as (connection, ask):
        for _ in range(samples(150, 500)):
            buffer = bytearray(b"\xa5" * 316)
            answer = await ask(7, memoryview(buffer)[8:-8])
            assert (answer.filled, answer.head.status) == (300, 206)
            assert buffer == b"\xa5" * 8 + DATA[7:307] + b"\xa5" * 8
            assert connection.is_clean
            exchanges += 1
    assert exchanges == connection.exchanges


@pytest.mark.parametrize("room", [1, 100, 16_384, 16_385, 300_000])
async def test_what_is_decrypted_is_delivered_without_another_byte(
    room: int, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    """The rest of a record is out of the kernel's sight; a buffer of any size gets it, though nothing follows."""
    size = 3000 if room == 1 else 100_000

    async def once(peer: SealingPeer) -> None:
        await peer.send(peer.seal(DATA[:size]))
        await peer.receive(1)

    notes = Notes(room)
    async with noted(once, certificate, notes):
        assert await notes.until(size) == DATA[:size]


async def test_others_have_their_turn(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much has arrived, one turn of the loop takes so much and no more, and the rest follows."""
    monkeypatch.setattr(tls_transport, "TURN_BYTES", 64 << 10)
    turns: list[int] = [0]

    class Counting(Notes):
        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            if not turns[-1]:
                asyncio.get_running_loop().call_soon(turns.append, 0)
            turns[-1] += nbytes

    async def flood(peer: SealingPeer) -> None:
        await peer.send(peer.seal(DATA))
        await peer.receive(1)

    notes = Counting(1 << 20)
    async with noted(flood, certificate, notes):
        assert await notes.until(len(DATA)) == DATA
    # A turn may see what was left of the last one and what the kernel tells.
    assert max(turns) <= 2 * (80 << 10)


async def test_many_connections_at_a_time_are_exact(certificate: tuple[Path, ssl.SSLContext]) -> None:
    """64 of them, ranges of every size."""
    draw = random.Random(5)
    async with RawServer(honest, tls=certificate[1]) as server:
        origin = Origin("127.0.0.1", server.port, True)
        client = RangeClient(
            limits=TimeoutOptions(),
            max_connections=64,
            tls_context=make_tls_context(verify=True, ca_file=str(certificate[0])),
        )

        async def check(start: int, size: int) -> None:
            buffer = bytearray(size)
            await client.get(
                origin, build_frame(origin, "/o", ()), start=start, buffer=memoryview(buffer), accept=accept_all
            )
            assert buffer == DATA[start : start + size]

        async with asyncio.TaskGroup() as group:
            for _ in range(samples(200, 1000)):
                size = draw.choice([1, 1000, 16_384, 70_000, 200_000])
                group.create_task(check(draw.randrange(len(DATA) - size), size))
        assert client.connects == 64
        await client.aclose()


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("at", [0, 1, 16_384, 40_000, 99_999])
async def test_a_body_that_is_cut_short_is_never_whole(
    at: int, told: bool, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    """With close_notify or without: what came is counted, and is all that was written."""

    async def breaking(peer: SealingPeer) -> None:
        head, body = ranged(await peer.request())
        await peer.send(peer.seal(head + body[:at]) + (peer.seal_end() if told else b""))

    async with connected(breaking, certificate) as (connection, ask):
        buffer = bytearray(b"\xa5" * 100_000)
        with pytest.raises(ReadFailedError) as caught:
            await ask(3, memoryview(buffer))
        assert (caught.value.filled, caught.value.cause) == (at, FailureCause.SHORT_BODY)
        assert buffer == DATA[3 : 3 + at] + b"\xa5" * (100_000 - at)
        assert not connection.is_clean


@pytest.mark.parametrize("told", [True, False])
async def test_an_end_behind_a_body_spoils_nothing(told: bool, certificate: tuple[Path, ssl.SSLContext]) -> None:
    """The answer is whole; the connection is not used again."""

    async def once(peer: SealingPeer) -> None:
        await peer.send(peer.seal(b"".join(ranged(await peer.request()))) + (peer.seal_end() if told else b""))

    async with connected(once, certificate) as (_, ask):
        buffer = bytearray(50_000)
        assert (await ask(0, memoryview(buffer))).filled == 50_000
        assert buffer == DATA[:50_000]
        with pytest.raises(StaleConnectionError):
            await ask(0, memoryview(buffer))


@pytest.mark.parametrize("told", [True, False])
async def test_an_error_text_may_end_with_the_connection(told: bool, certificate: tuple[Path, ssl.SSLContext]) -> None:
    """Many servers end without close_notify; a refusal stays what it is."""

    async def refusing(peer: SealingPeer) -> None:
        await peer.request()
        await peer.send(peer.seal(b"HTTP/1.0 404 No\r\n\r\nnothing here") + (peer.seal_end() if told else b""))

    async with connected(refusing, certificate) as (_, ask):
        answer = await ask(0, memoryview(bytearray(10)))
        assert (answer.head.status, answer.aside) == (404, b"nothing here")


@pytest.mark.parametrize("at", [0, 1])
async def test_a_spoilt_record_ends_the_connection(at: int, certificate: tuple[Path, ssl.SSLContext]) -> None:
    """Of it nothing is delivered, of those before it everything; and the error holds no memory of the caller."""

    async def spoiling(peer: SealingPeer) -> None:
        head, body = ranged(await peer.request())
        good = peer.seal(head) + (peer.seal(body[:20_000]) if at else b"")
        bad = bytearray(peer.seal(body[20_000 * at :]))
        bad[1000] ^= 1
        await peer.send(good + bad)
        await peer.receive(1)

    async with connected(spoiling, certificate) as (connection, ask):
        buffer = bytearray(b"\xa5" * 100_000)
        gc.disable()
        try:
            with pytest.raises(ReadFailedError) as caught:
                await ask(0, memoryview(buffer))
            assert (caught.value.filled, caught.value.cause) == (20_000 * at, FailureCause.CONNECTION_LOST)
            assert buffer == DATA[: 20_000 * at] + b"\xa5" * (100_000 - 20_000 * at)
            assert not connection.is_clean
            buffer.clear()  # refused while anybody has a view of it
        finally:
            gc.enable()


async def test_bytes_nobody_asked_for_end_an_idle_connection(certificate: tuple[Path, ssl.SSLContext]) -> None:
    """At once where the loop sees them, else by the next request, which is not answered by them."""

    async def chatty(peer: SealingPeer) -> None:
        text = b"".join(ranged(await peer.request()))
        await peer.send(peer.seal(text))
        if later.is_set():
            await asyncio.sleep(0)
        await peer.send(peer.seal(text))
        await peer.receive(1)

    later = asyncio.Event()
    for _ in range(2):
        async with connected(chatty, certificate) as (connection, ask):
            buffer = bytearray(1000)
            assert (await ask(0, memoryview(buffer))).filled == 1000
            if later.is_set():
                await until(lambda: not connection.is_clean)
            with pytest.raises(StaleConnectionError):
                await ask(0, memoryview(buffer))
        later.set()


async def test_after_the_end_nothing_is_written_or_told(certificate: tuple[Path, ssl.SSLContext]) -> None:
    """Aborted inside of its own call, with more available, a protocol hears of its loss and of nothing else."""

    class Fed(Notes):
        transport: TlsTransport

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            assert isinstance(transport, TlsTransport)
            self.transport = transport

        def buffer_updated(self, nbytes: int) -> None:
            assert not self.data
            super().buffer_updated(nbytes)
            self.transport.abort()

    async def flood(peer: SealingPeer) -> None:
        await peer.send(peer.seal(DATA))

    notes = Fed(100)
    async with noted(flood, certificate, notes) as transport:
        await notes.over.wait()
        transport.write(b"into the void")
        assert (len(notes.data), notes.ends, notes.lost, transport.pending()) == (100, 0, [None], 0)
        assert repr(transport).startswith("<TlsTransport closing")


async def test_a_protocol_that_fails_loses_its_connection(certificate: tuple[Path, ssl.SSLContext]) -> None:
    """It is told to the loop, as for any other transport, and is not called again and again."""

    class Failing(Notes):
        def buffer_updated(self, nbytes: int) -> None:
            raise LookupError(f"a mistake in one of {nbytes} bytes")

    async def once(peer: SealingPeer) -> None:
        await peer.send(peer.seal(b"x"))
        await peer.receive(1)

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    notes = Failing()
    async with noted(once, certificate, notes):
        await notes.over.wait()
    assert [type(each) for each in told] == [type(each) for each in notes.lost] == [LookupError]


# --- what is sent ----------------------------------------------------------------------------------------------------


async def test_what_the_socket_does_not_take_is_kept_and_sent_in_order(
    certificate: tuple[Path, ssl.SSLContext],
) -> None:
    """Megabytes, in several pieces, to a server that reads when it likes; it answers meanwhile."""
    go = asyncio.Event()
    received = bytearray()

    async def slow(peer: SealingPeer) -> None:
        await peer.send(peer.seal(b"ready"))
        await go.wait()
        while len(received) < 4 * len(DATA):
            received.extend(await peer.receive(1 << 16))
        await peer.send(peer.seal(b"done"))

    notes = Notes()
    async with noted(slow, certificate, notes) as transport:
        for _ in range(4):
            transport.write(DATA)
        assert "0 bytes unsent" not in repr(transport)
        assert await notes.until(5) == b"ready"
        go.set()
        assert await notes.until(9) == b"readydone"
    assert received == 4 * DATA


async def test_a_write_into_a_broken_connection_is_a_loss(certificate: tuple[Path, ssl.SSLContext]) -> None:
    """Told by connection_lost, later, not by write."""

    async def leaving(peer: SealingPeer) -> None:
        peer.writer.transport.abort()

    notes = Notes()
    async with noted(leaving, certificate, notes) as transport:
        for _ in range(50):
            transport.write(DATA)
        await notes.over.wait()
        assert notes.made == len(notes.lost) == 1


async def test_a_failed_connection_frees_the_reader_of_its_number(certificate: tuple[Path, ssl.SSLContext]) -> None:
    """Sockets that get the number of one that was closed are served as any other."""
    async with RawServer(honest, tls=certificate[1]) as server:
        origin = Origin("127.0.0.1", server.port, True)
        client = RangeClient(
            limits=TimeoutOptions(),
            max_connections=4,
            tls_context=make_tls_context(verify=True, ca_file=str(certificate[0])),
        )

        def refuse(head: ResponseHead) -> None:
            raise StorageError("no")

        for turn in range(40):
            buffer = bytearray(100_000)
            bad = [
                client.get(
                    origin, build_frame(origin, "/o", ()), start=0, buffer=memoryview(bytearray(10)), accept=refuse
                )
                for _ in range(turn % 3)
            ]
            good = client.get(
                origin, build_frame(origin, "/o", ()), start=turn, buffer=memoryview(buffer), accept=accept_all
            )
            *refused, _ = await asyncio.gather(*bad, good, return_exceptions=True)
            assert all(isinstance(each, StorageError) for each in refused)
            assert buffer == DATA[turn : turn + 100_000]
        await client.aclose()
