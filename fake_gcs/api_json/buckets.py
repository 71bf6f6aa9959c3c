"""Buckets of the JSON API."""

from __future__ import annotations

import json
from typing import Any

from fake_gcs.api_json.resources import bucket_resource, json_response
from fake_gcs.errors import condition_not_met, invalid
from fake_gcs.messages import Request, Response, json_object
from fake_gcs.objects.preconditions import from_query
from fake_gcs.service import Service

_FIXED = frozenset(
    {"kind", "id", "selfLink", "name", "projectNumber", "metageneration", "etag", "timeCreated", "updated"}
)


def read_json(request: Request) -> dict[str, Any]:
    """The request's body as a JSON object; an empty body is an empty object.

    Raises:
        GCSError: 400 for anything else.
    """
    if not request.body.strip():
        return {}
    try:
        return json_object(json.loads(request.body))
    except (ValueError, RecursionError) as error:
        raise invalid("Parse Error") from error


def merge(settings: dict[str, Any], changes: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """JSON merge patch: null removes, objects merge, everything else replaces."""
    merged = dict(settings)
    for name, value in changes.items():
        known = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(known, dict) and depth < 10:
            merged[name] = merge(known, value, depth + 1)
        elif isinstance(value, dict):
            merged[name] = {key: item for key, item in value.items() if item is not None}
        else:
            merged[name] = value
    return merged


def _settable(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in _FIXED and item is not None}


def insert_bucket(service: Service, request: Request) -> Response:
    """Make a bucket."""
    value = read_json(request)
    name = value.get("name")
    if not isinstance(name, str):
        raise invalid("Required parameter: name")
    settings = _settable(value)
    if isinstance(settings.get("location"), str):
        settings["location"] = settings["location"].upper()
    return json_response(request, bucket_resource(service.catalogue.create_bucket(name, settings), request.base_url))


def get_bucket(service: Service, request: Request) -> Response:
    """Show a bucket."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    _check(request, bucket.metageneration)
    return json_response(request, bucket_resource(bucket, request.base_url))


def list_buckets(service: Service, request: Request) -> Response:
    """List all buckets, whatever the project."""
    prefix = request.query.get("prefix", "")
    found = [bucket for bucket in service.catalogue.buckets() if bucket.name.startswith(prefix)]
    after = request.query.get("pageToken", "")
    limit = page_size(request, "maxResults")
    rest = [bucket for bucket in found if bucket.name > after]
    value: dict[str, Any] = {
        "kind": "storage#buckets",
        "items": [bucket_resource(bucket, request.base_url) for bucket in rest[:limit]],
    }
    if len(rest) > limit:
        value["nextPageToken"] = rest[limit - 1].name
    return json_response(request, value)


def page_size(request: Request, name: str) -> int:
    """The number of entries of one page.

    Raises:
        GCSError: 400 when it is not a number.
    """
    text = request.query.get(name, "") or "1000"
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise invalid(f"Invalid value for {name}: {text[:40]}")
    return int(text) or 1000


def patch_bucket(service: Service, request: Request) -> Response:
    """Change some settings of a bucket."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    _check(request, bucket.metageneration)
    changes = {name: item for name, item in read_json(request).items() if name not in _FIXED}
    changed = service.catalogue.change_bucket(bucket.name, merge(bucket.settings, changes))
    return json_response(request, bucket_resource(changed, request.base_url))


def update_bucket(service: Service, request: Request) -> Response:
    """Replace all settings of a bucket."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    _check(request, bucket.metageneration)
    changed = service.catalogue.change_bucket(bucket.name, _settable(read_json(request)))
    return json_response(request, bucket_resource(changed, request.base_url))


def delete_bucket(service: Service, request: Request) -> Response:
    """Remove an empty bucket."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    _check(request, bucket.metageneration)
    service.catalogue.delete_bucket(bucket.name, strict=service.options.strict_bucket_delete)
    return Response(204)


def _check(request: Request, metageneration: int) -> None:
    conditions = from_query(request.query)
    if conditions.metageneration not in {None, metageneration} or conditions.not_metageneration == metageneration:
        raise condition_not_met()


def storage_layout(service: Service, request: Request) -> Response:
    """The layout of a bucket: flat, for folders are not kept here."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    resource = bucket_resource(bucket, request.base_url)
    value = {
        "kind": "storage#storageLayout",
        "bucket": bucket.name,
        "location": resource["location"],
        "locationType": resource["locationType"],
        "hierarchicalNamespace": {"enabled": False},
    }
    return json_response(request, value)


def test_permissions(service: Service, request: Request) -> Response:
    """Everything is permitted."""
    service.catalogue.bucket(request.params["bucket"])
    pairs = [pair.partition("=") for pair in request.head.query.split("&")]
    permissions = [value for name, _, value in pairs if name == "permissions"]
    return json_response(request, {"kind": "storage#testIamPermissionsResponse", "permissions": permissions})


def get_policy(service: Service, request: Request) -> Response:
    """An empty policy: there are no users here."""
    service.catalogue.bucket(request.params["bucket"])
    return json_response(request, {"kind": "storage#policy", "version": 1, "etag": "CAE=", "bindings": []})


def service_account(_service: Service, request: Request) -> Response:
    """The project's own service account."""
    name = f"service-0@{request.params['project'][:100]}.example"
    return json_response(request, {"kind": "storage#serviceAccount", "email_address": name})
