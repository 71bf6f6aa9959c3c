"""Access tokens through google-auth. Its errors become typed errors that contain neither token nor key."""

from __future__ import annotations

import json
import re
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import google.auth
import google.auth.exceptions
import google.auth.transport.requests

from asyncdata.errors import AccessDeniedError
from asyncdata.options import set_variables
from asyncdata.storage.failures import FailureCause, read_failed
from asyncdata.storage.gcs.tokens import Token

READING: Final = ("https://www.googleapis.com/auth/devstorage.read_only",)
WRITING: Final = ("https://www.googleapis.com/auth/devstorage.read_write",)
_REQUEST_TIMEOUT_S: Final = 30.0
_VARIABLE: Final = "GOOGLE_APPLICATION_CREDENTIALS"
_MISSING: Final = re.compile(r"missing fields [\w, ]+")


class GoogleTokens:
    """Tokens through google-auth.

    Args:
        choice: ``google_default``, or the path of a credentials file.
        proxy: Where encrypted requests for tokens go through; None leaves that to the environment.
        writes: Whether objects are written with them.
    """

    def __init__(self, choice: str, proxy: str | None = None, *, writes: bool = False) -> None:
        self._choice = choice
        self._proxy = proxy
        self._scopes = WRITING if writes else READING
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
        except google.auth.exceptions.DefaultCredentialsError as error:
            raise AccessDeniedError(self._why_none(error)) from None
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

    def _why_none(self, error: Exception) -> str:
        """Says why there are no credentials; never in the library's words, which may hold what the file does."""
        anonymous = "for public buckets use storage={'gs': {'token': 'anon'}}"
        if self._choice != "google_default":
            fault = _fault_of(self._choice, error)
            return f"the credentials file that the option 'token' names cannot be used: {fault}; {anonymous}"
        if set_variables([_VARIABLE]):
            return f"the file that {_VARIABLE} names has no credentials that can be used; {anonymous}"
        return f"no Google credentials found; {anonymous}"

    def _load(self) -> Any:
        if self._choice == "google_default":
            credentials, _ = google.auth.default(scopes=self._scopes)
        else:
            credentials, _ = google.auth.load_credentials_from_file(  # type: ignore[no-untyped-call]  # no types there
                self._choice, scopes=self._scopes
            )
        return credentials


def _fault_of(path: str, error: Exception) -> str:
    """What is wrong with a credentials file, without a word of what is in it."""
    try:
        content = json.loads(Path(path).read_bytes())
    except OSError as unreadable:
        return unreadable.strerror or "it cannot be read"
    except ValueError:
        return "it is not JSON"
    if not isinstance(content, dict) or "type" not in content:
        return "it has no 'type', which Google's credentials files have"
    missing = _MISSING.search(str(error.__cause__ or error))
    return missing[0] if missing else "it is not what Google's credentials files of its type are"
