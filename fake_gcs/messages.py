"""What passes between the connection and the handlers: requests, responses, and sinks for streamed bodies.

A handler is a plain function ``(Service, Request) -> Answer``. It never awaits: it answers at once with a ``Response``,
or hands back a ``Sink`` that will take the request's body piece by piece, or a generator that yields between the slices
of a long piece of work and returns the response.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl

from fake_gcs.errors import GCSError, invalid
from fake_gcs.http1 import Head
from fake_gcs.objects.bodies import Body

_MAX_QUERY_FIELDS = 100


@dataclass(slots=True)
class Request:
    """A request whose path has been understood.

    Attributes:
        head: The request head as it came.
        operation: Google's name of the method, such as ``storage.objects.get``.
        params: What the path holds, percent-decoded: ``bucket``, ``object``, ...
        query: Query parameters, percent-decoded; the last one wins.
        base_url: ``http://host:port`` as the client addressed it; links in answers begin with it.
        body: The whole body, for handlers that take it at once.
    """

    head: Head
    operation: str
    params: dict[str, str]
    query: dict[str, str]
    base_url: str
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """A header by its lower-case name."""
        return self.head.headers.get(name)


def parse_query(query: str) -> dict[str, str]:
    """Percent-decoded query parameters.

    Raises:
        GCSError: 400 for more fields than any client sends.
    """
    if not query:
        return {}
    try:
        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS))
    except ValueError as error:
        raise invalid("malformed query string") from error


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch ``[start, stop)`` of a stored body that is to be sent."""

    body: Body
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.stop - self.start


@dataclass(slots=True)
class Response:
    """An answer.

    Attributes:
        status: HTTP status.
        headers: In the order they are sent; Date, Content-Length and Connection are added when it is sent.
        body: Bytes, a stretch of a stored body, or pieces of unknown total size (sent chunked).
        close: Close the connection after this answer.
    """

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes | Span | Iterator[bytes] = b""
    close: bool = False


class Sink(Protocol):
    """Takes a request body as it arrives, in constant memory."""

    def write(self, data: bytes) -> None:
        """Take the next bytes; raises ``GCSError`` to refuse them."""

    def finish(self) -> Response:
        """The body is complete."""

    def abort(self) -> None:
        """The body will not be completed: the client went away, or a fault struck."""


Steps = Generator[None, None, Response]
"""A long piece of work: yields so that others may go on, and returns the response."""

Answer = Response | Sink | Steps
"""What a handler may return."""


def json_object(value: Any) -> dict[str, Any]:
    """The value if it is a JSON object; null means an empty one.

    Raises:
        GCSError: 400 otherwise.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid("The request body must be a JSON object.")
    return value


def read_object(text: bytes) -> dict[str, Any]:
    """The JSON object in a body; an empty body is an empty object.

    Raises:
        GCSError: 400 for anything else.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GCSError(400, "Parse Error", reason="parseError") from error
    return json_object(value)
