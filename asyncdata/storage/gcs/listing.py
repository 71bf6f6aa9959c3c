"""Executes a glob: pages of listings, several in parallel, and single objects. A failed page is retried by itself.

A listing of a hundred pages must not restart because one of them failed. Each page therefore gets a few tries here. If
they fail, the whole glob fails, and the Fetcher may retry it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final, TypeAlias, TypeVar

from asyncdata.errors import ObjectNotFoundError, StorageError, TransientStorageError
from asyncdata.options import RetryOptions
from asyncdata.storage.failures import FailureCause, read_failed
from asyncdata.storage.gcs.names import NameSpace, Question
from asyncdata.storage.gcs.requests import Listing, Page, answer_error, list_url, parse_page
from asyncdata.storage.globs import GlobPattern
from asyncdata.storage.groups import worst_of
from asyncdata.storage.policy.retry import next_delay_s
from asyncdata.types import ObjectInfo

T = TypeVar("T")

LISTERS: Final = 16
"""Requests of one glob at a time."""

_TRIES: Final = 4
_MOST_EMPTY: Final = 1000
"""Pages in a row without a name, behind each of which there is another one."""

Ask: TypeAlias = Callable[[str, str], Awaitable[tuple[int, Mapping[str, str], bytes]]]
"""(status, headers, body) of a metadata request at a URL, on behalf of what the user asked for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedBucket:
    """Where and how to list.

    Attributes:
        endpoint: Base URL of the server.
        bucket: Its name.
        scheme: How the user writes it.
        user_project: Who pays.
    """

    endpoint: str
    bucket: str
    scheme: str
    user_project: str | None


class Globbing:
    """One glob on its way.

    Args:
        place: Where.
        pattern: What the user asked for, for messages.
        ask: Makes one request.
        stat: Looks at one object.
        retry: For pages; a few tries of what these allow.
        meanwhile: Done at the same time; what is listed will soon be read.
    """

    def __init__(
        self,
        place: ListedBucket,
        pattern: str,
        *,
        ask: Ask,
        stat: Callable[[str], Awaitable[ObjectInfo]],
        retry: RetryOptions,
        meanwhile: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        self._place = place
        self._pattern = pattern
        self._ask = ask
        self._stat = stat
        self._retry = dataclasses.replace(retry, max_attempts=min(_TRIES, retry.max_attempts))
        self._meanwhile = meanwhile
        self._turns = asyncio.Semaphore(LISTERS)
        self.found: dict[str, ObjectInfo] = {}
        """By URL."""
        self.requests = 0
        """Pages and objects asked for, tries included."""

    async def run(self, literals: list[str], listings: list[Listing], wild: list[GlobPattern]) -> None:
        """Looks at the literal names and goes through the listings; ``found`` has what matches.

        Raises:
            StorageError: The first failure, when all requests of the glob have ended.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._meanwhile())
                for name in literals:
                    group.create_task(self._look(name))
                for listing in listings:
                    space = NameSpace(listing.prefix, LISTERS)
                    group.create_task(self._walk(group, space, listing, wild, space.begin()))
        except BaseExceptionGroup as failures:
            raise worst_of(failures) from None

    async def _look(self, name: str) -> None:
        url = f"{self._place.scheme}://{self._place.bucket}/{name}"
        try:
            info = await self._tried(lambda: self._stat(url))
        except ObjectNotFoundError:
            return
        self.found[info.url] = info

    async def _walk(
        self,
        group: asyncio.TaskGroup,
        space: NameSpace,
        listing: Listing,
        wild: list[GlobPattern],
        question: Question,
    ) -> None:
        """Asks a question; the ones that its answer raises are asked by tasks of their own, but for one."""
        at: Question | None = question
        last, fruitless = "", 0
        while at is not None:
            page = await self._tried(functools.partial(self._page, listing, at))
            if page.token is not None and page.token == at.token:
                raise read_failed("a page of a listing names itself as the next one", FailureCause.MALFORMED)
            if not page.sent_in_order and (page.token or at.token or at.start or at.end):
                # Where it goes on would be a guess, and what lies between the pages would be missing.
                raise StorageError("the server lists names out of order", url=self._pattern)
            if at.token is None:
                last, fruitless = "", 0
            if page.names and page.names[-1] > last:
                last, fruitless = page.names[-1], 0
            else:
                fruitless += 1
            if page.token is not None and fruitless > (0 if page.names else _MOST_EMPTY):
                raise StorageError("the pages of a listing lead nowhere", url=self._pattern)
            # A server that does not know the bounds begins at its first name: what lies before is another span's.
            names = page.names[bisect_left(page.names, at.start) :]
            kept, more = space.answered(at, names, page.token)
            behind = names[kept] if kept < len(names) else None
            for name, info in page.items:
                if behind is not None and name >= behind:
                    break
                if any(pattern.matches(name) for pattern in wild):
                    self.found[info.url] = info
            at = more[0] if more else None
            for other in more[1:]:
                group.create_task(self._walk(group, space, listing, wild, other))

    async def _page(self, listing: Listing, question: Question) -> Page:
        place = self._place
        url = list_url(place.endpoint, place.bucket, listing, question, place.user_project)
        status, headers, body = await self._ask(url, self._pattern)
        if status != 200:
            raise answer_error(status, headers, body, url=self._pattern)
        return parse_page(body, place.bucket, place.scheme)

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        began, tries = 0.0, 0
        while True:
            try:
                async with self._turns:
                    if not tries:
                        began = loop.time()  # waiting for a turn is no part of the first attempt
                    self.requests += 1
                    return await call()
            except TransientStorageError as error:
                tries += 1
                delay = next_delay_s(
                    error,
                    attempt=tries,
                    elapsed_s=loop.time() - began,
                    options=self._retry,
                    draw=random.random,
                )
                if delay is None:
                    error.complete(url=self._pattern, attempts=tries)
                    raise
            await asyncio.sleep(delay)
