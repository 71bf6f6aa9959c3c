from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.storage.failures import FailureCause, RangeIgnoredError, ReadFailedError, UnframedBodyError
from asyncdata.storage.http1.body_plan import BodyPlan, join_chunks, plan_body
from asyncdata.storage.http1.head import ResponseHead


def head(status: int, **headers: str) -> ResponseHead:
    """A head with headers given as keywords."""
    return ResponseHead(status, "", {name.replace("_", "-"): text for name, text in headers.items()}, keep_alive=True)


@given(start=st.integers(0, 50), length=st.integers(1, 50), first=st.integers(0, 60), size=st.integers(1, 60))
def test_a_206_is_taken_only_if_it_answers_the_question(start: int, length: int, first: int, size: int) -> None:
    """It begins where it was asked to begin, does not reach beyond, and its length is that of its range."""
    answer = head(206, content_length=str(size), content_range=f"bytes {first}-{first + size - 1}/200")
    if first == start and size <= length:
        assert plan_body(answer, start=start, length=length) == BodyPlan(wanted=True, size=size, total=200)
    else:
        with pytest.raises(ReadFailedError) as caught:
            plan_body(answer, start=start, length=length)
        assert caught.value.cause is FailureCause.MALFORMED


def test_a_206_that_lies_about_its_length_is_refused() -> None:
    """Content-Length and Content-Range must agree."""
    for size in (3, 5):
        with pytest.raises(ReadFailedError, match="Content-Range"):
            plan_body(head(206, content_length=str(size), content_range="bytes 0-3/9"), start=0, length=8)
    with pytest.raises(ReadFailedError, match="without Content-Range"):
        plan_body(head(206, content_length="4"), start=0, length=8)
    with pytest.raises(ReadFailedError, match="without Content-Range"):
        plan_body(head(206, content_length="4", content_range="bytes */9"), start=0, length=8)


def test_a_200_is_taken_only_as_a_whole_object() -> None:
    """A server without ranges is fine while the whole object was asked for."""
    assert plan_body(head(200, content_length="8"), start=0, length=8) == BodyPlan(wanted=True, size=8, total=8)
    assert plan_body(head(200, content_length="3"), start=0, length=8) == BodyPlan(wanted=True, size=3, total=3)
    for start, size in ((1, 8), (0, 9)):
        with pytest.raises(RangeIgnoredError):
            plan_body(head(200, content_length=str(size)), start=start, length=8)


@pytest.mark.parametrize("status", [200, 206])
def test_a_wanted_body_needs_a_length(status: int) -> None:
    """Chunked bodies and bodies until the end of the connection are for another client."""
    with pytest.raises(UnframedBodyError):
        plan_body(head(status), start=0, length=8)
    with pytest.raises(UnframedBodyError):
        plan_body(head(status, content_length="8", transfer_encoding="chunked"), start=0, length=8)


def test_error_texts_are_collected_aside() -> None:
    """Whatever framing they have."""
    assert plan_body(head(404, content_length="8"), start=0, length=8) == BodyPlan(wanted=False, size=8)
    assert plan_body(head(503), start=0, length=8) == BodyPlan(wanted=False, size=None)
    assert plan_body(head(503, transfer_encoding="chunked"), start=0, length=8) == BodyPlan(wanted=False, size=None)
    assert plan_body(head(304, content_length="8"), start=0, length=8) == BodyPlan(wanted=False, size=0)


@given(chunks=st.lists(st.binary(min_size=1, max_size=20), max_size=5), trailer=st.booleans(), data=st.data())
def test_chunks_are_joined(chunks: list[bytes], trailer: bool, data: st.DataObject) -> None:
    """A complete chunked body gives its content; every true prefix of it is incomplete."""
    raw = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    raw += b"0\r\nA: b\r\n\r\n" if trailer else b"0\r\n\r\n"
    assert join_chunks(raw) == b"".join(chunks)
    assert join_chunks(raw[: data.draw(st.integers(0, len(raw) - 1))]) is None


@pytest.mark.parametrize("raw", [b"zz\r\n", b"2\r\nabc\r\n", b"\r\n", b"-1\r\n", b"f" * 2000])
def test_what_is_not_chunked_is_refused(raw: bytes) -> None:
    """A size that is none, and a chunk that is longer than its size."""
    with pytest.raises(ValueError, match="chunk"):
        join_chunks(raw)
