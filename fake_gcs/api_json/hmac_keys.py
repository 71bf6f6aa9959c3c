"""HMAC keys of a project's service accounts. They sign nothing here, and go when the server ends."""

from __future__ import annotations

import base64
import secrets
import time
from dataclasses import replace
from typing import Any

from fake_gcs.api_json.buckets import page_size
from fake_gcs.api_json.resources import etag_of, json_response, timestamp
from fake_gcs.errors import GCSError, condition_not_met, invalid, missing
from fake_gcs.messages import Request, Response, read_object
from fake_gcs.service import HmacKey, Service


def _named(service: Service, request: Request) -> HmacKey:
    key = service.hmac_keys.get(request.params["key"])
    if key is None or key.project != request.params["project"]:
        raise GCSError(404, f"Access ID not found in project: {request.params['key'][:100]}")
    return key


def _changeable(service: Service, request: Request) -> HmacKey:
    key = _named(service, request)
    if key.state == "DELETED":
        raise GCSError(404, f"The key was deleted: {key.access_id}")
    return key


def _shown(request: Request, key: HmacKey) -> dict[str, Any]:
    return {
        "kind": "storage#hmacKeyMetadata",
        "id": f"{key.project}/{key.access_id}",
        "selfLink": f"{request.base_url}/storage/v1/projects/{key.project}/hmacKeys/{key.access_id}",
        "accessId": key.access_id,
        "projectId": key.project,
        "serviceAccountEmail": key.account,
        "state": key.state,
        "timeCreated": timestamp(key.created),
        "updated": timestamp(key.updated),
        "etag": etag_of(0, key.changes),
    }


def create_key(service: Service, request: Request) -> Response:
    """Make a key; only this answer has its secret."""
    account = request.query.get("serviceAccountEmail")
    if not account:
        raise missing("serviceAccountEmail")
    access_id = "GOOG1E" + base64.b32encode(secrets.token_bytes(35)).decode()[:55]
    now = time.time()
    key = service.hmac_keys[access_id] = HmacKey(access_id, request.params["project"], account, now, now)
    secret = base64.b64encode(secrets.token_bytes(30)).decode()
    return json_response(request, {"kind": "storage#hmacKey", "metadata": _shown(request, key), "secret": secret})


def list_keys(service: Service, request: Request) -> Response:
    """The keys of a project, or of one of its accounts; deleted ones only when asked for."""
    query = request.query
    deleted = query.get("showDeletedKeys", "").lower() == "true"
    found = [
        key
        for key in sorted(service.hmac_keys.values(), key=lambda key: key.access_id)
        if key.project == request.params["project"]
        and key.account == query.get("serviceAccountEmail", key.account)
        and (deleted or key.state != "DELETED")
        and key.access_id > query.get("pageToken", "")
    ]
    limit = page_size(request, "maxResults")
    items = [_shown(request, key) for key in found[:limit]]
    value: dict[str, Any] = {"kind": "storage#hmacKeysMetadata", "items": items}
    if len(found) > limit:
        value["nextPageToken"] = found[limit - 1].access_id
    return json_response(request, value)


def get_key(service: Service, request: Request) -> Response:
    """Show a key, a deleted one too."""
    return json_response(request, _shown(request, _named(service, request)))


def update_key(service: Service, request: Request) -> Response:
    """Make a key active or inactive."""
    key, given = _changeable(service, request), read_object(request.body)
    if given.get("etag") not in (None, etag_of(0, key.changes)):
        raise condition_not_met()
    state = given.get("state")
    if state not in ("ACTIVE", "INACTIVE"):
        raise invalid(f"Invalid value for state: {str(state)[:40]}") if state else missing("state")
    return json_response(request, _shown(request, _keep(service, key, state)))


def delete_key(service: Service, request: Request) -> Response:
    """Delete a key that is inactive."""
    key = _changeable(service, request)
    if key.state != "INACTIVE":
        raise invalid("Cannot delete keys in 'ACTIVE' state.")
    _keep(service, key, "DELETED")
    return Response(204)


def _keep(service: Service, key: HmacKey, state: str) -> HmacKey:
    changed = replace(key, state=state, updated=time.time(), changes=key.changes + 1)
    service.hmac_keys[key.access_id] = changed
    return changed
