"""Access tokens: got once for all waiters, in a thread, before they expire.

`Tokens.current` is the fast path: a bytes-free look at a held token. google-auth does the work; its errors become
typed ones that carry neither token nor key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import google.auth
import google.auth.exceptions
import google.auth.transport.requests

from asyncdata.errors import AccessDeniedError, StorageError, UnsupportedURLError
from asyncdata.storage.failures import FailureCause, read_failed
from asyncdata.storage.threads import ThreadJobs

SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.read_only",)
REFRESH_BEFORE_S: Final = 300.0
MAX_REFUSALS: Final = 3
_REQUEST_TIMEOUT_S: Final = 30.0


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


class GoogleTokens:
    """Tokens through google-auth.

    Args:
        choice: ``google_default``, or the path of a credentials file.
        proxy: Where encrypted requests for tokens go through; None leaves that to the environment.
    """

    def __init__(self, choice: str, proxy: str | None = None) -> None:
        self._choice = choice
        self._proxy = proxy
        self._credentials: Any = None

    def fetch(self) -> Token:
        """Loads the credentials once, then refreshes them."""
        request = google.auth.transport.requests.Request()
        if self._proxy is not None:
            # Not for plain requests: these go to the metadata server of the machine.
            request.session.proxies["https"] = self._proxy

        def bounded(*args: Any, **kwargs: Any) -> Any:
            return request(*args, **{**kwargs, "timeout": _REQUEST_TIMEOUT_S})

        try:
            if self._credentials is None:
                self._credentials = self._load()
            self._credentials.refresh(bounded)
        except google.auth.exceptions.DefaultCredentialsError:
            raise AccessDeniedError(
                "no Google credentials found; for public buckets use storage={'gs': {'token': 'anon'}}"
            ) from None
        except google.auth.exceptions.TransportError:
            raise read_failed("the token server cannot be reached", FailureCause.CONNECT) from None
        except google.auth.exceptions.GoogleAuthError as error:
            if getattr(error, "retryable", False):
                raise read_failed("the token server failed", FailureCause.SERVER_ERROR) from None
            raise AccessDeniedError(f"the credentials were refused ({type(error).__name__})") from None
        finally:
            request.session.close()
        expiry = self._credentials.expiry
        expires_at = None if expiry is None else expiry.replace(tzinfo=UTC).timestamp()
        return Token(f"Bearer {self._credentials.token}", expires_at)

    def _load(self) -> Any:
        if self._choice == "google_default":
            credentials, _ = google.auth.default(scopes=SCOPES)
        else:
            credentials, _ = google.auth.load_credentials_from_file(  # type: ignore[no-untyped-call]  # no types there
                self._choice, scopes=SCOPES
            )
        return credentials


def choose_source(choice: object, proxy: str | None = None) -> TokenSource | None:
    """The source that the option ``token`` means; None for anonymous access.

    Raises:
        UnsupportedURLError: Not one of the documented values.
    """
    if choice == "anon":
        return None
    if choice is None or choice == "google_default":
        return GoogleTokens("google_default", proxy)
    if isinstance(choice, str | os.PathLike):
        path = os.fspath(choice)
        if not isinstance(path, str) or not os.path.isfile(path):
            raise AccessDeniedError("the option 'token' names no file; use 'anon', 'google_default' or a file's path")
        return GoogleTokens(path, proxy)
    raise UnsupportedURLError("the option 'token' must be 'anon', 'google_default' or the path of a credentials file")


class Tokens:
    """The tokens of one reader, on one loop.

    Args:
        source: Where tokens come from; None for anonymous access.
        jobs: The threads that fetch them.
        now: Unix time.
    """

    def __init__(
        self,
        source: TokenSource | None,
        jobs: ThreadJobs,
        now: Callable[[], float] = lambda: datetime.now(UTC).timestamp(),
    ) -> None:
        self._source = source
        self._jobs = jobs
        self._now = now
        self._token = ANONYMOUS if source is None else None
        self._fetching: asyncio.Task[Token] | None = None
        self._refusals = 0
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
            if left > 0:
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

    def refused(self) -> bool:
        """The server refused a new token; whether that has happened so often in a row that it means it."""
        self._refusals += 1
        return self._refusals > MAX_REFUSALS

    async def aclose(self) -> None:
        """Waits for a fetch in progress; its outcome does not matter any more."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
            self._retrieve(self._fetching)

    async def _fetched(self) -> Token:
        # Shielded: one caller's cancellation must not take the token from the others.
        return await asyncio.shield(self._start())

    def _start(self) -> asyncio.Task[Token]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch(), name="asyncdata token refresh")
            # A renewal ahead of time may fail without harm: the token at hand is still valid.
            self._fetching.add_done_callback(self._retrieve)
        return self._fetching

    async def _fetch(self) -> Token:
        source = self._source
        if source is None:
            return ANONYMOUS
        self.fetches += 1
        try:
            self._token = await self._jobs.run(source.fetch)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever it is, its text may hold secrets
            raise AccessDeniedError(f"getting an access token failed ({type(error).__name__})") from None
        return self._token

    @staticmethod
    def _retrieve(task: asyncio.Task[Token]) -> None:
        if not task.cancelled():
            task.exception()
