"""Notification configurations of a bucket: kept and shown; nothing is ever published."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from fake_gcs.api_json.resources import etag_of, json_response
from fake_gcs.errors import GCSError, missing
from fake_gcs.messages import Request, Response, read_object
from fake_gcs.objects.record import Bucket
from fake_gcs.service import Service

_SETTABLE = ("topic", "payload_format", "event_types", "custom_attributes", "object_name_prefix")


def _named(service: Service, request: Request) -> tuple[Bucket, str]:
    bucket, key = service.catalogue.bucket(request.params["bucket"]), request.params["notification"]
    if key not in bucket.notifications:
        raise GCSError(404, f"The notification was not found: {key[:100]}")
    return bucket, key


def _shown(request: Request, bucket: Bucket, key: str) -> dict[str, Any]:
    place = f"{request.base_url}/storage/v1/b/{bucket.name}/notificationConfigs/{key}"
    described = {"kind": "storage#notification", "id": key, "selfLink": place, "etag": etag_of(int(key), 1)}
    return described | bucket.notifications[key]


def insert_notification(service: Service, request: Request) -> Response:
    """Keep a configuration."""
    bucket, given = service.catalogue.bucket(request.params["bucket"]), read_object(request.body)
    for name in ("topic", "payload_format"):
        if not given.get(name):
            raise missing(name)
    kept = {name: given[name] for name in _SETTABLE if given.get(name) is not None}
    latest = max(map(int, bucket.notifications), default=0)
    key = str(max(time.time_ns() // 1000, latest + 1))
    changed = service.catalogue.keep_bucket(replace(bucket, notifications={**bucket.notifications, key: kept}))
    return json_response(request, _shown(request, changed, key))


def list_notifications(service: Service, request: Request) -> Response:
    """All configurations of a bucket, oldest first."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    items = [_shown(request, bucket, key) for key in bucket.notifications]
    return json_response(request, {"kind": "storage#notifications", "items": items})


def get_notification(service: Service, request: Request) -> Response:
    """Show a configuration."""
    return json_response(request, _shown(request, *_named(service, request)))


def delete_notification(service: Service, request: Request) -> Response:
    """Forget a configuration."""
    bucket, gone = _named(service, request)
    left = {key: kept for key, kept in bucket.notifications.items() if key != gone}
    service.catalogue.keep_bucket(replace(bucket, notifications=left))
    return Response(204)
