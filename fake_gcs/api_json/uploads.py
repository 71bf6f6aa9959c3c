"""Making objects by the JSON API: media, multipart and the start of a resumable upload."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from fake_gcs.api_json.acl import with_list
from fake_gcs.api_json.resources import object_response
from fake_gcs.api_json.resumable import chunk_sink
from fake_gcs.checksums import Checksums
from fake_gcs.errors import invalid, missing
from fake_gcs.messages import Request, Response, Sink, read_object
from fake_gcs.multipart_body import RelatedParser, boundary_of
from fake_gcs.objects.bodies import BodyWriter
from fake_gcs.objects.names import check_object_name
from fake_gcs.objects.preconditions import from_query
from fake_gcs.objects.record import SETTABLE, ObjectVersion
from fake_gcs.service import Draft, ResumableSession, Service

_MAX_METADATA_BYTES = 4 << 20
_SIZE = re.compile(r"[0-9]{1,18}\Z")


def insert_object(service: Service, request: Request) -> Sink:
    """Begin an upload, of the kind ``uploadType`` names."""
    service.catalogue.bucket(request.params["bucket"])
    if request.query.get("upload_id"):
        return chunk_sink(service, request)
    kind = request.query.get("uploadType", "")
    if kind == "media":
        return MediaSink(service, request)
    if kind == "multipart":
        return MultipartSink(service, request)
    if kind == "resumable":
        return StartSink(service, request)
    raise invalid(f"Invalid uploadType: {kind[:40]!r}")


def draft_from(request: Request, resource: dict[str, Any], media_type: str) -> Draft:
    """The object that a request wants to make.

    Raises:
        GCSError: 400 when the name is missing or not allowed, or a setting has the wrong form.
    """
    name = resource.get("name") or request.query.get("name")
    if not isinstance(name, str) or not name:
        raise missing("name", code="MissingName")
    settings = {key: value for key, value in resource.items() if key in SETTABLE and value is not None}
    metadata = settings.get("metadata")
    if metadata is not None:
        if not isinstance(metadata, dict):
            raise invalid("metadata must be an object")
        settings["metadata"] = {key: value for key, value in metadata.items() if value is not None}
    if media_type and not settings.get("contentType"):
        settings["contentType"] = media_type
    if encoding := request.query.get("contentEncoding"):
        settings["contentEncoding"] = encoding
    announced = hashes_of(request.header("x-goog-hash"))
    return Draft(
        bucket=request.params["bucket"],
        name=check_object_name(name),
        settings=with_list(settings, request.query, "acl", "predefinedAcl"),
        conditions=from_query(request.query),
        expected_crc32c=resource.get("crc32c") or announced.get("crc32c"),
        expected_md5=resource.get("md5Hash") or announced.get("md5") or request.header("content-md5"),
    )


def hashes_of(header: str | None) -> dict[str, str]:
    """The hashes of an ``x-goog-hash`` header."""
    pairs = [item.strip().partition("=") for item in (header or "").split(",") if item.strip()]
    return {name.lower(): value for name, _, value in pairs}


def check_hashes(draft: Draft, checksums: Checksums) -> None:
    """400 when the bytes are not the announced ones."""
    if draft.expected_crc32c and draft.expected_crc32c != checksums.crc32c_text:
        message = f'Provided CRC32C "{draft.expected_crc32c}" doesn\'t match calculated CRC32C'
        raise invalid(f'{message} "{checksums.crc32c_text}".', code="BadDigest")
    if draft.expected_md5 and checksums.md5_text and draft.expected_md5 != checksums.md5_text:
        message = f'Provided MD5 hash "{draft.expected_md5}" doesn\'t match calculated MD5 hash'
        raise invalid(f'{message} "{checksums.md5_text}".', code="BadDigest")


def commit(service: Service, draft: Draft, writer: BodyWriter) -> ObjectVersion:
    """Make the object; a draft that is refused leaves nothing behind."""
    checksums = writer.checksum.value()
    try:
        check_hashes(draft, checksums)
        draft.conditions.check(service.catalogue.find(draft.bucket, draft.name))
    except Exception:
        writer.abort()
        raise
    body = writer.finish()
    return service.catalogue.commit(
        draft.bucket, draft.name, body, checksums, draft.settings, conditions=draft.conditions
    )


class MediaSink:
    """The request's body is the object."""

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request
        self._draft = draft_from(request, {}, request.header("content-type") or "")
        self._writer = service.catalogue.new_body()
        self.write = self._writer.write

    def finish(self) -> Response:
        """Make the object."""
        return object_response(self._request, commit(self._service, self._draft, self._writer))

    def abort(self) -> None:
        """Forget the bytes."""
        self._writer.abort()


class MultipartSink:
    """Metadata, then the object."""

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request
        boundary = boundary_of(request.header("content-type") or "", "related")
        self._parser = RelatedParser(boundary, self._begin_media)
        self._draft: Draft | None = None
        self._writer: BodyWriter | None = None

    def _begin_media(self, parser: RelatedParser) -> Callable[[bytes], None]:
        self._draft = draft_from(self._request, read_object(parser.metadata), parser.media_type)
        self._writer = self._service.catalogue.new_body()
        return self._writer.write

    def write(self, data: bytes) -> None:
        """Take the next bytes of the multipart body."""
        self._parser.write(data)

    def finish(self) -> Response:
        """Make the object."""
        self._parser.finish()
        if self._draft is None or self._writer is None:
            raise invalid("The multipart body has no media part.")
        return object_response(self._request, commit(self._service, self._draft, self._writer))

    def abort(self) -> None:
        """Forget the bytes."""
        if self._writer is not None:
            self._writer.abort()


class StartSink:
    """The metadata of a resumable upload."""

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request
        self._text = bytearray()

    def write(self, data: bytes) -> None:
        """Take the next bytes of the metadata."""
        self._text += data
        if len(self._text) > _MAX_METADATA_BYTES:
            raise invalid("The metadata is too long.")

    def finish(self) -> Response:
        """Open the session; its address is the ``Location``."""
        request = self._request
        media_type = request.header("x-upload-content-type") or ""
        draft = draft_from(request, read_object(bytes(self._text)), media_type)
        draft.conditions.check(self._service.catalogue.find(draft.bucket, draft.name))
        announced = request.header("x-upload-content-length")
        if announced and not _SIZE.match(announced):
            raise invalid(f"Invalid X-Upload-Content-Length: {announced[:40]!r}")
        size = int(announced) if announced else None
        session = ResumableSession(draft, self._service.catalogue.new_body(), size)
        session.writer.rest()
        key, dropped = self._service.resumable.add(session)
        if dropped is not None:
            dropped.writer.abort()
        place = f"{request.base_url}/upload/storage/v1/b/{draft.bucket}/o"
        location = f"{place}?uploadType=resumable&name={quote(draft.name, safe='')}&upload_id={key}"
        return Response(200, [("Location", location), ("X-GUploader-UploadID", key)])

    def abort(self) -> None:
        """Nothing was begun."""
