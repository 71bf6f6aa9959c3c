"""Ranged bodies by whichever path works: the range client, or aiohttp for proxies and unusual servers.

aiohttp costs about three times the CPU, but follows everything HTTP allows: chunked bodies, proxies, servers that
ignore ranges, heads that are not quite in order. `Fallback` remembers who needed it.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from asyncdata.errors import StorageError
from asyncdata.options import TimeoutOptions
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.failures import (
    FailureCause,
    RangeIgnoredError,
    UnframedBodyError,
    UnreadableHeadError,
    read_failed,
)
from asyncdata.storage.fallback import Fallback, Why
from asyncdata.storage.http1.client import USER_AGENT, RangeClient
from asyncdata.storage.http1.connection import Accept, Answer
from asyncdata.storage.http1.framing import MAX_ASIDE_BYTES
from asyncdata.storage.http1.head import MalformedHeadError, ResponseHead
from asyncdata.storage.proxies import Proxies
from asyncdata.storage.statuses import status_error
from asyncdata.storage.urls import Origin, parse_http_url

MAX_REDIRECTS: Final = 10


class Bodies:
    """One reader's way to bodies, and its aiohttp session for everything else.

    Args:
        limits: Time limits of one attempt.
        max_connections: Per host, for each of the two paths.
        tls_context: For https.
        proxies: Origins that are reached by a proxy go by aiohttp.
    """

    def __init__(
        self,
        *,
        limits: TimeoutOptions,
        max_connections: int,
        tls_context: ssl.SSLContext | None,
        proxies: Proxies,
    ) -> None:
        self._limits = limits
        self._client = RangeClient(limits=limits, max_connections=max_connections, tls_context=tls_context)
        self._proxies = proxies
        # Many ranges of one object follow one another.
        self._taken_apart = functools.lru_cache(maxsize=4096)(_take_apart)
        self.fallback = Fallback()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=max_connections, ssl=tls_context if tls_context is not None else True, ttl_dns_cache=60
            ),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=limits.connect_s, sock_read=max(limits.first_byte_s, limits.idle_s)
            ),
            auto_decompress=False,
            trust_env=False,
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def __repr__(self) -> str:
        return f"<Bodies {self._client!r}, {self.fallback!r}>"

    def ask(
        self, method: str, url: str, headers: Mapping[str, str], *, allow_redirects: bool = True
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """One request for something small, by aiohttp and, where there is one, the origin's proxy."""
        proxy = self._proxies.choose(parse_http_url(url)[0])
        return self._session.request(
            method,
            URL(url, encoded=True),
            headers=headers,
            proxy=proxy,
            allow_redirects=allow_redirects,
            max_redirects=MAX_REDIRECTS,
        )

    async def get(
        self,
        url: str,
        headers: Iterable[tuple[str, str]],
        *,
        start: int,
        buffer: memoryview,
        accept: Accept,
        skip_allowed: bool = False,
        attempt: Attempt | None = None,
    ) -> Answer:
        """One attempt at the bytes ``[start, start + len(buffer))`` of a URL; see ``RangeClient.get``.

        Args:
            url: Absolute http or https URL.
            headers: Sent as they are.
            start: Offset of the first byte.
            buffer: Where the bytes go.
            accept: Looks at the head before the body is placed.
            skip_allowed: A server that ignores ranges is borne with, by reading up to ``start`` and dropping it.
            attempt: Limits, and where to tell what was seen.
        """
        origin, target, key = self._taken_apart(url)
        proxy = self._proxies.choose(origin)
        why = Why.PROXY if proxy is not None else self.fallback.reason(origin, key)
        if why is None:
            try:
                answer = await self._client.get(
                    origin, target, headers, start=start, buffer=buffer, accept=accept, attempt=attempt
                )
            except UnframedBodyError:
                why = Why.UNFRAMED
            except RangeIgnoredError:
                if not skip_allowed:
                    raise
                why = Why.RANGE_IGNORED
            except UnreadableHeadError:
                why = Why.MALFORMED_HEAD
            else:
                self.fallback.went_well(origin)
                return answer
            self.fallback.struck(origin, key, why)
        self.fallback.used(why)
        return await self._get_by_aiohttp(
            url,
            headers,
            start=start,
            buffer=buffer,
            accept=accept,
            skip_allowed=skip_allowed,
            proxy=proxy,
            attempt=attempt,
        )

    async def warm(self, url: str, count: int) -> None:
        """Opens connections to a server whose bodies will soon be asked for, unless these go by aiohttp."""
        origin, _ = parse_http_url(url)
        if self._proxies.choose(origin) is None and self.fallback.reason(origin, "") is None:
            await self._client.warm(origin, count)

    async def aclose(self) -> None:
        """Closes both paths."""
        await self._client.aclose()
        await self._session.close()

    async def _get_by_aiohttp(
        self,
        url: str,
        headers: Iterable[tuple[str, str]],
        *,
        start: int,
        buffer: memoryview,
        accept: Accept,
        skip_allowed: bool,
        proxy: str | None,
        attempt: Attempt | None,
    ) -> Answer:
        filled = 0
        limits = self._limits if attempt is None or attempt.limits is None else attempt.limits
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=limits.connect_s, sock_read=max(limits.first_byte_s, limits.idle_s)
        )
        if attempt is not None:
            attempt.asked_at = asyncio.get_running_loop().time()
        sent = [*headers, ("Range", f"bytes={start}-{start + len(buffer) - 1}")]
        try:
            async with self._session.get(
                URL(url, encoded=True), headers=sent, allow_redirects=False, proxy=proxy, timeout=timeout
            ) as response:
                if attempt is not None:
                    attempt.first_byte_at = asyncio.get_running_loop().time()
                head = head_of(response)
                accept(head)
                if head.status not in {200, 206}:
                    return Answer(head, 0, None, await _read_aside(response))
                skip, total = _place(head, start, len(buffer), skip_allowed=skip_allowed)
                seen = 0
                async for piece in response.content.iter_any():
                    fresh = memoryview(piece)[max(0, skip - seen) :][: len(buffer) - filled]
                    buffer[filled : filled + len(fresh)] = fresh
                    filled += len(fresh)
                    seen += len(piece)
                    if total is not None and filled == min(len(buffer), max(0, total - start)):
                        break
                return Answer(head, filled, seen if total is None else total, b"")
        except MalformedHeadError as error:
            raise read_failed(f"not an HTTP answer: {error}", FailureCause.MALFORMED, filled=filled) from None
        except aiohttp.ClientPayloadError as error:
            raise read_failed(f"the body broke off: {error}", FailureCause.SHORT_BODY, filled=filled) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise client_failure(error, filled=filled) from None


def _take_apart(url: str) -> tuple[Origin, str, str]:
    """(origin, request target, the URL without its query) of an absolute http or https URL."""
    origin, target = parse_http_url(url)
    return origin, target, urlsplit(url)._replace(query="").geturl()


def head_of(response: aiohttp.ClientResponse) -> ResponseHead:
    """An aiohttp response's head in the range client's terms."""
    headers: dict[str, str] = {}
    for name, value in response.headers.items():
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return ResponseHead(response.status, response.reason or "", headers, keep_alive=True)


def client_failure(error: Exception, *, filled: int = 0) -> StorageError:
    """The typed error for what aiohttp raised."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return status_error(error.status, "so says the proxy")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return StorageError(f"the certificate of {error.host} is not trusted")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        cause = FailureCause.CONNECT_TIMEOUT
    elif isinstance(error, TimeoutError):
        cause = FailureCause.IDLE_TIMEOUT if filled else FailureCause.FIRST_BYTE_TIMEOUT
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = FailureCause.CONNECT
    elif isinstance(error, aiohttp.ClientConnectionError | OSError):
        cause = FailureCause.CONNECTION_LOST
    elif isinstance(error, aiohttp.InvalidURL):
        return StorageError("the URL is not usable")
    else:
        cause = FailureCause.MALFORMED
    return read_failed(f"the request failed ({type(error).__name__})", cause, filled=filled)


def _place(head: ResponseHead, start: int, length: int, *, skip_allowed: bool) -> tuple[int, int | None]:
    """(bytes to drop first, total size where known) for the body of a 200 or 206."""
    if head.status == 200:
        total = None if head.is_chunked else head.content_length
        if not skip_allowed and not (start == 0 and total is not None and total <= length):
            raise RangeIgnoredError("the server answered 200 where a range was asked for")
        return start, total
    sent = head.content_range
    if (
        sent is None
        or sent.start != start
        or sent.stop is None
        or sent.stop > start + length
        or (not head.is_chunked and head.content_length not in {None, sent.stop - start})
    ):
        raise read_failed(
            f"asked for bytes {start}-{start + length - 1}, got Content-Range {head.headers.get('content-range')!r} "
            f"with {head.content_length} bytes",
            FailureCause.MALFORMED,
        )
    return 0, sent.total if sent.total is not None else sent.stop


async def _read_aside(response: aiohttp.ClientResponse) -> bytes:
    parts = bytearray()
    async for piece in response.content.iter_any():
        parts += piece
        if len(parts) >= MAX_ASIDE_BYTES:
            break
    return bytes(parts[:MAX_ASIDE_BYTES])
