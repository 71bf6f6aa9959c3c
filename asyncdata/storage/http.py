"""``http://`` and ``https://``: the range client, with aiohttp for unusual servers.

Options (``Options.storage["http"]``, ``["https"]``): ``headers``, ``verify_tls``, ``ca_file``, ``proxy``.

The version is the ETag, or else the date of the last modification. The head of every response is compared with it
before any byte is stored. Redirects are followed and remembered until the object is opened again, so that the next
range goes directly to their target.
User headers, and the user name and password of a URL, are sent only to their own origin, not to redirect targets.
Servers without ranges are supported: each read then transfers everything up to its end.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from asyncdata.errors import ObjectNotFoundError, StorageError, TransientStorageError, UnsupportedURLError
from asyncdata.storage.aiohttp_bodies import MAX_REDIRECTS
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.bodies import Bodies
from asyncdata.storage.changed import object_changed, object_resized
from asyncdata.storage.failures import (
    EncodedBodyError,
    FailureCause,
    ReadFailedError,
    locate,
    read_failed,
    refused_whole,
)
from asyncdata.storage.fallback import Why
from asyncdata.storage.globs import has_wildcard
from asyncdata.storage.http1.connection import Answer
from asyncdata.storage.http1.head import MalformedHeadError, ResponseHead
from asyncdata.storage.http1.known_answers import KnownObject
from asyncdata.storage.http1.tls import make_tls_context, verifies_tls
from asyncdata.storage.reader import ReaderSpec, option_of_names
from asyncdata.storage.statuses import parse_retry_after, shorten, status_error
from asyncdata.storage.urls import basic_credentials, join_location, parse_http_url
from asyncdata.types import ObjectInfo

_MAX_REMEMBERED: Final = 10_000
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NO_HEAD: Final = frozenset({400, 403, 405, 501})
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def open_reader(spec: ReaderSpec) -> HttpReader:
    """Makes the reader; called by ``ReaderSpec.open``."""
    options = spec.options
    headers = tuple((name, str(value)) for name, value in option_of_names(options, "headers").items())
    for name, value in headers:
        if _HEADER_NAME.fullmatch(name) is None or _HEADER_VALUE.fullmatch(value) is None:
            raise StorageError(f"the header {name!r} among the storage options has characters that cannot be sent")
    # Made for http too: a redirect may lead to https.
    tls_context = make_tls_context(verify=verifies_tls(options), ca_file=options.get("ca_file"))
    bodies = Bodies(
        limits=spec.timeouts,
        max_connections=spec.max_connections,
        tls_context=tls_context,
        proxies=spec.proxies_with(options.get("proxy")),
        endless_s=spec.retry.deadline_s,
    )
    return HttpReader(bodies, headers)


class HttpReader:
    """A ``RangeReader`` for plain web servers."""

    def __init__(self, bodies: Bodies, headers: tuple[tuple[str, str], ...]) -> None:
        self._bodies = bodies
        self._headers = headers
        self._moved: OrderedDict[str, str] = OrderedDict()

    def __repr__(self) -> str:
        return f"<HttpReader {self._bodies!r}>"

    @property
    def fallbacks(self) -> Mapping[Why, int]:
        """Bodies that took aiohttp's path, by reason."""
        return self._bodies.fallback.counts

    async def stat(self, url: str) -> ObjectInfo:
        """HEAD; where the server does not tell the size that way, the first bytes."""
        parse_http_url(url)
        info = await self._ask_head(url)
        if info is None or not info.size:
            # Servers that make their answers on demand say 0 of what they have not made.
            probe = bytearray(1)
            info, _ = await self.open_read(url, memoryview(probe))
        return info

    async def _ask_head(self, url: str) -> ObjectInfo | None:
        """What HEAD tells; None where the server does not tell the size that way."""
        at = url
        try:
            for _ in range(MAX_REDIRECTS):
                headers = {"Accept-Encoding": "identity", **dict(self._headers_for(at, url))}
                head, _ = await self._bodies.ask("HEAD", at, headers, allow_redirects=False)
                location = head.headers.get("location")
                if head.status not in _REDIRECTS or location is None:
                    break
                at = join_location(at, location)
            else:
                raise StorageError("too many redirects")
            if head.status == 200 and head.content_length is not None and _is_identity(head):
                return ObjectInfo(url=url, size=head.content_length, version=version_of(head))
        except MalformedHeadError as error:
            raise _malformed(error, url) from None
        except StorageError as error:
            error.url = url
            raise
        if head.status != 200 and head.status not in _NO_HEAD:
            raise _answer_error(head, b"", url=url)
        return None

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """That one object: web servers have no listing. ``?`` and ``[`` are part of a URL, ``*`` and ``{`` are not."""
        if "*" in pattern or ("{" in pattern and has_wildcard(pattern)):
            raise UnsupportedURLError("http has no listings, so patterns do not work; give the URLs", url=pattern)
        try:
            return [await self.stat(pattern)]
        except ObjectNotFoundError:
            return []

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt | None = None) -> int:
        """One ranged GET, received in place."""
        if not buffer:
            return 0
        try:
            size = info.size if info.size >= 0 else None
            known = KnownObject(info.size, info.version) if info.size >= 0 else None
            answer = await self._get(
                info.url, start, buffer, lambda head: _check(head, info, start), attempt, size, known
            )
            if answer.head.status == 416:
                beyond = answer.head.content_range
                total = beyond.total if beyond is not None else None
                if total is not None and total == info.size:
                    raise read_failed(
                        f"the server refuses a range within the object's {total} bytes", FailureCause.MALFORMED
                    )
                raise object_resized(info, total, start=start, found=version_of(answer.head))
            self._require_body(answer, info.url)
            if answer.head.status == 200 and info.size >= 0 and answer.total not in {None, info.size}:
                if answer.total < info.size and _ends_with_connection(answer.head):
                    # Broken off, or a page about the object: nothing of it is kept.
                    raise _cut(answer.total, info.size)
                # Without a length in its head it is only now that one sees: it was another object, or a page about it.
                found = version_of(answer.head)
                raise object_resized(info, answer.total, start=start, found=found, at_least=answer.total > info.size)
            if answer.filled < len(buffer):
                raise read_failed(
                    f"the server sent {answer.filled} of {len(buffer)} bytes",
                    FailureCause.SHORT_BODY,
                    filled=answer.filled,
                )
        except (StorageError, MalformedHeadError) as error:
            raise _located(error, info, start) from None
        return answer.filled

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt | None = None) -> tuple[ObjectInfo, int]:
        """The first ranged GET; its head tells size and version."""
        if not buffer:
            return await self.stat(url), 0
        seen: list[ObjectInfo] = []

        def note(head: ResponseHead) -> None:
            _check_identity(head)
            size = head.object_size
            if size is not None:
                seen.append(ObjectInfo(url=url, size=size, version=version_of(head)))
                if attempt is not None:
                    attempt.opened = seen[-1]

        unknown = ObjectInfo(url=url, size=-1)
        # No version says what is wanted: where the URL led another time may by now be an old one.
        self._moved.pop(url, None)
        try:
            answer = await self._get(url, 0, buffer, note, attempt)
            if answer.head.status == 416:
                empty = answer.head.content_range
                if empty is not None and empty.total == 0:
                    # An empty object has no range, and an answer without range often has no version.
                    info = await self._ask_head(url) or ObjectInfo(url=url, size=0, version=None)
                    if info.size:
                        raise refused_whole(info)
                    return info, 0
            self._require_body(answer, url)
            if answer.total is None:
                raise StorageError("the server does not report the object's size")
            await self._check_end(answer, answer.total, url)
            info = ObjectInfo(url=url, size=answer.total, version=version_of(answer.head))
            if answer.filled < min(info.size, len(buffer)):
                raise read_failed("the body is too short", FailureCause.SHORT_BODY, filled=answer.filled)
        except (StorageError, MalformedHeadError) as error:
            if isinstance(error, ReadFailedError):
                error.info = seen[-1] if seen else None
            raise _located(error, unknown, 0) from None
        return info, answer.filled

    async def _check_end(self, answer: Answer, received: int, url: str) -> None:
        """Asks HEAD for the size, where the end of the body proves nothing; there may be no telling."""
        if not _ends_with_connection(answer.head):
            return
        try:
            told = await self._ask_head(url)
        except TransientStorageError:
            raise
        except StorageError:
            return  # some URLs are signed for GET only
        if told is not None and received < told.size:
            raise _cut(received, told.size)

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._bodies.aclose()

    async def _get(
        self,
        url: str,
        start: int,
        buffer: memoryview,
        accept: Callable[[ResponseHead], None],
        attempt: Attempt | None,
        size: int | None = None,
        known: KnownObject | None = None,
    ) -> Answer:
        """One ranged GET; redirects are followed, and a remembered one that fails is forgotten and tried from start."""
        remembered = self._moved.get(url)
        if remembered is not None:
            try:
                answer = await self._get_at(remembered, url, start, buffer, accept, attempt, size, known)
            except TransientStorageError:
                self._moved.pop(url, None)  # the next attempt asks where the object is now
                raise
            except StorageError:
                pass  # what is refused, because it is another version or no place to read from, may be elsewhere by now
            else:
                if answer.head.status in {200, 206}:
                    return answer
            self._moved.pop(url, None)
        at = url
        for _ in range(MAX_REDIRECTS):
            answer = await self._get_at(at, url, start, buffer, accept, attempt, size, known)
            location = answer.head.headers.get("location")
            if answer.head.status not in _REDIRECTS or location is None:
                if at != url:
                    self._remember(url, at)
                return answer
            at = join_location(at, location)
        raise StorageError("too many redirects")

    async def _get_at(
        self,
        at: str,
        url: str,
        start: int,
        buffer: memoryview,
        accept: Callable[[ResponseHead], None],
        attempt: Attempt | None,
        size: int | None,
        known: KnownObject | None,
    ) -> Answer:
        headers = (("Accept-Encoding", "identity"), *self._headers_for(at, url))
        return await self._bodies.get(
            at,
            headers,
            start=start,
            buffer=buffer,
            accept=accept,
            skip_allowed=True,
            size=size,
            attempt=attempt,
            known=known,
        )

    def _headers_for(self, at: str, url: str) -> tuple[tuple[str, str], ...]:
        """The user's headers and the URL's credentials; none if a redirect has led to another origin."""
        headers = self._headers
        credentials = basic_credentials(url)
        if credentials is not None and not any(name.lower() == "authorization" for name, _ in headers):
            headers = (*headers, ("Authorization", credentials))
        if headers and parse_http_url(at)[0] == parse_http_url(url)[0]:
            return headers
        return ()

    def _remember(self, url: str, at: str) -> None:
        if len(self._moved) >= _MAX_REMEMBERED:
            self._moved.popitem(last=False)
        self._moved[url] = at

    @staticmethod
    def _require_body(answer: Answer, url: str) -> None:
        if answer.head.status not in {200, 206}:
            raise _answer_error(answer.head, answer.aside, url=url)


def version_of(head: ResponseHead) -> str | None:
    """The token of the content: the ETag, or else the date of the last modification."""
    return head.headers.get("etag") or head.headers.get("last-modified")


def _is_identity(head: ResponseHead) -> bool:
    return head.headers.get("content-encoding", "identity").strip().lower() in {"", "identity"}


def _ends_with_connection(head: ResponseHead) -> bool:
    """Whether a whole body goes until the connection ends: one that is broken off looks like one that is complete."""
    return head.status == 200 and head.content_length is None and not head.is_chunked


def _cut(received: int, size: int) -> ReadFailedError:
    return read_failed(f"the server ended the body after {received} of {size} bytes", FailureCause.SHORT_BODY)


def _check_identity(head: ResponseHead) -> None:
    if head.status in {200, 206} and not _is_identity(head):
        raise EncodedBodyError(f"the server sends the body as {head.headers['content-encoding'][:40]!r}")


def _check(head: ResponseHead, info: ObjectInfo, start: int) -> None:
    """Refuses bytes that are not of the version in ``info``."""
    if head.status not in {200, 206}:
        return
    _check_identity(head)
    current = version_of(head)
    if info.version is not None and current != info.version:
        raise object_changed(info, current, start=start)
    total = head.object_size
    if total is not None and info.size >= 0 and total != info.size:
        raise object_resized(info, total, start=start, found=current)


def _located(error: StorageError | MalformedHeadError, info: ObjectInfo, start: int) -> StorageError:
    located = locate(_malformed(error, info.url) if isinstance(error, MalformedHeadError) else error, info, start)
    located.url = info.url
    return located


def _malformed(error: MalformedHeadError, url: str) -> ReadFailedError:
    """A header that makes no sense is found when it is looked at, which may be after the answer has come."""
    return read_failed(f"not an HTTP response: {error}", FailureCause.MALFORMED, url=url)


def _answer_error(head: ResponseHead, body: bytes, *, url: str) -> StorageError:
    if credentials := basic_credentials(url):
        # Some servers repeat what they were sent.
        body = body.replace(credentials.removeprefix("Basic ").encode(), "…".encode())
    retry_after_s = parse_retry_after(head.headers.get("retry-after"))
    return status_error(head.status, shorten(body), url=url, retry_after_s=retry_after_s)
