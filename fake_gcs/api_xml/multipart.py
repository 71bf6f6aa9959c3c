"""Multipart uploads of the XML API: parts in any order, put together by number when they are complete."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Literal
from xml.sax.saxutils import unescape

from fake_gcs.api_json.uploads import check_hashes, hashes_of
from fake_gcs.api_xml.objects import xml_draft
from fake_gcs.api_xml.render import Tree, xml_response
from fake_gcs.errors import GCSError, invalid
from fake_gcs.media import entity_tag, version_headers
from fake_gcs.messages import Answer, Request, Response, Sink, Steps
from fake_gcs.objects.bodies import pieces
from fake_gcs.objects.preconditions import from_headers
from fake_gcs.service import Draft, MultipartUpload, Part, Service

MAX_PARTS = 10_000
"""Highest part number."""

_PART = re.compile(rb"<Part(?:\s[^>]*)?>(.*?)</Part>", re.DOTALL)
_NUMBER = re.compile(rb"<PartNumber>\s*(\d{1,6})\s*</PartNumber>")
_ETAG = re.compile(rb"<ETag>\s*(.*?)\s*</ETag>", re.DOTALL)


def upload_of(service: Service, request: Request) -> tuple[str, MultipartUpload]:
    """The upload a request belongs to; 404 when there is none."""
    key = request.query.get("uploadId", "")
    upload = service.multipart.get(key)
    here = (request.params["bucket"], request.params["object"])
    if upload is None or (upload.draft.bucket, upload.draft.name) != here:
        raise GCSError(404, "The specified multipart upload does not exist.", code="NoSuchUpload")
    return key, upload


def initiate(service: Service, request: Request) -> Response:
    """Begin an upload."""
    service.catalogue.bucket(request.params["bucket"])
    draft = xml_draft(request)
    key, dropped = service.multipart.add(MultipartUpload(draft))
    if dropped is not None:
        _discard(service, dropped)
    tree: Tree = [("Bucket", draft.bucket), ("Key", draft.name), ("UploadId", key)]
    return xml_response("InitiateMultipartUploadResult", tree)


class PartSink:
    """The body of a PUT is one part."""

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request
        self._key, _ = upload_of(service, request)
        text = request.query["partNumber"]
        if not (text.isascii() and text.isdigit()) or len(text) > 6 or not 1 <= int(text) <= MAX_PARTS:
            raise invalid(f"The part number must be from 1 to {MAX_PARTS}.")
        self._number = int(text)
        self._writer = service.catalogue.new_body()
        self.write = self._writer.write

    def finish(self) -> Response:
        """Keep the part; an earlier one of that number is replaced."""
        _, upload = upload_of(self._service, self._request)
        checksums = self._writer.checksum.value()
        announced = hashes_of(self._request.header("x-goog-hash"))
        md5 = announced.get("md5") or self._request.header("content-md5")
        expected = Draft("", "", expected_crc32c=announced.get("crc32c"), expected_md5=md5)
        try:
            check_hashes(expected, checksums)
        except GCSError:
            self._writer.abort()
            raise
        etag = f'"{(checksums.md5 or b"").hex()}"'
        if before := upload.parts.get(self._number):
            self._service.catalogue.discard(before.body)
        upload.parts[self._number] = Part(self._writer.finish(), checksums, etag, time.time())
        hashes = [f"crc32c={checksums.crc32c_text}", f"md5={checksums.md5_text}"]
        return Response(200, [("ETag", etag), *(("x-goog-hash", text) for text in hashes)])

    def abort(self) -> None:
        """Forget the bytes."""
        self._writer.abort()


def put_part(service: Service, request: Request) -> Sink:
    """Take a part."""
    return PartSink(service, request)


def list_parts(service: Service, request: Request) -> Response:
    """The parts that are there."""
    key, upload = upload_of(service, request)
    tree: Tree = [("Bucket", upload.draft.bucket), ("Key", upload.draft.name), ("UploadId", key)]
    tree += [("IsTruncated", "false")]
    for number in sorted(upload.parts):
        part = upload.parts[number]
        tree.append(("Part", [("PartNumber", str(number)), ("ETag", part.etag), ("Size", str(part.body.size))]))
    return xml_response("ListPartsResult", tree)


def complete(service: Service, request: Request) -> Steps:
    """Put the named parts together, by number."""
    key, upload = upload_of(service, request)
    chosen = _chosen_parts(request.body, upload)
    draft = upload.draft
    conditions = from_headers(request.head.headers) or draft.conditions
    conditions.check(service.catalogue.find(draft.bucket, draft.name))
    service.multipart.remove(key)
    writer = service.catalogue.new_body()
    try:
        for part in chosen:
            for piece in pieces(part.body):
                writer.write(piece)
                yield
        checksums = writer.checksum.value(with_md5=False)
        body = writer.finish()
    finally:
        writer.abort()
        _discard(service, upload)
    version = service.catalogue.commit(
        draft.bucket,
        draft.name,
        body,
        checksums,
        draft.settings,
        conditions=conditions,
        components=len(chosen),
    )
    tree: Tree = [("Bucket", draft.bucket), ("Key", draft.name), ("ETag", entity_tag(version))]
    response = xml_response("CompleteMultipartUploadResult", tree)
    response.headers += version_headers(version)
    return response


def _chosen_parts(body: bytes, upload: MultipartUpload) -> list[Part]:
    chosen: list[Part] = []
    last = 0
    for match in _PART.finditer(body):
        number, etag = _NUMBER.search(match[1]), _ETAG.search(match[1])
        if number is None or etag is None:
            raise invalid("The list of parts is malformed.", code="MalformedCompleteMultipartUploadRequest")
        part = upload.parts.get(int(number[1]))
        named = unescape(etag[1].decode("utf-8", "replace"), {"&quot;": '"', "&#34;": '"'})
        if part is None or named.strip('"') != part.etag.strip('"'):
            raise invalid(f"Part {int(number[1])} is not there, or has another ETag.", code="InvalidPart")
        if int(number[1]) <= last:
            raise invalid("The parts are not in order.", code="InvalidPartOrder")
        last = int(number[1])
        chosen.append(part)
    if not chosen:
        raise invalid("The list of parts is empty.", code="MalformedCompleteMultipartUploadRequest")
    return chosen


def abort(service: Service, request: Request) -> Response:
    """Forget an upload and its parts."""
    key, upload = upload_of(service, request)
    service.multipart.remove(key)
    _discard(service, upload)
    return Response(204)


def _discard(service: Service, upload: MultipartUpload) -> None:
    for part in upload.parts.values():
        service.catalogue.discard(part.body)
    upload.parts.clear()


Handler = Callable[[Service, Request], Answer]

_INITIATE: tuple[str, Handler, Literal["whole", "stream"]] = ("storage.multipart.initiate", initiate, "whole")
_PUT: tuple[str, Handler, Literal["whole", "stream"]] = ("storage.multipart.put", put_part, "stream")
_LIST: tuple[str, Handler, Literal["whole", "stream"]] = ("storage.multipart.list", list_parts, "whole")
_COMPLETE: tuple[str, Handler, Literal["whole", "stream"]] = ("storage.multipart.complete", complete, "whole")
_ABORT: tuple[str, Handler, Literal["whole", "stream"]] = ("storage.multipart.abort", abort, "whole")


def method_for(method: str, query: dict[str, str]) -> tuple[str, Handler, Literal["whole", "stream"]] | None:
    """The operation of a request that belongs to a multipart upload, or None for any other."""
    if method == "POST" and "uploads" in query:
        return _INITIATE
    if "uploadId" not in query:
        return None
    if method == "PUT" and "partNumber" in query:
        return _PUT
    return {"GET": _LIST, "POST": _COMPLETE, "DELETE": _ABORT}.get(method)
