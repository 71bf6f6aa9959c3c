"""Servers that never fall silent, and never come to an end: every request ends by its time limits all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from asyncdata.errors import TransientStorageError
from asyncdata.options import Environment, HedgeOptions, Options, RetryOptions, TimeoutOptions
from asyncdata.storage import FailureCause, Fetcher
from asyncdata.types import ObjectInfo
from tests.patience import LIMIT_S
from tests.storage.raw_server import DATA, Peer, RawServer, Request, Script, ranged

URL = "gs://bucket/x"
INFO = ObjectInfo(url=URL, size=len(DATA), version="1")
LIMITS = TimeoutOptions(connect_s=20, first_byte_s=0.4, idle_s=0.4, floor_s=0.4)
PAUSE_S = 0.02


def dripping(beginning: bytes, drop: bytes) -> Script:
    """Sends a beginning, then the same few bytes for ever."""

    async def script(request: Request, peer: Peer) -> None:
        await peer.send(beginning)
        while not peer.writer.is_closing():
            await peer.send(drop)
            await peer.pause(PAUSE_S)

    return script


async def read(fetcher: Fetcher) -> None:
    """A range of an object that is known."""
    await fetcher.read(INFO, 0, memoryview(bytearray(1000)))


async def begin(fetcher: Fetcher) -> object:
    """The beginning of an object of which nothing is known."""
    return await fetcher.open_read(URL, memoryview(bytearray(1000)))


async def look(fetcher: Fetcher) -> object:
    """Metadata."""
    return await fetcher.stat(URL)


async def find(fetcher: Fetcher) -> object:
    """A listing."""
    return await fetcher.glob("gs://bucket/x*")


_206 = b"HTTP/1.1 206 Partial\r\nx-goog-generation: 1\r\n"
_RANGE = b"Content-Range: bytes 0-999/%d\r\n" % len(DATA)
HEAD, BODY = FailureCause.FIRST_BYTE_TIMEOUT, FailureCause.SLOW
DRIPS: dict[str, tuple[bytes, bytes, FailureCause]] = {
    "a head byte by byte": (b"HTTP/1.1 206 Partial\r\nX-Word: ", b"a", HEAD),
    "a head line by line": (b"HTTP/1.1 206 Partial\r\n", b"X-Word: a\r\n", HEAD),
    "interim heads": (b"", b"HTTP/1.1 102 Processing\r\n\r\n", HEAD),
    "a body": (_206 + _RANGE + b"Content-Length: 1000\r\n\r\n", b"x", BODY),
    "an error text": (b"HTTP/1.1 503 Busy\r\nContent-Length: 60000\r\n\r\n", b"x", BODY),
    "an error text in chunks": (b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", BODY),
    "an error text without length": (b"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\n", b"x", BODY),
}


async def outcome(name: str, ask: Callable[[Fetcher], Awaitable[object]]) -> set[FailureCause]:
    """What ends a request to a server of this kind."""
    beginning, drop, _ = DRIPS[name]
    async with RawServer(dripping(beginning, drop)) as server:
        options = Options(retry=RetryOptions(max_attempts=1), timeouts=LIMITS, hedge=HedgeOptions(enabled=False))
        fetcher = Fetcher(options, Environment(storage_emulator_host=server.url))
        try:
            with pytest.raises(TransientStorageError):
                await ask(fetcher)
            return set(fetcher.stats().failures)
        finally:
            await fetcher.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize("ask", [read, begin, look, find])
async def test_a_drip_ends(ask: Callable[[Fetcher], Awaitable[object]]) -> None:
    """A head has to be complete in time, and what follows it comes at a pace, on either way and for any answer."""
    async with asyncio.timeout(LIMIT_S):
        found = await asyncio.gather(*(outcome(name, ask) for name in DRIPS))
    for (name, (_, _, cause)), causes in zip(DRIPS.items(), found, strict=True):
        # The server is as late as the client when the machine is: a drip may then look like silence.
        assert causes in ({cause}, {FailureCause.IDLE_TIMEOUT} if cause is BODY else {cause}), name


async def test_a_flood_of_interim_heads_ends() -> None:
    """However many of them come at a time: they are counted like one head, and none calls for another."""

    async def flooding(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 102 Processing\r\nX-Words: " + b"x" * 40_000 + b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 100\r\n\r\n" * (100 if peer.requests == 1 else 20_000))
        head, body = ranged(request, extra="x-goog-generation: 1\r\n")
        await peer.send(head + body)

    async with RawServer(flooding) as server:
        options = Options(retry=RetryOptions(max_attempts=1), hedge=HedgeOptions(enabled=False))
        fetcher = Fetcher(options, Environment(storage_emulator_host=server.url))
        try:
            buffer = bytearray(1000)
            await fetcher.read(INFO, 0, memoryview(buffer))
            assert buffer == DATA[:1000]
            with pytest.raises(TransientStorageError, match="interim heads of more than 65536 bytes"):
                await fetcher.read(INFO, 0, memoryview(buffer))
            assert fetcher.stats().failures == {FailureCause.MALFORMED: 1}
        finally:
            await fetcher.aclose()
