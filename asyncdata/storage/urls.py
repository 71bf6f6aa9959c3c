"""Parses URLs without I/O and without guessing: object names are used as written."""

from __future__ import annotations

import base64
import os
import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes, urljoin, urlsplit

from asyncdata.errors import StorageError, UnsupportedURLError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*)://")
_ONE_SLASH: Final = re.compile(
    r"(gs|gcs|s3|s3a|az|azure|abfs|abfss|hdfs|webhdfs|swebhdfs|https?|memory):/(?!/)", re.IGNORECASE
)
"""Of local files, one slash means the same as three (RFC 8089)."""
_PRINTABLE_TARGET: Final = re.compile(r"[\x21-\x7e]+")
_LABEL: Final = r"[\x21-\x2d\x2f-\x5b\x5d-\x7e]{1,63}"
_HOST: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
"""What a name look-up and the ``Host`` header accept; which names exist is not known here. A backslash is a slash to
some programs, so that they would ask another host."""
_DROPPED: Final = re.compile(r"[\t\r\n]")
"""What ``urllib`` drops from a URL without a word, which would make it another one."""
_NOT_ASCII: Final = re.compile(r"[\x80-\xff]")


def scheme_of(url: str) -> str:
    """The scheme in lower case; ``file`` for a plain path and ``local://``. Chained fsspec URLs keep their whole chain.

    Raises:
        UnsupportedURLError: One slash follows a known scheme, or the URL has characters that no store can be asked for.
    """
    scheme = _written_scheme(url)
    try:
        name = os.fsencode(url) if scheme == "file" else url.encode()
    except UnicodeEncodeError:
        raise UnsupportedURLError("the URL has characters that are not text", url=url) from None
    if scheme == "file" and b"\0" in name:
        raise UnsupportedURLError("a path with a zero byte", url=url.replace("\0", "\\0"))
    return scheme


def _written_scheme(url: str) -> str:
    found = _SCHEME.match(url)
    if found is not None:
        scheme = found[1].lower()
        return "file" if scheme == "local" else scheme
    if "::" in url.split("/", 1)[0]:
        return url.split("://", 1)[0].lower()
    if (single := _ONE_SLASH.match(url)) is not None:
        right = f"{single[1]}://{url[single.end() :]}"
        raise UnsupportedURLError(f"a URL has two slashes after its scheme: write {right}", url=url)
    return "file"


def is_local(url: str) -> bool:
    """Whether it names a file of this machine.

    Raises:
        UnsupportedURLError: See `scheme_of`.
    """
    return scheme_of(url) == "file"


def split_bucket(url: str, schemes: tuple[str, ...]) -> tuple[str, str]:
    """(bucket, object name) of ``gs://bucket/name``; the name may be empty and is not unquoted."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in schemes:
        raise UnsupportedURLError(f"expected {schemes[0]}://bucket/object", url=url)
    bucket, _, name = rest.partition("/")
    if not bucket:
        raise UnsupportedURLError("the URL names no bucket", url=url)
    return bucket, name


class Origin(NamedTuple):
    """The target of a connection; a tuple, because every read looks it up.

    Attributes:
        host: Name or address, without brackets.
        port: TCP port.
        tls: Whether the connection is encrypted.
    """

    host: str
    port: int
    tls: bool

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_http_url(url: str) -> tuple[Origin, str]:
    """(origin, request target) of an absolute http or https URL.

    Raises:
        UnsupportedURLError: It is none, or its host or port cannot exist.
    """
    if _DROPPED.search(url):
        raise UnsupportedURLError("a URL has no tabs and line breaks: write %09, %0A or %0D", url=url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # urllib's own words quote a part of the URL, which may be a password.
        raise UnsupportedURLError("the URL's host or port is malformed", url=url) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UnsupportedURLError("expected http://host/path or https://host/path", url=url)
    if not _HOST.fullmatch(parts.hostname):
        raise UnsupportedURLError(
            "the URL's host is malformed: its parts have 1 to 63 ASCII characters (write other letters as xn--)",
            url=url,
        )
    if port == 0:
        raise UnsupportedURLError("nothing can be reached at port 0", url=url)
    tls = parts.scheme == "https"
    # Quotes characters that are not allowed in a request line; characters that are already quoted stay.
    # Not by `urlunsplit`, which puts two more slashes before a path that begins with two in newer versions of Python.
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _PRINTABLE_TARGET.fullmatch(target):
        try:
            target = quote(target, safe="/?&=%:@!$'()*+,;~-._[]")
        except UnicodeEncodeError:
            raise UnsupportedURLError("the URL has characters that are not text", url=url) from None
    return Origin(parts.hostname, port or (443 if tls else 80), tls), target


def quoted(url: str) -> str:
    """An http or https URL whose path and query are the request target of `parse_http_url`, for other clients.

    It has no user name: who asks is said by a header, whichever client sends it.

    Raises:
        UnsupportedURLError: See `parse_http_url`.
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parse_http_url(url)[1]}"


def basic_credentials(url: str) -> str | None:
    """The ``Authorization`` header that the user name and password of a URL mean (RFC 7617); None without these."""
    if "@" not in url:  # as nearly all are, and each read asks
        return None
    user, separator, _ = urlsplit(url).netloc.rpartition("@")
    if not separator:
        return None
    name, _, password = user.partition(":")
    return "Basic " + base64.b64encode(unquote_to_bytes(name) + b":" + unquote_to_bytes(password)).decode()


def join_location(url: str, location: str) -> str:
    """The absolute URL that a ``Location`` header means.

    Raises:
        StorageError: It is not one of http or https that can be asked for.
    """
    try:
        if _DROPPED.search(location):
            raise ValueError("another URL once the tabs are dropped")
        parse_http_url(urljoin(url, location))
    except ValueError:
        raise StorageError("the server redirects to something that is not a web address") from None
    # In a header a character is a byte, and it is bytes that are asked for.
    return urljoin(url, _NOT_ASCII.sub(lambda found: f"%{ord(found[0]):02X}", location))
