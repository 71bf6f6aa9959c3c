from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from asyncdata.errors import ObjectChangedError, StorageError
from asyncdata.storage.failures import FailureCause, RangeIgnoredError, ReadFailedError, UnframedBodyError
from asyncdata.storage.http1.connection import Answer, Phase, RangeConnection, StaleConnectionError
from asyncdata.storage.http1.head import ResponseHead
from asyncdata.storage.urls import Origin
from tests.patience import LIMIT_S, turns, until
from tests.samples import samples
from tests.storage.http1.range_requests import build_get
from tests.storage.raw_server import DATA, Peer, RawServer, Request, Script, honest, ranged

POISON = 0xA5


def accept_all(head: ResponseHead) -> None:
    """Refuses nothing."""


class Client:
    """One connection to a server."""

    def __init__(self, connection: RangeConnection, port: int) -> None:
        self.connection = connection
        self._origin = Origin("127.0.0.1", port, False)

    async def get(self, start: int, buffer: memoryview, accept: Callable[[ResponseHead], None] = accept_all) -> Answer:
        """One exchange."""
        request = build_get(self._origin, "/object", (), start, len(buffer))
        return await self.connection.exchange(request, start, buffer, accept)


@asynccontextmanager
async def connected(script: Script) -> AsyncIterator[Client]:
    """A connection to a server that runs the script."""
    lost = asyncio.Event()
    async with RawServer(script) as server:
        connection = RangeConnection(lambda _: lost.set())
        await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", server.port)
        try:
            yield Client(connection, server.port)
        finally:
            connection.close()
            await lost.wait()


async def test_bodies_land_in_the_buffer_one_after_another() -> None:
    """One connection serves any number of ranges; nothing outside of the buffer is touched."""
    draw = random.Random(1)
    async with connected(honest) as client:
        for _ in range(60):
            size = draw.choice([1, 2, 100, 4096, 65_536, 300_000, 1_000_000])
            start = draw.randrange(len(DATA) - size)
            whole = bytearray(b"\xa5" * (size + 16))
            with memoryview(whole) as view, view[8:-8] as inner:
                answer = await client.get(start, inner)
            assert (answer.filled, answer.total, answer.head.status) == (size, len(DATA), 206)
            assert whole == b"\xa5" * 8 + DATA[start : start + size] + b"\xa5" * 8
            assert client.connection.is_clean
        assert client.connection.exchanges == 60


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50])
async def test_an_answer_may_be_cut_anywhere(step: int) -> None:
    """However the bytes of head and body are cut into segments, the outcome is the same."""

    async def drip(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        text = head + body
        for at in range(0, len(text), step):
            await peer.send(text[at : at + step])
            await asyncio.sleep(0)

    async with connected(drip) as client:
        for _ in range(3):
            buffer = bytearray(40)
            answer = await client.get(5, memoryview(buffer))
            assert (answer.filled, bytes(buffer)) == (40, DATA[5:45])


async def test_interim_answers_are_skipped() -> None:
    """A 1xx head says nothing about the answer."""

    async def hinting(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + head + body)

    async with connected(hinting) as client:
        buffer = bytearray(40)
        assert (await client.get(0, memoryview(buffer))).filled == 40
        assert buffer == DATA[:40]


async def test_large_heads_are_read_and_endless_ones_are_not() -> None:
    """A head may be long, within a limit."""

    async def wordy(request: Request, peer: Peer) -> None:
        size = 40_000 if peer.requests == 1 else 80_000
        head, body = ranged(request, extra="X-Words: " + "x" * size + "\r\n")
        await peer.send(head + body)

    async with connected(wordy) as client:
        buffer = bytearray(100_000)
        assert (await client.get(0, memoryview(buffer))).filled == 100_000
        assert buffer == DATA[:100_000]
        with pytest.raises(ReadFailedError, match="65536") as caught:
            await client.get(0, memoryview(buffer))
        assert caught.value.cause is FailureCause.MALFORMED


@pytest.mark.parametrize("at", [0, 1, 50, 999])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_body_that_breaks_off_says_how_far_it_came(at: int, how: str) -> None:
    """EOF and reset inside a body are transient, and `filled` bytes are valid."""

    async def breaking(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(head + body[:at])
        await peer.pause(0.01)  # a reset would overtake what is not yet delivered
        peer.reset() if how == "reset" else peer.close()

    async with connected(breaking) as client:
        buffer = bytearray(b"\xa5" * 1000)
        with pytest.raises(ReadFailedError) as caught:
            await client.get(7, memoryview(buffer))
        error = caught.value
        assert error.filled == at
        assert error.cause is (FailureCause.CONNECTION_LOST if how == "reset" else FailureCause.SHORT_BODY)
        assert buffer == DATA[7 : 7 + at] + b"\xa5" * (1000 - at)
        assert client.connection.phase is Phase.CLOSED


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64",  # HTTP/2: its settings
    b"HTTP/1.1 OK\r\n\r\n",
    b"HTTP/1.1 206 X\r\nContent-Length: 1000, 1001\r\nContent-Range: bytes 0-999/5000\r\n\r\n",
    b"HTTP/1.1 206 X\r\nContent-Length: 1000\r\n\r\n",
    b"HTTP/1.1 206 X\r\nContent-Length: 1000\r\nContent-Range: bytes 1-1000/5000\r\n\r\n",
    b"HTTP/1.1 206 X\r\nContent-Length: 1001\r\nContent-Range: bytes 0-1000/5000\r\n\r\n",
    b"HTTP/1.1 206 X\r\nContent-Length: 1000\r\nContent-Range: bytes 0-998/5000\r\n\r\n",
    b"HTTP/1.1 206 X\r\nContent-Length: 2\r\nContent-Range: bytes 0-1/5000\r\n\r\nabcd",
    b"\r\n\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_is_malformed_and_touches_nothing(garbage: bytes) -> None:
    """A head that is none, or that lies, is a typed transient error, and the buffer stays as it was."""

    async def lying(request: Request, peer: Peer) -> None:
        await peer.send(garbage)
        await peer.stall()

    async with connected(lying) as client:
        buffer = bytearray(b"\xa5" * 1000)
        with pytest.raises(ReadFailedError) as caught:
            await client.get(0, memoryview(buffer))
        assert caught.value.cause is FailureCause.MALFORMED
        assert caught.value.filled == 0
        assert buffer == b"\xa5" * 1000
        assert not client.connection.is_clean


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", RangeIgnoredError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", UnframedBodyError),
        (b"HTTP/1.1 206 X\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-99/5000\r\n\r\n", UnframedBodyError),
        (b"HTTP/1.1 200 OK\r\n\r\n", UnframedBodyError),
    ],
)
async def test_unusual_answers_have_types_of_their_own(head: bytes, kind: type[StorageError]) -> None:
    """A backend can choose another path for them; the connection is not used again."""

    async def unusual(request: Request, peer: Peer) -> None:
        await peer.send(head + b"x" * 50)
        await peer.stall()

    async with connected(unusual) as client:
        buffer = bytearray(b"\xa5" * 1000)
        with pytest.raises(kind):
            await client.get(0, memoryview(buffer))
        assert buffer == b"\xa5" * 1000
        assert not client.connection.is_clean


async def test_bytes_after_a_body_end_the_connection() -> None:
    """A stream that is out of step is never used for another request."""
    received = asyncio.Event()

    async def overlong(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(head + body)
        await received.wait()
        await peer.send(b"more")
        await peer.stall()

    async with connected(overlong) as client:
        buffer = bytearray(1000)
        assert (await client.get(0, memoryview(buffer))).filled == 1000
        received.set()
        await until(lambda: not client.connection.is_clean)
        assert buffer == DATA[:1000]


async def test_a_second_answer_to_one_request_is_not_taken_for_the_next() -> None:
    """What a server sends beyond a body lies before the next answer; it looks like one, and is none."""

    async def twice(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send((head + body) * 2)

    async with connected(twice) as client:
        buffer = bytearray(100_000)
        assert (await client.get(0, memoryview(buffer))).filled == 100_000
        assert buffer == DATA[:100_000]
        with pytest.raises(StaleConnectionError):
            await client.get(0, memoryview(buffer))
        assert not client.connection.is_clean


@pytest.mark.parametrize(
    ("text", "aside", "clean"),
    [
        (b"Content-Length: 5\r\n\r\nhello", b"hello", True),
        (b"Content-Length: 0\r\n\r\n", b"", True),
        (b"Content-Length: 5\r\nConnection: close\r\n\r\nhello", b"hello", False),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello", False),
        (b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", b"nonsense\r\n", False),
        (b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000, b"x" * 65_536, False),
    ],
)
@pytest.mark.parametrize("step", [0, 3])
async def test_error_texts_are_collected(text: bytes, aside: bytes, clean: bool, step: int) -> None:
    """The text of an error comes aside, whatever its framing, and never in the caller's buffer."""

    async def failing(request: Request, peer: Peer) -> None:
        answer = b"HTTP/1.1 503 Busy\r\n" + text
        for at in range(0, len(answer), step or len(answer)):
            await peer.send(answer[at : at + (step or len(answer))])
            await asyncio.sleep(0)

    if len(text) > 1000:
        step *= 1000
    async with connected(failing) as client:
        buffer = bytearray(b"\xa5" * 1000)
        answer = await client.get(0, memoryview(buffer))
        assert (answer.head.status, answer.filled, answer.aside) == (503, 0, aside)
        assert buffer == b"\xa5" * 1000
        assert client.connection.is_clean == clean


async def test_an_error_text_may_end_with_the_connection() -> None:
    """Without length and without chunks the end of the connection is the end of the text."""

    async def failing(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.0 500 Oops\r\n\r\nhello")
        peer.close()

    async with connected(failing) as client:
        answer = await client.get(0, memoryview(bytearray(10)))
        assert (answer.head.status, answer.aside) == (500, b"hello")


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(
    ("head", "text", "aside"),
    [
        (b"404 No\r\nContent-Length: 50", b"half", b"half"),
        (b"404 No\r\nContent-Length: 50", b"", b""),
        (b"429 Later\r\nRetry-After: 7\r\nContent-Length: 100000", b"half", b"half"),
        (b"403 No\r\nTransfer-Encoding: chunked", b"4\r\nhalf", b"4\r\nhalf"),
    ],
)
async def test_an_error_whose_text_breaks_off_stays_one(head: bytes, text: bytes, aside: bytes, how: str) -> None:
    """Its status is known, and its words are as many as came."""

    async def failing(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 %b\r\n\r\n%b" % (head, text))
        await until(lambda: client.connection.in_body)  # a reset would overtake what is not yet delivered
        peer.reset() if how == "reset" else peer.close()

    async with connected(failing) as client:
        buffer = bytearray(b"\xa5" * 1000)
        answer = await client.get(0, memoryview(buffer))
        assert (answer.head.status, answer.filled, answer.aside) == (int(head[:3]), 0, aside)
        assert answer.head.headers.get("retry-after") == ("7" if head.startswith(b"429") else None)
        assert buffer == b"\xa5" * 1000
        assert client.connection.phase is Phase.CLOSED


async def test_a_refused_head_places_no_byte() -> None:
    """What `accept` raises is what the caller gets, before the body is touched."""

    def refuse(head: ResponseHead) -> None:
        raise ObjectChangedError("no")

    async with connected(honest) as client:
        buffer = bytearray(b"\xa5" * 1000)
        with pytest.raises(ObjectChangedError):
            await client.get(0, memoryview(buffer), refuse)
        assert buffer == b"\xa5" * 1000
        assert not client.connection.is_clean


async def test_a_kept_connection_that_was_closed_is_stale_not_failed() -> None:
    """Without one byte of an answer on a kept connection the request counts as never made."""

    async def once(request: Request, peer: Peer) -> None:
        if peer.requests == 1:
            await honest(request, peer)
        else:
            peer.close()

    async with connected(once) as client:
        await client.get(0, memoryview(bytearray(10)))
        with pytest.raises(StaleConnectionError):
            await client.get(0, memoryview(bytearray(10)))
        with pytest.raises(StaleConnectionError):
            await client.get(0, memoryview(bytearray(10)))


async def test_a_fresh_connection_that_is_closed_has_failed() -> None:
    """The same on a connection's first exchange is a failure, so that it is counted and delayed."""

    async def never(request: Request, peer: Peer) -> None:
        peer.close()

    async with connected(never) as client:
        with pytest.raises(ReadFailedError) as caught:
            await client.get(0, memoryview(bytearray(10)))
        assert caught.value.cause is FailureCause.CONNECTION_LOST


async def test_a_connection_that_is_closed_before_its_first_request_has_failed() -> None:
    """As stale it would be replaced at once, again and again, by a server that hangs up on everybody."""
    async with connected(honest) as client:
        client.connection.close()
        with pytest.raises(ReadFailedError, match="a new connection") as caught:
            await client.get(0, memoryview(bytearray(10)))
        assert caught.value.cause is FailureCause.CONNECTION_LOST


async def test_cancellation_at_every_byte_position_lets_go_of_the_buffer() -> None:
    """After a cancelled exchange nothing writes into its buffer, wherever in head or body it was cut."""
    size = 300
    text_size = sum(map(len, ranged(Request("GET / HTTP/1.1\r\nRange: bytes=0-299\r\n"))))
    positions = range(0, text_size + 1, samples(7, 1))
    for position in positions:
        sent, go = asyncio.Event(), asyncio.Event()

        async def halting(
            request: Request, peer: Peer, at: int = position, sent: asyncio.Event = sent, go: asyncio.Event = go
        ) -> None:
            text = b"".join(ranged(request))
            await peer.send(text[:at])
            sent.set()
            await go.wait()
            await peer.send(text[at:])

        async with connected(halting) as client:
            buffer = bytearray(size)
            task = asyncio.create_task(client.get(0, memoryview(buffer)))
            await sent.wait()
            for _ in range(position % 4):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(outcome, Answer):
                assert isinstance(outcome, asyncio.CancelledError)
                assert not client.connection.is_clean
            buffer[:] = bytes([POISON]) * size
            go.set()
            await turns(20)
            assert buffer == bytes([POISON]) * size


@pytest.mark.parametrize("how", ["close", "fail"])
async def test_large_bodies_in_flight_are_let_go_of(how: str) -> None:
    """Closing or failing a connection in full flow stops all writing at once."""
    for count in range(samples(8, 60)):
        async with connected(honest) as client:
            buffer = bytearray(len(DATA))
            task = asyncio.create_task(client.get(0, memoryview(buffer)))
            await turns(count)
            if how == "close":
                task.cancel()
            else:
                client.connection.fail(StorageError("no more"))
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert outcome is not None
            buffer[:] = bytes([POISON]) * len(buffer)
            await turns(50)
            assert buffer.count(POISON) == len(buffer)


async def test_slow_pieces_are_gathered_by_the_kernel_and_the_tail_still_ends() -> None:
    """With a raised low-water mark few wake-ups happen, and bodies of any size come to their end."""

    async def trickling(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(head)
        for at in range(0, len(body), 16_384):
            await peer.send(body[at : at + 16_384])
            if at % 65_536 == 0:
                await peer.pause(0.0005)

    async with connected(trickling) as client:
        for size in (1, 262_143, 262_144, 524_288, 524_289, 700_001, len(DATA)):
            buffer = bytearray(size)
            answer = await asyncio.wait_for(client.get(0, memoryview(buffer)), LIMIT_S)
            assert answer.filled == size
            assert buffer == DATA[:size]
            assert client.connection.is_clean


async def test_repr_tells_the_state() -> None:
    """The live state is readable."""
    async with connected(honest) as client:
        assert repr(client.connection) == "<RangeConnection idle, 0 of 0 bytes, exchange 0>"
        await client.get(0, memoryview(bytearray(10)))
        assert "exchange 1" in repr(client.connection)
