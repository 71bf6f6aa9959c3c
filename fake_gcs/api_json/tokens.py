"""Access tokens for clients that insist on having one. Every token is good; none is checked."""

from __future__ import annotations

import json

from fake_gcs.messages import Request, Response
from fake_gcs.service import Service


def token(service: Service, request: Request) -> Response:  # noqa: ARG001 -- the handlers' signature
    """A token, whatever the credentials."""
    value = {"access_token": "fake", "token_type": "Bearer", "expires_in": service.options.token_lifetime_s}
    return Response(200, [("Content-Type", "application/json")], json.dumps(value).encode())
