"""``gs://``: bodies through the range client, listing and metadata through aiohttp, all with the JSON API.

Options (``Options.storage["gs"]``): ``endpoint_url``, ``token`` (``"anon"``, ``"google_default"``, a file's path),
``user_project`` (requester pays; ``project`` is accepted and unused), ``verify_tls``, ``ca_file``, ``proxy``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

from asyncdata.errors import ObjectNotFoundError, StorageError, UnsupportedURLError
from asyncdata.options import RetryOptions
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.bodies import Bodies
from asyncdata.storage.changed import object_changed, object_deleted, object_resized
from asyncdata.storage.failures import FailureCause, ReadFailedError, locate, read_failed, refused_whole
from asyncdata.storage.fallback import Why
from asyncdata.storage.gcs import requests
from asyncdata.storage.gcs.listing import Globbing, ListedBucket
from asyncdata.storage.gcs.tokens import Token, Tokens, TokenSource, choose_source
from asyncdata.storage.globs import compile_glob, has_wildcard
from asyncdata.storage.http1.connection import Answer
from asyncdata.storage.http1.head import ResponseHead
from asyncdata.storage.http1.known_answers import KnownObject
from asyncdata.storage.http1.tls import make_tls_context, verifies_tls
from asyncdata.storage.reader import ReaderSpec
from asyncdata.storage.urls import scheme_of
from asyncdata.types import ObjectInfo

WARM_CONNECTIONS: Final = 4
"""Connections that a listing opens early for the first bodies."""


def open_reader(spec: ReaderSpec) -> GcsReader:
    """Makes the reader; called by ``ReaderSpec.open``."""
    options = spec.options
    proxies = spec.proxies_with(options.get("proxy"))
    source = choose_source(options.get("token"), proxies.always)  # whatever is wrong is found before anything is opened
    endpoint = str(options.get("endpoint_url") or requests.DEFAULT_ENDPOINT).rstrip("/")
    tls_context = None
    if endpoint.lower().startswith("https:"):
        tls_context = make_tls_context(verify=verifies_tls(options), ca_file=options.get("ca_file"))
    bodies = Bodies(
        limits=spec.timeouts,
        max_connections=spec.max_connections,
        tls_context=tls_context,
        proxies=proxies,
        endless_s=spec.retry.deadline_s,
    )
    return GcsReader(
        bodies,
        source,
        endpoint=endpoint,
        user_project=options.get("user_project"),
        retry=spec.retry,
        writing=functools.partial(choose_source, options.get("token"), proxies.always, writes=True),
    )


class GcsReader:
    """A ``RangeReader`` for Google Cloud Storage and servers that speak its JSON API."""

    def __init__(
        self,
        bodies: Bodies,
        source: TokenSource | None,
        *,
        endpoint: str,
        user_project: str | None,
        retry: RetryOptions,
        writing: Callable[[], TokenSource | None],
    ) -> None:
        self._bodies = bodies
        self._retry = retry
        self.list_requests = 0
        """Pages and objects that globs asked for."""
        self._endpoint = endpoint
        self._user_project = user_project
        self._tokens = Tokens(source)
        self._choose_writing = writing
        self._writing: Tokens | None = None
        self._media_url = functools.lru_cache(maxsize=4096)(self._build_media_url)

    def __repr__(self) -> str:
        return f"<GcsReader {self._endpoint} {self._bodies!r}>"

    @property
    def fallbacks(self) -> Mapping[Why, int]:
        """Bodies that took aiohttp's path, by reason."""
        return self._bodies.fallback.counts

    async def stat(self, url: str) -> ObjectInfo:
        """Size and generation."""
        status, headers, body = await self._ask(requests.stat_url(self._endpoint, url, self._user_project), url)
        if status != 200:
            raise requests.answer_error(status, headers, body, url=url)
        return requests.parse_stat(body, url)

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The objects that match; a bucket that does not exist is an error, a glob without matches is not."""
        bucket, name = requests.split_url(pattern, name_required=False)
        if has_wildcard(bucket):
            raise UnsupportedURLError("a wildcard in the name of the bucket", url=pattern)
        patterns = compile_glob(name)
        wild = [item for item in patterns if not item.is_literal]
        place = ListedBucket(
            endpoint=self._endpoint, bucket=bucket, scheme=scheme_of(pattern), user_project=self._user_project
        )
        globbing = Globbing(
            place,
            pattern,
            ask=self._ask,
            stat=self.stat,
            retry=self._retry,
            meanwhile=functools.partial(self._bodies.warm, self._endpoint, WARM_CONNECTIONS),
        )
        literals = [item.text for item in patterns if item.is_literal]
        try:
            await globbing.run(literals, requests.plan_listings(wild), wild)
        finally:
            self.list_requests += globbing.requests
        found = globbing.found
        return [found[url] for url in sorted(found)]

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt | None = None) -> int:
        """One ranged GET of the listed generation, received in place."""
        if not buffer:
            return 0
        answer = await self._get(info, start, buffer, attempt)
        status = answer.head.status
        if status not in {200, 206}:
            if info.version is not None and requests.is_gone(status):
                raise await self._changed(info, start)
            if status == 416:
                raise object_resized(info, None, start=start)
            raise requests.answer_error(
                status, answer.head.headers, answer.aside, url=info.url, version=info.version, offset=start
            )
        if answer.filled < len(buffer):
            raise read_failed(
                f"the server sent {answer.filled} of {len(buffer)} bytes",
                FailureCause.SHORT_BODY,
                filled=answer.filled,
                url=info.url,
                version=info.version,
                offset=start,
            )
        return answer.filled

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt | None = None) -> tuple[ObjectInfo, int]:
        """The first ranged GET of an unknown object; its head tells size and generation."""
        if not buffer:
            return await self.stat(url), 0
        unknown = ObjectInfo(url=url, size=-1)
        seen: list[ObjectInfo] = []

        def note(head: ResponseHead) -> None:
            size = head.object_size
            if size is not None:
                version = head.headers.get("x-goog-generation")
                seen.append(ObjectInfo(url=url, size=size, version=version, crc32c=requests.crc_of(head)))
                if attempt is not None and version is not None:
                    attempt.opened = seen[-1]

        try:
            answer = await self._get(unknown, 0, buffer, attempt, note)
        except ReadFailedError as error:
            # What came of no known generation is no beginning to go on from.
            error.info = seen[-1] if seen and seen[-1].version is not None else None
            raise
        status = answer.head.status
        if status == 416:
            info = await self.stat(url)
            if info.size:
                raise refused_whole(info)
            return info, 0  # an empty object has no range at all
        if status not in {200, 206}:
            raise requests.answer_error(status, answer.head.headers, answer.aside, url=url)
        if not seen:
            raise read_failed("a response without the object's size", FailureCause.MALFORMED, url=url)
        info = seen[-1]
        if info.version is None:
            # What came is of no known generation, and what follows would be of any: all is read again, of one.
            return await self._read_from_start(url, buffer, attempt)
        if answer.filled < min(info.size, len(buffer)):
            short = read_failed(
                f"the server sent {answer.filled} of {min(info.size, len(buffer))} bytes",
                FailureCause.SHORT_BODY,
                filled=answer.filled,
                url=url,
            )
            short.info = info
            raise short
        return info, answer.filled

    async def _read_from_start(self, url: str, buffer: memoryview, attempt: Attempt | None) -> tuple[ObjectInfo, int]:
        """Asks for the generation, then reads the beginning of that one."""
        info = await self.stat(url)
        wanted = buffer[: min(info.size, len(buffer))]
        try:
            return info, await self.read_into(info, 0, wanted, Attempt(attempt.limits if attempt is not None else None))
        except ReadFailedError as error:
            error.info = info
            raise

    async def write(self, url: str, data: bytes) -> None:
        """One request that replaces the whole object. A token for reading alone would be refused."""
        self._writing = tokens = self._writing or Tokens(self._choose_writing())
        target = requests.upload_url(self._endpoint, url, self._user_project)
        status, headers, body = await self._ask(target, url, tokens, data)
        if status != 200:
            raise requests.answer_error(status, headers, body, url=url)
        requests.check_written(body, url, len(data))

    async def aclose(self) -> None:
        """Closes connections and the token threads."""
        await self._tokens.aclose()
        if self._writing is not None:
            await self._writing.aclose()
        await self._bodies.aclose()

    def _build_media_url(self, url: str, version: str | None) -> str:
        return requests.media_url(self._endpoint, url, version, self._user_project)

    async def _get(
        self,
        info: ObjectInfo,
        start: int,
        buffer: memoryview,
        attempt: Attempt | None,
        note: Callable[[ResponseHead], None] | None = None,
    ) -> Answer:
        version = info.version

        accept: Callable[[ResponseHead], None] = functools.partial(requests.check_media_head, info=info, start=start)
        known = None
        if note is not None:
            accept = functools.partial(_check_and_note, accept, note)
        elif info.size >= 0:
            known = KnownObject(info.size, version)
        url = self._media_url(info.url, version)
        try:
            token = await self._tokens.get()
            headers = _with_token(token) if token.header else requests.BODY_HEADERS
            answer = await self._bodies.get(
                url, headers, start=start, buffer=buffer, accept=accept, attempt=attempt, known=known
            )
            if answer.head.status == 401 and token.header:
                token = await self._tokens.renew(token)
                headers = _with_token(token) if token.header else requests.BODY_HEADERS
                answer = await self._bodies.get(
                    url, headers, start=start, buffer=buffer, accept=accept, attempt=attempt
                )
                if answer.head.status == 401 and not self._tokens.refused(token):
                    # Others are served with it: the server errs, and another attempt may succeed.
                    raise read_failed("the server also refused a new token (401)", FailureCause.SERVER_ERROR)
            if answer.head.status in (200, 206):
                self._tokens.accepted()
        except StorageError as error:
            raise locate(error, info, start) from None
        return answer if not answer.aside else answer._replace(aside=_without_token(answer.aside, token))

    async def _ask(
        self, url: str, subject: str, tokens: Tokens | None = None, data: bytes | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """(status, headers, body) of a request for metadata, or of one that sends data.

        The token is renewed once if it is refused.
        """
        tokens = tokens or self._tokens
        try:
            token = await tokens.get()
            answer = await self._ask_once(url, token, data)
            if answer[0] == 401 and token.header:
                answer = await self._ask_once(url, await tokens.renew(token), data)
        except StorageError as error:
            if error.url is None:
                error.url = subject
            raise
        return answer

    async def _ask_once(self, url: str, token: Token, data: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Authorization": token.header} if token.header else {}
        head, body = await self._bodies.ask("GET" if data is None else "POST", url, headers, data=data)
        return head.status, head.headers, body if head.status == 200 else _without_token(body, token)

    async def _changed(self, info: ObjectInfo, start: int) -> StorageError:
        """What became of a generation that cannot be read any more."""
        try:
            current = await self.stat(info.url)
        except ObjectNotFoundError:
            return object_deleted(info, start=start)
        except StorageError:
            return object_changed(info, None, start=start)
        if current.version == info.version:
            # The answer to the read was wrong, or is not yet consistent: the generation is there.
            return read_failed(
                "the server does not find a generation that exists",
                FailureCause.SERVER_ERROR,
                url=info.url,
                version=info.version,
                offset=start,
            )
        return object_changed(info, current.version, start=start, note=" (generations)")


def _check_and_note(
    check: Callable[[ResponseHead], None], note: Callable[[ResponseHead], None], head: ResponseHead
) -> None:
    check(head)
    note(head)


def _with_token(token: Token) -> tuple[tuple[str, str], ...]:
    return (*requests.BODY_HEADERS, ("Authorization", token.header))


def _without_token(text: bytes, token: Token) -> bytes:
    """What a server says about a refusal; some servers, and programs before them, repeat what they were sent."""
    secret = token.header.rpartition(" ")[2].encode()
    return text.replace(secret, "…".encode()) if secret else text
