"""Google's Retry Test API."""

from __future__ import annotations

import http.client

import pytest

from fake_gcs import FakeGCS
from fake_gcs.errors import GCSError
from fake_gcs.faults import Fault
from fake_gcs.retry_test import parse_instruction
from tests.fake_gcs.asking import ask, send

KIB = 1024


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("return-503", Fault(kind="status", status=503)),
        ("return-408-after-256K", Fault(kind="status", status=408, after_bytes=256 * KIB)),
        ("return-broken-stream", Fault(kind="truncate", after_bytes=0)),
        ("return-broken-stream-after-4K", Fault(kind="truncate", after_bytes=4 * KIB)),
        ("return-broken-stream-final-chunk-after-10B", Fault(kind="truncate", after_bytes=10)),
        ("return-reset-connection", Fault(kind="reset")),
        ("stall-for-2s-after-1M", Fault(kind="stall", seconds=2.0, after_bytes=KIB * KIB)),
    ],
)
def test_instructions_become_faults(text: str, fault: Fault) -> None:
    """Each kind of instruction means one fault."""
    assert parse_instruction(text) == fault


@pytest.mark.parametrize(
    "text", ["", "return-", "return-99", "return-200", "stall-for-2s", "break-everything", "return-503-after-5X"]
)
def test_unknown_instructions_are_refused(text: str) -> None:
    """Anything else is 400, not a test that silently does nothing."""
    with pytest.raises(GCSError):
        parse_instruction(text)


def test_instructions_are_used_up_by_their_operation(memory: FakeGCS) -> None:
    """Only requests with the id and of the operation are hit, in order, and the test tells when it is done."""
    memory.put("bkt", "x", b"data")
    made = send(
        memory,
        "POST",
        "/retry_test",
        {"instructions": {"storage.objects.get": ["return-503", "return-429"], "storage.objects.list": ["return-502"]}},
    )
    key = made.json["id"]
    assert made.json["completed"] is False

    def get(path: str) -> int:
        return ask(memory, "GET", path, x_retry_test_id=key).status

    assert ask(memory, "GET", "/bkt/x").status == 200
    assert [get("/bkt/x"), get("/storage/v1/b/bkt/o/x"), get("/bkt/x")] == [503, 429, 200]
    assert ask(memory, "GET", f"/retry_test/{key}").json["instructions"]["storage.objects.list"] == ["return-502"]
    assert get("/storage/v1/b/bkt/o") == 502
    assert ask(memory, "GET", f"/retry_test/{key}").json["completed"] is True
    assert ask(memory, "DELETE", f"/retry_test/{key}").status == 200
    assert ask(memory, "GET", f"/retry_test/{key}").status == 404
    assert [entry.fault for entry in memory.journal.faults()] == [
        "status status=503",
        "status status=429",
        "status status=502",
    ]


def test_an_upload_keeps_what_came_before_the_fault(memory: FakeGCS) -> None:
    """``return-503-after-256K`` on a resumable upload persists 256 KiB; the client goes on from there."""
    key = send(
        memory, "POST", "/retry_test", {"instructions": {"storage.objects.insert": ["return-503-after-256K"]}}
    ).json["id"]
    data = bytes(range(256)) * (4 * KIB)
    start = send(memory, "POST", "/upload/storage/v1/b/bkt/o?uploadType=resumable&name=x", {})
    place = start.headers["Location"].removeprefix(memory.url)
    total = f"bytes 0-{len(data) - 1}/{len(data)}"
    assert ask(memory, "PUT", place, data, Content_Range=total, x_retry_test_id=key).status == 503
    asked = ask(memory, "PUT", place, b"", Content_Range=f"bytes */{len(data)}")
    assert (asked.status, asked.headers["Range"]) == (308, f"bytes=0-{256 * KIB - 1}")
    rest = f"bytes {256 * KIB}-{len(data) - 1}/{len(data)}"
    assert ask(memory, "PUT", place, data[256 * KIB :], Content_Range=rest).status == 200
    assert memory.read("bkt", "x") == data


def test_the_place_of_a_fault_is_counted_over_the_whole_upload(memory: FakeGCS) -> None:
    """By chunks, with the id on every request: it strikes in the chunk that reaches it; none before uses it up."""
    instructions = {"storage.objects.insert": ["return-503-after-768K", "return-408"]}
    key = send(memory, "POST", "/retry_test", {"instructions": instructions}).json["id"]
    data, size = bytes(range(256)) * (4 * KIB), 512 * KIB
    begun = send(memory, "POST", "/upload/storage/v1/b/bkt/o?uploadType=resumable&name=x", {}, x_retry_test_id=key)
    place = begun.headers["Location"].removeprefix(memory.url)

    def put(data: bytes, content_range: str) -> tuple[int, str | None]:
        answer = ask(memory, "PUT", place, data, Content_Range=content_range, x_retry_test_id=key)
        return answer.status, answer.headers.get("Range")

    assert put(data[:size], f"bytes 0-{size - 1}/{len(data)}") == (308, f"bytes=0-{size - 1}")
    assert put(data[size:], f"bytes {size}-{len(data) - 1}/{len(data)}") == (503, None)
    assert put(b"", f"bytes */{len(data)}") == (408, None)
    assert put(b"", f"bytes */{len(data)}") == (308, f"bytes=0-{768 * KIB - 1}")
    assert put(data[768 * KIB :], f"bytes {768 * KIB}-{len(data) - 1}/{len(data)}") == (200, None)
    assert memory.read("bkt", "x") == data
    assert ask(memory, "GET", f"/retry_test/{key}").json["completed"] is True


def test_a_broken_stream_is_shorter_than_announced(memory: FakeGCS) -> None:
    """``return-broken-stream-after-1K`` sends exactly that much of what was announced."""
    memory.put("bkt", "x", b"z" * 5000)
    key = send(
        memory, "POST", "/retry_test", {"instructions": {"storage.objects.get": ["return-broken-stream-after-1K"]}}
    ).json["id"]
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(memory, "GET", "/bkt/x", x_retry_test_id=key)
    assert len(caught.value.partial) == 1024
