"""An object's bytes as an answer, the same for the JSON and the XML API: ranges, conditions, headers, transcoding."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from email.utils import formatdate, parsedate_to_datetime

from fake_gcs.api_json.resources import etag_of
from fake_gcs.byte_ranges import resolve_range
from fake_gcs.errors import GCSError, condition_not_met
from fake_gcs.messages import Request, Response, Span
from fake_gcs.objects.bodies import pieces
from fake_gcs.objects.record import ObjectVersion

_GZIP_WINDOW = 31
_INFLATED_BYTES = 1 << 20

_SETTING_HEADERS = (
    ("cacheControl", "Cache-Control"),
    ("contentDisposition", "Content-Disposition"),
    ("contentLanguage", "Content-Language"),
)


def entity_tag(version: ObjectVersion) -> str:
    """The ``ETag`` of the XML API: the quoted MD5 where there is one."""
    if version.checksums is not None and version.checksums.md5 is not None:
        return f'"{version.checksums.md5.hex()}"'
    return f'"-{etag_of(version.generation, version.metageneration)}"'


def version_headers(version: ObjectVersion) -> list[tuple[str, str]]:
    """The headers that describe a version, whatever part of it is sent."""
    headers = [
        ("ETag", entity_tag(version)),
        ("Last-Modified", formatdate(version.updated, usegmt=True)),
        ("x-goog-generation", str(version.generation)),
        ("x-goog-metageneration", str(version.metageneration)),
        ("x-goog-stored-content-encoding", version.content_encoding or "identity"),
        ("x-goog-stored-content-length", str(version.size)),
        ("x-goog-storage-class", str(version.settings.get("storageClass") or "STANDARD")),
    ]
    if version.checksums is not None:
        # One line: clients that look at the first line only would miss the second.
        hashes = f"crc32c={version.checksums.crc32c_text}"
        if version.checksums.md5_text is not None:
            hashes += f",md5={version.checksums.md5_text}"
        headers.append(("x-goog-hash", hashes))
    if version.components is not None:
        headers.append(("x-goog-component-count", str(version.components)))
    if settings := version.settings:
        headers += [(header, str(settings[name])) for name, header in _SETTING_HEADERS if settings.get(name)]
        metadata = settings.get("metadata")
        if isinstance(metadata, dict):
            headers += [(f"x-goog-meta-{_header_name(name)}", str(value)) for name, value in metadata.items()]
    return headers


def _header_name(name: str) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "-" for char in name)


def media_response(request: Request, version: ObjectVersion) -> Response:
    """The bytes a GET asks for; a HEAD gets the same headers.

    Raises:
        GCSError: 304 or 412 by the conditional headers, 416 by the range.
    """
    _check_conditional(request, version)
    headers = version_headers(version)
    headers.append(("Content-Type", version.content_type))
    headers.append(("Accept-Ranges", "bytes"))
    head_only = request.head.method == "HEAD"
    if version.content_encoding == "gzip":
        if _wants_plain(request, version):
            headers.append(("Warning", "214 UploadServer gunzipped"))
            return Response(200, headers, b"" if head_only else inflate(pieces(version.body)))
        headers.append(("Vary", "Accept-Encoding"))
    if version.content_encoding:
        headers.append(("Content-Encoding", version.content_encoding))
    wanted = None
    if _range_applies(request, version):
        wanted = resolve_range(request.header("range"), version.size)
    if wanted is None:
        return Response(200, headers, Span(version.body, 0, version.size))
    start, stop = wanted
    headers.append(("Content-Range", f"bytes {start}-{stop - 1}/{version.size}"))
    return Response(206, headers, Span(version.body, start, stop))


def _wants_plain(request: Request, version: ObjectVersion) -> bool:
    if "no-transform" in str(version.settings.get("cacheControl", "")):
        return False
    return "gzip" not in (request.header("accept-encoding") or "")


def _range_applies(request: Request, version: ObjectVersion) -> bool:
    condition = request.header("if-range")
    return condition is None or condition == entity_tag(version)


def _check_conditional(request: Request, version: ObjectVersion) -> None:
    """RFC 9110, section 13.2.2: match before unmodified, none-match before modified."""
    tag = entity_tag(version)
    if (match := request.header("if-match")) is not None:
        if not _matches(match, tag):
            raise condition_not_met()
    elif (since := _seconds(request.header("if-unmodified-since"))) is not None and int(version.updated) > since:
        raise condition_not_met()
    if (none_match := request.header("if-none-match")) is not None:
        if _matches(none_match, tag):
            raise _not_modified(version)
    elif (since := _seconds(request.header("if-modified-since"))) is not None and int(version.updated) <= since:
        raise _not_modified(version)


def _not_modified(version: ObjectVersion) -> GCSError:
    return GCSError(304, "Not Modified", headers=(("ETag", entity_tag(version)),))


def _matches(header: str, tag: str) -> bool:
    return header.strip() == "*" or tag in [item.strip().removeprefix("W/") for item in header.split(",")]


def _seconds(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        return parsedate_to_datetime(header).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def inflate(compressed: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    """The plain bytes of a gzip stream of one or more members, in bounded pieces.

    Raises:
        EOFError: The stream is not gzip, or ends early; the answer is broken off.
    """
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    begun = False
    for piece in compressed:
        data = bytes(piece)
        begun = True
        while data:
            if inflater.eof:
                inflater = zlib.decompressobj(_GZIP_WINDOW)
            try:
                plain = inflater.decompress(data, _INFLATED_BYTES)
            except zlib.error as error:
                raise EOFError(f"the object is not gzip: {error}") from None
            if plain:
                yield plain
            data = inflater.unconsumed_tail or inflater.unused_data
    if rest := inflater.flush():
        yield rest
    if begun and not inflater.eof:
        raise EOFError("the gzip stream ends early")
