from __future__ import annotations

import random
from typing import Any

import pytest

from asyncdata.errors import BrokenFrameError
from asyncdata.formats.framing import Place
from asyncdata.formats.sample_framing import SampleFramer
from asyncdata.formats.tar import part_of
from tests.formats.streams import iter_framed
from tests.formats.test_tar import FORMATS, archive
from tests.samples import samples


def drawn(draw: random.Random) -> list[tuple[str, bytes | None]]:
    """Members: of samples with different extensions, long names among them, and others that belong to none."""
    members: list[tuple[str, bytes | None]] = []
    for number in range(draw.randint(0, 12)):
        key = f"{'d/' * draw.choice([0, 0, 40])}{number}"
        for extension in draw.sample(["a", "b", "seg.png"], draw.randint(0, 3)):
            members.append((f"{key}.{extension}", draw.randbytes(draw.choice([0, 1, 511, 512, 3000]))))
            if draw.random() < 0.2:
                members.append(draw.choice([("README", b"?" * 700), ("folder", None), ("__x__/y.a", b"1")]))
    return members


def grouped(members: list[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    """The samples of these members."""
    found: list[dict[str, Any]] = []
    for name, content in members:
        part = part_of(name)
        if part is None or content is None:
            continue
        if not found or found[-1]["__key__"] != part.key:
            found.append({"__key__": part.key})
        found[-1][part.extension] = content
    return found


@FORMATS
@pytest.mark.parametrize("seed", range(samples(10, 300)))
def test_samples_are_whole_however_bytes_arrive(seed: int, form: int) -> None:
    """As if members were read one by one; also of archives that end without a mark."""
    draw = random.Random(seed)
    members = drawn(draw)
    data = archive(members, form, end=draw.random() < 0.5)
    for size in (len(data) or 1, draw.randint(1, 600), draw.randint(600, 20_000)):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        found = list(iter_framed(SampleFramer(), pieces, block=draw.choice([1, 2, 1024])))
        assert [dict(each) for each in found] == grouped(members)


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7])
def test_no_more_samples_than_asked_for(limit: int) -> None:
    """However many members are found together; what is behind them begins with the next sample."""
    data = archive([(f"{number}.a", b"x") for number in range(6)])
    framer, at, found = SampleFramer(), 0, 0
    while at < len(data):
        frames = framer.frame(
            *(memoryview(data), at, len(data)), limit=limit, remaining=len(data) - at, last=True, place=Place(offset=at)
        )
        count = len(frames.starts)
        assert count == min(limit, 6 - found)
        found, at = found + count, frames.stop
        assert frames.ended == (found == 6)
        if frames.ended:
            break
    assert found == 6


def test_what_is_damaged_is_named() -> None:
    """Samples in front of it are whole, except the last one, of which nobody knows."""
    data = archive([("1.a", b"x"), ("2.a", b"y"), ("3.a", b"z")])
    found = iter_framed(SampleFramer(), [data[:2048] + b"?" * 512 + data[2560:]])
    assert dict(next(found)) == {"__key__": "1", "a": b"x"}
    with pytest.raises(BrokenFrameError, match="a tar header is wrong"):
        next(found)
