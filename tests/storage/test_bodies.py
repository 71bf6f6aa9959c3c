"""Both ways to a body: real proxies, and servers that only aiohttp understands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncdata.errors import AccessDeniedError, StorageError, TransientStorageError
from asyncdata.options import Environment, Options, RetryOptions
from asyncdata.storage import Fetcher
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS
from tests.storage.forwarding_proxy import ForwardingProxy
from tests.storage.raw_server import DATA, Peer, RawServer, Request, Script, honest, ranged

RETRY = RetryOptions(max_attempts=3, initial_delay_s=0.001)


@asynccontextmanager
async def fetching(environment: Environment | None = None, **storage: dict[str, Any]) -> AsyncIterator[Fetcher]:
    """A Fetcher with options by scheme."""
    fetcher = Fetcher(Options(storage=storage, retry=RETRY), environment or Environment())
    try:
        yield fetcher
    finally:
        await fetcher.aclose()


async def read(fetcher: Fetcher, url: str, start: int = 0, size: int = 1000) -> bytes:
    buffer = bytearray(size)
    await fetcher.read(ObjectInfo(url=url, size=len(DATA)), start, memoryview(buffer))
    return bytes(buffer)


# --- proxies -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[FakeGCS]:
    with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        yield server


async def test_gs_through_a_proxy_that_the_option_names(server: FakeGCS) -> None:
    """Listing, metadata and bodies; the proxy alone knows where the host is."""
    async with ForwardingProxy({"storage.test": server.port}) as proxy:
        gs = {"endpoint_url": "http://storage.test", "token": "anon", "proxy": proxy.url}
        async with fetching(gs=gs) as fetcher:
            (info,) = await fetcher.glob("gs://bucket/*")
            assert await fetcher.stat("gs://bucket/x") == info
            buffer = bytearray(len(DATA))
            await fetcher.read(info, 0, memoryview(buffer))
            assert buffer == DATA
            assert fetcher.stats().fallbacks == {"proxy": 1}
        assert len(proxy.lines) >= 1
        assert all("http://storage.test/" in line for line in proxy.lines)


async def test_tls_through_a_tunnel(tmp_path: Path) -> None:
    """The proxy sees a CONNECT and then nothing; the certificate is the server's and is verified."""
    with FakeGCS(buckets=["bucket"], tls=True) as server:
        server.put("bucket", "x", DATA)
        authority = tmp_path / "ca.pem"
        authority.write_bytes(server.certificate)
        async with ForwardingProxy({"storage.googleapis.com": server.port}) as proxy:
            environment = Environment(https_proxy=proxy.url)
            gs = {"endpoint_url": "https://storage.googleapis.com", "token": "anon", "ca_file": str(authority)}
            async with fetching(environment, gs=gs) as fetcher:
                info = await fetcher.stat("gs://bucket/x")
                buffer = bytearray(100_000)
                await fetcher.read(info, 5, memoryview(buffer))
                assert buffer == DATA[5:100_005]
                assert fetcher.stats().fallbacks == {"proxy": 1}
            assert set(proxy.lines) == {"CONNECT storage.googleapis.com:443 HTTP/1.1"}
            async with fetching(environment, gs={**gs, "ca_file": None}) as fetcher:
                with pytest.raises(StorageError, match="not trusted") as caught:
                    await fetcher.stat("gs://bucket/x")
                assert not isinstance(caught.value, TransientStorageError)


async def test_the_environment_and_its_exceptions() -> None:
    """http_proxy counts for http URLs, but not for excepted hosts and not for this machine."""
    async with RawServer(honest) as server, ForwardingProxy({"far.test": server.port}) as proxy:
        async with fetching(Environment(http_proxy=proxy.url)) as fetcher:
            assert await read(fetcher, "http://far.test/o") == DATA[:1000]
            assert len(proxy.lines) == 1
            assert await read(fetcher, f"{server.url}/o") == DATA[:1000]
            assert len(proxy.lines) == 1
            assert fetcher.stats().fallbacks == {"proxy": 1}
        async with fetching(Environment(http_proxy=proxy.url, no_proxy=".test")) as fetcher:
            with pytest.raises(TransientStorageError, match="cannot connect"):
                await read(fetcher, "http://far.test/o")
            assert len(proxy.lines) == 1


async def test_a_redirect_to_another_host_takes_that_hosts_way() -> None:
    """The proxy is chosen anew for each place that a redirect leads to."""

    async def moving(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 302 There\r\nLocation: http://far.test/there\r\nContent-Length: 0\r\n\r\n")

    async with (
        RawServer(moving) as near,
        RawServer(honest) as far,
        ForwardingProxy({"far.test": far.port}) as proxy,
        fetching(Environment(http_proxy=proxy.url)) as fetcher,
    ):
        assert await read(fetcher, f"{near.url}/here") == DATA[:1000]
        assert proxy.lines == ["GET http://far.test/there HTTP/1.1"]
        assert near.requests[0].target == "/here"


@pytest.mark.sampled
@pytest.mark.parametrize("tls", [False, True])
async def test_a_proxy_that_wants_a_password(tls: bool) -> None:
    """It comes with the proxy's URL; a wrong one is refused at once, and no message shows it."""
    scheme = "https" if tls else "http"
    async with RawServer(honest) as server, ForwardingProxy({"far.test": server.port}, password="me:hush") as proxy:
        if not tls:
            given = proxy.url.replace("://", "://me:hush@")
            async with fetching(http={"proxy": given}) as fetcher:
                assert await read(fetcher, "http://far.test/o") == DATA[:1000]
        wrong = proxy.url.replace("://", "://me:hushed@")
        async with fetching(None, http={"proxy": wrong}, https={"proxy": wrong}) as fetcher:
            with pytest.raises(AccessDeniedError, match="407") as caught:
                await read(fetcher, f"{scheme}://far.test/o")
            assert "hush" not in str(caught.value)
            assert caught.value.attempts == 1


async def test_a_proxy_that_is_not_there_is_a_connection_that_failed() -> None:
    """Tried again, and told without its password."""
    async with fetching(http={"proxy": "http://me:hush@127.0.0.1:1"}) as fetcher:
        with pytest.raises(TransientStorageError) as caught:
            await read(fetcher, "http://far.test/o")
        assert caught.value.attempts == 3
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_may_say_when_to_come_again(scheme: str) -> None:
    """In its answer to a request as to CONNECT: a time beyond the deadline ends the read at once."""

    async def busy(_: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 503 Busy\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n")

    async with RawServer(busy) as proxy, fetching(None, **{scheme: {"proxy": proxy.url}}) as fetcher:
        with pytest.raises(TransientStorageError, match="503") as caught:
            await read(fetcher, f"{scheme}://far.test/o")
        assert (caught.value.attempts, caught.value.retry_after_s) == (1, 3600)


# --- odd servers -----------------------------------------------------------------------------------------------------


async def chunked_range(request: Request, peer: Peer) -> None:
    """A 206 without a length."""
    head, body = ranged(request)
    head = head.replace(b"Content-Length: %d\r\n" % len(body), b"Transfer-Encoding: chunked\r\n")
    half = len(body) // 2 or 1
    parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
    await peer.send(head + parts + b"0\r\n\r\n")


async def bare_lines(request: Request, peer: Peer) -> None:
    """Line ends of a server written in an afternoon."""
    head, body = ranged(request)
    await peer.send(head.replace(b"\r\n", b"\n") + body)
    peer.close()


async def folded(request: Request, peer: Peer) -> None:
    """A header that goes on in the next line, as was allowed once."""
    head, body = ranged(request, extra="X-Note: one\r\n two\r\n")
    await peer.send(head + body)


async def odd_name(request: Request, peer: Peer) -> None:
    """A header whose name is none."""
    head, body = ranged(request, extra="X Note: one\r\n")
    await peer.send(head + body)


async def old_and_endless(request: Request, peer: Peer) -> None:
    """HTTP/1.0: the end of the connection is the end of the body, and ranges are unknown."""
    await peer.send(b"HTTP/1.0 200 OK\r\n\r\n" + DATA)
    peer.close()


ODD: dict[str, tuple[Script, str]] = {
    "chunked": (chunked_range, "unframed"),
    "bare line ends": (bare_lines, "malformed_head"),
    "folded header": (folded, "malformed_head"),
    "HTTP/1.0": (old_and_endless, "unframed"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", ODD)
async def test_odd_servers_are_read_by_aiohttp_without_being_asked_to(name: str) -> None:
    """No failure is told and nothing is tried again; the first answers cost one more request, later ones none."""
    script, why = ODD[name]
    async with RawServer(script) as server, fetching() as fetcher:
        for number in range(6):
            start = 1000 * number
            assert await read(fetcher, f"{server.url}/{number}", start, 500) == DATA[start : start + 500]
        stats = fetcher.stats()
        assert stats.fallbacks == {why: 6}
        assert (stats.retries, dict(stats.failures)) == (0, {})
        # Three strikes, then the whole origin.
        assert len(server.requests) == 6 + 3


async def test_a_head_that_nobody_understands_is_an_error() -> None:
    """After the usual attempts, with what was wrong."""
    async with RawServer(odd_name) as server, fetching() as fetcher:
        with pytest.raises(TransientStorageError) as caught:
            await read(fetcher, f"{server.url}/o")
        assert caught.value.attempts == 3


async def test_an_origin_that_comes_to_its_senses_is_read_in_place_again() -> None:
    """A few odd answers do not count for ever."""
    odd = True

    async def moody(request: Request, peer: Peer) -> None:
        await (bare_lines if odd else honest)(request, peer)

    async with RawServer(moody) as server, fetching() as fetcher:
        for number in range(2):
            await read(fetcher, f"{server.url}/{number}")
        odd = False
        for number in range(10):
            await read(fetcher, f"{server.url}/new {number}")
        assert fetcher.stats().fallbacks == {"malformed_head": 2}


async def test_connections_of_the_other_way_are_kept_too() -> None:
    """aiohttp's path does not connect for every range."""
    async with RawServer(chunked_range) as server, fetching() as fetcher:
        for number in range(10):
            await read(fetcher, f"{server.url}/o", 1000 * number)
        assert server.connections <= 3


async def test_what_a_server_without_ranges_sends_in_vain_is_counted() -> None:
    """Bytes that were kept and those that were thrown away are together what came, whatever the server did."""

    async def whole(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DATA))
        for at in range(0, len(DATA), 1 << 16):
            await peer.send(DATA[at : at + (1 << 16)])

    async with RawServer(whole) as server, fetching() as fetcher:
        for number in range(1, 4):
            await read(fetcher, f"{server.url}/o", len(DATA) // 2 * number // 2, 1000)
        stats = fetcher.stats()
        assert stats.bytes == 3000
        before = sum(len(DATA) // 2 * number // 2 for number in range(1, 4))
        # What the last piece had beside the wanted bytes was received, too.
        assert before <= stats.wasted_bytes < before + 3 * (1 << 20)


async def test_a_cancelled_read_by_aiohttp_lets_go_of_its_buffer() -> None:
    """At any moment."""

    async def slow(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        head = head.replace(b"Content-Length: %d\r\n" % len(body), b"Transfer-Encoding: chunked\r\n")
        await peer.send(head)
        for at in range(0, len(body), 4096):
            part = body[at : at + 4096]
            await peer.send(b"%x\r\n%s\r\n" % (len(part), part))
            await peer.pause(0.001)
        await peer.send(b"0\r\n\r\n")

    async with RawServer(slow) as server, fetching() as fetcher:
        for number in range(8):
            buffer = bytearray(100_000)
            info = ObjectInfo(url=f"{server.url}/o", size=len(DATA))
            task = asyncio.ensure_future(fetcher.read(info, 0, memoryview(buffer)))
            await asyncio.wait([task], timeout=0.003 * number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            buffer[:] = b"\xa5" * len(buffer)
            for _ in range(20):
                await asyncio.sleep(0)
            assert buffer.count(0xA5) == len(buffer)
