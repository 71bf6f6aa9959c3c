"""Buckets of the JSON API."""

from __future__ import annotations

import time
from typing import Any

from fake_gcs.api_json.acl import with_list
from fake_gcs.api_json.resources import bucket_resource, json_response, timestamp
from fake_gcs.errors import GCSError, condition_not_met, invalid, missing
from fake_gcs.messages import Request, Response, read_object
from fake_gcs.objects.preconditions import from_query
from fake_gcs.service import Service

_FIXED = frozenset(
    {"kind", "id", "selfLink", "name", "projectNumber", "metageneration", "etag", "timeCreated", "updated"}
)


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


def _kept(request: Request, before: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as they are kept: lists of entries checked, and the retention policy dated.

    Raises:
        GCSError: 400 for a list or a period that is none; 403 when a locked policy would become weaker.
    """
    settings = with_list(settings, request.query, "acl", "predefinedAcl")
    settings = with_list(settings, request.query, "defaultObjectAcl", "predefinedDefaultObjectAcl")
    known, policy = before.get("retentionPolicy", {}), settings.get("retentionPolicy")
    if policy is None:
        if known.get("isLocked"):
            raise GCSError(403, "A locked retention policy can not be removed.")
        return settings
    period = str(policy.get("retentionPeriod", "")) if isinstance(policy, dict) else ""
    if not (period.isascii() and period.isdigit()) or len(period) > 10:
        raise invalid(f"Invalid value for retentionPeriod: {period[:40]!r}")
    if known.get("isLocked") and int(period) < int(known["retentionPeriod"]):
        raise GCSError(403, "The period of a locked retention policy can not be reduced.")
    dated = {"retentionPeriod": period, "effectiveTime": known.get("effectiveTime") or timestamp(time.time())}
    return {**settings, "retentionPolicy": dated | {"isLocked": known.get("isLocked", False)}}


def lock_retention_policy(service: Service, request: Request) -> Response:
    """Keep the retention policy from becoming weaker, for ever. Objects are not kept by it here."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    if not request.query.get("ifMetagenerationMatch"):
        raise missing("ifMetagenerationMatch")
    _check(request, bucket.metageneration)
    policy = bucket.settings.get("retentionPolicy")
    if policy is None:
        raise invalid(f"The bucket has no retention policy: {bucket.name}")
    changed = service.catalogue.change_bucket(
        bucket.name, {**bucket.settings, "retentionPolicy": {**policy, "isLocked": True}}
    )
    return json_response(request, bucket_resource(changed, request))


def insert_bucket(service: Service, request: Request) -> Response:
    """Make a bucket."""
    if "project" not in request.query:  # It may be empty: so gcsfs sends it when it was given none.
        raise missing("project")
    value = read_object(request.body)
    name = value.get("name")
    if not isinstance(name, str):
        raise missing("name") if name is None else invalid("Invalid bucket name")
    settings = _kept(request, {}, _settable(value))
    if isinstance(settings.get("location"), str):
        settings["location"] = settings["location"].upper()
    return json_response(request, bucket_resource(service.catalogue.create_bucket(name, settings), request))


def get_bucket(service: Service, request: Request) -> Response:
    """Show a bucket."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    _check(request, bucket.metageneration)
    return json_response(request, bucket_resource(bucket, request))


def list_buckets(service: Service, request: Request) -> Response:
    """List all buckets, whatever the project."""
    prefix = request.query.get("prefix", "")
    found = [bucket for bucket in service.catalogue.buckets() if bucket.name.startswith(prefix)]
    after = request.query.get("pageToken", "")
    limit = page_size(request, "maxResults")
    rest = [bucket for bucket in found if bucket.name > after]
    value: dict[str, Any] = {
        "kind": "storage#buckets",
        "items": [bucket_resource(bucket, request) for bucket in rest[:limit]],
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
    changes = {name: item for name, item in read_object(request.body).items() if name not in _FIXED}
    settings = _kept(request, bucket.settings, merge(bucket.settings, changes))
    changed = service.catalogue.change_bucket(bucket.name, settings)
    return json_response(request, bucket_resource(changed, request))


def update_bucket(service: Service, request: Request) -> Response:
    """Replace all settings of a bucket."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    _check(request, bucket.metageneration)
    settings = _kept(request, bucket.settings, _settable(read_object(request.body)))
    changed = service.catalogue.change_bucket(bucket.name, settings)
    return json_response(request, bucket_resource(changed, request))


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
    resource = bucket_resource(bucket, request)
    value = {
        "kind": "storage#storageLayout",
        "bucket": bucket.name,
        "location": resource["location"],
        "locationType": resource["locationType"],
        "hierarchicalNamespace": {"enabled": False},
    }
    return json_response(request, value)


def service_account(_service: Service, request: Request) -> Response:
    """The project's own service account."""
    name = f"service-0@{request.params['project'][:100]}.example"
    return json_response(request, {"kind": "storage#serviceAccount", "email_address": name})
