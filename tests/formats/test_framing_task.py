"""`FramingTask`: what a worker answers is what the framer says."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest

from asyncdata.formats.fixed_length import FixedLengthFramer
from asyncdata.formats.framing import Framer, Frames, Place, Refs
from asyncdata.formats.framing_task import FramingTask
from asyncdata.formats.json_lines import JsonFramer
from asyncdata.formats.lines import LineFramer
from asyncdata.formats.tfrecord import TFRecordFramer, encode_many
from asyncdata.workers.program import execute
from tests.samples import samples


def tfrecords(draw: random.Random) -> bytes:
    """Records of small sizes, or of one; now and then with a byte that is wrong."""
    most = draw.choice([1, 30, 300])
    data = bytearray(encode_many([draw.randbytes(draw.randrange(most)) for _ in range(draw.randrange(1, 400))]))
    if draw.random() < 0.5:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def lines(draw: random.Random) -> bytes:
    """Lines with either end, and with carriage returns inside of them."""
    words, ends = [b"", b"1", b'"two"', b"three" * 9, b"four\r5\r\rsix"], [b"\n", b"\r\n"]
    return b"".join(draw.choice(words) + draw.choice(ends) for _ in range(99))


FRAMERS: dict[str, tuple[Callable[[], Framer], Callable[[random.Random], bytes]]] = {
    "tfrecord": (lambda: TFRecordFramer(verify=True), tfrecords),
    "not verified": (lambda: TFRecordFramer(verify=False), tfrecords),
    "lines": (LineFramer, lines),
    "json": (JsonFramer, lines),
    "fixed length": (lambda: FixedLengthFramer(7), lines),
}


def shown(frames: Frames) -> dict[str, Any]:
    """What can be compared."""
    values = [[value.rows.tolist(), value.leaf] if isinstance(value, Refs) else list(value) for value in frames.values]
    others = {name: getattr(frames, name) for name in ("stop", "need", "next_line", "ended", "short", "resume")}
    return {"starts": frames.starts.tolist(), "values": values, "error": repr(frames.error), **others}


@pytest.mark.parametrize("name", FRAMERS)
def test_an_answer_is_what_the_framer_says(name: str) -> None:
    """Anywhere in memory, with any limit and any part of the bytes, errors included; also after other questions.

    A question whose worker dies is asked again, and the answer is the same.
    """
    make, content = FRAMERS[name]
    program = pickle.loads(pickle.dumps(FramingTask(make())))
    task = FramingTask(make())
    for seed in range(samples(60, 3000)):
        draw = random.Random(seed)
        data, before = content(draw), draw.randrange(50)
        memory = bytearray(before) + data + bytes(20)
        stop = before + draw.choice([len(data), draw.randrange(len(data) + 1)])
        named: dict[str, Any] = {
            "limit": draw.choice([1, 7, 4096]),
            "remaining": draw.choice([None, len(data)]),
            "last": stop == before + len(data) and draw.random() < 0.5,
            "place": Place(url="memory://b/o", version="1", offset=draw.randrange(9), record=draw.randrange(9)),
        }
        copy = bytearray(memory)
        here = make().frame(memoryview(copy), before, stop, **named)
        question = task.question(before, stop, **named)
        for _ in range(2):
            reply = execute(memoryview(memory), program, question, lambda _nbytes, _slot: (0, 0))
            answer = task.answer(reply, before)
            assert shown(answer.frames) == shown(here), seed
            assert memory == copy, seed
            assert answer.cpu_s >= 0
