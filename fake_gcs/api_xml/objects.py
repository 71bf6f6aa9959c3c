"""Buckets and objects of the XML API: GET, HEAD, PUT, DELETE, copy by header, list (version 1 and 2)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote_to_bytes

from fake_gcs.api_json.buckets import page_size
from fake_gcs.api_json.copying import copied_settings, copy_version
from fake_gcs.api_json.resources import timestamp
from fake_gcs.api_json.uploads import commit, hashes_of
from fake_gcs.api_xml.render import Tree, xml_response
from fake_gcs.errors import invalid, no_such_object
from fake_gcs.media import entity_tag, media_response, version_headers
from fake_gcs.messages import Answer, Request, Response, Sink, Steps
from fake_gcs.objects.listing import Query, list_live
from fake_gcs.objects.names import check_object_name
from fake_gcs.objects.preconditions import from_headers, generation_of
from fake_gcs.objects.record import ObjectVersion
from fake_gcs.service import Draft, Service, header_settings


def xml_draft(request: Request) -> Draft:
    """The object that an XML upload wants to make."""
    announced = hashes_of(request.header("x-goog-hash"))
    return Draft(
        bucket=request.params["bucket"],
        name=check_object_name(request.params["object"]),
        settings=header_settings(request.head.headers),
        conditions=from_headers(request.head.headers),
        expected_crc32c=announced.get("crc32c"),
        expected_md5=announced.get("md5") or request.header("content-md5"),
    )


def _named(service: Service, request: Request) -> ObjectVersion:
    bucket, name = request.params["bucket"], check_object_name(request.params["object"])
    version = service.catalogue.find(bucket, name, generation_of(request.query))
    if conditions := from_headers(request.head.headers):
        conditions.check(version, reading=True)
    if version is None:
        raise no_such_object(bucket, name)
    return version


def get_object(service: Service, request: Request) -> Response | Steps:
    """The bytes of an object, or for HEAD only what is known of them."""
    version = _named(service, request)
    if version.checksums is None:
        return _hash_and_send(service, request)
    return media_response(request, version)


def _hash_and_send(service: Service, request: Request) -> Steps:
    yield from service.catalogue.hash_steps(_named(service, request))
    return media_response(request, _named(service, request))


class PutSink:
    """The body of a PUT is the object."""

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._draft = xml_draft(request)
        self._writer = service.catalogue.new_body()
        self.write = self._writer.write

    def finish(self) -> Response:
        """Make the object."""
        return Response(200, version_headers(commit(self._service, self._draft, self._writer)))

    def abort(self) -> None:
        """Forget the bytes."""
        self._writer.abort()


class CopySink:
    """A PUT with ``x-goog-copy-source`` has no body of its own."""

    def __init__(self, service: Service, request: Request, source: str) -> None:
        self._service = service
        self._request = request
        self._source = source

    def write(self, data: bytes) -> None:
        """Refuse bytes."""
        if data:
            raise invalid("A copy has no body.")

    def finish(self) -> Response:
        """Make the copy."""
        request, service = self._request, self._service
        bucket, _, name = unquote_to_bytes(self._source).decode("utf-8", "replace").removeprefix("/").partition("/")
        headers = request.head.headers
        generation = generation_of(headers, "x-goog-copy-source-generation")
        source = service.catalogue.find(bucket, check_object_name(name), generation)
        from_headers(headers, "x-goog-copy-source-if").check(source)
        if source is None:
            raise no_such_object(bucket, name)
        replaced = headers.get("x-goog-metadata-directive", "COPY").upper() == "REPLACE"
        settings = header_settings(headers) if replaced else copied_settings(source, {}, request.query)
        target = (request.params["bucket"], check_object_name(request.params["object"]))
        version = copy_version(service, source, target, settings, from_headers(headers))
        tree: Tree = [("LastModified", timestamp(version.updated)), ("ETag", entity_tag(version))]
        response = xml_response("CopyObjectResult", tree)
        response.headers += version_headers(version)
        return response

    def abort(self) -> None:
        """Nothing was begun."""


def put_object(service: Service, request: Request) -> Sink:
    """Make an object, or copy one."""
    service.catalogue.bucket(request.params["bucket"])
    source = request.header("x-goog-copy-source") or request.header("x-amz-copy-source")
    return CopySink(service, request, source) if source else PutSink(service, request)


def delete_object(service: Service, request: Request) -> Response:
    """Delete an object."""
    name = check_object_name(request.params["object"])
    conditions = from_headers(request.head.headers)
    service.catalogue.delete(request.params["bucket"], name, generation_of(request.query), conditions)
    return Response(204)


def list_buckets(service: Service, _request: Request) -> Response:
    """All buckets."""
    found: Tree = [
        ("Bucket", [("Name", bucket.name), ("CreationDate", timestamp(bucket.created))])
        for bucket in service.catalogue.buckets()
    ]
    owner: Tree = [("ID", "fake"), ("DisplayName", "fake")]
    return xml_response("ListAllMyBucketsResult", [("Owner", owner), ("Buckets", found)])


def get_bucket(service: Service, request: Request) -> Response:
    """List a bucket, or answer one of the questions about its settings."""
    query = request.query
    bucket = service.catalogue.bucket(request.params["bucket"])
    if "location" in query:
        return xml_response("LocationConstraint", [])
    if "versioning" in query:
        return xml_response("VersioningConfiguration", [("Status", "Enabled" if bucket.versioned else "Suspended")])
    second = query.get("list-type") == "2"
    encoded = query.get("encoding-type") == "url"
    asked = Query(
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        after=query.get("start-after" if second else "marker", ""),
        limit=page_size(request, "max-keys"),
        token=query.get("continuation-token", "") if second else "",
    )
    page = list_live(*service.catalogue.live_names(bucket.name, refresh=not asked.token), asked)

    def shown(text: str) -> str:
        return quote(text, safe="/") if encoded else text

    tree: Tree = [
        ("Name", bucket.name),
        ("Prefix", shown(asked.prefix)),
        ("MaxKeys", str(asked.limit)),
        ("IsTruncated", "true" if page.token else "false"),
    ]
    if asked.delimiter:
        tree.append(("Delimiter", shown(asked.delimiter)))
    if encoded:
        tree.append(("EncodingType", "url"))
    if second:
        tree.append(("KeyCount", str(len(page.items) + len(page.prefixes))))
        if asked.token:
            tree.append(("ContinuationToken", asked.token))
    if page.token:
        last = max([version.name for version in page.items[-1:]] + page.prefixes[-1:])
        tree.append(("NextContinuationToken", page.token) if second else ("NextMarker", shown(last)))
    tree += [("Contents", _entry(version, shown(version.name))) for version in page.items]
    tree += [("CommonPrefixes", [("Prefix", shown(prefix))]) for prefix in page.prefixes]
    return xml_response("ListBucketResult", tree)


def _entry(version: ObjectVersion, key: str) -> Tree:
    return [
        ("Key", key),
        ("Generation", str(version.generation)),
        ("MetaGeneration", str(version.metageneration)),
        ("LastModified", timestamp(version.updated)),
        ("ETag", entity_tag(version)),
        ("Size", str(version.size)),
        ("StorageClass", str(version.settings.get("storageClass") or "STANDARD")),
    ]


def head_bucket(service: Service, request: Request) -> Response:
    """Whether a bucket is there."""
    service.catalogue.bucket(request.params["bucket"])
    return Response(200)


def put_bucket(service: Service, request: Request) -> Response:
    """Make a bucket."""
    service.catalogue.create_bucket(request.params["bucket"])
    return Response(200)


def delete_bucket(service: Service, request: Request) -> Response:
    """Remove an empty bucket."""
    service.catalogue.delete_bucket(request.params["bucket"], strict=service.options.strict_bucket_delete)
    return Response(204)


BUCKET_METHODS: dict[str, tuple[str, Any, Any]] = {
    "GET": ("storage.objects.list", get_bucket, "whole"),
    "HEAD": ("storage.buckets.get", head_bucket, "whole"),
    "PUT": ("storage.buckets.insert", put_bucket, "whole"),
    "DELETE": ("storage.buckets.delete", delete_bucket, "whole"),
}
"""Operation, handler and use of the body by method."""

OBJECT_METHODS: dict[str, tuple[str, Any, Any]] = {
    "GET": ("storage.objects.get", get_object, "whole"),
    "HEAD": ("storage.objects.get", get_object, "whole"),
    "PUT": ("storage.objects.insert", put_object, "stream"),
    "DELETE": ("storage.objects.delete", delete_object, "whole"),
}
"""Operation, handler and use of the body by method."""

__all__ = ["BUCKET_METHODS", "OBJECT_METHODS", "Answer", "list_buckets", "xml_draft"]
