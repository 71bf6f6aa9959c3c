"""The batch endpoint: up to 100 requests in one ``multipart/mixed`` body, answered in order."""

from __future__ import annotations

import re
import secrets

from fake_gcs.errors import GCSError, invalid
from fake_gcs.http1 import PHRASES, BadRequest, Head, parse_head
from fake_gcs.messages import Request, Response, Span, Steps, parse_query
from fake_gcs.multipart_body import boundary_of
from fake_gcs.routing import find_route
from fake_gcs.service import Service

MAX_CALLS = 100
"""Most requests in one batch."""


def run_batch(service: Service, request: Request) -> Steps:
    """Answer every request of the batch."""
    boundary = boundary_of(request.header("content-type") or "", "mixed")
    parts = _split(request.body, boundary)
    if len(parts) > MAX_CALLS:
        raise invalid(f"The batch request has more than {MAX_CALLS} calls.")
    answer_boundary = f"batch_{secrets.token_hex(8)}"
    out: list[bytes] = []
    for headers, inner in parts:
        response = yield from _answer(service, request, inner)
        out.append(_render(answer_boundary, headers.get("content-id", ""), response))
    out.append(f"--{answer_boundary}--\r\n".encode())
    kind = f"multipart/mixed; boundary={answer_boundary}"
    return Response(200, [("Content-Type", kind)], b"".join(out))


def _split(body: bytes, boundary: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Headers and content of each part."""
    pieces = re.split(rb"(?:\A|\r?\n)--" + re.escape(boundary) + rb"(?=--|[ \t]*\r?\n)", body)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise invalid("Failed to parse batch request: missing boundary.")
    parts: list[tuple[dict[str, str], bytes]] = []
    for piece in pieces[1:-1]:
        text = re.sub(rb"\A[ \t]*\r?\n", b"", piece)
        head, _, content = _cut(text)
        headers = {}
        for line in head.decode("latin-1").splitlines():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        parts.append((headers, content))
    return parts


def _cut(text: bytes) -> tuple[bytes, bytes, bytes]:
    match = re.search(rb"\r?\n\r?\n", text)
    return (text, b"", b"") if match is None else (text[: match.start()], match[0], text[match.end() :])


def _answer(service: Service, outer: Request, inner: bytes) -> Steps:
    raw, _, body = _cut(inner)
    try:
        head = _inner_head(raw, outer)
        query = parse_query(head.query)
        route = find_route(head.method, head.path, query)
        request = Request(head, route.operation, route.params, query, outer.base_url, body)
        if route.body != "whole":
            raise invalid("Uploads are not allowed in a batch.")
        answer = route.handler(service, request)
        if isinstance(answer, Response):
            response = answer
        elif hasattr(answer, "finish"):
            raise invalid("Uploads are not allowed in a batch.")
        else:
            response = yield from answer
        if isinstance(response.body, bytes):
            return response
        if isinstance(response.body, Span) or query.get("alt") == "media":
            raise invalid("Media downloads are not allowed in a batch.")
    except GCSError as error:
        headers = [("Content-Type", "application/json; charset=UTF-8"), *error.headers]
        return Response(error.status, headers, error.as_json())
    return response


def _inner_head(raw: bytes, outer: Request) -> Head:
    lines = [line for line in re.split(rb"\r?\n", raw) if line]
    if not lines:
        raise invalid("Failed to parse batch request: empty part.")
    first = lines[0].split(b" ")
    if len(first) == 2:
        lines[0] += b" HTTP/1.1"
    if not any(line.lower().startswith(b"host:") for line in lines):
        lines.append(b"Host: " + (outer.header("host") or "localhost").encode("latin-1"))
    try:
        return parse_head(b"\r\n".join(lines))
    except BadRequest as error:
        raise invalid(f"Failed to parse batch request: {error.message}.") from None


def _render(boundary: str, content_id: str, response: Response) -> bytes:
    identity = content_id.strip().removeprefix("<").removesuffix(">")
    head = [f"--{boundary}", "Content-Type: application/http"]
    if identity:
        head.append(f"Content-ID: <response-{identity}>")
    body = response.body if isinstance(response.body, bytes) else b""
    head += ["", f"HTTP/1.1 {response.status} {PHRASES.get(response.status, 'Status')}"]
    head += [f"{name}: {value}" for name, value in response.headers]
    head += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode("utf-8", "replace") + body + b"\r\n"
