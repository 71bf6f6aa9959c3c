"""From a raw request target to an operation: its name, its parameters, its handler.

Routing works on the percent-encoded path, for an object name may contain ``%2F``; each segment is decoded on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote_to_bytes

from fake_gcs.api_json import (
    access,
    buckets,
    copying,
    hmac_keys,
    notifications,
    objects,
    resumable,
    retry_tests,
    tokens,
    uploads,
)
from fake_gcs.api_json import media as json_media
from fake_gcs.api_xml import multipart as xml_multipart
from fake_gcs.api_xml import objects as xml_objects
from fake_gcs.errors import Form, GCSError, invalid
from fake_gcs.messages import Answer, Request
from fake_gcs.service import Service

Handler = Callable[[Service, Request], Answer]
BodyUse = Literal["whole", "stream"]


@dataclass(frozen=True, slots=True)
class Route:
    """What a request asks for.

    Attributes:
        operation: Google's name of the method.
        handler: Answers it.
        params: From the path, percent-decoded.
        body: ``whole``: the handler takes the complete body (small); ``stream``: it returns a sink for it.
        form: How errors are rendered; ``json`` means that no object's bytes were asked for.
    """

    operation: str
    handler: Handler
    params: dict[str, str] = field(default_factory=dict)
    body: BodyUse = "whole"
    form: Form = "json"


def decode(segment: str) -> str:
    """A percent-encoded path segment as text.

    Raises:
        GCSError: 400 when it is not UTF-8.
    """
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise invalid("The path is not valid UTF-8.", code="InvalidURI") from None


def find_route(method: str, path: str, query: dict[str, str], host: str = "") -> Route:
    """The route of a request.

    Raises:
        GCSError: 404 for a path that means nothing, 405 for a method it does not know.
    """
    if not path.startswith("/"):
        raise _unknown(method)
    segments = path.split("/")[1:]
    first = segments[0]
    if first == "storage" and segments[1:2] == ["v1"]:
        return _json(method, segments[2:], query)
    if first in {"download", "upload", "resumable"}:
        found = _prefixed(method, segments, query)
        if found is not None:
            return found
    if first in {"token", "retry_test", "retry_tests"} and len(segments) <= 2:
        found = _service_route(method, segments)
        if found is not None:
            return found
    bucket = _virtual_bucket(host)
    if bucket:
        return _xml(method, bucket, path[1:], query)
    return _xml(method, decode(first), path[len(first) + 2 :], query)


def _virtual_bucket(host: str) -> str:
    name = host.partition(":")[0]
    suffix = ".storage.googleapis.com"
    return name[: -len(suffix)] if name.endswith(suffix) else ""


def _prefixed(method: str, segments: list[str], query: dict[str, str]) -> Route | None:
    kind = segments[0]
    rest = segments[2:] if kind == "resumable" and segments[1:2] == ["upload"] else segments[1:]
    if rest[:2] != ["storage", "v1"]:
        return None
    rest = rest[2:]
    if kind == "download":
        if len(rest) == 4 and rest[0] == "b" and rest[2] == "o" and method in {"GET", "HEAD"}:
            return Route("storage.objects.get", json_media.get_media, _object_params(rest), form="text")
        raise _unknown(method)
    if len(rest) == 3 and rest[0] == "b" and rest[2] == "o":
        params = {"bucket": decode(rest[1])}
        if method == "DELETE" and query.get("upload_id"):
            return Route("storage.objects.insert", resumable.cancel_upload, params)
        if method in {"POST", "PUT"}:
            return Route("storage.objects.insert", uploads.insert_object, params, "stream")
    raise _unknown(method)


def _unknown(method: str) -> GCSError:
    return GCSError(404, "Not Found") if method in _METHODS else GCSError(405, "Method Not Allowed")


_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"})


def _service_route(method: str, segments: list[str]) -> Route | None:
    handlers: dict[tuple[str, int, str], tuple[str, Handler]] = {
        ("token", 1, "POST"): ("oauth2.token", tokens.token),
        ("retry_test", 1, "POST"): ("retry_test.create", retry_tests.create_retry_test),
        ("retry_tests", 1, "GET"): ("retry_test.list", retry_tests.list_retry_tests),
        ("retry_test", 2, "GET"): ("retry_test.get", retry_tests.get_retry_test),
        ("retry_test", 2, "DELETE"): ("retry_test.delete", retry_tests.delete_retry_test),
    }
    found = handlers.get((segments[0], len(segments), method))
    if found is None:
        return None
    return Route(*found, {"id": decode(segments[1])} if len(segments) > 1 else {})


def _object_params(rest: list[str]) -> dict[str, str]:
    return {"bucket": decode(rest[1]), "object": decode(rest[3])}


_BUCKET_COLLECTION: dict[str, tuple[str, Handler]] = {
    "GET": ("storage.buckets.list", buckets.list_buckets),
    "POST": ("storage.buckets.insert", buckets.insert_bucket),
}
_BUCKET: dict[str, tuple[str, Handler]] = {
    "GET": ("storage.buckets.get", buckets.get_bucket),
    "PATCH": ("storage.buckets.patch", buckets.patch_bucket),
    "PUT": ("storage.buckets.update", buckets.update_bucket),
    "DELETE": ("storage.buckets.delete", buckets.delete_bucket),
}


def _entries(kind: str, *, one: bool) -> dict[str, tuple[str, Handler]]:
    """The methods of an access control list, or of one of its entries."""
    handlers: dict[str, tuple[str, Handler]] = {
        "GET": ("get", access.get_entry),
        "PATCH": ("patch", access.change_entry),
        "PUT": ("update", access.change_entry),
        "DELETE": ("delete", access.delete_entry),
    }
    if not one:
        handlers = {"GET": ("list", access.list_entries), "POST": ("insert", access.insert_entry)}
    return {method: (f"storage.{kind}.{verb}", handler) for method, (verb, handler) in handlers.items()}


_NOTIFICATIONS: dict[str, tuple[str, Handler]] = {
    "GET": ("storage.notifications.list", notifications.list_notifications),
    "POST": ("storage.notifications.insert", notifications.insert_notification),
}
_NOTIFICATION: dict[str, tuple[str, Handler]] = {
    "GET": ("storage.notifications.get", notifications.get_notification),
    "DELETE": ("storage.notifications.delete", notifications.delete_notification),
}
_HMAC_KEYS: dict[str, tuple[str, Handler]] = {
    "GET": ("storage.hmacKey.list", hmac_keys.list_keys),
    "POST": ("storage.hmacKey.create", hmac_keys.create_key),
}
_HMAC_KEY: dict[str, tuple[str, Handler]] = {
    "GET": ("storage.hmacKey.get", hmac_keys.get_key),
    "PUT": ("storage.hmacKey.update", hmac_keys.update_key),
    "DELETE": ("storage.hmacKey.delete", hmac_keys.delete_key),
}
_BUCKET_PARTS: dict[tuple[str, ...], dict[str, tuple[str, Handler]]] = {
    ("o",): {"GET": ("storage.objects.list", objects.list_objects)},
    ("storageLayout",): {"GET": ("storage.buckets.getStorageLayout", buckets.storage_layout)},
    ("lockRetentionPolicy",): {"POST": ("storage.buckets.lockRetentionPolicy", buckets.lock_retention_policy)},
    ("iam",): {
        "GET": ("storage.buckets.getIamPolicy", access.get_policy),
        "PUT": ("storage.buckets.setIamPolicy", access.set_policy),
    },
    ("iam", "testPermissions"): {"GET": ("storage.buckets.testIamPermissions", access.test_permissions)},
    ("acl",): _entries("bucket_acl", one=False),
    ("defaultObjectAcl",): _entries("default_object_acl", one=False),
    ("notificationConfigs",): _NOTIFICATIONS,
}
_BUCKET_ITEMS: dict[str, tuple[str, dict[str, tuple[str, Handler]]]] = {
    "acl": ("entity", _entries("bucket_acl", one=True)),
    "defaultObjectAcl": ("entity", _entries("default_object_acl", one=True)),
    "notificationConfigs": ("notification", _NOTIFICATION),
}
"""By the name of the collection: what its last path segment is, and its methods."""
_OBJECT: dict[str, tuple[str, Handler]] = {
    "GET": ("storage.objects.get", objects.get_object),
    "PATCH": ("storage.objects.patch", objects.patch_object),
    "PUT": ("storage.objects.update", objects.update_object),
    "DELETE": ("storage.objects.delete", objects.delete_object),
}


def _json(method: str, rest: list[str], query: dict[str, str]) -> Route:
    if rest[:1] == ["projects"] and len(rest) > 2:
        return _project(method, rest[2:], {"project": decode(rest[1])})
    if rest[:1] != ["b"]:
        raise _unknown(method)
    if len(rest) == 1:
        return _by_method(_BUCKET_COLLECTION, method, {})
    params = {"bucket": decode(rest[1])}
    if len(rest) == 2:
        return _by_method(_BUCKET, method, params)
    if tuple(rest[2:]) in _BUCKET_PARTS:
        return _by_method(_BUCKET_PARTS[tuple(rest[2:])], method, params)
    if len(rest) == 4 and rest[2] in _BUCKET_ITEMS:
        name, methods = _BUCKET_ITEMS[rest[2]]
        return _by_method(methods, method, {**params, name: decode(rest[3])})
    if rest[2] != "o":
        raise _unknown(method)
    params["object"] = decode(rest[3])
    return _object(method, rest[4:], params, query)


def _project(method: str, tail: list[str], params: dict[str, str]) -> Route:
    if tail == ["serviceAccount"]:
        return _by_method({"GET": ("storage.serviceaccount.get", buckets.service_account)}, method, params)
    if tail == ["hmacKeys"]:
        return _by_method(_HMAC_KEYS, method, params)
    if len(tail) == 2 and tail[0] == "hmacKeys":
        return _by_method(_HMAC_KEY, method, {**params, "key": decode(tail[1])})
    raise _unknown(method)


def _object(method: str, tail: list[str], params: dict[str, str], query: dict[str, str]) -> Route:
    if not tail:
        if method == "GET" and query.get("alt") == "media":
            return Route("storage.objects.get", json_media.get_media, params, form="text")
        return _by_method(_OBJECT, method, params)
    if tail == ["acl"]:
        return _by_method(_entries("object_acl", one=False), method, params)
    if len(tail) == 2 and tail[0] == "acl":
        return _by_method(_entries("object_acl", one=True), method, {**params, "entity": decode(tail[1])})
    if method == "POST":
        return _copying(tail, params)
    raise _unknown(method)


def _copying(tail: list[str], params: dict[str, str]) -> Route:
    if tail == ["compose"]:
        return Route("storage.objects.compose", copying.compose, params)
    if len(tail) == 3 and tail[:2] == ["moveTo", "o"]:
        return Route("storage.objects.move", copying.move, {**params, "target": decode(tail[2])})
    if len(tail) == 5 and tail[1] == "b" and tail[3] == "o":
        params = {**params, "target_bucket": decode(tail[2]), "target": decode(tail[4])}
        if tail[0] == "copyTo":
            return Route("storage.objects.copy", copying.copy, params)
        if tail[0] == "rewriteTo":
            return Route("storage.objects.rewrite", copying.rewrite, params)
    raise _unknown("POST")


def _by_method(table: dict[str, tuple[str, Handler]], method: str, params: dict[str, str]) -> Route:
    found = table.get(method)
    if found is None:
        raise GCSError(405, "Method Not Allowed")
    return Route(*found, params)


def _xml(method: str, bucket: str, rest: str, query: dict[str, str]) -> Route:
    if not bucket:
        if method == "GET":
            return Route("storage.buckets.list", xml_objects.list_buckets, form="xml")
        raise _unknown(method)
    params = {"bucket": bucket}
    if not rest:
        found = xml_objects.BUCKET_METHODS.get(method)
    else:
        params["object"] = decode(rest)
        found = xml_multipart.method_for(method, query) or xml_objects.OBJECT_METHODS.get(method)
    if found is None:
        raise GCSError(405, "Method Not Allowed")
    operation, handler, use = found
    return Route(operation, handler, params, use, form="xml")
