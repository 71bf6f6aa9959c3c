"""The Range and Content-Range headers."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_gcs.byte_ranges import ContentRange, parse_content_range, resolve_range
from fake_gcs.errors import GCSError
from tests.fake_gcs.asking import refusal_of


@pytest.mark.parametrize(
    ("header", "size", "expected"),
    [
        ("bytes=0-9", 100, (0, 10)),
        ("bytes=90-", 100, (90, 100)),
        ("bytes=90-500", 100, (90, 100)),
        ("bytes=90-9223372036854775807", 100, (90, 100)),
        ("bytes=-10", 100, (90, 100)),
        ("bytes=-500", 100, (0, 100)),
        (None, 100, None),
        ("bytes=5-2", 100, None),
        ("items=0-1", 100, None),
        ("bytes=0-1,3-4", 100, None),
        ("bytes=-", 100, None),
        ("bytes=a-b", 100, None),
    ],
)
def test_a_range_is_clipped_or_ignored(header: str | None, size: int, expected: tuple[int, int] | None) -> None:
    """An end behind the object is clipped; a header in a form that is not served is ignored."""
    assert resolve_range(header, size) == expected


@pytest.mark.parametrize(("header", "size"), [("bytes=100-", 100), ("bytes=0-", 0), ("bytes=-5", 0), ("bytes=-0", 9)])
def test_a_range_behind_the_end_is_416_and_tells_the_size(header: str, size: int) -> None:
    """The refusal carries ``Content-Range: bytes */SIZE``."""
    with pytest.raises(GCSError) as caught:
        resolve_range(header, size)
    assert caught.value.status == 416
    assert caught.value.headers == (("Content-Range", f"bytes */{size}"),)


@given(st.text(max_size=30), st.integers(0, 100))
def test_any_range_header_gives_bytes_inside_the_object(header: str, size: int) -> None:
    """Whatever is asked, what is given is a non-empty stretch of the object, everything, or 416."""
    for text in (header, f"bytes={header}"):
        if refusal_of(partial(resolve_range, text, size)) != 416:
            span = resolve_range(text, size)
            assert span is None or 0 <= span[0] < span[1] <= size


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes 0-99/*", ContentRange(0, 100, None)),
        ("bytes 0-99/100", ContentRange(0, 100, 100)),
        ("bytes */100", ContentRange(None, None, 100)),
        ("bytes */*", ContentRange(None, None, None)),
    ],
)
def test_content_range_forms(header: str, expected: ContentRange) -> None:
    """The four forms of a resumable upload."""
    assert parse_content_range(header) == expected


@pytest.mark.parametrize("header", ["bytes 5-2/*", "bytes 0-100/100", "bytes 0-1", "0-1/2", "bytes a-b/c", ""])
def test_other_content_ranges_are_refused(header: str) -> None:
    """Anything else is 400."""
    with pytest.raises(GCSError) as caught:
        parse_content_range(header)
    assert caught.value.status == 400
