"""Access tokens for clients that insist on having one. Every token is good; the journal tells whose it is."""

from __future__ import annotations

import base64
import json

from fake_gcs.messages import Request, Response, parse_query
from fake_gcs.service import Service


def token(service: Service, request: Request) -> Response:
    """A token, whatever the credentials; that of a service account names it."""
    account = _issuer(request.body)
    value = {
        "access_token": f"fake-{account}" if account else "fake",
        "token_type": "Bearer",
        "expires_in": service.options.token_lifetime_s,
    }
    return Response(200, [("Content-Type", "application/json")], json.dumps(value).encode())


def _issuer(body: bytes) -> str:
    """Who signed the assertion in a request for a token; empty where there is none, or one that cannot be read."""
    assertion = parse_query(body.decode("latin-1")).get("assertion", "")
    try:
        claims = assertion.split(".")[1]
        return str(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["iss"])
    except (IndexError, KeyError, TypeError, ValueError):
        return ""
