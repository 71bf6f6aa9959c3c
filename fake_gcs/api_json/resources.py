"""Buckets and objects as JSON resources, and JSON answers."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fake_gcs.api_json.acl import entries_of
from fake_gcs.api_json.fields import select_fields
from fake_gcs.messages import Request, Response
from fake_gcs.objects.record import Bucket, ObjectVersion

_JSON = ("Content-Type", "application/json; charset=UTF-8")


def timestamp(seconds: float) -> str:
    """RFC 3339 with milliseconds, in UTC."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def etag_of(generation: int, metageneration: int) -> str:
    """An opaque tag that changes with either number."""
    return base64.b64encode(f"{generation}/{metageneration}".encode()).decode()


def _full(request: Request) -> bool:
    """Whether an answer shows who has access: when asked, and after a change of what is there."""
    changes = request.operation.endswith((".patch", ".update"))
    return request.query.get("projection", "full" if changes else "noAcl") == "full"


def object_resource(version: ObjectVersion, request: Request) -> dict[str, Any]:
    """An object as the JSON API shows it. 64-bit numbers are texts."""
    base_url, bucket, name = request.base_url, version.bucket, quote(version.name, safe="")
    resource: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{version.bucket}/{version.name}/{version.generation}",
        "selfLink": f"{base_url}/storage/v1/b/{bucket}/o/{name}",
        "mediaLink": f"{base_url}/download/storage/v1/b/{bucket}/o/{name}?generation={version.generation}&alt=media",
        "name": version.name,
        "bucket": version.bucket,
        "generation": str(version.generation),
        "metageneration": str(version.metageneration),
        "contentType": version.content_type,
        "storageClass": "STANDARD",
        "size": str(version.size),
        "etag": etag_of(version.generation, version.metageneration),
        "timeCreated": timestamp(version.created),
        "updated": timestamp(version.updated),
        "timeStorageClassUpdated": timestamp(version.created),
        "timeFinalized": timestamp(version.created),
    }
    if version.checksums is not None:
        resource["crc32c"] = version.checksums.crc32c_text
        if version.checksums.md5_text is not None:
            resource["md5Hash"] = version.checksums.md5_text
    if version.components is not None:
        resource["componentCount"] = version.components
    if version.deleted is not None:
        resource["timeDeleted"] = timestamp(version.deleted)
    resource.update(version.settings)
    resource.pop("acl", None)
    if _full(request):
        resource["acl"] = entries_of(version.settings, "acl")
    return resource


def bucket_resource(bucket: Bucket, request: Request) -> dict[str, Any]:
    """A bucket as the JSON API shows it."""
    resource: dict[str, Any] = {
        "kind": "storage#bucket",
        "id": bucket.name,
        "selfLink": f"{request.base_url}/storage/v1/b/{bucket.name}",
        "name": bucket.name,
        "projectNumber": "0",
        "metageneration": str(bucket.metageneration),
        "location": "US",
        "locationType": "multi-region",
        "storageClass": "STANDARD",
        "etag": etag_of(0, bucket.metageneration),
        "timeCreated": timestamp(bucket.created),
        "updated": timestamp(bucket.updated),
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": False}, "publicAccessPrevention": "inherited"},
    }
    resource.update(bucket.settings)
    for field in ("acl", "defaultObjectAcl"):
        resource.pop(field, None)
        if _full(request):
            resource[field] = entries_of(bucket.settings, field)
    return resource


def json_response(request: Request, value: dict[str, Any]) -> Response:
    """A JSON answer, cut down to what ``fields`` asks for."""
    if wanted := request.query.get("fields"):
        value = select_fields(value, wanted)
    indent = 2 if request.query.get("prettyPrint") == "true" else None
    return Response(200, [_JSON], json.dumps(value, indent=indent).encode())


def object_response(request: Request, version: ObjectVersion | dict[str, Any]) -> Response:
    """An object, or its resource, as the answer."""
    resource = object_resource(version, request) if isinstance(version, ObjectVersion) else version
    response = json_response(request, resource)
    response.headers.append(("ETag", resource["etag"]))
    return response
