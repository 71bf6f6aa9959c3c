"""The server's own endpoints under ``/_fake_gcs/``, for a server in another process. No bucket can have that name.

    GET    /_fake_gcs/journal          one JSON object a line
    DELETE /_fake_gcs/journal          forget it
    GET    /_fake_gcs/profile          the weather as JSON
    PUT    /_fake_gcs/profile          other weather: a profile as JSON, ``extends`` allowed

Requests to these are not journalled and meet no weather.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from fake_gcs.errors import GCSError, invalid
from fake_gcs.messages import Response, json_object
from fake_gcs.profiles import profile_from

if TYPE_CHECKING:
    from fake_gcs.serving import Serving

PREFIX = "/_fake_gcs/"
"""Where these endpoints are."""

_JSON = ("Content-Type", "application/json")


def answer_control(serving: Serving, method: str, path: str, body: bytes) -> Response:
    """Answer one of the server's own requests.

    Raises:
        GCSError: 404 or 405 for what is not there, 400 for a profile that is none.
    """
    name = path.removeprefix(PREFIX)
    if name == "journal" and method == "GET":
        lines = "".join(entry.as_json() + "\n" for entry in serving.journal)
        return Response(200, [("Content-Type", "application/jsonl")], lines.encode())
    if name == "journal" and method == "DELETE":
        serving.journal.clear()
        return Response(204)
    if name == "profile" and method == "GET":
        return Response(200, [_JSON], json.dumps(asdict(serving.weather.profile)).encode())
    if name == "profile" and method == "PUT":
        return _change_profile(serving, body)
    raise GCSError(405 if name in {"journal", "profile"} else 404, "Not Found")


def _change_profile(serving: Serving, body: bytes) -> Response:
    try:
        value = json_object(json.loads(body))
        extends = value.get("extends", "zero")
        if extends not in {"zero", "regional", "far"}:
            raise invalid("extends must name a built-in profile")  # A path from the network is never opened.
        profile = profile_from(value)
    except (ValueError, RecursionError) as error:
        raise invalid(f"not a profile: {error}") from error
    serving.change_weather(profile)
    return Response(200, [_JSON], json.dumps(asdict(profile)).encode())
