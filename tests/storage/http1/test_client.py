from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from asyncdata.options import TimeoutOptions
from asyncdata.storage.failures import ReadFailedError
from asyncdata.storage.http1.client import RangeClient, build_frame
from asyncdata.storage.http1.head import ResponseHead
from asyncdata.storage.http1.tls import make_tls_context
from asyncdata.storage.urls import Origin
from tests.storage.certificate import make_certificate
from tests.storage.http1.range_requests import build_get
from tests.storage.raw_server import DATA, Peer, RawServer, Request, honest, ranged


def accept_all(head: ResponseHead) -> None:
    """Refuses nothing."""


def test_a_request_is_what_http_says() -> None:
    """One line per header, the range inclusive at both ends."""
    request = build_get(Origin("h", 81, False), "/a?b", (("A", "b"),), 5, 10)
    assert request == (b"GET /a?b HTTP/1.1\r\nHost: h:81\r\nUser-Agent: asyncdata\r\nRange: bytes=5-14\r\nA: b\r\n\r\n")


def test_percent_signs_are_sent_as_they_are() -> None:
    """In targets nearly all have them, in headers some do; the range is where it belongs."""
    request = build_get(Origin("h", 80, False), "/a%2Fb%d%%?c=%s", (("A%d", "%d%"),), 0, 1)
    assert request == (
        b"GET /a%2Fb%d%%?c=%s HTTP/1.1\r\nHost: h\r\nUser-Agent: asyncdata\r\nRange: bytes=0-0\r\nA%d: %d%\r\n\r\n"
    )


@pytest.mark.parametrize("bad", ["a\r\nX: y", "a\nb", "a\rb"])
def test_nothing_can_break_out_of_its_line(bad: str) -> None:
    """Neither target nor headers can smuggle another header in."""
    with pytest.raises(ValueError, match="line break"):
        build_get(Origin("h", 80, False), bad, (), 0, 1)
    with pytest.raises(ValueError, match="line break"):
        build_get(Origin("h", 80, False), "/", (("A", bad),), 0, 1)


def test_what_cannot_be_sent_is_not_told() -> None:
    """The error carries none of the head, of which some is secret."""
    with pytest.raises(ValueError, match="cannot be sent") as caught:
        build_get(Origin("h", 80, False), "/", (("Authorization", "Bearer hush\u2026"),), 0, 1)
    assert "hush" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert type(caught.value) is ValueError


@pytest.mark.parametrize("tls", [False, True])
async def test_many_ranges_at_a_time_arrive_whole(tmp_path: Path, tls: bool) -> None:
    """Over HTTP and TLS, with few connections, in pieces of every size."""
    certificate, context = make_certificate(tmp_path)
    draw = random.Random(3)
    async with RawServer(honest, tls=context if tls else None) as server:
        origin = Origin("127.0.0.1", server.port, tls)
        client = RangeClient(
            limits=TimeoutOptions(),
            max_connections=4,
            tls_context=make_tls_context(verify=True, ca_file=str(certificate)) if tls else None,
        )

        async def check(start: int, size: int) -> None:
            buffer = bytearray(size)
            answer = await client.get(
                origin, build_frame(origin, "/o", ()), start=start, buffer=memoryview(buffer), accept=accept_all
            )
            assert answer.filled == size
            assert buffer == DATA[start : start + size]

        async with asyncio.TaskGroup() as group:
            for _ in range(40):
                size = draw.choice([1, 1000, 70_000, 600_000, len(DATA) - 100])
                group.create_task(check(draw.randrange(len(DATA) - size), size))
        assert server.connections <= 4
        assert client.connects == server.connections
        await client.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize("at", [0, 1, 30_000, 300_000, 1_800_000, len(DATA) - 1])
async def test_tls_bodies_that_break_off_say_how_far_they_came(tmp_path: Path, at: int) -> None:
    """Also over TLS, and with the low-water mark raised, what was received is valid and counted."""
    certificate, context = make_certificate(tmp_path)

    async def breaking(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(head + body[:at])
        await peer.pause(0.05)
        peer.close()

    async with RawServer(breaking, tls=context) as server:
        client = RangeClient(
            limits=TimeoutOptions(),
            max_connections=1,
            tls_context=make_tls_context(verify=True, ca_file=str(certificate)),
        )
        buffer = bytearray(len(DATA))
        with pytest.raises(ReadFailedError) as caught:
            await client.get(
                Origin("127.0.0.1", server.port, True),
                build_frame(Origin("127.0.0.1", server.port, True), "/o", ()),
                start=0,
                buffer=memoryview(buffer),
                accept=accept_all,
            )
        assert caught.value.filled == at
        assert buffer[:at] == DATA[:at]
        assert not any(buffer[at:])
        await client.aclose()


async def test_connections_the_server_gave_up_cost_no_attempt() -> None:
    """A server that closes after every answer, without saying so, is not noticed by the caller."""

    async def once(request: Request, peer: Peer) -> None:
        await honest(request, peer)
        if peer.requests == 2:
            peer.reset()

    async with RawServer(once) as server:
        client = RangeClient(limits=TimeoutOptions(), max_connections=2, tls_context=None)
        for _ in range(10):
            buffer = bytearray(1000)
            await client.get(
                Origin("127.0.0.1", server.port, False),
                build_frame(Origin("127.0.0.1", server.port, False), "/o", ()),
                start=0,
                buffer=memoryview(buffer),
                accept=accept_all,
            )
            assert buffer == DATA[:1000]
        assert server.connections == client.connects == 5
        await client.aclose()
