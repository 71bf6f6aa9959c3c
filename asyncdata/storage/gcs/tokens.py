"""Access tokens. A thread gets one token for all waiters, before the old one expires.

`Tokens.get` is the fast path: it returns the current token. ``google_tokens`` gets new ones.
"""

from __future__ import annotations

import asyncio
import copy
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from typing import Final, Protocol

from asyncdata.errors import AccessDeniedError, StorageError, UnsupportedURLError
from asyncdata.storage.blocking_jobs import run_apart
from asyncdata.storage.failures import FailureCause, read_failed

_GOOGLE: Final = "asyncdata.storage.gcs.google_tokens"
REFRESH_BEFORE_S: Final = 300.0
AHEAD_AGAIN_AFTER_S: Final = 10.0
"""A renewal ahead of time that failed, or brought the same token, is not tried again sooner."""
MAX_REFUSALS: Final = 3
LONGEST_FETCH_S: Final = 60.0
"""A thread that fetches a token cannot be interrupted. Later than this it is left to itself, and another one tried."""
CLOSE_S: Final = 2.0
"""The same, when the reader is closed."""
_HEADER: Final = re.compile(r"[\x20-\x7e]+")


@dataclass(frozen=True, slots=True)
class Token:
    """One access token.

    Attributes:
        header: The value of the ``Authorization`` header; empty for anonymous access.
        expires_at: Unix time, None for never.
    """

    header: str
    expires_at: float | None

    def __repr__(self) -> str:
        return f"Token({'anonymous' if not self.header else 'secret'}, expires_at={self.expires_at})"


ANONYMOUS: Final = Token("", None)


class TokenSource(Protocol):
    """Where tokens come from; ``fetch`` blocks and runs in a thread."""

    def fetch(self) -> Token:
        """Gets a fresh token."""
        ...


def choose_source(choice: object, proxy: str | None = None, *, writes: bool = False) -> TokenSource | None:
    """The source that the option ``token`` means, for reading or for writing, too; None for anonymous access.

    Raises:
        UnsupportedURLError: Not one of the documented values.
    """
    if choice == "anon":
        return None
    if choice is None or choice == "google_default":
        return _google("google_default", proxy, writes)
    if isinstance(choice, str | os.PathLike):
        path = os.fspath(choice)
        if not isinstance(path, str) or not os.path.isfile(path):
            raise AccessDeniedError("the option 'token' names no file; use 'anon', 'google_default' or a file's path")
        return _google(path, proxy, writes)
    raise UnsupportedURLError("the option 'token' must be 'anon', 'google_default' or the path of a credentials file")


def _google(choice: str, proxy: str | None, writes: bool) -> TokenSource:
    # Loaded by name: its imports take long, and anonymous readers do without.
    source: TokenSource = import_module(_GOOGLE).GoogleTokens(choice, proxy, writes=writes)
    return source


class Tokens:
    """The tokens of one reader, on one loop.

    Args:
        source: Where tokens come from; None for anonymous access.
        now: Unix time.
    """

    def __init__(
        self,
        source: TokenSource | None,
        now: Callable[[], float] = lambda: datetime.now(UTC).timestamp(),
    ) -> None:
        self._source = source
        self._now = now
        self._token = ANONYMOUS if source is None else None
        self._fetching: asyncio.Task[Token] | None = None
        self._refusals = 0
        self._refused: Token | None = None
        self._ahead_at = self._got_at = -math.inf
        self.fetches = 0
        """Tokens that were asked for."""

    async def get(self) -> Token:
        """A token that is valid now; one that expires soon is renewed meanwhile, once for all callers."""
        token = self._token
        if token is not None:
            if token.expires_at is None:
                return token
            left = token.expires_at - self._now()
            if left > REFRESH_BEFORE_S:
                return token
            # A token that has expired when it comes is as good as any other that would be fetched for this request.
            if left > 0 or abs(self._now() - self._got_at) < AHEAD_AGAIN_AFTER_S:
                if abs(self._now() - self._ahead_at) >= AHEAD_AGAIN_AFTER_S:
                    self._ahead_at = self._now()
                    self._start()
                return token
        return await self._fetched()

    async def renew(self, refused: Token) -> Token:
        """A token other than the one the server refused."""
        if self._source is None:
            return ANONYMOUS
        if self._token is not None and self._token is not refused:
            return self._token
        return await self._fetched()

    def accepted(self) -> None:
        """The server took a token of this source."""
        self._refusals = 0

    def refused(self, token: Token) -> bool:
        """The server refused a new token; whether so many were refused in a row that it means it.

        However many requests were made with one token, it counts once.
        """
        if token is not self._refused:
            self._refused = token
            self._refusals += 1
        return self._refusals > MAX_REFUSALS

    async def aclose(self) -> None:
        """Waits for a fetch in progress, but not for long; its outcome does not matter any more."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching], timeout=CLOSE_S)
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
            self._retrieve(self._fetching)

    async def _fetched(self) -> Token:
        # One caller's cancellation must not take the token from the others. Unlike a shield, this reports nothing to
        # the loop when the fetch fails after every caller was cancelled.
        fetching = self._start()
        await asyncio.wait((fetching,))
        error = fetching.exception()
        if isinstance(error, StorageError):
            raise copy.copy(error)  # every caller adds its own place to it
        return fetching.result()

    def _start(self) -> asyncio.Task[Token]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch(), name="asyncdata token refresh")
            # An early renewal may fail without harm, because the current token is still valid.
            self._fetching.add_done_callback(self._retrieve)
        return self._fetching

    async def _fetch(self) -> Token:
        source = self._source
        if source is None:
            return ANONYMOUS
        self.fetches += 1
        limit = asyncio.timeout(LONGEST_FETCH_S)
        try:
            async with limit:
                token = await run_apart(source.fetch, "asyncdata-token")
            if _HEADER.fullmatch(token.header) is None:
                raise AccessDeniedError("the token server returned a token that cannot be sent")
            self._token, self._got_at = token, self._now()
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever it is, its text may hold secrets
            if limit.expired():
                what = f"the token server returned no token within {LONGEST_FETCH_S:g} s"
                raise read_failed(what, FailureCause.CONNECT_TIMEOUT) from None
            raise AccessDeniedError(f"getting an access token failed ({type(error).__name__})") from None
        return self._token

    @staticmethod
    def _retrieve(task: asyncio.Task[Token]) -> None:
        if not task.cancelled():
            task.exception()
