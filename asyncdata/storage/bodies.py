"""Ranged bodies through the path that works: the range client, or aiohttp for proxies and unusual servers.

aiohttp costs about three times the CPU but supports all of HTTP: chunked bodies, proxies, servers that ignore ranges,
slightly malformed heads. `Fallback` remembers which servers need it.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from asyncdata.options import TimeoutOptions
from asyncdata.storage.aiohttp_bodies import LenientWire, NotingConnector, ask, receive
from asyncdata.storage.attempt import Attempt, ReadLimits
from asyncdata.storage.failures import RangeIgnoredError, UnframedBodyError, UnreadableHeadError
from asyncdata.storage.fallback import Fallback, Why
from asyncdata.storage.http1.client import USER_AGENT, RangeClient, build_frame
from asyncdata.storage.http1.connection import Accept, Answer
from asyncdata.storage.http1.head import MAX_HEAD_BYTES, ResponseHead
from asyncdata.storage.http1.known_answers import KnownObject
from asyncdata.storage.http1.watchdog import Watchdog
from asyncdata.storage.proxies import Proxies
from asyncdata.storage.urls import Origin, parse_http_url

_MOST_WAYS: Final = 512
_MAX_ANSWER_BYTES: Final = 256 << 20
"""The longest answer to a request for metadata."""


class Bodies:
    """One reader's way to bodies, and its aiohttp session for everything else.

    Args:
        limits: Time limits of one attempt.
        max_connections: Per host, for each of the two paths.
        tls_context: For https.
        proxies: Origins that are reached by a proxy go by aiohttp.
        endless_s: How long a body that announces no length may keep coming.
    """

    def __init__(
        self,
        *,
        limits: TimeoutOptions,
        max_connections: int,
        tls_context: ssl.SSLContext | None,
        proxies: Proxies,
        endless_s: float,
    ) -> None:
        self._limits = ReadLimits.of(limits)
        self._endless_s = endless_s
        self._watched: set[LenientWire] = set()
        self._watchdog = Watchdog(limits, lambda: self._watched)
        self._client = RangeClient(limits=limits, max_connections=max_connections, tls_context=tls_context)
        self._proxies = proxies
        # Many ranges of one object follow one another. Of its own, because some headers are secrets.
        self._way = functools.lru_cache(maxsize=_MOST_WAYS)(self._find_way)
        self.fallback = Fallback()
        self._session = aiohttp.ClientSession(
            connector=NotingConnector(
                limit=max_connections, ssl=tls_context if tls_context is not None else True, ttl_dns_cache=60
            ),
            auto_decompress=False,
            trust_env=False,
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            # As much as the range client takes: what is read by one can be looked at by the other.
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
        )

    def __repr__(self) -> str:
        return f"<Bodies {self._client!r}, {self.fallback!r}>"

    async def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        allow_redirects: bool = True,
        data: bytes | None = None,
    ) -> tuple[ResponseHead, bytes]:
        """One request for metadata, or one that sends data, by aiohttp and, where there is one, the origin's proxy.

        Head and body have the time limits of any other answer. No redirect is followed with data: most become a GET,
        and what that answers says nothing about the data.

        Raises:
            StorageError: There was no whole answer; whatever the status is, it is none.
        """
        wire = LenientWire(Attempt(), self._limits, self._watch)
        try:
            return await ask(
                wire,
                self._session,
                method,
                url,
                headers,
                allow_redirects=allow_redirects and data is None,
                data=data,
                most_bytes=_MAX_ANSWER_BYTES,
                proxy=self._proxies.choose(parse_http_url(url)[0]),
            )
        finally:
            self._watched.discard(wire)

    async def get(
        self,
        url: str,
        headers: tuple[tuple[str, str], ...],
        *,
        start: int,
        buffer: memoryview,
        accept: Accept,
        skip_allowed: bool = False,
        size: int | None = None,
        attempt: Attempt | None = None,
        known: KnownObject | None = None,
    ) -> Answer:
        """One attempt at the bytes ``[start, start + len(buffer))`` of a URL; see ``RangeClient.get``.

        Args:
            url: Absolute http or https URL.
            headers: Sent as they are.
            start: Offset of the first byte.
            buffer: Where the bytes go.
            accept: Looks at the head before the body is placed.
            skip_allowed: Accept a server that ignores ranges by reading up to ``start`` and dropping these bytes.
            size: Of the whole object, where it is known: no more than one piece is received beyond it.
            attempt: Limits, and where to tell what was seen.
            known: The object, if ``accept`` depends on nothing else; see `RangeConnection.ask`.
        """
        origin, frame, key, proxy = self._way(url, headers)
        odd = self.fallback.origins
        why = Why.PROXY if proxy is not None else self.fallback.reason(origin, key) if odd else None
        if why is None:
            try:
                answer = await self._client.get(
                    origin, frame, start=start, buffer=buffer, accept=accept, attempt=attempt, known=known
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
                if odd:
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
            size=size,
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
        self._watchdog.close()
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
        size: int | None,
        proxy: str | None,
        attempt: Attempt | None,
    ) -> Answer:
        sent = [*headers, ("Range", f"bytes={start}-{start + len(buffer) - 1}")]
        wire = LenientWire(attempt or Attempt(), self._limits, self._watch)
        try:
            return await receive(
                wire,
                self._session,
                url,
                sent,
                start=start,
                buffer=buffer,
                accept=accept,
                skip_allowed=skip_allowed,
                size=size,
                endless_s=self._endless_s,
                proxy=proxy,
            )
        finally:
            self._watched.discard(wire)

    def _find_way(self, url: str, headers: tuple[tuple[str, str], ...]) -> tuple[Origin, bytes, str, str | None]:
        """(origin, what `build_frame` gives, the URL without its query, proxy); with a proxy the second is empty."""
        origin, target = parse_http_url(url)
        proxy = self._proxies.choose(origin)
        frame = build_frame(origin, target, headers) if proxy is None else b""
        return origin, frame, urlsplit(url)._replace(query="").geturl(), proxy

    def _watch(self, wire: LenientWire) -> None:
        self._watched.add(wire)
        self._watchdog.wake()
