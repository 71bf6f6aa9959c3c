"""Builds requests to the JSON API of Google Cloud Storage and parses its responses. No socket, no clock.

Objects are read in their stored form: ``Accept-Encoding: gzip`` asks the server not to decompress objects that are
stored compressed, because a decompressed body has no ranges and another size. ``generation=`` pins reads.
"""

from __future__ import annotations

import base64
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from asyncdata.errors import StorageError, UnsupportedURLError
from asyncdata.storage.changed import object_changed, object_resized
from asyncdata.storage.failures import EncodedBodyError, FailureCause, ReadFailedError, read_failed
from asyncdata.storage.gcs.names import Question
from asyncdata.storage.globs import GlobPattern
from asyncdata.storage.http1.head import ResponseHead
from asyncdata.storage.statuses import parse_retry_after, shorten, status_error
from asyncdata.storage.urls import split_bucket
from asyncdata.types import ObjectInfo

SCHEMES: Final = ("gs", "gcs")
DEFAULT_ENDPOINT: Final = "https://storage.googleapis.com"
BODY_HEADERS: Final = (("Accept-Encoding", "gzip"),)
_THROTTLE_REASONS: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"})
_SAFE_FOR_SERVER: Final = frozenset("*?")


def split_url(url: str, *, name_required: bool = True) -> tuple[str, str]:
    """(bucket, object name) of a ``gs://`` URL."""
    bucket, name = split_bucket(url, SCHEMES)
    if name_required and (not name or name.endswith("/")):
        raise UnsupportedURLError("the URL names no object", url=url)
    return bucket, name


def media_url(endpoint: str, url: str, version: str | None, user_project: str | None) -> str:
    """Where the bytes of an object are."""
    bucket, name = split_url(url)
    query = {"alt": "media"}
    if version is not None:
        query["generation"] = version
    if user_project is not None:
        query["userProject"] = user_project
    return f"{endpoint}/download/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}?{urlencode(query)}"


def stat_url(endpoint: str, url: str, user_project: str | None) -> str:
    """Where the metadata of an object are."""
    bucket, name = split_url(url)
    query = {"fields": "name,size,generation,crc32c"}
    if user_project is not None:
        query["userProject"] = user_project
    return f"{endpoint}/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}?{urlencode(query)}"


def upload_url(endpoint: str, url: str, user_project: str | None) -> str:
    """Where an object is written with one request."""
    bucket, name = split_url(url)
    query = {"uploadType": "media", "name": name}
    if user_project is not None:
        query["userProject"] = user_project
    return f"{endpoint}/upload/storage/v1/b/{quote(bucket, safe='')}/o?{urlencode(query, quote_via=quote, safe='')}"


@dataclass(frozen=True, slots=True)
class Listing:
    """One listing that covers some of a glob's patterns.

    Attributes:
        prefix: What every name begins with.
        shallow: Names with a ``/`` after the prefix are not wanted.
        match_glob: A filter for the server; it may let through more than is wanted.
    """

    prefix: str
    shallow: bool
    match_glob: str | None


def plan_listings(patterns: list[GlobPattern]) -> list[Listing]:
    """The fewest listings that cover the patterns (which are relative to the bucket). Pure.

    A prefix that begins with another one's is covered by it. The server's own glob is used for a single deep pattern
    of plain stars, where it saves pages.
    """
    wanted: dict[str, list[GlobPattern]] = {}
    for pattern in sorted(patterns, key=lambda pattern: pattern.prefix):
        for prefix, group in wanted.items():
            if pattern.prefix.startswith(prefix) and not _all_shallow(group):
                group.append(pattern)
                break
        else:
            wanted.setdefault(pattern.prefix, []).append(pattern)
    listings = []
    for prefix, group in wanted.items():
        shallow = _all_shallow(group)
        match_glob = group[0].text if len(group) == 1 and not shallow and _server_understands(group[0]) else None
        listings.append(Listing(prefix, shallow, match_glob))
    return listings


def _all_shallow(patterns: list[GlobPattern]) -> bool:
    return all(pattern.is_shallow for pattern in patterns)


def _server_understands(pattern: GlobPattern) -> bool:
    text = pattern.text
    return "**" not in text and not any(char in "[]{}\\" for char in text) and bool(_SAFE_FOR_SERVER & set(text))


def list_url(endpoint: str, bucket: str, listing: Listing, question: Question, user_project: str | None) -> str:
    """Where one page of a listing is."""
    query = {
        "fields": "nextPageToken,prefixes,items(name,size,generation,crc32c)",
        "prefix": listing.prefix,
        "maxResults": "1000",
    }
    if listing.shallow:
        query["delimiter"] = "/"
    if listing.match_glob is not None:
        query["matchGlob"] = listing.match_glob
    if question.start:
        query["startOffset"] = question.start
    if question.end:
        query["endOffset"] = question.end
    if question.token:
        query["pageToken"] = question.token
    if user_project is not None:
        query["userProject"] = user_project
    return f"{endpoint}/storage/v1/b/{quote(bucket, safe='')}/o?{urlencode(query)}"


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing.

    Attributes:
        items: Name and info of each object, in order.
        names: All names and common prefixes, in order: where the listing has come to.
        token: Of the next page; None behind the last one.
        sent_in_order: Whether the server had put them so, as one must that tells where it has come to.
    """

    items: list[tuple[str, ObjectInfo]]
    names: list[str]
    token: str | None
    sent_in_order: bool = True


def parse_page(body: bytes, bucket: str, scheme: str) -> Page:
    """Reads one page of a listing."""
    page = _parse_json(body)
    items, prefixes = page.get("items", []), page.get("prefixes", [])
    if not isinstance(items, list) or not isinstance(prefixes, list) or not all(isinstance(i, dict) for i in items):
        raise read_failed("a listing without a list of objects", FailureCause.MALFORMED)
    token = page.get("nextPageToken")
    if not all(isinstance(item.get("name"), str) for item in items):
        raise read_failed("a listing of objects without names", FailureCause.MALFORMED)
    infos = [(item["name"], _info_of(item, f"{scheme}://{bucket}/{item['name']}")) for item in items]
    sent = [name for name, _ in infos]
    names = sorted(sent)
    in_order = names == sent
    if not in_order:
        infos.sort(key=operator.itemgetter(0))
    if prefixes:
        names = sorted([*names, *map(str, prefixes)])
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise StorageError("a listing with a name that is not text") from None
    return Page(infos, names, str(token) if token else None, in_order)


def parse_stat(body: bytes, url: str) -> ObjectInfo:
    """The info in the answer to a metadata request."""
    return _info_of(_parse_json(body), url)


def check_written(body: bytes, url: str, nbytes: int) -> None:
    """Refuses the answer to an upload unless it describes an object of this size.

    Proxies and login pages between here and the server answer 200 too.
    """
    try:
        confirmed = parse_stat(body, url).size == nbytes
    except ReadFailedError:
        confirmed = False
    if not confirmed:
        raise read_failed("the server does not confirm what was written", FailureCause.MALFORMED, url=url)


def _parse_json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise read_failed(f"not JSON: {shorten(body, 80)!r}", FailureCause.MALFORMED) from None
    if not isinstance(value, dict):
        raise read_failed("not a JSON object", FailureCause.MALFORMED)
    return value


def _info_of(item: Mapping[str, Any], url: str) -> ObjectInfo:
    try:
        size, generation = _whole_number(item["size"]), str(_whole_number(item["generation"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise read_failed("metadata without size or generation", FailureCause.MALFORMED, url=url) from None
    if size < 0:
        raise read_failed(f"metadata with a size of {size}", FailureCause.MALFORMED, url=url)
    return ObjectInfo(url=url, size=size, version=generation, crc32c=_parse_crc(item.get("crc32c")))


def _whole_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{type(value).__name__} is not an integer")
    return int(value)


def crc_of(head: ResponseHead) -> int | None:
    """The CRC-32C of the whole object, of which ``x-goog-hash`` tells, whatever range the answer has."""
    for part in head.headers.get("x-goog-hash", "").split(","):
        kind, _, value = part.strip().partition("=")
        if kind == "crc32c":
            return _parse_crc(value)
    return None


def _parse_crc(text: object) -> int | None:
    """Four bytes, the most significant first, in base64; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return int.from_bytes(raw, "big") if len(raw) == 4 else None


def check_media_head(head: ResponseHead, info: ObjectInfo, start: int) -> None:
    """Refuses an answer whose body is not the stored bytes of the wanted generation, or whose object has another size.

    Raises:
        ObjectChangedError: Another generation.
        EncodedBodyError: The server compressed or decompressed the body.
        ReadFailedError: A whole answer of another size: it is not from GCS, but from something on the way to it.
    """
    if head.status not in {200, 206}:
        return
    headers = head.headers
    sent = headers.get("x-goog-generation")
    if info.version is not None and sent is not None and sent != info.version:
        raise object_changed(info, sent, start=start, note=" (generations)")
    stored = headers.get("x-goog-stored-content-encoding", "identity")
    coding = headers.get("content-encoding", "identity")
    if "gunzipped" in headers.get("x-guploader-response-body-transformations", "") or stored != coding:
        raise EncodedBodyError(
            f"the server re-encoded the body (stored as {stored}, sent as {coding}); its ranges are meaningless"
        )
    if head.status == 200 and info.size >= 0 and head.object_size not in {None, info.size}:
        raise read_failed(
            f"the server answered 200 with {head.object_size} bytes for an object of {info.size}",
            FailureCause.MALFORMED,
        )
    if head.status == 206 and info.size >= 0 and headers.get("content-range", "").endswith(f"/{info.size}"):
        return  # as nearly all are; whether it is a range at all is looked at where the body is placed
    total = head.object_size
    if total is not None and info.size >= 0 and total != info.size:
        raise object_resized(info, total, start=start, found=sent)


def is_gone(status: int) -> bool:
    """Whether the status of a pinned read means that its generation is not the live one any more."""
    return status in {404, 412}


def answer_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    url: str,
    version: str | None = None,
    offset: int | None = None,
) -> StorageError:
    """The typed error for an answer without the wanted body."""
    message, reasons = _error_details(body)
    retry_after_s = parse_retry_after(headers.get("retry-after"))
    if status == 403 and _THROTTLE_REASONS & reasons:
        return read_failed(
            f"the server answered 403: {message}",
            FailureCause.THROTTLED,
            retry_after_s=retry_after_s,
            url=url,
            version=version,
            offset=offset,
        )
    return status_error(status, message, url=url, version=version, offset=offset, retry_after_s=retry_after_s)


def _error_details(body: bytes) -> tuple[str, frozenset[str]]:
    """(message, reasons) of an error answer, JSON or not."""
    try:
        error = json.loads(body)["error"]
        reasons = frozenset(str(item.get("reason")) for item in error.get("errors", []))
        return shorten(str(error.get("message", "")).encode()), reasons
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return shorten(body), frozenset()
