"""Chunks of a resumable upload, by PUT and by POST; status queries; cancelling.

Bytes are kept as they arrive: a chunk that is broken off leaves what came, and the next status query tells how much. A
chunk that is refused leaves nothing.
"""

from __future__ import annotations

from fake_gcs.api_json.resources import object_resource, object_response
from fake_gcs.byte_ranges import ContentRange, parse_content_range
from fake_gcs.checksums import Checksums
from fake_gcs.errors import GCSError, invalid
from fake_gcs.messages import Request, Response, Sink
from fake_gcs.service import Draft, ResumableSession, Service

_CHUNK_BYTES = 256 * 1024


def session_of(service: Service, request: Request) -> tuple[str, ResumableSession]:
    """The session a request belongs to.

    Raises:
        GCSError: 404 when it is unknown, finished long ago or cancelled.
    """
    key = request.query.get("upload_id", "")
    session = service.resumable.get(key)
    if session is None or session.draft.bucket != request.params["bucket"]:
        raise GCSError(404, "No such upload session.")
    return key, session


def chunk_sink(service: Service, request: Request) -> Sink:
    """Take a chunk, or a question about the state."""
    _, session = session_of(service, request)
    header = request.header("content-range")
    return ChunkSink(service, request, session, parse_content_range(header) if header else ContentRange(0, None, None))


def cancel_upload(service: Service, request: Request) -> Response:
    """Forget the session; the answer is 499 as from GCS."""
    key, session = session_of(service, request)
    if session.finished is None:
        session.writer.abort()
    service.resumable.remove(key)
    return Response(499)


class ChunkSink:
    """Appends to a session what it does not have yet."""

    def __init__(self, service: Service, request: Request, session: ResumableSession, asked: ContentRange) -> None:
        self._service = service
        self._request = request
        self._session = session
        self._asked = asked
        self._received = 0
        self._failed = False
        self._refused = False
        self._before = session.writer.size, session.writer.checksum.copy()
        if session.finished is None:
            self._check_total()
        self._check_place(asked.start or 0)

    def _check_total(self) -> None:
        size, total = self._session.size, self._asked.total
        if None not in {size, total} and total != size:
            raise invalid(f"The Content-Range is of {total} bytes, but {size} were announced.")
        if total is not None and self._session.writer.size > total:
            raise invalid(f"The Content-Range is of {total} bytes, but {self._session.writer.size} have been received.")

    def _check_place(self, offset: int) -> None:
        have = self._session.writer.size
        if offset > have and self._session.finished is None:
            raise GCSError(503, f"The chunk goes on at {offset}, but only {have} bytes have been received.")

    def write(self, data: bytes) -> None:
        """Append bytes, but for those that came before."""
        if self._session.finished is not None:
            return
        self._refused = True  # Until all is well with these bytes.
        offset = (self._asked.start or 0) + self._received
        self._received += len(data)
        if self._asked.start is None:
            raise invalid("A status query carries no bytes.")
        if self._asked.stop is not None and offset + len(data) > self._asked.stop:
            raise invalid("The body is longer than its Content-Range.")
        if self._session.size is not None and offset + len(data) > self._session.size:
            raise invalid(f"These are more than the {self._session.size} bytes that were announced.")
        self._check_place(offset)
        if new := data[self._session.writer.size - offset :]:
            self._session.writer.write(new)
        self._refused = False

    def finish(self) -> Response:
        """Make the object if it is complete, else tell how much is there."""
        session, asked = self._session, self._asked
        if session.finished is not None:
            return object_response(self._request, session.finished)
        self._refused = True
        have = session.writer.size
        if asked.stop is not None and self._received != asked.stop - (asked.start or 0):
            raise invalid("The body is shorter than its Content-Range.")
        whole = self._request.header("content-range") is None
        if whole and session.size not in {None, have}:
            raise invalid(f"The body is shorter than the {session.size} bytes that were announced.")
        if whole or (asked.total is not None and have >= asked.total):
            return self._complete()
        if asked.start is not None and (self._received % _CHUNK_BYTES or not self._received):
            raise invalid(f"All chunks but the last must have a multiple of {_CHUNK_BYTES} bytes.")
        session.writer.rest()
        headers = [("Range", f"bytes=0-{have - 1}")] if have else []
        if self._request.header("x-guploader-no-308") == "yes":  # For clients to whom 308 is a redirect.
            return Response(200, [*headers, ("X-HTTP-Status-Code-Override", "308")])
        return Response(308, headers)

    def _complete(self) -> Response:
        session = self._session
        checksums = session.writer.checksum.value()
        self._failed = True
        self._check(session.draft, checksums)
        catalogue = self._service.catalogue
        body = session.writer.finish()
        draft = session.draft
        version = catalogue.commit(
            draft.bucket, draft.name, body, checksums, draft.settings, conditions=draft.conditions
        )
        session.finished = object_resource(version, self._request)
        return object_response(self._request, session.finished)

    def _check(self, draft: Draft, checksums: Checksums) -> None:
        draft.conditions.check(self._service.catalogue.find(draft.bucket, draft.name))
        if draft.expected_crc32c not in {None, checksums.crc32c_text}:
            raise invalid("The CRC32C of the bytes is not the announced one.", code="BadDigest")
        if draft.expected_md5 not in {None, checksums.md5_text}:
            raise invalid("The MD5 of the bytes is not the announced one.", code="BadDigest")

    def abort(self) -> None:
        """What came stays, but for a chunk that was refused and a session that can never become an object."""
        if self._failed:
            self._session.writer.abort()
            self._service.resumable.remove(self._request.query.get("upload_id", ""))
        elif self._session.finished is None:
            if self._refused:
                self._session.writer.cut(*self._before)
            self._session.writer.rest()
