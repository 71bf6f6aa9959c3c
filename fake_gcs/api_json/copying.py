"""Copy, rewrite, compose and move by the JSON API. Bodies never change, so a copy shares its source's bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fake_gcs.api_json.acl import with_list
from fake_gcs.api_json.resources import json_response, object_resource, object_response
from fake_gcs.errors import GCSError, invalid, no_such_object
from fake_gcs.messages import Request, Response, Steps, read_object
from fake_gcs.objects.bodies import pieces
from fake_gcs.objects.names import check_object_name
from fake_gcs.objects.preconditions import NOTHING, Preconditions, from_query, generation_of
from fake_gcs.objects.record import SETTABLE, ObjectVersion
from fake_gcs.service import Rewriting, Service

MAX_SOURCES = 32
"""Most objects that one compose takes."""
_MIB = 1 << 20


def source_version(service: Service, request: Request) -> ObjectVersion:
    """The source of a copy, its preconditions checked."""
    name = check_object_name(request.params["object"])
    generation = generation_of(request.query, "sourceGeneration")
    version = service.catalogue.find(request.params["bucket"], name, generation)
    from_query(request.query, "ifSource").check(version)
    if version is None:
        raise no_such_object(request.params["bucket"], name)
    return version


def copied_settings(source: ObjectVersion, resource: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a copy: the given ones, or the source's when none are given."""
    given = {name: value for name, value in resource.items() if name in SETTABLE and value is not None}
    settings = given or {name: value for name, value in source.settings.items() if name != "acl"}
    return with_list(settings, query, "acl", "destinationPredefinedAcl")


def copy_version(
    service: Service,
    source: ObjectVersion,
    target: tuple[str, str],
    settings: dict[str, Any],
    conditions: Preconditions,
) -> ObjectVersion:
    """Make a new version with the source's bytes."""
    return service.catalogue.commit(
        *target,
        source.body,
        source.checksums,
        settings,
        conditions=conditions,
        components=source.components,
    )


def _target(request: Request) -> tuple[str, str]:
    return request.params["target_bucket"], check_object_name(request.params["target"])


def copy(service: Service, request: Request) -> Steps:
    """Copy an object in one call."""
    yield from _ready(service, source_version(service, request))
    source = source_version(service, request)
    settings = copied_settings(source, read_object(request.body), request.query)
    version = copy_version(service, source, _target(request), settings, from_query(request.query))
    return object_response(request, version)


def _ready(service: Service, version: ObjectVersion) -> Steps:
    """Hash a file that was found from outside before it is copied."""
    if version.checksums is None:
        yield from service.catalogue.hash_steps(version)
    return Response(200)


def rewrite(service: Service, request: Request) -> Steps:
    """Copy an object in as many calls as the size of one call makes necessary."""
    yield from _ready(service, source_version(service, request))
    source = source_version(service, request)
    target = _target(request)
    service.catalogue.bucket(target[0])
    limit = _bytes_per_call(service, request)
    key, work = _work(service, request, source, target)
    work.copied = source.size if limit is None else min(source.size, work.copied + limit)
    value: dict[str, Any] = {
        "kind": "storage#rewriteResponse",
        "totalBytesRewritten": str(work.copied),
        "objectSize": str(source.size),
        "done": work.copied >= source.size,
    }
    if work.copied < source.size:
        if not key:
            key, _ = service.rewrites.add(work)
        value["rewriteToken"] = key
        return json_response(request, value)
    settings = copied_settings(source, read_object(request.body), request.query)
    version = copy_version(service, source, target, settings, from_query(request.query))
    service.rewrites.remove(key)
    value["resource"] = object_resource(version, request)
    return json_response(request, value)


def _bytes_per_call(service: Service, request: Request) -> int | None:
    limit = service.options.rewrite_bytes_per_call
    text = request.query.get("maxBytesRewrittenPerCall")
    if text:
        if not (text.isascii() and text.isdigit()) or len(text) > 18 or not int(text) or int(text) % _MIB:
            raise invalid("maxBytesRewrittenPerCall must be a multiple of 1 MiB.")
        limit = int(text) if limit is None else min(limit, int(text))
    return limit


def _work(service: Service, request: Request, source: ObjectVersion, target: tuple[str, str]) -> tuple[str, Rewriting]:
    key = request.query.get("rewriteToken", "")
    fresh = Rewriting(source.bucket, source.name, source.generation, target)
    if not key:
        return "", fresh
    work = service.rewrites.get(key)
    if work is None or replace(work, copied=0) != fresh:
        raise invalid("Invalid rewriteToken: it belongs to another rewrite, or the source has changed.")
    return key, work


def move(service: Service, request: Request) -> Steps:
    """Rename an object inside its bucket."""
    yield from _ready(service, source_version(service, request))
    source = source_version(service, request)
    name = check_object_name(request.params["target"])
    if name == source.name:
        raise invalid("An object can not be moved onto itself.")
    version = copy_version(service, source, (source.bucket, name), source.settings, from_query(request.query))
    service.catalogue.delete(source.bucket, source.name, source.generation, NOTHING)
    return object_response(request, version)


def compose(service: Service, request: Request) -> Steps:
    """Concatenate up to 32 objects of one bucket."""
    value = read_object(request.body)
    bucket = request.params["bucket"]
    target = check_object_name(request.params["object"])
    conditions = from_query(request.query)
    conditions.check(service.catalogue.find(bucket, target))
    sources = _compose_sources(service, bucket, value)
    writer = service.catalogue.new_body()
    try:
        for source in sources:
            for piece in pieces(source.body):
                writer.write(piece)
                yield
        checksums = writer.checksum.value(with_md5=False)
        body = writer.finish()
    finally:
        writer.abort()
    resource = value.get("destination")
    settings = copied_settings(sources[0], resource if isinstance(resource, dict) else {}, request.query)
    if isinstance(resource, dict) and not resource.get("contentType") and sources[0].settings.get("contentType"):
        settings.setdefault("contentType", sources[0].content_type)
    components = sum(source.components or 1 for source in sources)
    version = service.catalogue.commit(
        bucket, target, body, checksums, settings, conditions=conditions, components=components
    )
    return object_response(request, version)


def _compose_sources(service: Service, bucket: str, value: dict[str, Any]) -> list[ObjectVersion]:
    listed = value.get("sourceObjects")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_SOURCES:
        raise invalid(f"The number of source components provided must be from 1 to {MAX_SOURCES}.")
    return [_compose_source(service, bucket, item) for item in listed]


def _compose_source(service: Service, bucket: str, item: Any) -> ObjectVersion:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise invalid("A source object needs a name.")
    wanted = item.get("objectPreconditions")
    conditions = wanted if isinstance(wanted, dict) else {}
    match = generation_of({name: str(number) for name, number in conditions.items()}, "ifGenerationMatch")
    generation = generation_of({"generation": str(item["generation"])} if item.get("generation") else {})
    name = check_object_name(item["name"])
    version = service.catalogue.find(bucket, name, generation)
    Preconditions(generation=match).check(version)
    if version is None:
        raise GCSError(404, f"Object {bucket}/{name} not found.")
    return version
