"""`TarStage` over bytes cut into chunks at will: samples, their order, their provenance, and what they hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from asyncdata.formats.tar import TarFramer
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.tar_samples import TarStage
from tests.formats.test_tar import archive
from tests.runtime.stages.laws import Bench, Make, check_any_blocking, check_cancelling, check_closing, whole
from tests.runtime.stages.test_tfrecord import URL, CutChunks
from tests.samples import samples

MEMBERS: list[tuple[str, bytes | None]] = [
    ("readme", b"no extension"),
    ("d", None),
    ("d/one.TXT", b"cat"),
    ("d/one.cls", b"0"),
    ("d/two.txt", b"dog" * 300),
    ("d/two.cls", b""),
    ("__about__", b"meta"),
    ("d/three.cls", b"2"),
    ("d/three.txt", b"ox"),
    ("x" * 120 + ".seg.png", b"long"),
    ("one.txt", b"again"),
]
SAMPLES: list[dict[str, Any]] = [
    {"__key__": "d/one", "txt": b"cat", "cls": b"0"},
    {"__key__": "d/two", "txt": b"dog" * 300, "cls": b""},
    {"__key__": "d/three", "txt": b"ox", "cls": b"2"},
    {"__key__": "x" * 120, "seg.png": b"long"},
    {"__key__": "one", "txt": b"again"},
]


def reading(data: bytes, cuts: Sequence[int], *, room: int = 64, compressed: bool = False) -> Make:
    """A stage that reads an archive cut into chunks."""

    def make(bench: Bench) -> Stage:
        return TarStage(
            bench.context("Tar"),
            bench.file(URL),
            CutChunks(bench, data, cuts, room=room),
            TarFramer(),
            compressed=compressed,
            reserve_bytes=0,
        )

    return make


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("compressed", [False, True])
def test_samples_wherever_the_bytes_are_cut(end: bool, compressed: bool) -> None:
    """Members in different chunks are one sample; any chunking and any blocking give the same samples and marks."""
    data = archive(MEMBERS, end=end)
    expected = whole(reading(data, [], compressed=compressed))
    assert expected.error is None
    assert expected.elements == SAMPLES
    for seed in range(samples(8, 300)):
        source = random.Random(seed)
        cuts: Sequence[int] = source.choice([range(100, len(data), 100), source.sample(range(len(data)), 20)])
        stage = reading(data, cuts, room=source.choice([1, 50, 600]), compressed=compressed)
        check_any_blocking(stage, seeds=range(seed, seed + 1)).check_same(expected)


def test_a_sample_begins_where_its_mark_says() -> None:
    """The offset of a sample is that of its first header, from which reading gives it and all behind it."""
    data = archive(MEMBERS)
    trace = whole(reading(data, []))
    for number, origin in enumerate(trace.origins):
        assert origin[1] == number
        assert whole(reading(data[origin[3] :], [])).elements == SAMPLES[number:]


def test_closing_and_cancelling_give_everything_back() -> None:
    """Leases: half a sample, samples not delivered yet and large members are given back at any step."""
    stage = reading(archive(MEMBERS), range(500, 20_000, 500), room=8)
    check_closing(stage)
    check_cancelling(stage, steps=range(0, 80, samples(5, 1)))


def test_two_members_with_one_extension_are_an_error() -> None:
    """The samples in front come first; the sample with the double is not delivered, nor is anything behind it."""
    data = archive([("a.txt", b"1"), ("b.txt", b"2"), ("b.TXT", b"3"), ("c.txt", b"4")])
    either: tuple[Sequence[int], ...] = ([], range(300, len(data), 300))
    for cuts in either:
        trace = whole(reading(data, cuts))
        assert trace.elements == [{"__key__": "a", "txt": b"1"}]
        assert trace.error is not None
        assert trace.error.startswith("CorruptRecordError")
        assert "'b'" in trace.error
        assert "record 1" in trace.error


@pytest.mark.parametrize("keep", [700, 1600, 2100])
def test_a_truncated_archive_gives_no_half_sample(keep: int) -> None:
    """Of a sample that the end cuts in two nothing is delivered, since what it lacks is not known."""
    data = archive([("a.txt", b"1" * 600), ("a.cls", b"2" * 100), ("b.txt", b"3")], end=False)[:keep]
    trace = whole(reading(data, [100, 900]))
    assert trace.elements == []
    assert trace.error is not None
    assert trace.error.startswith("BrokenFrameError")
