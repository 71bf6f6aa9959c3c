"""A plain HTTP client for the tests: one request a call over a real socket, and raw bytes where that is the point."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fake_gcs import FakeGCS, FakeGCSProcess
from fake_gcs.errors import GCSError
from fake_gcs.http1 import BadRequest

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["error"]["errors"][0]["reason"])


def ask(
    server: FakeGCS | FakeGCSProcess,
    method: str,
    path: str,
    body: bytes | None = None,
    **headers: str,
) -> Answer:
    """One request on a connection of its own; header names are written with underscores for hyphens."""
    connection = http.client.HTTPConnection(server.endpoint, timeout=TIMEOUT_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=body, headers=named)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.headers.items()), answer.read())
    finally:
        connection.close()


def send(server: FakeGCS | FakeGCSProcess, method: str, path: str, value: Any = None, **headers: str) -> Answer:
    """One request with a JSON body."""
    return ask(server, method, path, json.dumps(value).encode(), Content_Type="application/json", **headers)


def raw(server: FakeGCS | FakeGCSProcess, data: bytes) -> bytes:
    """Send bytes as they are and return everything that comes until the server closes."""
    host, _, port = server.endpoint.rpartition(":")
    out = bytearray()
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as sock:
        try:
            sock.sendall(data)
            while piece := sock.recv(1 << 16):
                out += piece
        except ConnectionError:
            pass
    return bytes(out)


def status_of(answer: bytes) -> int:
    """The status in a raw answer; 0 for none."""
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 else 0


def refusal_of(action: Callable[[], object]) -> int:
    """The status with which an action refuses; 0 when it does not."""
    try:
        action()
    except (GCSError, BadRequest) as error:
        return error.status
    return 0


def o(name: str) -> str:
    """An object's name as a path segment."""
    return quote(name, safe="")
