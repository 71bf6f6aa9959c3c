from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from asyncdata.errors import AccessDeniedError, ObjectNotFoundError, StorageError, TransientStorageError
from asyncdata.storage.statuses import parse_retry_after, shorten, status_error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, TransientStorageError) for status in (408, 425, 429, 500, 502, 503, 504, 520)),
        *((status, AccessDeniedError) for status in (401, 403, 407)),
        *((status, ObjectNotFoundError) for status in (404, 410)),
        *((status, StorageError) for status in (400, 405, 412, 501, 304)),
    ],
)
def test_the_table(status: int, kind: type[StorageError]) -> None:
    """Each status means exactly one class of error."""
    error = status_error(status, "words", url="u", version="1", offset=3, retry_after_s=2.0)
    assert isinstance(error, kind)
    assert isinstance(error, TransientStorageError) == (kind is TransientStorageError)
    assert str(status) in str(error)
    assert "words" in str(error)
    assert error.place() == {"url": "u", "version": "1", "offset": 3}


def test_retry_after_in_both_forms() -> None:
    """Seconds or a date; nonsense is no wish at all."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_retry_after("7") == 7.0
    assert parse_retry_after("Thu, 01 Jan 2026 00:00:30 GMT", now) == 30.0
    assert parse_retry_after("Thu, 01 Jan 2026 00:00:30 -0000", now) == 30.0
    assert parse_retry_after("Thu, 01 Jan 2025 00:00:30 GMT", now) == 0.0
    beyond = ("Thu, 01 Jan 99999999999999999999 00:00:30 GMT", "Thu, 01 Jan 2026 00:00:30 +999999999999999999")
    for nonsense in (None, "", "soon", "-3", "1e3", "²", *beyond):
        assert parse_retry_after(nonsense) is None
    assert parse_retry_after("1000000000") == 1e9
    assert (parse_retry_after("9" * 400) or 0) > 1e300
    later = datetime.now(UTC) + timedelta(hours=1)
    assert 3500 < (parse_retry_after(later.strftime("%a, %d %b %Y %H:%M:%S GMT")) or 0) < 3700


def test_words_are_shortened_to_one_line() -> None:
    """What a server says fits into a message."""
    assert shorten(b"a\n  b\xff") == "a b\ufffd"
    assert len(shorten(b"x" * 10_000)) == 300
    assert shorten(b"<!DOCTYPE HTML>\n<html><head><title> Not\nhere</title></head><body>") == "Not here"
    assert shorten(b"<html><body>" + b"x" * 9000) == "a page for browsers"
