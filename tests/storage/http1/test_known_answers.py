"""Known answers are those that would be taken anyway: compared with parsing, checking and planning each."""

from __future__ import annotations

import random

import pytest

from asyncdata.errors import StorageError
from asyncdata.storage.gcs.requests import check_media_head
from asyncdata.storage.http1.body_plan import BodyPlan, plan_body
from asyncdata.storage.http1.head import MalformedHeadError, ResponseHead, parse_head
from asyncdata.storage.http1.known_answers import KnownAnswers, KnownObject
from asyncdata.types import ObjectInfo

SIZE, VERSION = 1000, "17"
OBJECT = KnownObject(SIZE, VERSION)
INFO = ObjectInfo(url="gs://bucket/object", size=SIZE, version=VERSION)
LINES = (
    "HTTP/1.1 206 Partial Content",
    "Date: Thu, 01 Jan 2026 00:00:00 GMT",
    "Content-Length: {length}",
    "X-Goog-Generation: 17",
    "Content-Range: bytes {start}-{last}/1000",
    "X-Goog-Hash: crc32c=AAAAAA==",
)
ODD = (
    "Content-Range: bytes 0-9/1000",
    "content-range: bytes {start}-{last}/1000",
    "Content-Range: bytes {start}-{last}/1001",
    "Content-Range: bytes {start}-{last}/*",
    "Content-Range: bytes 0{start}-{last}/1000",
    "X: a Content-Range: bytes {start}-{last}/1000",
    "Content-Length: 11",
    "Content-Length: 010",
    "Transfer-Encoding: chunked",
    "Content-Encoding: gzip",
    "X-Goog-Generation: 18",
    "Connection: close",
    "HTTP/1.1 200 OK",
    "HTTP/1.0 206 Partial Content",
    "HTTP/1.1 503 Service Unavailable",
    "no header",
)


def raw_head(draw: random.Random, start: int, length: int) -> bytes:
    """As a server writes it, mostly."""
    lines = list(LINES)
    while draw.random() < 0.4:
        odd = draw.choice(ODD)
        how = draw.random()
        if odd.startswith("HTTP") or how < 0.5:
            lines[0 if odd.startswith("HTTP") else draw.randrange(1, len(lines))] = odd
        else:
            lines.insert(draw.randrange(1, len(lines) + 1), odd)
    if draw.random() < 0.2:
        draw.shuffle(lines)
    if draw.random() < 0.1:
        del lines[draw.randrange(len(lines))]
    text = "\r\n".join(lines or [""])
    return (
        text.replace("{start}", str(start))
        .replace("{last}", str(start + length - 1))
        .replace("{length}", str(length))
        .encode()
    )


def judged(raw: bytes, start: int, length: int) -> tuple[ResponseHead, BodyPlan] | None:
    """What becomes of an answer about which nothing is known; None for one that is refused."""
    try:
        head = parse_head(raw)
        check_media_head(head, INFO, start)
        return head, plan_body(head, start=start, length=length)
    except (StorageError, MalformedHeadError):
        return None


def without_range(head: ResponseHead) -> ResponseHead:
    return head._replace(headers={name: value for name, value in head.headers.items() if name != "content-range"})


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(20))
def test_what_is_known_would_be_taken_anyway(seed: int) -> None:
    """Of thousands of answers, most of them odd, in one memory."""
    draw = random.Random(seed)
    answers = KnownAnswers()
    found = taken = 0
    for _ in range(2000):
        start, length = draw.randrange(SIZE - 10), draw.choice((1, 10))
        raw = raw_head(draw, start, length)
        buffer = bytearray(raw + b"\r\n\r\n" + draw.randbytes(5))
        judgement = judged(raw, start, length)
        head = answers.find(buffer, len(raw), start, length, OBJECT)
        whole = judgement is not None and judgement[0].status == 206 and judgement[1].size == length
        taken += whole
        if head is not None:
            found += 1
            assert judgement is not None
            assert judgement[1] == BodyPlan(wanted=True, size=length, total=SIZE)
            assert head == without_range(judgement[0])
        elif judgement is not None and whole:
            answers.note(buffer, len(raw), start, length, OBJECT, judgement[0])
    assert found > taken / 2


def test_another_version_or_size_or_length_is_not_known() -> None:
    """All that an answer was checked for."""
    answers = KnownAnswers()
    raw = "\r\n".join(LINES).format(start=0, last=9, length=10).encode()
    buffer = bytearray(raw + b"\r\n\r\n")
    answers.note(buffer, len(raw), 0, 10, OBJECT, parse_head(raw))
    assert answers.find(buffer, len(raw), 0, 10, OBJECT) is not None
    assert answers.find(buffer, len(raw), 0, 10, KnownObject(SIZE, "18")) is None
    assert answers.find(buffer, len(raw), 0, 10, KnownObject(SIZE + 1, VERSION)) is None
    assert answers.find(buffer, len(raw), 0, 11, OBJECT) is None
    assert answers.find(buffer, len(raw), 1, 9, OBJECT) is None


def test_the_memory_is_bounded() -> None:
    """Heads that never come again are forgotten, and long ones are not kept."""
    answers = KnownAnswers()
    for number in range(10_000):
        raw = f"HTTP/1.1 206 \r\nContent-Length: 1\r\nX: {number}\r\nContent-Range: bytes 0-0/1000".encode()
        answers.note(bytearray(raw + b"\r\n\r\n"), len(raw), 0, 1, OBJECT, parse_head(raw))
    assert 0 < len(answers) <= 256
    long = f"HTTP/1.1 206 \r\nContent-Length: 1\r\nX: {'x' * 5000}\r\nContent-Range: bytes 0-0/1000".encode()
    answers.note(bytearray(long + b"\r\n\r\n"), len(long), 0, 1, OBJECT, parse_head(long))
    assert answers.find(bytearray(long + b"\r\n\r\n"), len(long), 0, 1, OBJECT) is None
