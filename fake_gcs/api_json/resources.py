"""Buckets and objects as JSON resources, and JSON answers."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

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


def object_resource(version: ObjectVersion, base_url: str) -> dict[str, Any]:
    """An object as the JSON API shows it. 64-bit numbers are texts."""
    bucket, name = version.bucket, quote(version.name, safe="")
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
    return resource


def bucket_resource(bucket: Bucket, base_url: str) -> dict[str, Any]:
    """A bucket as the JSON API shows it."""
    resource: dict[str, Any] = {
        "kind": "storage#bucket",
        "id": bucket.name,
        "selfLink": f"{base_url}/storage/v1/b/{bucket.name}",
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
    return resource


def json_response(request: Request, value: dict[str, Any], status: int = 200) -> Response:
    """A JSON answer, cut down to what ``fields`` asks for."""
    if wanted := request.query.get("fields"):
        value = select_fields(value, wanted)
    indent = 2 if request.query.get("prettyPrint") == "true" else None
    return Response(status, [_JSON], json.dumps(value, indent=indent).encode())


def object_response(request: Request, version: ObjectVersion, status: int = 200) -> Response:
    """An object as the answer."""
    response = json_response(request, object_resource(version, request.base_url), status)
    response.headers.append(("ETag", etag_of(version.generation, version.metageneration)))
    return response
