from __future__ import annotations

import pytest

from asyncdata.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UnsupportedURLError,
)
from asyncdata.storage.failures import EncodedBodyError, FailureCause, ReadFailedError
from asyncdata.storage.gcs.names import Question
from asyncdata.storage.gcs.requests import (
    Listing,
    Page,
    answer_error,
    check_media_head,
    list_url,
    media_url,
    parse_page,
    parse_stat,
    plan_listings,
    stat_url,
)
from asyncdata.storage.globs import compile_glob
from asyncdata.storage.http1.head import ResponseHead
from asyncdata.types import ObjectInfo


def head(status: int = 206, **headers: str) -> ResponseHead:
    """A head with headers given as keywords."""
    return ResponseHead(status, "", {name.replace("_", "-"): text for name, text in headers.items()}, keep_alive=True)


def test_urls_quote_every_character_of_a_name() -> None:
    """A slash, a percent sign or a question mark in a name is part of the name."""
    assert media_url("http://e", "gs://b/a/b%2F?c d", "7", None) == (
        "http://e/download/storage/v1/b/b/o/a%2Fb%252F%3Fc%20d?alt=media&generation=7"
    )
    assert stat_url("http://e", "gs://b/ä", "me") == (
        "http://e/storage/v1/b/b/o/%C3%A4?fields=name%2Csize%2Cgeneration%2Ccrc32c&userProject=me"
    )
    for bad in ("gs://b", "gs://b/", "gs://b/folder/", "gs:///o"):
        with pytest.raises(UnsupportedURLError):
            media_url("http://e", bad, None, None)


@pytest.mark.parametrize(
    ("pattern", "listings"),
    [
        ("a/*.rec", [Listing("a/", shallow=True, match_glob=None)]),
        ("a/x-*.{rec,gz}", [Listing("a/x-", shallow=True, match_glob=None)]),
        ("a/**", [Listing("a/", shallow=False, match_glob=None)]),
        ("a/*/b*.rec", [Listing("a/", shallow=False, match_glob="a/*/b*.rec")]),
        ("a/[0-9]/b", [Listing("a/", shallow=False, match_glob=None)]),
        ("{a,b}/*", [Listing("a/", shallow=True, match_glob=None), Listing("b/", shallow=True, match_glob=None)]),
        ("{a/**,a/b/*}", [Listing("a/", shallow=False, match_glob=None)]),
        ("{a/*,a/b/*}", [Listing("a/", shallow=True, match_glob=None), Listing("a/b/", shallow=True, match_glob=None)]),
    ],
)
def test_globs_become_few_listings(pattern: str, listings: list[Listing]) -> None:
    """One per prefix that no other covers, shallow where nothing deeper can match."""
    assert plan_listings(compile_glob(pattern)) == listings


def test_list_urls_ask_for_no_more_than_is_needed() -> None:
    """Three fields, a prefix, a delimiter for shallow listings."""
    question = Question(0, "a/k", "a/p", "tok/en")
    url = list_url("http://e", "b", Listing("a/", shallow=True, match_glob=None), question, None)
    assert url.startswith("http://e/storage/v1/b/b/o?")
    fields = "fields=nextPageToken%2Cprefixes%2Citems%28name%2Csize%2Cgeneration%2Ccrc32c%29"
    for part in (fields, "delimiter=%2F", "pageToken=tok%2Fen", "startOffset=a%2Fk", "endOffset=a%2Fp"):
        assert part in url
    assert "Offset" not in list_url("http://e", "b", Listing("a/", True, None), Question(0, "", "", None), None)


def test_pages_and_metadata_are_parsed() -> None:
    """Numbers come as strings; nonsense is a transient failure, never a KeyError."""
    page = b'{"items": [{"name": "x", "size": "5", "generation": "7"}], "prefixes": ["a/"], "nextPageToken": "t"}'
    item = ("x", ObjectInfo(url="gs://b/x", size=5, version="7"))
    assert parse_page(page, "b", "gs") == Page([item], ["a/", "x"], "t")
    assert parse_page(b"{}", "b", "gs") == Page([], [], None)
    assert parse_stat(b'{"size": "5", "generation": "7"}', "gs://b/x").version == "7"
    for nonsense in (
        b"",
        b"[]",
        b"<html>",
        b'{"items": 1}',
        b'{"items": [{}]}',
        b'{"items": ["x"]}',
        b'{"prefixes": {}}',
        b'{"items":[{"name":"x","size":"y"}]}',
        b'{"items":[{"name":"x","size":"-5","generation":"1"}]}',
        b'{"items":[{"name":"x","size":Infinity,"generation":"1"}]}',
        b'{"items":[{"size":"5","generation":"1"}]}',
        b"[" * 100_000,
    ):
        with pytest.raises(ReadFailedError):
            parse_page(nonsense, "b", "gs")
        with pytest.raises(ReadFailedError):
            parse_stat(nonsense, "gs://b/x")
    for wrong in (b'{"size":"-5","generation":"7"}', b'{"size":1e999,"generation":"7"}'):
        with pytest.raises(ReadFailedError):
            parse_stat(wrong, "gs://b/x")
    assert "404" in str(answer_error(404, {}, b"[" * 60_000, url="gs://b/x"))


def listed(version: str | None, size: int = -1) -> ObjectInfo:
    return ObjectInfo(url="gs://b/x", size=size, version=version)


def test_another_size_is_refused() -> None:
    """Before a byte is placed; both sizes are named."""
    sent = head(206, content_range="bytes 0-4/10", x_goog_generation="7")
    check_media_head(sent, listed("7", 10), 0)
    check_media_head(sent, listed(None), 0)
    with pytest.raises(ObjectChangedError, match=r"9 bytes were listed, now it has 10"):
        check_media_head(sent, listed("7", 9), 0)


def test_another_generation_is_refused() -> None:
    """Both generations are named."""
    check_media_head(head(x_goog_generation="7"), listed("7"), 0)
    check_media_head(head(x_goog_generation="7"), listed(None), 0)
    check_media_head(head(404, x_goog_generation="8"), listed("7"), 0)
    with pytest.raises(ObjectChangedError, match=r"7.*8"):
        check_media_head(head(x_goog_generation="8"), listed("7"), 0)


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ({}, True),
        ({"x_goog_stored_content_encoding": "identity"}, True),
        ({"x_goog_stored_content_encoding": "gzip", "content_encoding": "gzip"}, True),
        ({"x_goog_stored_content_encoding": "gzip"}, False),
        ({"content_encoding": "gzip"}, False),
        ({"x_goog_stored_content_encoding": "identity", "content_encoding": "gzip"}, False),
        ({"x_guploader_response_body_transformations": "gunzipped"}, False),
    ],
)
def test_a_body_that_was_recoded_is_refused(headers: dict[str, str], good: bool) -> None:
    """Only the stored bytes are taken."""
    if good:
        check_media_head(head(200, **headers), listed(None), 0)
    else:
        with pytest.raises(EncodedBodyError):
            check_media_head(head(200, **headers), listed(None), 0)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, b'{"error": {"code": 404, "message": "No such object"}}', ObjectNotFoundError),
        (403, b'{"error": {"message": "m", "errors": [{"reason": "forbidden"}]}}', AccessDeniedError),
        (403, b'{"error": {"message": "m", "errors": [{"reason": "rateLimitExceeded"}]}}', TransientStorageError),
        (429, b"", TransientStorageError),
        (503, b"<html>busy</html>", TransientStorageError),
        (400, b'{"error": "strange"}', StorageError),
        (400, b'{"error": {"errors": 5}}', StorageError),
    ],
)
def test_errors_are_classified_by_status_and_reason(status: int, body: bytes, kind: type[StorageError]) -> None:
    """The server's words are quoted, its reasons decide where the status does not."""
    error = answer_error(status, {"retry-after": "3"}, body, url="gs://b/x", version="7", offset=5)
    assert isinstance(error, kind)
    assert error.place() == {"url": "gs://b/x", "version": "7", "offset": 5}
    if isinstance(error, TransientStorageError):
        assert error.retry_after_s == 3.0
    if status == 403 and isinstance(error, ReadFailedError):
        assert error.cause is FailureCause.THROTTLED
