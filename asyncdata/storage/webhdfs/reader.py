"""``webhdfs://`` and ``swebhdfs://``: bodies through the range client, listings and metadata through aiohttp.

Options (``Options.storage["webhdfs"]``, ``["swebhdfs"]``): ``user`` (``user.name`` of a cluster without Kerberos),
``do_as``, ``delegation_token_file`` (a file with the token's text, which replaces both), ``verify_tls``, ``ca_file``.

A range is one request to the NameNode, which redirects to a DataNode that has the block, and one ranged body from
there. The URL contains offset and length, so what the DataNode considers the whole is the range. The client requests
all of it, and accepts 200 and 206 alike. If a server sends more, the rest is cut off; if it sends less, the body is too
short.

The version is the time of the last modification, the length and the inode. The reader looks it up again after the bytes
have arrived, and accepts them only if it is unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from asyncdata.errors import AccessDeniedError, ObjectChangedError, ObjectNotFoundError, StorageError
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.bodies import Bodies
from asyncdata.storage.changed import object_changed, object_deleted, object_resized
from asyncdata.storage.failures import FailureCause, ReadFailedError, locate, read_failed
from asyncdata.storage.fallback import Why
from asyncdata.storage.globs import compile_glob
from asyncdata.storage.hdfs.tree import FileStatus, Questions, find_files
from asyncdata.storage.http1.connection import Accept, Answer
from asyncdata.storage.http1.head import ResponseHead
from asyncdata.storage.http1.tls import make_tls_context, verifies_tls
from asyncdata.storage.reader import ReaderSpec
from asyncdata.storage.webhdfs.requests import (
    Caller,
    NameNodePath,
    answer_error,
    build_url,
    follow,
    parse_listing,
    parse_status,
    parse_url,
)
from asyncdata.types import ObjectInfo

MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({302, 303, 307, 308})
_HEADERS: Final = (("Accept-Encoding", "identity"),)


def open_reader(spec: ReaderSpec) -> WebHdfsReader:
    """Makes the reader; called by ``ReaderSpec.open``."""
    options = spec.options
    # Made for webhdfs too: a NameNode may redirect to a DataNode behind TLS.
    tls_context = make_tls_context(verify=verifies_tls(options), ca_file=options.get("ca_file"))
    callers = Callers(
        user=options.get("user"), do_as=options.get("do_as"), token_file=options.get("delegation_token_file")
    )
    callers.current()  # an unreadable file is found before anything is opened
    return WebHdfsReader(
        Bodies(
            limits=spec.timeouts,
            max_connections=spec.max_connections,
            tls_context=tls_context,
            proxies=spec.proxies,
            endless_s=spec.retry.deadline_s,
        ),
        callers,
    )


class Callers:
    """Who asks; a token is read from its file again when the server refuses it.

    Args:
        user: ``user.name``.
        do_as: The user that a proxy user acts for.
        token_file: Path of a file that holds a delegation token and nothing else.
    """

    def __init__(self, *, user: str | None, do_as: str | None, token_file: str | None) -> None:
        self._file = token_file
        self._caller = Caller(user=user, do_as=do_as)

    def current(self) -> Caller:
        """The caller, with the token as it was read last."""
        if self._file is not None and self._caller.token is None:
            self._read()
        return self._caller

    def renew(self, refused: Caller) -> bool:
        """Reads the file again; True if it holds another token than the one the server refused."""
        # Not compared with the one that was read last: of many requests with one token, all but the first find that a
        # new one was read already.
        self._read()
        return self._caller.token != refused.token

    def _read(self) -> None:
        if self._file is None:
            return
        try:
            token = Path(self._file).read_text(encoding="ascii").strip()
        except (OSError, ValueError, TypeError) as error:
            raise AccessDeniedError(f"the delegation token cannot be read: {type(error).__name__}") from None
        self._caller = Caller(token=token)


class WebHdfsReader:
    """A ``RangeReader`` for servers that speak WebHDFS: NameNodes, and gateways such as HttpFS."""

    def __init__(self, bodies: Bodies, callers: Callers) -> None:
        self._bodies = bodies
        self._callers = callers

    def __repr__(self) -> str:
        return f"<WebHdfsReader {self._bodies!r}>"

    @property
    def fallbacks(self) -> Mapping[Why, int]:
        """Bodies that took aiohttp's path, by reason."""
        return self._bodies.fallback.counts

    async def stat(self, url: str) -> ObjectInfo:
        """Size and version of a file."""
        try:
            entry = await self._look(parse_url(url))
        except StorageError as error:
            error.url = url
            raise
        if entry.is_folder:
            raise ObjectNotFoundError("not a file", url=url)
        return ObjectInfo(url=url, size=entry.size, version=entry.version)

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The files that match."""
        found: dict[str, ObjectInfo] = {}
        try:
            place = parse_url(pattern)
            lead = pattern[: len(pattern) - len(place.path)]
            questions = Questions(
                look=lambda path: self._look_or_none(NameNodePath(origin=place.origin, path=path)),
                entries=lambda path: self._entries(NameNodePath(origin=place.origin, path=path)),
            )
            for item in compile_glob(place.path):
                for entry in await find_files(item, questions):
                    url = lead + entry.path
                    found[url] = ObjectInfo(url=url, size=entry.size, version=entry.version)
        except StorageError as error:
            error.url = pattern
            raise
        return [found[url] for url in sorted(found)]

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt | None = None) -> int:
        """One OPEN, received in place, and a look whether the file is still the listed one."""
        if not buffer:
            return 0
        filled = 0
        try:
            place = parse_url(info.url)
            if info.size >= 0 and start + len(buffer) > info.size:
                raise StorageError(f"the file ends at {info.size}")
            accept = functools.partial(_accept, info=info, start=start, length=len(buffer))
            answer = await self._open(place, start, buffer, accept, attempt)
            if answer.filled < len(buffer):
                # Broken off, or a page about the file: nothing of it is kept.
                raise _not_the_range(answer.filled, start, len(buffer))
            if info.version is not None:
                # The last byte is asked for again where this fails, so that the next attempt ends with a look as well.
                filled = len(buffer) - 1
                await self._check(info, place)
        except StorageError as error:
            raise locate(await self._explain(error, info, filled), info, start) from None
        return len(buffer)

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt | None = None) -> tuple[ObjectInfo, int]:
        """The file's state, then its beginning."""
        info = await self.stat(url)
        wanted = buffer[: min(info.size, len(buffer))]
        if attempt is not None:
            attempt.opened = info
        try:
            return info, await self.read_into(info, 0, wanted, attempt)
        except ReadFailedError as error:
            error.info = info
            raise

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._bodies.aclose()

    async def _open(
        self, place: NameNodePath, start: int, buffer: memoryview, accept: Accept, attempt: Attempt | None
    ) -> Answer:
        """The bytes ``[start, start + len(buffer))``, or fewer of an answer without a length."""
        parameters = {"offset": start, "length": len(buffer)}
        caller = self._callers.current()
        answer = await self._follow(build_url(place, "OPEN", caller, parameters), buffer, accept, attempt)
        if answer.head.status in {401, 403} and self._callers.renew(caller):
            caller = self._callers.current()
            answer = await self._follow(build_url(place, "OPEN", caller, parameters), buffer, accept, attempt)
        if answer.head.status not in {200, 206}:
            raise answer_error(answer.head.status, answer.aside, caller)
        return answer

    async def _follow(self, url: str, buffer: memoryview, accept: Accept, attempt: Attempt | None) -> Answer:
        for _ in range(MAX_REDIRECTS):
            # The URL names offset and length: what the server sends beyond that range is of no interest.
            answer = await self._bodies.get(
                url,
                _HEADERS,
                start=0,
                buffer=buffer,
                accept=accept,
                skip_allowed=True,
                size=len(buffer),
                attempt=attempt,
            )
            location = answer.head.headers.get("location")
            if answer.head.status not in _REDIRECTS or location is None:
                return answer
            url = follow(url, location)
            if attempt is not None:
                attempt.first_byte_at = -1.0  # that was the NameNode's; the body's is the DataNode's
        raise StorageError("too many redirects")

    async def _look(self, place: NameNodePath) -> FileStatus:
        return parse_status(await self._ask(place, "GETFILESTATUS"), place.path)

    async def _look_or_none(self, place: NameNodePath) -> FileStatus | None:
        try:
            return await self._look(place)
        except ObjectNotFoundError:
            return None

    async def _entries(self, place: NameNodePath) -> list[FileStatus]:
        try:
            return parse_listing(await self._ask(place, "LISTSTATUS"), place.path)
        except ObjectNotFoundError:
            return []

    async def _ask(self, place: NameNodePath, operation: str) -> bytes:
        caller = self._callers.current()
        status, body = await self._ask_once(build_url(place, operation, caller))
        if status in {401, 403} and self._callers.renew(caller):
            caller = self._callers.current()
            status, body = await self._ask_once(build_url(place, operation, caller))
        if status != 200:
            raise answer_error(status, body, caller)
        return body

    async def _ask_once(self, url: str) -> tuple[int, bytes]:
        head, body = await self._bodies.ask("GET", url, {}, allow_redirects=False)
        return head.status, body

    async def _check(self, info: ObjectInfo, place: NameNodePath) -> None:
        """Raises unless the file is the listed one."""
        try:
            entry = await self._look(place)
        except ObjectNotFoundError:
            raise object_deleted(info, start=None) from None
        if entry.is_folder or entry.version != info.version:
            raise object_changed(info, entry.version, start=None, note=" (mtime-length-inode)")
        if 0 <= info.size != entry.size:
            raise object_resized(info, entry.size, start=None, found=entry.version)

    async def _explain(self, error: StorageError, info: ObjectInfo, filled: int) -> StorageError:
        """A read that failed because the file is another one by now says so."""
        if isinstance(error, ObjectChangedError) or info.version is None:
            return error
        if isinstance(error, ObjectNotFoundError):
            return object_deleted(info, start=None)
        if isinstance(error, ReadFailedError):
            error.filled = max(error.filled, filled)
        # A failure without a connection says nothing about the file, and the NameNode is not asked again.
        if not isinstance(error, ReadFailedError) or error.cause in {
            FailureCause.SERVER_ERROR,
            FailureCause.SHORT_BODY,
        }:
            try:
                await self._check(info, parse_url(info.url))
            except ObjectChangedError as changed:
                return changed
            except StorageError:
                pass  # the NameNode cannot tell; report the first failure
        return error


def _accept(head: ResponseHead, *, info: ObjectInfo, start: int, length: int) -> None:
    """Refuses a body whose length shows that it is not the range: it comes from something on the way, as a page does.

    Some gateways know no ``length`` and send everything up to the end of the file.

    Raises:
        ReadFailedError: It is neither the range nor everything behind its beginning.
    """
    told = head.object_size
    if told not in {None, length, info.size - start}:
        raise _not_the_range(told, start, length)


def _not_the_range(sent: int | None, start: int, length: int) -> ReadFailedError:
    return read_failed(
        f"the server answered with {sent} bytes to a request for {length} bytes from {start}", FailureCause.SHORT_BODY
    )
