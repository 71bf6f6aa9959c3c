"""Who may do what, as a client sets it and reads it back: access control lists and policies. All is permitted anyway.

The three kinds of lists (of a bucket, of its objects to come, of an object) differ in where they lie and in their name,
which the operation tells: ``storage.bucket_acl.*``, ``storage.default_object_acl.*``, ``storage.object_acl.*``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qs, quote

from fake_gcs.api_json.acl import Entries, entries_of, entry_from
from fake_gcs.api_json.objects import named_version
from fake_gcs.api_json.resources import etag_of, json_response
from fake_gcs.errors import GCSError, condition_not_met, invalid
from fake_gcs.messages import Request, Response, read_object
from fake_gcs.service import Service

_FIRST_POLICY: Final[dict[str, Any]] = {"version": 1, "bindings": [], "etag": etag_of(0, 1)}


def _held(service: Service, request: Request) -> tuple[Entries, Callable[[Entries], object]]:
    """The list that a request names, and what replaces it."""
    catalogue = service.catalogue
    if "object" in request.params:
        version = named_version(service, request)
        return (
            entries_of(version.settings, "acl"),
            lambda entries: catalogue.change(version, {**version.settings, "acl": entries}),
        )
    bucket = catalogue.bucket(request.params["bucket"])
    field = "acl" if request.operation.startswith("storage.bucket_acl.") else "defaultObjectAcl"
    return (
        entries_of(bucket.settings, field),
        lambda entries: catalogue.change_bucket(bucket.name, {**bucket.settings, field: entries}),
    )


def _named(entries: Entries, request: Request) -> dict[str, str]:
    for entry in entries:
        if entry["entity"] == request.params["entity"]:
            return entry
    raise GCSError(404, f"The specified entry was not found: {request.params['entity'][:100]}")


def _kind(request: Request) -> str:
    bucket = request.operation.startswith("storage.bucket_acl.")
    return "storage#bucketAccessControl" if bucket else "storage#objectAccessControl"


def _shown(request: Request, entry: dict[str, str]) -> dict[str, Any]:
    kind, bucket, entity = _kind(request), request.params["bucket"], entry["entity"]
    shown: dict[str, Any] = {"kind": kind, **entry, "etag": etag_of(0, 1)}
    place = f"{request.base_url}/storage/v1/b/{bucket}"
    if "object" in request.params:
        name = request.params["object"]
        place += f"/o/{quote(name, safe='')}"
        shown |= {"bucket": bucket, "object": name, "id": f"{bucket}/{name}/{entity}"}
    elif kind == "storage#bucketAccessControl":
        shown |= {"bucket": bucket, "id": f"{bucket}/{entity}"}
    field = "defaultObjectAcl" if request.operation.startswith("storage.default_object_acl.") else "acl"
    return shown | {"selfLink": f"{place}/{field}/{quote(entity, safe='')}"}


def list_entries(service: Service, request: Request) -> Response:
    """The whole list."""
    entries, _ = _held(service, request)
    return json_response(
        request, {"kind": f"{_kind(request)}s", "items": [_shown(request, entry) for entry in entries]}
    )


def get_entry(service: Service, request: Request) -> Response:
    """One entry."""
    return json_response(request, _shown(request, _named(_held(service, request)[0], request)))


def insert_entry(service: Service, request: Request) -> Response:
    """A further entry, in place of an earlier one of the same entity."""
    entries, keep = _held(service, request)
    made = entry_from(read_object(request.body))
    keep([*(entry for entry in entries if entry["entity"] != made["entity"]), made])
    return json_response(request, _shown(request, made))


def change_entry(service: Service, request: Request) -> Response:
    """Another role."""
    entries, keep = _held(service, request)
    known = _named(entries, request)
    changed = entry_from({**known, **read_object(request.body), "entity": known["entity"]})
    keep([changed if entry is known else entry for entry in entries])
    return json_response(request, _shown(request, changed))


def delete_entry(service: Service, request: Request) -> Response:
    """One entry less."""
    entries, keep = _held(service, request)
    gone = _named(entries, request)
    keep([entry for entry in entries if entry is not gone])
    return Response(204)


def get_policy(service: Service, request: Request) -> Response:
    """The policy as it was set; at first it is empty."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    return _policy_response(request, bucket.policy or _FIRST_POLICY)


def set_policy(service: Service, request: Request) -> Response:
    """Another policy, if it was made from the one that is kept: its ``etag`` tells, where it has one."""
    bucket = service.catalogue.bucket(request.params["bucket"])
    known, given = bucket.policy or _FIRST_POLICY, read_object(request.body)
    if given.get("etag") not in (None, known["etag"]):
        raise condition_not_met()
    bindings = given.get("bindings", [])
    if not isinstance(bindings, list) or given.get("version", 1) not in (0, 1, 3):
        raise invalid("Invalid policy: bindings must be a list, and version 0, 1 or 3.")
    count = known.get("changes", 1) + 1
    policy = {"version": given.get("version", 1), "bindings": bindings, "etag": etag_of(0, count), "changes": count}
    service.catalogue.keep_bucket(replace(bucket, policy=policy))
    return _policy_response(request, policy)


def _policy_response(request: Request, policy: dict[str, Any]) -> Response:
    value = {name: policy[name] for name in ("version", "bindings", "etag")}
    resource = f"projects/_/buckets/{request.params['bucket']}"
    return json_response(request, {"kind": "storage#policy", "resourceId": resource, **value})


def test_permissions(service: Service, request: Request) -> Response:
    """Everything is permitted."""
    service.catalogue.bucket(request.params["bucket"])
    permissions = parse_qs(request.head.query).get("permissions", [])
    return json_response(request, {"kind": "storage#testIamPermissionsResponse", "permissions": permissions})
