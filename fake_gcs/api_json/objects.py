"""Objects of the JSON API: metadata, listing, deletion."""

from __future__ import annotations

from typing import Any

from fake_gcs.api_json.acl import with_list
from fake_gcs.api_json.buckets import merge, page_size
from fake_gcs.api_json.resources import json_response, object_resource, object_response
from fake_gcs.messages import Request, Response, Steps, read_object
from fake_gcs.objects.listing import Query, list_live, list_versions
from fake_gcs.objects.names import check_object_name
from fake_gcs.objects.preconditions import from_query, generation_of
from fake_gcs.objects.record import SETTABLE, ObjectVersion
from fake_gcs.service import Service


def named_version(service: Service, request: Request) -> ObjectVersion:
    """The version a JSON request names, its preconditions checked."""
    name = check_object_name(request.params["object"])
    version = service.catalogue.find(request.params["bucket"], name, generation_of(request.query))
    conditions = from_query(request.query)
    if conditions:
        conditions.check(version, reading=request.head.method in {"GET", "HEAD"})
    return version or service.catalogue.get(request.params["bucket"], name, generation_of(request.query))


def get_object(service: Service, request: Request) -> Response | Steps:
    """Show an object's metadata."""
    version = named_version(service, request)
    if version.checksums is None:
        return _hash_and_show(service, request, version)
    return object_response(request, version)


def _hash_and_show(service: Service, request: Request, version: ObjectVersion) -> Steps:
    yield from service.catalogue.hash_steps(version)
    return object_response(request, named_version(service, request))


def list_objects(service: Service, request: Request) -> Response:
    """List a bucket."""
    query = request.query
    asked = Query(
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        start=query.get("startOffset", ""),
        end=query.get("endOffset", ""),
        glob=query.get("matchGlob", ""),
        trailing=query.get("includeTrailingDelimiter", "").lower() == "true",
        limit=page_size(request, "maxResults"),
        token=query.get("pageToken", ""),
    )
    bucket = request.params["bucket"]
    if query.get("versions", "").lower() == "true":  # Google's Python client sends "True".
        page = list_versions(service.catalogue.all_versions(bucket), asked)
    else:
        page = list_live(*service.catalogue.live_names(bucket, refresh=not asked.token), asked)
    value: dict[str, Any] = {"kind": "storage#objects"}
    if page.token:
        value["nextPageToken"] = page.token
    if page.prefixes:
        value["prefixes"] = page.prefixes
    if page.items:
        value["items"] = [object_resource(version, request) for version in page.items]
    return json_response(request, value)


def patch_object(service: Service, request: Request) -> Response:
    """Change some settings of an object."""
    version = named_version(service, request)
    changes = {name: item for name, item in read_object(request.body).items() if name in SETTABLE}
    settings = with_list(merge(version.settings, changes), request.query, "acl", "predefinedAcl")
    return object_response(request, service.catalogue.change(version, settings))


def update_object(service: Service, request: Request) -> Response:
    """Replace all settings of an object."""
    version = named_version(service, request)
    given = merge({}, {name: item for name, item in read_object(request.body).items() if name in SETTABLE})
    settings = with_list(given, request.query, "acl", "predefinedAcl")
    return object_response(request, service.catalogue.change(version, settings))


def delete_object(service: Service, request: Request) -> Response:
    """Delete an object, or one of its generations."""
    name = check_object_name(request.params["object"])
    conditions = from_query(request.query)
    service.catalogue.delete(request.params["bucket"], name, generation_of(request.query), conditions)
    return Response(204)
