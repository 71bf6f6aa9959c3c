"""Servers that lie: each lie is a typed error that says what was wrong, or is made good; wrong bytes never pass."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from asyncdata.errors import ObjectChangedError, StorageError, TransientStorageError
from asyncdata.options import Environment, Options, RetryOptions, TimeoutOptions
from asyncdata.storage import EncodedBodyError, FailureCause, Fetcher, RangeIgnoredError
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS
from tests.storage.certificate import make_certificate
from tests.storage.raw_server import DATA, Peer, RawServer, Request, Script, ranged

GENERATION = "1700000000000001"
START, SIZE = 5000, 3000
GCS = f'x-goog-generation: {GENERATION}\r\nETag: "v1"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'


def answer(request: Request, **replaced: str) -> tuple[bytes, bytes]:
    """A faultless answer, but for the headers that are replaced (an empty value leaves one out)."""
    head, body = ranged(request, extra=GCS)
    lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    for name, value in replaced.items():
        key = name.replace("_", "-").lower()
        lines = [line for line in lines if line.split(":")[0].lower() != key]
        if value:
            lines.append(f"{key}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), body


def lie(**replaced: str) -> Script:
    """A server that always replaces these headers; ``{start}``, ``{stop}`` and ``{size}`` stand for the range's."""

    async def script(request: Request, peer: Peer) -> None:
        values = {"start": request.start, "stop": request.stop - 1, "size": request.stop - request.start}
        head, body = answer(request, **{name: text.format(**values) for name, text in replaced.items()})
        await peer.send(head + body)

    return script


async def short(request: Request, peer: Peer) -> None:
    """Half of what was announced, then the end of the connection."""
    head, body = answer(request)
    await peer.send(head + body[: len(body) // 2])
    peer.close()


async def nothing(request: Request, peer: Peer) -> None:
    """A head without its body."""
    head, _ = answer(request)
    await peer.send(head)
    peer.close()


async def half_a_head(request: Request, peer: Peer) -> None:
    """Not even that."""
    head, _ = answer(request)
    await peer.send(head[:30])
    peer.close()


async def whole(request: Request, peer: Peer) -> None:
    """200 where a range was asked for."""
    await peer.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\n{GCS}\r\n".encode() + DATA)


async def transcoded(request: Request, peer: Peer) -> None:
    """What GCS does with an object that is kept compressed, for clients that do not take it so: all of it, inflated."""
    stored = "x-goog-stored-content-encoding: gzip\r\nx-guploader-response-body-transformations: gunzipped\r\n"
    await peer.send(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{GCS}{stored}\r\n".encode())
    await peer.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DATA), DATA))


async def compressed(request: Request, peer: Peer) -> None:
    """Compressed on the way, unasked."""
    body = gzip.compress(DATA)
    await peer.send(f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n{GCS}\r\n".encode())
    await peer.send(body)


async def coded_for_the_way(request: Request, peer: Peer) -> None:
    """A transfer coding that nobody asked for; the range is that of the object."""
    head, body = answer(request, content_length="", transfer_encoding="gzip, chunked")
    packed = gzip.compress(body)
    await peer.send(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed))


async def more_than_promised(request: Request, peer: Peer) -> None:
    """More chunks than the range has bytes."""
    head, body = answer(request, content_length="", transfer_encoding="chunked")
    await peer.send(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body) + 4, body + b"more"))


async def another_place(request: Request, peer: Peer) -> None:
    """A range that begins later than it should; without a length only its place tells."""
    place = f"bytes {request.start + 7}-{request.stop - 1}/{len(DATA)}"
    head, body = answer(request, content_length="", transfer_encoding="chunked", content_range=place)
    await peer.send(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body) - 7, body[7:]))


async def a_page_to_log_in(request: Request, peer: Peer) -> None:
    """What stands between here and there answers in its place."""
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n<html>please log in.")


BOTH = ("gs", "http")
LIES: dict[str, tuple[Script, type[StorageError], str, tuple[str, ...]]] = {
    "no Content-Range": (lie(content_range=""), TransientStorageError, "Content-Range", BOTH),
    "another start": (lie(content_range="bytes 0-2999/2097152"), TransientStorageError, "Content-Range", BOTH),
    "another start, no length": (another_place, TransientStorageError, "Content-Range", BOTH),
    "another stop": (lie(content_range="bytes {start}-9999/2097152"), TransientStorageError, "Content-Range", BOTH),
    "a nonsense range": (lie(content_range="bytes five-six/seven"), TransientStorageError, "Content-Range", BOTH),
    "another total": (lie(content_range="bytes {start}-{stop}/99999"), ObjectChangedError, "99999", BOTH),
    "a shorter length": (lie(content_length="10"), TransientStorageError, "10 bytes", BOTH),
    "a longer length": (lie(content_length="4000"), TransientStorageError, "4000 bytes", BOTH),
    "a nonsense length": (lie(content_length="-5"), TransientStorageError, ".", BOTH),
    "two lengths": (lie(content_length="3000, 3001"), TransientStorageError, ".", BOTH),
    "another generation": (lie(x_goog_generation="18"), ObjectChangedError, f"{GENERATION}.*18", ("gs",)),
    "another ETag": (lie(etag='"v2"'), ObjectChangedError, 'v1.*"v2"', ("http",)),
    "200 for 206": (whole, RangeIgnoredError, "200", ("gs",)),
    "transcoded": (transcoded, EncodedBodyError, "re-encoded", ("gs",)),
    "compressed": (compressed, EncodedBodyError, "gzip", BOTH),
    "coded for the way": (coded_for_the_way, EncodedBodyError, "gzip", BOTH),
    "more than promised": (more_than_promised, TransientStorageError, "longer", BOTH),
    "a page to log in": (a_page_to_log_in, TransientStorageError, "200 with 20 bytes", ("gs",)),
    "half a head": (half_a_head, TransientStorageError, "head", BOTH),
    "no body": (nothing, TransientStorageError, "body", BOTH),
}


def fetcher_of(server: RawServer, way: str = "plain") -> tuple[Fetcher, dict[str, ObjectInfo]]:
    """A Fetcher whose bodies go that way, and what was listed."""
    gs: dict[str, Any] = {"endpoint_url": server.url, "token": "anon"}
    web: dict[str, Any] = {}
    url = server.url
    if way == "aiohttp":  # which the proxy calls for; the server answers to any name
        gs |= {"endpoint_url": "http://storage.test", "proxy": server.url}
        web, url = {"proxy": server.url}, "http://web.test"
    elif way == "tls":
        gs["verify_tls"] = web["verify_tls"] = False
    elif way == "obstore":
        gs["backend"] = "obstore"
    fetcher = Fetcher(
        Options(
            storage={"gs": gs, "http": web if way == "aiohttp" else {}, "https": web},
            retry=RetryOptions(max_attempts=2, initial_delay_s=0.001),
            # obstore tells nothing of a body that does not go on.
            timeouts=TimeoutOptions(first_byte_s=1.5, idle_s=1.0) if way == "obstore" else TimeoutOptions(),
        ),
        Environment(),
    )
    return fetcher, {
        "gs": ObjectInfo(url="gs://bucket/x", size=len(DATA), version='"v1"' if way == "obstore" else GENERATION),
        "http": ObjectInfo(url=f"{url}/x", size=len(DATA), version='"v1"'),
    }


@pytest.mark.sampled
@pytest.mark.parametrize("way", ["plain", "tls", "aiohttp"])
@pytest.mark.parametrize("name", LIES)
async def test_a_lie_is_a_typed_error(name: str, way: str, tmp_path: Path) -> None:
    """It says what was wrong and names the URL; whatever had arrived was right or is not claimed."""
    script, kind, words, schemes = LIES[name]
    tls = make_certificate(tmp_path)[1] if way == "tls" else None
    async with RawServer(script, tls=tls) as server:
        fetcher, listed = fetcher_of(server, way)
        try:
            for scheme in schemes:
                buffer = bytearray(SIZE)
                with pytest.raises(StorageError, match=words if way != "aiohttp" else ".") as caught:
                    await fetcher.read(listed[scheme], START, memoryview(buffer))
                claimed = (caught.value.offset or START) - START
                assert buffer[:claimed] == DATA[START : START + claimed]
                assert isinstance(caught.value, kind), repr(caught.value)
                assert caught.value.url == listed[scheme].url
                assert isinstance(caught.value, TransientStorageError) == (kind is TransientStorageError)
        finally:
            await fetcher.aclose()


@pytest.mark.parametrize("opening", [False, True])
async def test_a_page_to_log_in_is_no_beginning_of_an_object(opening: bool) -> None:
    """Nothing of it is kept, though it fits: the next attempt begins at the first byte."""

    async def at_first(request: Request, peer: Peer) -> None:
        if len(server.requests) == 1:
            await a_page_to_log_in(request, peer)
        elif "alt=media" not in request.target:
            text = b'{"size": "%d", "generation": "%s"}' % (len(DATA), GENERATION.encode())
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        else:
            await peer.send(b"".join(answer(request)))

    async with RawServer(at_first) as server:
        fetcher, listed = fetcher_of(server)
        try:
            buffer = bytearray(SIZE)
            if opening:
                info, filled = await fetcher.open_read(listed["gs"].url, memoryview(buffer))
                assert (info, filled) == (listed["gs"], SIZE)
            else:
                await fetcher.read(listed["gs"], 0, memoryview(buffer))
            assert buffer == DATA[:SIZE]
        finally:
            await fetcher.aclose()


@pytest.mark.parametrize("way", ["plain", "aiohttp"])
@pytest.mark.parametrize("scheme", BOTH)
async def test_the_length_of_a_part_is_not_the_size_of_the_object(scheme: str, way: str) -> None:
    """What opens an object learns nothing from a part without its place, and the next attempt opens it."""

    async def at_first(request: Request, peer: Peer) -> None:
        await peer.send(b"".join(answer(request, **({"content_range": ""} if len(server.requests) == 1 else {}))))

    async with RawServer(at_first) as server:
        fetcher, listed = fetcher_of(server, way)
        try:
            buffer = bytearray(SIZE)
            assert await fetcher.open_read(listed[scheme].url, memoryview(buffer)) == (listed[scheme], SIZE)
            assert buffer == DATA[:SIZE]
        finally:
            await fetcher.aclose()


@pytest.mark.parametrize("way", ["plain", "aiohttp"])
@pytest.mark.parametrize("scheme", BOTH)
async def test_a_server_may_send_less_than_was_asked_for(scheme: str, way: str) -> None:
    """And say so: the rest is asked for, and nothing passes for complete that is not."""

    async def some(request: Request, peer: Peer) -> None:
        request.stop = min(request.stop, request.start + 2000)
        await peer.send(b"".join(answer(request)))

    async with RawServer(some) as server:
        fetcher, listed = fetcher_of(server, way)
        try:
            buffer = bytearray(SIZE)
            await fetcher.read(listed[scheme], START, memoryview(buffer))
            assert buffer == DATA[START : START + SIZE]
            assert [request.start for request in server.requests] == [START, START + 2000]
            assert fetcher.stats().failures == {FailureCause.SHORT_BODY: 1}
        finally:
            await fetcher.aclose()


@pytest.mark.parametrize("scheme", BOTH)
async def test_a_body_that_ends_early_is_gone_on_with(scheme: str) -> None:
    """Each attempt brings half of the rest: the bytes that came are kept, and the read is pinned to one version."""
    async with RawServer(short) as server:
        fetcher, listed = fetcher_of(server)
        try:
            buffer = bytearray(b"\xa5" * SIZE)
            with pytest.raises(TransientStorageError, match="closed the connection after") as caught:
                await fetcher.read(listed[scheme], START, memoryview(buffer))
            assert buffer[:2250] == DATA[START : START + 2250]
            assert caught.value.offset == START + 2250
            assert [request.start for request in server.requests] == [START, START + 1500]
        finally:
            await fetcher.aclose()


async def test_an_http_server_that_ignores_ranges_is_read_all_the_same() -> None:
    """The one lie that is made good: all is received, and what was asked for is kept."""
    async with RawServer(whole) as server:
        fetcher, listed = fetcher_of(server)
        try:
            buffer = bytearray(SIZE)
            await fetcher.read(listed["http"], START, memoryview(buffer))
            assert buffer == DATA[START : START + SIZE]
            assert fetcher.stats().fallbacks == {"range_ignored": 1}
        finally:
            await fetcher.aclose()


async def test_objects_that_are_kept_compressed_are_read_as_they_are_kept() -> None:
    """GCS's transcoding is asked not to happen: sizes, ranges and checksums are those of the stored bytes."""
    stored = gzip.compress(DATA, 1)
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", stored, contentEncoding="gzip")
        storage = {"gs": {"endpoint_url": server.url, "token": "anon"}}
        fetcher = Fetcher(Options(storage=storage), Environment())
        try:
            info = await fetcher.stat("gs://bucket/x")
            assert info.size == len(stored)
            buffer = bytearray(100)
            await fetcher.read(info, 50, memoryview(buffer))
            assert buffer == stored[50:150]
            opened, filled = await fetcher.open_read("gs://bucket/x", memoryview(buffer))
            assert (opened, filled, bytes(buffer)) == (info, 100, stored[:100])
            assert opened.crc32c == info.crc32c is not None
        finally:
            await fetcher.aclose()
