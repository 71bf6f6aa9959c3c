from __future__ import annotations

import base64

import pytest

from asyncdata.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UnsupportedURLError,
)
from asyncdata.options import Environment, Options, RetryOptions
from asyncdata.storage import EncodedBodyError, FailureCause, Fetcher
from asyncdata.types import ObjectInfo
from tests.storage.raw_server import DATA, Peer, RawServer, Request, Script, honest, ranged


def fetcher_of(**options: object) -> Fetcher:
    """A Fetcher with options for http."""
    retry = RetryOptions(max_attempts=3, initial_delay_s=0.001)
    return Fetcher(Options(storage={"http": options}, retry=retry), Environment())


async def whole(request: Request, peer: Peer) -> None:
    """A server that knows no ranges."""
    body = b"" if request.line.startswith("HEAD") else DATA
    await peer.send(b'HTTP/1.1 200 OK\r\nETag: "v1"\r\nContent-Length: %d\r\n\r\n' % len(DATA) + body)


async def chunked(request: Request, peer: Peer) -> None:
    """A server that knows neither ranges nor lengths."""
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    if not request.line.startswith("HEAD"):
        await peer.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DATA), DATA))


async def until_close(request: Request, peer: Peer) -> None:
    """A server of the old school."""
    await peer.send(b"HTTP/1.0 200 OK\r\n\r\n" + (b"" if request.line.startswith("HEAD") else DATA))
    peer.close()


async def no_head(request: Request, peer: Peer) -> None:
    """A server that refuses HEAD."""
    if request.line.startswith("HEAD"):
        await peer.send(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
    else:
        await honest(request, peer)


@pytest.mark.sampled
@pytest.mark.parametrize("script", [whole, chunked, until_close, no_head])
async def test_unusual_servers_are_read_all_the_same(script: Script) -> None:
    """No ranges, no lengths, no HEAD: size and bytes are right, by whichever way."""
    async with RawServer(script) as server:
        fetcher = fetcher_of()
        url = f"{server.url}/o"
        info = await fetcher.stat(url)
        assert info.size == len(DATA)
        for start, size in ((0, 100), (1_000_000, 5000), (len(DATA) - 1, 1), (0, len(DATA))):
            buffer = bytearray(size)
            await fetcher.read(info, start, memoryview(buffer))
            assert buffer == DATA[start : start + size]
        buffer = bytearray(5000)
        opened, filled = await fetcher.open_read(url, memoryview(buffer))
        assert (opened.size, filled) == (len(DATA), 5000)
        assert buffer == DATA[:5000]
        assert fetcher.stats().retries == 0
        await fetcher.aclose()


async def test_redirects_are_followed_and_remembered() -> None:
    """Relative and absolute, once per URL; a remembered place that fails is looked up anew."""
    at = "/there"
    moves = 0

    async def moving(request: Request, peer: Peer) -> None:
        nonlocal moves
        if request.target == "/here":
            moves += 1
            await peer.send(f"HTTP/1.1 302 Found\r\nLocation: {at}?k=1\r\nContent-Length: 4\r\n\r\nmove".encode())
        elif request.target == f"{at}?k=1":
            await honest(request, peer)
        else:
            await peer.send(b"HTTP/1.1 403 Expired\r\nContent-Length: 0\r\n\r\n")

    async with RawServer(moving) as server:
        fetcher = fetcher_of()
        info = ObjectInfo(url=f"{server.url}/here", size=len(DATA))
        buffer = bytearray(1000)
        for _ in range(3):
            await fetcher.read(info, 5, memoryview(buffer))
            assert buffer == DATA[5:1005]
        assert moves == 1
        at = "/elsewhere"
        await fetcher.read(info, 7, memoryview(buffer))
        assert buffer == DATA[7:1007]
        assert moves == 2
        await fetcher.aclose()


async def test_every_request_for_an_object_has_one_target() -> None:
    """Also those that take aiohttp's path: a blank would end the target, and ask for another object."""
    async with RawServer(whole) as server:
        fetcher = fetcher_of()
        url = f"{server.url}/a b/ä?c d"
        info = await fetcher.stat(url)
        await fetcher.read(info, 5, memoryview(bytearray(10)))
        assert len(server.requests) == 3  # HEAD, a range, and the same by aiohttp
        assert {request.target for request in server.requests} == {"/a%20b/%C3%A4?c%20d"}
        await fetcher.aclose()


async def test_redirects_in_a_circle_end() -> None:
    """A circle is an error, not a hang."""

    async def circle(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 301 Moved\r\nLocation: /o\r\nContent-Length: 0\r\n\r\n")

    async with RawServer(circle) as server:
        fetcher = fetcher_of()
        with pytest.raises(StorageError, match="redirects"):
            await fetcher.read(ObjectInfo(url=f"{server.url}/o", size=10), 0, memoryview(bytearray(10)))
        with pytest.raises(StorageError, match="redirects"):
            await fetcher.stat(f"{server.url}/o")
        await fetcher.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize("location", ["http://a..b/x?sig=hush", "http://me:hu/sh@h/x", "http://h:0/x", "ftp://h/x"])
async def test_a_redirect_to_what_cannot_be_asked_for_is_an_error_of_the_url(location: str) -> None:
    """Also where HEAD is redirected; nothing of the target is shown."""

    async def moving(request: Request, peer: Peer) -> None:
        await peer.send(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())

    async with RawServer(moving) as server:
        fetcher = fetcher_of()
        url = f"{server.url}/o"
        for reading in (fetcher.open_read(url, memoryview(bytearray(10))), fetcher.stat(url)):
            with pytest.raises(StorageError, match="not a web address") as caught:
                await reading
            assert caught.value.url == url
            assert "hu" not in str(caught.value)
        await fetcher.aclose()


async def test_a_place_that_was_remembered_and_is_gone_is_looked_up_anew() -> None:
    """A mirror that dies costs one attempt: the next one asks the URL where the object is now."""
    async with RawServer(honest) as lasting:
        dying = RawServer(honest)
        place = ""

        async def moving(request: Request, peer: Peer) -> None:
            await peer.send(f"HTTP/1.1 302 F\r\nLocation: {place}/x\r\nContent-Length: 0\r\n\r\n".encode())

        async with RawServer(moving) as server:
            fetcher = fetcher_of()
            info = ObjectInfo(url=f"{server.url}/o", size=len(DATA))
            buffer = bytearray(1000)
            async with dying:
                place = dying.url
                await fetcher.read(info, 0, memoryview(buffer))
            place = lasting.url
            await fetcher.read(info, 5, memoryview(buffer))
            assert buffer == DATA[5:1005]
            assert sum(fetcher.stats().failures.values()) == 1
            await fetcher.aclose()


async def test_a_url_is_opened_where_it_leads_now() -> None:
    """A redirect is remembered for the ranges of what was opened, not for whoever opens the URL next."""
    latest = "one"

    async def moving(request: Request, peer: Peer) -> None:
        name = request.target.removeprefix("/")
        if name == "latest":
            await peer.send(f"HTTP/1.1 302 F\r\nLocation: /{latest}\r\nContent-Length: 0\r\n\r\n".encode())
        else:
            head, body = ranged(request, extra=f'ETag: "{name}"\r\n')
            await peer.send(head + body)

    async with RawServer(moving) as server:
        fetcher = fetcher_of()
        old, _ = await fetcher.open_read(f"{server.url}/latest", memoryview(bytearray(10)))
        latest = "two"
        new, _ = await fetcher.open_read(f"{server.url}/latest", memoryview(bytearray(10)))
        assert (old.version, new.version) == ('"one"', '"two"')
        await fetcher.aclose()


async def test_a_url_that_leads_elsewhere_by_now_is_read_there() -> None:
    """``latest`` is another object than yesterday: what was remembered of it is no reason to call it changed."""
    latest = "one"

    async def moving(request: Request, peer: Peer) -> None:
        name = request.target.removeprefix("/")
        if name == "latest":
            await peer.send(f"HTTP/1.1 302 F\r\nLocation: /{latest}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        head, body = ranged(request, extra=f'ETag: "{name}"\r\n')
        if request.line.startswith("HEAD"):
            head, body = f'HTTP/1.1 200 OK\r\nETag: "{name}"\r\nContent-Length: {len(DATA)}\r\n\r\n'.encode(), b""
        await peer.send(head + body)

    async with RawServer(moving) as server:
        fetcher = fetcher_of()
        buffer = bytearray(1000)
        old = await fetcher.stat(f"{server.url}/latest")
        await fetcher.read(old, 0, memoryview(buffer))
        latest = "two"
        new = await fetcher.stat(f"{server.url}/latest")
        await fetcher.read(new, 7, memoryview(buffer))
        assert (old.version, new.version) == ('"one"', '"two"')
        assert buffer == DATA[7:1007]
        with pytest.raises(ObjectChangedError, match='"one" was listed, now it is "two"'):
            await fetcher.read(old, 0, memoryview(buffer))
        await fetcher.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize("location", ["file:///etc/passwd?Signature=hush", "gs://bucket/o", "http://", "//[::1"])
async def test_a_redirect_to_no_web_server_is_refused_at_once(location: str) -> None:
    """For metadata and for bodies; nothing of the place is told that may be secret."""

    async def moving(request: Request, peer: Peer) -> None:
        await peer.send(f"HTTP/1.1 302 F\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())

    async with RawServer(moving) as server:
        fetcher = fetcher_of()
        info = ObjectInfo(url=f"{server.url}/o", size=10)
        for ask in (lambda: fetcher.stat(info.url), lambda: fetcher.read(info, 0, memoryview(bytearray(10)))):
            with pytest.raises(StorageError) as caught:
                await ask()
            assert caught.value.attempts == 1
            assert caught.value.url == info.url
            assert "hush" not in str(caught.value)
        await fetcher.aclose()


@pytest.mark.parametrize(("name", "value"), [("A", "hush\u2026"), ("A", "hush\r\nX: y"), ("A B", "hush"), ("", "hush")])
async def test_headers_that_cannot_be_sent_are_refused(name: str, value: str) -> None:
    """When the reader is opened, and without the value."""
    fetcher = fetcher_of(headers={name: value})
    with pytest.raises(StorageError, match="cannot be sent") as caught:
        await fetcher.stat("http://127.0.0.1:1/o")
    assert "hush" not in str(caught.value)
    await fetcher.aclose()


async def test_a_size_of_nothing_is_looked_at_twice() -> None:
    """A server that says 0 to HEAD, whatever it has, is asked for a byte; an object that is empty stays so."""

    async def lazy(request: Request, peer: Peer) -> None:
        if request.line.startswith("HEAD"):
            await peer.send(b'HTTP/1.1 200 OK\r\nETag: "v1"\r\nContent-Length: 0\r\n\r\n')
        elif request.target == "/empty":
            await peer.send(b"HTTP/1.1 416 No\r\nContent-Range: bytes */0\r\nContent-Length: 0\r\n\r\n")
        else:
            await peer.send(b"".join(ranged(request, extra='ETag: "v1"\r\n')))

    async with RawServer(lazy) as server:
        fetcher = fetcher_of()
        for name, size in (("full", len(DATA)), ("empty", 0)):
            url = f"{server.url}/{name}"
            assert await fetcher.stat(url) == ObjectInfo(url=url, size=size, version='"v1"')
        await fetcher.aclose()


async def test_a_length_that_is_none_is_told_of_its_url() -> None:
    """What HEAD says is looked at after the answer has come; it is an error of the object, by whichever way asked."""

    async def absurd(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 00000000000000000000000005\r\n\r\n")

    async with RawServer(absurd) as server:
        fetcher = fetcher_of()
        url = f"{server.url}/o"
        for ask in (fetcher.stat, fetcher.glob):
            with pytest.raises(TransientStorageError, match="Content-Length is '0000") as caught:
                await ask(url)
            assert caught.value.url == url
        await fetcher.aclose()


async def test_a_beginning_that_is_refused_is_no_empty_object() -> None:
    """A 416 that says 0 bytes is asked again where HEAD says more; if it stays so, the read has failed."""

    async def late(request: Request, peer: Peer) -> None:
        if request.line.startswith("HEAD"):
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DATA))
        elif len(server.requests) == 1 or request.target == "/never":
            await peer.send(b"HTTP/1.1 416 No\r\nContent-Range: bytes */0\r\nContent-Length: 0\r\n\r\n")
        else:
            await honest(request, peer)

    async with RawServer(late) as server:
        fetcher = fetcher_of()
        buffer = bytearray(5000)
        info, filled = await fetcher.open_read(f"{server.url}/o", memoryview(buffer))
        assert (info.size, filled) == (len(DATA), 5000)
        assert buffer == DATA[:5000]
        with pytest.raises(TransientStorageError, match=f"beginning of an object of {len(DATA)} bytes") as caught:
            await fetcher.open_read(f"{server.url}/never", memoryview(buffer))
        assert (caught.value.url, caught.value.attempts) == (f"{server.url}/never", 3)
        await fetcher.aclose()


@pytest.mark.parametrize("content_range", ["bytes zzz", "bytes */5-", "bytes 9-5/10"])
async def test_a_refusal_whose_range_makes_no_sense_is_a_failed_read(content_range: str) -> None:
    """Whatever reads the head, and whenever: what it cannot make sense of is a failure with a place, tried again."""

    async def odd(_: Request, peer: Peer) -> None:
        await peer.send(f"HTTP/1.1 416 No\r\nContent-Range: {content_range}\r\nContent-Length: 0\r\n\r\n".encode())

    async with RawServer(odd) as server:
        fetcher = fetcher_of()
        url, buffer = f"{server.url}/o", memoryview(bytearray(10))
        for reading in (
            fetcher.open_read(url, buffer),
            fetcher.read(ObjectInfo(url=url, size=len(DATA)), 5, buffer),
        ):
            with pytest.raises(TransientStorageError, match="not an HTTP response: Content-Range") as caught:
                await reading
            assert (caught.value.url, caught.value.attempts) == (url, 3)
        await fetcher.aclose()


async def test_a_whole_answer_without_length_is_measured() -> None:
    """Another object, or a page to log in, is no beginning of the listed one, though nothing but its end tells."""

    async def page(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nlog in\r\n0\r\n\r\n")

    async with RawServer(page) as server:
        fetcher = fetcher_of()
        info = ObjectInfo(url=f"{server.url}/o", size=len(DATA))
        with pytest.raises(ObjectChangedError, match=f"{len(DATA)} bytes were listed, now it has 6"):
            await fetcher.read(info, 0, memoryview(bytearray(1000)))
        await fetcher.aclose()


async def endless(request: Request, peer: Peer) -> None:
    """A server whose body has neither a length nor an end."""
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not request.line.startswith("HEAD"):
        await peer.send(b"4000\r\n%s\r\n" % bytes(0x4000))


async def test_a_body_without_end_is_no_listed_object() -> None:
    """What has more bytes than were listed is another object, and no more of it is received than shows that."""
    async with RawServer(endless) as server:
        fetcher = fetcher_of()
        info = ObjectInfo(url=f"{server.url}/o", size=100_000)
        for start in (0, 50_000):
            with pytest.raises(ObjectChangedError, match="100000 bytes were listed, now it has at least 1"):
                await fetcher.read(info, start, memoryview(bytearray(1000)))
        await fetcher.aclose()


async def test_the_end_of_an_object_of_unknown_size_is_awaited_no_longer_than_its_attempts() -> None:
    """Bytes that keep coming pass the limits of silence and pace; the deadline holds for them as well."""
    async with RawServer(endless) as server:
        fetcher = Fetcher(Options(retry=RetryOptions(deadline_s=0)), Environment())
        with pytest.raises(TransientStorageError, match="without a length has not ended after 0 s") as caught:
            await fetcher.open_read(f"{server.url}/o", memoryview(bytearray(1000)))
        assert (caught.value.url, caught.value.attempts) == (f"{server.url}/o", 1)
        await fetcher.aclose()


@pytest.mark.parametrize("by_proxy", [False, True])
async def test_a_range_of_an_object_of_unknown_size_is_no_whole_object(by_proxy: bool) -> None:
    """``bytes 0-999/*`` does not say that the object ends there; what was listed is read all the same."""

    async def reticent(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(head.replace(b"/%d" % len(DATA), b"/*") + body)

    async with RawServer(reticent) as server:
        fetcher = fetcher_of(proxy=server.url) if by_proxy else fetcher_of()
        url, buffer = f"{server.url}/o", bytearray(1000)
        with pytest.raises(StorageError, match="does not report the object's size"):
            await fetcher.open_read(url, memoryview(buffer))
        await fetcher.read(ObjectInfo(url=url, size=len(DATA)), 5, memoryview(buffer))
        assert buffer == DATA[5:1005]
        await fetcher.aclose()


async def test_a_server_may_say_when_to_come_again() -> None:
    """A time beyond the deadline ends the read at once."""

    async def busy(_: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 429 Slowly\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n")

    async with RawServer(busy) as server:
        fetcher = fetcher_of()
        info = ObjectInfo(url=f"{server.url}/o", size=len(DATA))
        with pytest.raises(TransientStorageError, match="429; it asks to wait 3600 s, longer") as caught:
            await fetcher.read(info, 0, memoryview(bytearray(10)))
        assert (caught.value.attempts, caught.value.retry_after_s) == (1, 3600)
        await fetcher.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize("way", ["listed", "opened", "refused"])
async def test_a_body_that_only_its_connection_ends_is_compared_with_the_size(way: str) -> None:
    """Broken off it looks complete: what was listed, or HEAD, tells; nothing is kept, and it is asked for anew."""

    async def cut_once(request: Request, peer: Peer) -> None:
        if request.line.startswith("HEAD"):
            status = b"403 No" if way == "refused" else b"200 OK"
            await peer.send(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(DATA)))
        else:
            bodies.append(DATA[: 3000 if len(bodies) < 2 else None])
            await peer.send(b"HTTP/1.0 200 OK\r\n\r\n" + bodies[-1])
        peer.close()

    bodies: list[bytes] = []
    async with RawServer(cut_once) as server:
        fetcher = fetcher_of()
        url, buffer = f"{server.url}/o", bytearray(1000 if way == "listed" else 5000)
        if way == "listed":
            await fetcher.read(ObjectInfo(url=url, size=len(DATA)), 0, memoryview(buffer))
        else:
            info, filled = await fetcher.open_read(url, memoryview(buffer))
            # Where nobody tells the size, the end of the connection is believed.
            assert (info.size, filled) == ((3000, 3000) if way == "refused" else (len(DATA), 5000))
            buffer = buffer[:filled]
        assert buffer == DATA[: len(buffer)]
        assert fetcher.stats().failures == ({} if way == "refused" else {FailureCause.SHORT_BODY: 1})
        await fetcher.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"headers": "Authorization: hush"}, "'headers' must be a dict"),
        ({"ca_file": "/nowhere/ca.pem"}, "'ca_file' does not name a file of certificates: /nowhere/ca.pem"),
        ({"ca_file": __file__}, "'ca_file' does not name a file of certificates"),
        ({"proxy": "http://me:hu/sh@h:1"}, "the proxy is not a URL"),
        ({"proxy": "http://me:hush@h:port"}, "the proxy is not a URL"),
    ],
)
async def test_options_that_cannot_work_are_named(options: dict[str, str], words: str) -> None:
    """Before anything is opened, and without a secret."""
    fetcher = fetcher_of(**options)
    with pytest.raises(StorageError, match=words) as caught:
        await fetcher.stat("http://127.0.0.1:1/o")
    assert "hu" not in str(caught.value)
    await fetcher.aclose()


async def test_metadata_asked_elsewhere_gets_no_user_header() -> None:
    """Whatever its name: of some only the user knows that they are secrets."""

    async def told(request: Request, peer: Peer) -> None:
        await peer.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\n\r\n".encode())

    async with RawServer(told) as other:

        async def moving(request: Request, peer: Peer) -> None:
            await peer.send(f"HTTP/1.1 307 F\r\nLocation: {other.url}/x\r\nContent-Length: 0\r\n\r\n".encode())

        async with RawServer(moving) as server:
            fetcher = fetcher_of(headers={"X-Api-Key": "hush", "Cookie": "hush"})
            assert (await fetcher.stat(f"{server.url}/o")).size == len(DATA)
            assert server.requests[0].header("x-api-key") == "hush"
            assert "hush" not in other.requests[0].text
            assert other.requests[0].line.startswith("HEAD")
            await fetcher.aclose()


async def test_user_headers_stay_with_their_origin() -> None:
    """A redirect to another host does not get the header that was meant for the first."""
    async with RawServer(honest) as other:

        async def moving(request: Request, peer: Peer) -> None:
            await peer.send(f"HTTP/1.1 302 F\r\nLocation: {other.url}/x\r\nContent-Length: 0\r\n\r\n".encode())

        async with RawServer(moving) as server:
            fetcher = fetcher_of(headers={"Authorization": "Bearer hush"})
            buffer = bytearray(10)
            await fetcher.read(ObjectInfo(url=f"{server.url}/o", size=len(DATA)), 0, memoryview(buffer))
            assert server.requests[0].header("authorization") == "Bearer hush"
            assert other.requests[0].header("authorization") is None
            await fetcher.aclose()


async def test_the_user_name_of_a_url_is_sent_with_every_request_and_to_its_origin_alone() -> None:
    """For metadata and for bodies, as the header that it means, unless the user gives another one."""
    async with RawServer(honest) as other:

        async def moving(request: Request, peer: Peer) -> None:
            if request.target == "/moved":
                await peer.send(f"HTTP/1.1 302 F\r\nLocation: {other.url}/x\r\nContent-Length: 0\r\n\r\n".encode())
            elif request.line.startswith("HEAD"):
                await peer.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\n\r\n".encode())
            else:
                await honest(request, peer)

        async with RawServer(moving) as server:
            named = f"http://me:hush@127.0.0.1:{server.port}"
            for options, expected in (({}, "Basic bWU6aHVzaA=="), ({"headers": {"authorization": "Own"}}, "Own")):
                server.requests.clear()
                fetcher = fetcher_of(**options)
                info = await fetcher.stat(f"{named}/o")
                await fetcher.read(info, 0, memoryview(bytearray(10)))
                await fetcher.open_read(f"{named}/moved", memoryview(bytearray(10)))
                assert [request.header("authorization") for request in server.requests] == [expected] * 3
                await fetcher.aclose()
            assert {request.header("authorization") for request in other.requests} == {None}


@pytest.mark.parametrize("sent", ["ä", "ä".encode().decode("latin-1"), "long " * 4000])
async def test_a_head_is_the_same_by_either_client(sent: str) -> None:
    """Whatever bytes its headers have, and however many: what was listed by one is read by the other."""

    async def odd(request: Request, peer: Peer) -> None:
        tag = f'ETag: "{sent.strip()}"\r\n'
        whole = f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\n{tag}\r\n".encode("latin-1")
        head, body = ranged(request)
        is_look = request.line.startswith("HEAD")
        await peer.send(whole if is_look else head[:-2] + f"{tag}\r\n".encode("latin-1") + body)

    async with RawServer(odd) as server:
        fetcher = fetcher_of()
        info = await fetcher.stat(f"{server.url}/o")
        buffer = bytearray(10)
        await fetcher.read(info, 0, memoryview(buffer))
        assert buffer == DATA[:10]
        assert await fetcher.open_read(f"{server.url}/o", memoryview(buffer)) == (info, 10)
        await fetcher.aclose()


@pytest.mark.parametrize("before", [0, 250, 280])
async def test_a_server_that_repeats_the_user_name_does_not_make_it_known(before: int) -> None:
    """Its words are part of the message, without what was sent, also where they are cut off inside of it."""
    credentials = base64.b64encode(b"me:" + b"hush" * 20).decode()

    async def refusing(request: Request, peer: Peer) -> None:
        told = f"{'x' * before} is {request.header('authorization')}?".encode()
        await peer.send(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%s" % (len(told), told))

    async with RawServer(refusing) as server:
        fetcher = fetcher_of()
        with pytest.raises(AccessDeniedError, match=r" is Basic …\?") as caught:
            await fetcher.open_read(f"http://me:{'hush' * 20}@127.0.0.1:{server.port}/o", memoryview(bytearray(10)))
        assert credentials[:8] not in str(caught.value)
        await fetcher.aclose()


@pytest.mark.parametrize("extra", ['ETag: "two"\r\n', "", "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"])
async def test_another_version_is_refused_before_a_byte_is_placed(extra: str) -> None:
    """By ETag, or its absence, in the head of the answer."""

    async def changed(request: Request, peer: Peer) -> None:
        head, body = ranged(request, extra=extra)
        await peer.send(head + body)

    async with RawServer(changed) as server:
        fetcher = fetcher_of()
        buffer = bytearray(b"\xa5" * 100)
        info = ObjectInfo(url=f"{server.url}/o", size=len(DATA), version='"one"')
        with pytest.raises(ObjectChangedError, match='"one" was listed'):
            await fetcher.read(info, 0, memoryview(buffer))
        shorter = ObjectInfo(url=f"{server.url}/o", size=len(DATA) - 1)
        with pytest.raises(ObjectChangedError, match="bytes were listed"):
            await fetcher.read(shorter, 0, memoryview(buffer))
        assert buffer == b"\xa5" * 100
        await fetcher.aclose()


async def test_compressed_bodies_are_refused() -> None:
    """Ranges of a body that is compressed on the way mean nothing."""

    async def zipped(request: Request, peer: Peer) -> None:
        head, body = ranged(request, extra="Content-Encoding: gzip\r\n")
        await peer.send(head + body)

    async with RawServer(zipped) as server:
        fetcher = fetcher_of()
        with pytest.raises(EncodedBodyError, match="gzip"):
            await fetcher.open_read(f"{server.url}/o", memoryview(bytearray(10)))
        await fetcher.aclose()


async def test_globs_name_one_object_or_are_refused() -> None:
    """Web servers have no listing; a question mark belongs to the URL."""

    async def picky(request: Request, peer: Peer) -> None:
        status = b"200 OK" if request.target == "/o?x=[1]" else b"404 No"
        await peer.send(b"HTTP/1.1 %s\r\nContent-Length: 5\r\n\r\n" % status)

    async with RawServer(picky) as server:
        fetcher = fetcher_of()
        assert [info.size for info in await fetcher.glob(f"{server.url}/o?x=[1]")] == [5]
        assert await fetcher.glob(f"{server.url}/other") == []
        for pattern in ("/*.rec", "/{a,b}"):
            with pytest.raises(UnsupportedURLError, match="no listing"):
                await fetcher.glob(server.url + pattern)
        with pytest.raises(ObjectNotFoundError):
            await fetcher.stat(f"{server.url}/other")
        await fetcher.aclose()


async def test_errors_do_not_show_signatures() -> None:
    """A signed URL keeps its signature to itself."""

    async def gone(request: Request, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")

    async with RawServer(gone) as server:
        fetcher = fetcher_of()
        url = f"{server.url}/o?X-Goog-Signature=hush"
        for attempt in (
            fetcher.stat(url),
            fetcher.read(ObjectInfo(url=url, size=9), 0, memoryview(bytearray(9))),
            fetcher.open_read(url, memoryview(bytearray(9))),
        ):
            with pytest.raises(ObjectNotFoundError) as caught:
                await attempt
            assert "hush" not in str(caught.value)
            assert "/o?X-Goog-Signature=" in str(caught.value)
        await fetcher.aclose()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:3128"])
async def test_a_proxy_that_cannot_be_reached_is_called_one(address: str) -> None:
    """Its address alone would not be recognised, because it may come from the environment."""
    fetcher = fetcher_of(proxy=f"http://me:hush@{address}")
    with pytest.raises(StorageError, match=f"cannot connect to the proxy {address}: ") as caught:
        await fetcher.open_read("http://far.invalid/o", memoryview(bytearray(9)))
    assert "hush" not in str(caught.value)
    await fetcher.aclose()


async def test_a_proxy_reads_by_aiohttp_and_fails_like_the_range_client() -> None:
    """The other path has the same errors: broken bodies resume at the last good byte."""

    async def breaking(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(head + body[:400])
        if len(body) > 400:
            await peer.pause(0.01)
            peer.close()

    async with RawServer(breaking) as proxy:
        fetcher = fetcher_of(proxy=proxy.url)
        buffer = bytearray(1000)
        await fetcher.read(ObjectInfo(url="http://far.invalid/o", size=len(DATA)), 0, memoryview(buffer))
        assert buffer == DATA[:1000]
        assert [request.start for request in proxy.requests] == [0, 400, 800]
        assert fetcher.stats().resumes == 2
        await fetcher.aclose()
