from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from asyncdata.errors import AccessDeniedError, ObjectChangedError, StorageError, UnsupportedURLError
from asyncdata.options import Environment, Options, RetryOptions
from asyncdata.storage import EncodedBodyError, Fetcher, RangeIgnoredError
from asyncdata.storage.backends import spec_for
from asyncdata.storage.gcs.listing import LISTERS
from asyncdata.storage.gcs.tokens import MAX_REFUSALS
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.patience import LIMIT_S
from tests.storage.gcs.test_tokens import service_account
from tests.storage.raw_server import DATA, Peer, RawServer, Request, honest, ranged

INFO = ObjectInfo(url="gs://bucket/x", size=len(DATA), version="7")


def fetcher_of(endpoint: str, **options: object) -> Fetcher:
    """A Fetcher for one endpoint."""
    return Fetcher(Options(storage={"gs": {"endpoint_url": endpoint, "token": "anon", **options}}), Environment())


@pytest.mark.sampled
async def test_listings_of_many_pages_are_complete_and_take_little_more_than_a_request_per_page() -> None:
    """2,500 names are three pages; nothing but list requests is sent, and few that find nothing."""
    async with FakeGCS(buckets=["bucket"]) as server:
        for number in range(2500):
            server.put("bucket", f"p/{number:05d}.rec", b"x")
        fetcher = fetcher_of(server.url)
        found = await fetcher.glob("gs://bucket/p/*.rec")
        assert [info.url for info in found] == [f"gs://bucket/p/{number:05d}.rec" for number in range(2500)]
        assert {entry.operation for entry in server.journal} == {"storage.objects.list"}
        assert 3 <= len(server.journal) <= 3 + LISTERS
        await fetcher.aclose()


@pytest.mark.parametrize("tls", [False, True])
async def test_the_scheme_of_an_endpoint_may_be_in_capitals(tls: bool) -> None:
    """It is encrypted or not all the same."""
    async with FakeGCS(buckets=["bucket"], tls=tls) as server:
        server.put("bucket", "x", DATA)
        scheme, _, rest = server.url.partition("://")
        fetcher = fetcher_of(f"{scheme.upper()}://{rest}", verify_tls=False)
        buffer = bytearray(100)
        await fetcher.read(await fetcher.stat("gs://bucket/x"), 10, memoryview(buffer))
        assert buffer == DATA[10:110]
        await fetcher.aclose()


async def test_reading_a_listed_object_costs_one_request_and_no_look_up() -> None:
    """Only the ranged GET is sent: no metadata, no bucket, nothing else."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        fetcher = fetcher_of(server.url)
        (info,) = await fetcher.glob("gs://bucket/*")
        await fetcher.read(info, 10, memoryview(bytearray(100)))
        await fetcher.open_read("gs://bucket/x", memoryview(bytearray(100)))
        operations = [(entry.operation, entry.range) for entry in server.journal]
        assert operations == [
            ("storage.objects.list", ""),
            ("storage.objects.get", "bytes=10-109"),
            ("storage.objects.get", "bytes=0-99"),
        ]
        await fetcher.aclose()


async def test_objects_kept_compressed_are_read_as_they_are_stored() -> None:
    """A gzip object has the ranges and the size of its stored bytes."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA[:5000], contentEncoding="gzip")
        fetcher = fetcher_of(server.url)
        info = await fetcher.stat("gs://bucket/x")
        assert info.size == 5000
        buffer = bytearray(100)
        await fetcher.read(info, 50, memoryview(buffer))
        assert buffer == DATA[50:150]
        await fetcher.aclose()


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\n\r\n", RangeIgnoredError),
        ("HTTP/1.1 200 OK\r\nx-goog-stored-content-encoding: gzip\r\n\r\n", EncodedBodyError),
        (
            "HTTP/1.1 206 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\nContent-Range: bytes 0-8/9\r\n\r\n",
            EncodedBodyError,
        ),
        (
            "HTTP/1.1 206 OK\r\nx-goog-generation: 8\r\nContent-Length: 9\r\nContent-Range: bytes 0-8/9\r\n\r\n",
            ObjectChangedError,
        ),
        (f"HTTP/1.1 416 No\r\nContent-Range: bytes */{5}\r\nContent-Length: 0\r\n\r\n", ObjectChangedError),
    ],
)
async def test_answers_that_are_not_the_stored_bytes_are_refused(head: str, kind: type[StorageError]) -> None:
    """Each by its own type, at the first try, with the place in the message."""

    async def lying(request: Request, peer: Peer) -> None:
        await peer.send(head.encode() + b"x" * 9)
        await peer.stall()

    async with RawServer(lying) as server:
        fetcher = fetcher_of(server.url)
        buffer = bytearray(b"\xa5" * 1000)
        with pytest.raises(kind) as caught:
            await fetcher.read(INFO, 0, memoryview(buffer))
        assert caught.value.place() == {"url": INFO.url, "version": "7", "offset": 0, "attempts": 1}
        assert buffer == b"\xa5" * 1000
        assert len(server.requests) == 1
        await fetcher.aclose()


async def test_an_object_without_a_generation_in_its_first_answer_is_read_again_pinned() -> None:
    """What came is of no known version: the version is asked for, and all is read of that one."""

    async def stripped(request: Request, peer: Peer) -> None:
        if "alt=media" in request.target:
            await honest(request, peer)
        else:
            body = json.dumps({"size": str(len(DATA)), "generation": "7"}).encode()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with RawServer(stripped) as server:
        fetcher = fetcher_of(server.url)
        buffer = bytearray(5500)
        assert await fetcher.open_read(INFO.url, memoryview(buffer)) == (INFO, 5500)
        assert buffer == DATA[:5500]
        assert ["generation=7" in request.target for request in server.requests] == [False, False, True]
        await fetcher.aclose()


async def test_a_beginning_that_is_refused_is_no_empty_object() -> None:
    """416 to an opening read means an empty object only if its size is 0 as well; else it is asked for again."""

    async def late(request: Request, peer: Peer) -> None:
        if "alt=media" not in request.target:
            body = json.dumps({"size": str(len(DATA)), "generation": "7"}).encode()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        elif len(server.requests) == 1:
            await peer.send(b"HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n")
        else:
            await peer.send(b"".join(ranged(request, extra="x-goog-generation: 7\r\n")))

    async with RawServer(late) as server:
        fetcher = fetcher_of(server.url)
        buffer = bytearray(5500)
        assert await fetcher.open_read(INFO.url, memoryview(buffer)) == (INFO, 5500)
        assert buffer == DATA[:5500]
        assert fetcher.stats().retries == 1
        await fetcher.aclose()


async def test_what_came_of_no_known_generation_is_not_gone_on_with() -> None:
    """An opening answer without a generation breaks off: the next attempt begins at the first byte."""
    other = bytes(byte ^ 255 for byte in DATA)

    async def broken(request: Request, peer: Peer) -> None:
        if len(server.requests) == 1:
            head, body = ranged(request, data=other)
            await peer.send(head + body[:3000])
            peer.close()
        else:
            await peer.send(b"".join(ranged(request, extra="x-goog-generation: 7\r\n")))

    async with RawServer(broken) as server:
        fetcher = fetcher_of(server.url)
        buffer = bytearray(5500)
        assert await fetcher.open_read(INFO.url, memoryview(buffer)) == (INFO, 5500)
        assert buffer == DATA[:5500]
        await fetcher.aclose()


async def test_a_chunked_body_is_read_another_way() -> None:
    """What the range client does not take, aiohttp does; from then on at once."""

    async def chunked(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        lines = [line for line in head.split(b"\r\n") if line and not line.startswith(b"Content-Length")]
        await peer.send(b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""]))
        for at in range(0, len(body), 1000):
            piece = body[at : at + 1000]
            await peer.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        await peer.send(b"0\r\n\r\n")

    async with RawServer(chunked) as server:
        fetcher = fetcher_of(server.url)
        for number in range(3):
            buffer = bytearray(5500)
            await fetcher.read(INFO, 77, memoryview(buffer))
            assert buffer == DATA[77:5577]
            assert len(server.requests) == number + 2
        assert fetcher.stats().retries == 0
        await fetcher.aclose()


@pytest.mark.sampled
async def test_a_token_the_server_refuses_is_renewed_once(tmp_path: Path) -> None:
    """A 401 in the middle of a run costs one renewal; a few refused in a row are the end; no secret shows."""
    good = "t1"
    issued = 0

    async def guarded(request: Request, peer: Peer) -> None:
        nonlocal issued
        if request.line.startswith("POST /token"):
            await peer.reader.readexactly(int(request.header("content-length") or 0))
            issued += 1
            body = json.dumps({"access_token": f"t{issued}", "expires_in": 3600}).encode()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        elif request.header("authorization") != f"Bearer {good}":
            await peer.send(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
        else:
            await honest(request, peer)

    async with RawServer(guarded) as server:
        fetcher = fetcher_of(server.url, token=service_account(tmp_path, f"{server.url}/token"))
        buffer = bytearray(1000)
        await fetcher.read(INFO, 0, memoryview(buffer))
        good = "t2"
        await fetcher.read(INFO, 0, memoryview(buffer))
        assert issued == 2
        assert buffer == DATA[:1000]
        assert fetcher.stats().retries == 0
        good = "none"
        with pytest.raises(AccessDeniedError) as caught:
            await fetcher.read(INFO, 0, memoryview(buffer))
        assert issued == 2 + MAX_REFUSALS + 1
        assert "Bearer" not in repr(caught.value.__dict__)
        assert "t3" not in str(caught.value)
        await fetcher.aclose()


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_server_that_repeats_the_token_does_not_make_it_known(status: int, tmp_path: Path) -> None:
    """A refusal says what the server says, but for the token in it; for reads and for metadata."""

    async def repeating(request: Request, peer: Peer) -> None:
        if request.line.startswith("POST /token"):
            await peer.reader.readexactly(int(request.header("content-length") or 0))
            body = json.dumps({"access_token": "ya29.hush", "expires_in": 3600}).encode()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        else:
            body = f"refused: {request.header('authorization')} tried it".encode()
            await peer.send(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    async with RawServer(repeating) as server:
        token = service_account(tmp_path, f"{server.url}/token")
        fetcher = fetcher_of(server.url, token=token)
        for attempt in (
            fetcher.open_read(INFO.url, memoryview(bytearray(10))),
            fetcher.stat(INFO.url),
            fetcher.glob(INFO.url + "*"),
        ):
            with pytest.raises(StorageError, match="refused: Bearer … tried it") as caught:
                await attempt
            assert "hush" not in repr(caught.value.__dict__)
        await fetcher.aclose()


async def test_a_token_that_ends_is_renewed_for_metadata_too(tmp_path: Path) -> None:
    """A listing and a look at an object are asked for once more with a new token; nothing counts as failed."""
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", b"1234")
        fetcher = fetcher_of(server.url, token=service_account(tmp_path, f"{server.url}/token"))
        for ask in (fetcher.stat, fetcher.glob):
            server.profile = Profile(rules=(Rule(fault=Fault(kind="expired-token"), nth=(1,)),))
            server.journal.clear()
            assert await ask("gs://bucket/x")
            assert [entry.status for entry in server.journal if entry.operation.startswith("storage.objects")] == [
                401,
                200,
            ]
        stats = fetcher.stats()
        assert (stats.metadata_requests, stats.retries, dict(stats.failures)) == (2, 0, {})
        await fetcher.aclose()


@pytest.mark.sampled
async def test_many_reads_whose_token_ends_share_one_renewal(tmp_path: Path) -> None:
    """All are refused at a time, and the new token is not known everywhere at once: no read fails."""
    good, unsure, issued = "t1", 0, 0

    async def guarded(request: Request, peer: Peer) -> None:
        nonlocal issued, unsure
        if request.line.startswith("POST /token"):
            await peer.reader.readexactly(int(request.header("content-length") or 0))
            issued += 1
            body = json.dumps({"access_token": f"t{issued}", "expires_in": 3600}).encode()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            return
        known = int((request.header("authorization") or "Bearer t0")[8:]) >= int(good[1:])
        if known and unsure:
            unsure -= 1
            known = False
        if known:
            await honest(request, peer)
        else:
            await peer.send(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")

    async with RawServer(guarded) as server:
        fetcher = fetcher_of(server.url, token=service_account(tmp_path, f"{server.url}/token"))
        await fetcher.read(INFO, 0, memoryview(bytearray(10)))
        good, unsure = "t2", 20
        buffers = [bytearray(100) for _ in range(300)]
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for number, buffer in enumerate(buffers):
                group.create_task(fetcher.read(INFO, number, memoryview(buffer)))
        assert all(buffer == DATA[number : number + 100] for number, buffer in enumerate(buffers))
        assert 2 <= issued <= 2 + MAX_REFUSALS
        await fetcher.aclose()


async def test_a_proxy_is_used_when_it_is_named() -> None:
    """Every request goes to the proxy, with the whole URL in its first line."""
    async with RawServer(honest) as proxy:
        fetcher = fetcher_of("http://storage.invalid", proxy=proxy.url)
        buffer = bytearray(1000)
        await fetcher.read(INFO, 5, memoryview(buffer))
        assert buffer == DATA[5:1005]
        assert proxy.requests[0].target.startswith("http://storage.invalid/download/")
        await fetcher.aclose()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", "302"),
        ("303 See Other\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", "303"),
        ("307 Temporary Redirect\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", "307"),
        ("200 OK\r\nContent-Length: 5\r\n\r\nlogin", "confirm"),
        ('200 OK\r\nContent-Length: 33\r\n\r\n{"size": "3", "generation": "12"}', "confirm"),
        ("200 OK\r\nContent-Length: 0\r\n\r\n", "confirm"),
    ],
)
async def test_only_what_the_server_confirms_is_written(answer: str, said: str) -> None:
    """The page behind a redirect is no answer to an upload, and another page's 200 none either."""

    async def script(request: Request, peer: Peer) -> None:
        if request.line.startswith("POST"):
            await peer.reader.readexactly(int(request.header("content-length") or 0))
            await peer.send(f"HTTP/1.1 {answer}".encode())
        else:
            await peer.send(b'HTTP/1.1 200 OK\r\nContent-Length: 33\r\n\r\n{"size": "5", "generation": "12"}')

    async with RawServer(script) as server:
        fetcher = Fetcher(
            Options(
                storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
                retry=RetryOptions(max_attempts=2, initial_delay_s=0.001),
            ),
            Environment(),
        )
        with pytest.raises(StorageError, match=said) as caught:
            await fetcher.write("gs://bucket/state", b"state")
        assert caught.value.url == "gs://bucket/state"
        assert all(request.line.startswith("POST") for request in server.requests)
        await fetcher.aclose()


@pytest.mark.parametrize("pattern", ["gs://b*/x", "gs://{a,b}/x", "gs://*"])
async def test_buckets_are_named_in_full(pattern: str) -> None:
    """No wildcard stands for a bucket."""
    fetcher = fetcher_of("http://127.0.0.1:9")
    with pytest.raises(UnsupportedURLError, match="bucket"):
        await fetcher.glob(pattern)
    await fetcher.aclose()


async def test_unknown_options_are_named() -> None:
    """A misspelt option is an error, not silence."""
    with pytest.raises(ValueError, match="'endpoint_ulr'; did you mean 'endpoint_url'"):
        spec_for("gs://b/o", Options(storage={"gs": {"endpoint_ulr": "x"}}), Environment()).open()


@pytest.mark.parametrize(
    ("storage", "host", "endpoint", "token"),
    [
        ({}, None, None, None),
        ({}, "127.0.0.1:5", "http://127.0.0.1:5", "anon"),
        ({}, "https://h:5", "https://h:5", "anon"),
        ({"endpoint_url": "http://e"}, "127.0.0.1:5", "http://e", None),
        ({"token": "google_default"}, "h:5", "http://h:5", "google_default"),
    ],
)
def test_which_endpoint_is_used(
    storage: dict[str, str], host: str | None, endpoint: str | None, token: str | None
) -> None:
    """An explicit endpoint beats the emulator, which beats Google; an emulator needs no credentials."""
    spec = spec_for("gs://b/o", Options(storage={"gs": storage}), Environment(storage_emulator_host=host))
    assert (spec.options.get("endpoint_url"), spec.options.get("token")) == (endpoint, token)
    assert spec.scheme == "gs"
    assert spec_for("gcs://b/o", Options(storage={"gs": storage}), Environment(storage_emulator_host=host)) == spec
