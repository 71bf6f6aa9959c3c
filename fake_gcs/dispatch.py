"""From a request head to the route that answers it, batches included, and from a refusal to its answer."""

from __future__ import annotations

import re

from fake_gcs.api_json import batch
from fake_gcs.errors import Form, GCSError, invalid
from fake_gcs.http1 import Head
from fake_gcs.messages import Request, Response, parse_query
from fake_gcs.routing import Route, find_route

_HOST = re.compile(r"[A-Za-z0-9._\-]{1,255}(?::\d{1,5})?\Z|\[[0-9a-fA-F:.]{2,45}\](?::\d{1,5})?\Z")
_JSON_PATHS = ("/storage/v1", "/upload/", "/download/", "/resumable/", "/batch", "/token", "/retry_test")


def understand(head: Head, scheme: str) -> tuple[Route, Request]:
    """The route of a request, and the request in the shape handlers take.

    Raises:
        GCSError: Nothing here answers to it.
    """
    host = head.authority or head.headers.get("host") or "localhost"
    if not _HOST.match(host):
        raise invalid("malformed Host header")
    query = parse_query(head.query)
    if head.path == "/batch/storage/v1" and head.method == "POST":
        route = Route("storage.batch", batch.run_batch)
    else:
        route = find_route(head.method, head.path, query, host)
    return route, Request(head, route.operation, route.params, query, f"{scheme}://{host}")


_KINDS = {"json": "application/json", "xml": "application/xml", "text": "text/html"}  # GCS calls its plain text HTML.


def refusal(error: GCSError, form: Form, *, head_only: bool = False) -> Response:
    """The answer that a refusal becomes."""
    kind = f"{_KINDS[form]}; charset=UTF-8"
    body = {"json": error.as_json, "xml": error.as_xml, "text": error.as_text}[form]()
    headers = [*error.headers]
    if body:
        headers.append(("Content-Type", kind))
    return Response(error.status, headers, b"" if head_only else body)


def form_of(head: Head) -> Form:
    """How to refuse a request that was not understood: by the API to which its path belongs."""
    return "json" if head.path.startswith(_JSON_PATHS) else "xml"
