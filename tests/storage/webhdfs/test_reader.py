"""WebHDFS against servers that do what a real one rarely does: gateways, old versions, refusals, bad redirects."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from asyncdata.errors import AccessDeniedError, ObjectChangedError, ObjectNotFoundError, StorageError
from asyncdata.options import Environment, HedgeOptions, Options, RetryOptions, TimeoutOptions
from asyncdata.storage.fetch import Fetcher
from tests.patience import LIMIT_S, until
from tests.storage.certificate import make_certificate

DATA = bytes(range(256)) * 40
TOKEN = "HAAEaGRmcw-secret"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The parts of WebHDFS that a test may replace.

    Attributes:
        open: Answers OPEN.
        mtime: Of the one file there is.
        queries: What was asked.
    """

    def __init__(self) -> None:
        self.open: Handler = self.redirect
        self.mtime = 1
        self.queries: list[dict[str, str]] = []
        self.token: str | None = None
        self.scheme = "http"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Every request."""
        self.queries.append(dict(request.query))
        if self.token is not None and request.query.get("delegation") != self.token:
            return refusal(403, "SecretManager$InvalidToken", f"token {request.query.get('delegation')} is expired")
        if request.path != "/webhdfs/v1/x":
            return refusal(404, "FileNotFoundException", "File does not exist")
        match request.query["op"]:
            case "GETFILESTATUS":
                return web.json_response({"FileStatus": self.status()})
            case "LISTSTATUS":
                return web.json_response({"FileStatuses": {"FileStatus": [{"pathSuffix": "", **self.status()}]}})
        return await self.open(request)

    def status(self) -> dict[str, Any]:
        """The file, as an old server describes it."""
        return {"type": "FILE", "length": len(DATA), "modificationTime": self.mtime}

    async def redirect(self, request: web.Request) -> web.StreamResponse:
        """To itself, as a NameNode redirects to a DataNode; then exactly what was asked for."""
        if "datanode" in request.query:
            return web.Response(body=wanted(request))
        location = f"{self.scheme}://{request.host}{request.path_qs}&datanode=1"
        return web.Response(status=307, headers={"Location": location})


def wanted(request: web.Request) -> bytes:
    """The range that a request names."""
    start = int(request.query["offset"])
    return DATA[start : start + int(request.query["length"])]


def refusal(status: int, name: str, message: str) -> web.Response:
    """How WebHDFS says no."""
    told = {"exception": name, "javaClassName": f"org.apache.hadoop.{name}", "message": message}
    return web.json_response({"RemoteException": told}, status=status)


@contextlib.asynccontextmanager
async def served(server: Server, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Runs it; yields ``host:port``."""
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def fetching(attempts: int = 1, **storage: Any) -> AsyncIterator[Fetcher]:
    """A Fetcher that is closed at the end."""
    retry = RetryOptions(max_attempts=attempts, initial_delay_s=0.001)
    fetcher = Fetcher(Options(retry=retry, storage={"webhdfs": storage, "swebhdfs": storage}), Environment())
    try:
        yield fetcher
    finally:
        await fetcher.aclose()


async def read(fetcher: Fetcher, url: str, start: int, size: int) -> bytes:
    """A range of the file."""
    buffer = bytearray(size)
    await fetcher.read(await fetcher.stat(url), start, memoryview(buffer))
    return bytes(buffer)


async def whole_rest(request: web.Request) -> web.StreamResponse:
    """Ignores the length."""
    return web.Response(body=DATA[int(request.query["offset"]) :])


async def chunked(request: web.Request) -> web.StreamResponse:
    """Without a length, as gateways send."""
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(wanted(request))
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    """Goes on behind the range for ever, without a length."""
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(wanted(request))
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(DATA)
    return response


async def partial(request: web.Request) -> web.StreamResponse:
    """A proxy that takes the Range header for what it says: of the resource, which is the range."""
    body = wanted(request)
    headers = {"Content-Range": f"bytes 0-{len(body) - 1}/{len(body)}"}
    return web.Response(status=206, body=body, headers=headers)


@pytest.mark.parametrize("answer", [None, whole_rest, chunked, endless, partial])
async def test_every_way_to_send_a_range_gives_the_range(answer: Handler | None) -> None:
    """By a redirect or at once, cut exactly or not, with or without a length."""
    server = Server()
    server.open = answer or server.redirect
    async with served(server) as address, fetching() as fetcher:
        for start, size in ((0, 1), (0, len(DATA)), (5000, 1000), (len(DATA) - 1, 1)):
            assert await read(fetcher, f"webhdfs://{address}/x", start, size) == DATA[start : start + size]


@pytest.mark.sampled
async def test_a_body_that_ends_early_is_resumed() -> None:
    """What came is kept; the next attempt begins behind it."""
    server = Server()

    async def half(request: web.Request) -> web.StreamResponse:
        body = wanted(request)
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body[: max(1, len(body) // 2)])
        response.force_close()
        return response

    server.open = half
    async with served(server) as address, fetching(attempts=20) as fetcher:
        assert await read(fetcher, f"webhdfs://{address}/x", 100, 1000) == DATA[100:1100]
        asked = [int(query["offset"]) for query in server.queries if query["op"] == "OPEN"]
        assert asked == sorted(set(asked))


PAGE = b"<html><title>Busy, try again</title></html>"


async def page(request: web.Request) -> web.StreamResponse:
    """What a gateway says to browsers, with a status of success."""
    return web.Response(body=PAGE)


async def chunked_page(request: web.Request) -> web.StreamResponse:
    """The same, without a length."""
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(PAGE)
    return response


async def broken_page(request: web.Request) -> web.StreamResponse:
    """A page that breaks off."""
    response = web.StreamResponse(headers={"Content-Length": str(2 * len(PAGE))})
    await response.prepare(request)
    await response.write(PAGE)
    response.force_close()
    return response


async def whole(request: web.Request) -> web.StreamResponse:
    """Ignores the offset, too: the place that it was redirected to is a plain file."""
    return web.Response(body=DATA)


async def part_of_the_whole(request: web.Request) -> web.StreamResponse:
    """A plain file by a server with ranges, for which the Range header alone counts."""
    body = DATA[: int(request.query["length"])]
    headers = {"Content-Range": f"bytes 0-{len(body) - 1}/{len(DATA)}"}
    return web.Response(status=206, body=body, headers=headers)


@pytest.mark.parametrize("answer", [page, chunked_page, broken_page, whole, part_of_the_whole])
async def test_a_body_that_is_not_the_range_is_no_part_of_it(answer: Handler) -> None:
    """Its length tells. Nothing of it is kept, and another attempt is made."""
    server = Server()

    async def at_first(request: web.Request) -> web.StreamResponse:
        opened = sum(query["op"] == "OPEN" for query in server.queries)
        # Twice, because one attempt may ask by both clients.
        return await answer(request) if opened <= 2 else web.Response(body=wanted(request))

    server.open = at_first
    async with served(server) as address, fetching(attempts=3) as fetcher:
        assert await read(fetcher, f"webhdfs://{address}/x", 100, 1000) == DATA[100:1100]
        assert {query["offset"] for query in server.queries if query["op"] == "OPEN"} == {"100"}


async def test_a_change_during_the_read_is_noticed_after_it() -> None:
    """The bytes came, but of which version nobody knows."""
    server = Server()

    async def change(request: web.Request) -> web.StreamResponse:
        server.mtime += 1
        return web.Response(body=wanted(request))

    server.open = change
    async with served(server) as address, fetching() as fetcher:
        with pytest.raises(ObjectChangedError, match=r"1-10240 was listed, now it is 2-10240"):
            await read(fetcher, f"webhdfs://{address}/x", 0, 10)


async def test_a_token_is_sent_renewed_and_never_shown(tmp_path: Path) -> None:
    """It comes from a file, is read again when it is refused, and stands in no message, should the server repeat it."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}-1\n")
    server = Server()
    server.token = f"{TOKEN}-1"
    async with served(server) as address, fetching(delegation_token_file=str(file), user="ignored") as fetcher:
        url = f"webhdfs://{address}/x"
        assert await read(fetcher, url, 0, 10) == DATA[:10]
        assert all("user.name" not in query for query in server.queries)
        server.token = f"{TOKEN}-2"
        file.write_text(server.token)
        assert await read(fetcher, url, 0, 10) == DATA[:10]
        server.token = "another"
        with pytest.raises(AccessDeniedError) as caught:
            await fetcher.stat(url)
        assert "InvalidToken" in str(caught.value)
        assert TOKEN not in str(caught.value) + repr(caught.value) + repr(fetcher)


async def test_every_request_with_a_refused_token_is_made_again_with_the_new_one(tmp_path: Path) -> None:
    """The first of them reads the file; the others find the new token there, and no refused one is shown."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}-1")
    server = Server()
    server.token = f"{TOKEN}-1"
    asked = 0
    changed = asyncio.Event()

    async def refuse_old(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        await changed.wait()
        old = request.query["delegation"]
        if old == server.token:
            return web.Response(body=wanted(request))
        return refusal(403, "SecretManager$InvalidToken", f"token {old} is expired")

    async with served(server) as address, fetching(delegation_token_file=str(file)) as fetcher:
        info = await fetcher.stat(f"webhdfs://{address}/x")
        server.open = refuse_old
        buffers = [bytearray(10) for _ in range(8)]
        reads = [asyncio.create_task(fetcher.read(info, 0, memoryview(buffer))) for buffer in buffers]
        async with asyncio.timeout(LIMIT_S):
            await until(lambda: asked == 8)
            server.token = f"{TOKEN}-2"
            file.write_text(server.token)
            changed.set()
            outcomes = await asyncio.gather(*reads, return_exceptions=True)
        assert outcomes == [None] * 8
        assert all(buffer == DATA[:10] for buffer in buffers)


async def test_redirects_that_cannot_be_followed_are_errors() -> None:
    """To nowhere, or in a circle."""
    server = Server()
    async with served(server) as address, fetching() as fetcher:
        for location, words in (("ftp://h/x", "not a web address"), ("?op=OPEN&offset=0&length=1", "too many")):

            async def redirect(request: web.Request, location: str = location) -> web.StreamResponse:
                return web.Response(status=307, headers={"Location": location})

            server.open = redirect
            with pytest.raises(StorageError, match=words):
                await read(fetcher, f"webhdfs://{address}/x", 0, 10)


async def test_swebhdfs_is_encrypted_and_stays_so(tmp_path: Path) -> None:
    """Certificates are verified, and a redirect to an unencrypted DataNode is refused."""
    authority, context = make_certificate(tmp_path)
    server = Server()
    server.scheme = "https"
    async with served(server, context) as address:
        async with fetching(ca_file=str(authority)) as fetcher:
            assert await read(fetcher, f"swebhdfs://{address}/x", 7, 10) == DATA[7:17]
            server.scheme = "http"
            with pytest.raises(StorageError, match="from https to http"):
                await read(fetcher, f"swebhdfs://{address}/x", 7, 10)
        async with fetching() as fetcher:
            with pytest.raises(StorageError, match="not trusted"):
                await fetcher.stat(f"swebhdfs://{address}/x")


async def test_a_namenode_may_redirect_to_an_encrypted_datanode(tmp_path: Path) -> None:
    """Whose certificate is verified."""
    authority, context = make_certificate(tmp_path)
    server = Server()
    async with served(Server(), context) as datanode, served(server) as address:

        async def redirect(request: web.Request) -> web.StreamResponse:
            location = f"https://{datanode}{request.path_qs}&datanode=1"
            return web.Response(status=307, headers={"Location": location})

        server.open = redirect
        async with fetching(ca_file=str(authority)) as fetcher:
            assert await read(fetcher, f"webhdfs://{address}/x", 7, 10) == DATA[7:17]
        async with fetching() as fetcher:
            with pytest.raises(StorageError, match="not trusted"):
                await read(fetcher, f"webhdfs://{address}/x", 7, 10)


async def test_refusals_have_their_types() -> None:
    """By the Java exception, not by the status: WebHDFS says 403 for much that is no question of rights."""
    server = Server()
    async with served(server) as address, fetching(attempts=3) as fetcher:
        url = f"webhdfs://{address}/x"
        info = await fetcher.stat(url)
        assert await fetcher.glob(f"webhdfs://{address}/x*") == []  # the root folder cannot be listed
        with pytest.raises(ObjectNotFoundError):
            await fetcher.stat(f"webhdfs://{address}/y")
        for name, kind, attempts in (
            ("AccessControlException", AccessDeniedError, 1),
            ("ipc.StandbyException", StorageError, 3),
            ("FileNotFoundException", ObjectChangedError, 1),
            ("HadoopIllegalArgumentException", StorageError, 1),
        ):

            async def refuse(request: web.Request, name: str = name) -> web.StreamResponse:
                return refusal(403, name, "no\n\tat a.b.C(D.java:1)")

            server.open = refuse
            with pytest.raises(kind) as caught:
                await fetcher.read(info, 0, memoryview(bytearray(10)))
            assert caught.value.attempts == attempts
            assert "D.java" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["webhdfs://", "webhdfs://h:1", "webhdfs://u:p@h/x", "webhdfs://h\r\n/x", "webhdfs:///x"]
)
async def test_malformed_urls_are_refused(url: str) -> None:
    """Before anything is sent."""
    async with fetching() as fetcher:
        with pytest.raises(StorageError, match="expected"):
            await fetcher.stat(url)


async def test_an_opening_read_that_stalls_in_its_body_is_overtaken() -> None:
    """The file's state was looked up first, so what follows the bytes that came can be asked for a second time."""
    server = Server()
    over = asyncio.Event()

    async def stall_once(request: web.Request) -> web.StreamResponse:
        body = wanted(request)
        if len([query for query in server.queries if query["op"] == "OPEN"]) > 1:
            return web.Response(body=body)
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body[:3000])
        await over.wait()
        return response

    server.open = stall_once
    patient = TimeoutOptions(connect_s=60, first_byte_s=60, idle_s=60, floor_s=60)
    hedge = HedgeOptions(max_extra=1.0, least_delay_s=0.1, most_delay_s=0.2)
    async with served(server) as address:
        fetcher = Fetcher(Options(timeouts=patient, hedge=hedge), Environment())
        try:
            buffer = bytearray(2 * len(DATA))
            async with asyncio.timeout(LIMIT_S):
                info, filled = await fetcher.open_read(f"webhdfs://{address}/x", memoryview(buffer))
            assert (info.size, filled) == (len(DATA), len(DATA))
            assert buffer[:filled] == DATA
            stats = fetcher.stats()
            assert (stats.hedges_won, stats.wasted_bytes) == (1, 0)
            assert [query["offset"] for query in server.queries if query["op"] == "OPEN"] == ["0", "3000"]
        finally:
            over.set()
            await fetcher.aclose()
