from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.storage.ranges import ByteRange, coalesce_ranges, split_range

offsets = st.integers(0, 500)
ranges = st.builds(lambda start, size: ByteRange(start, start + size), offsets, st.integers(0, 60))


@given(start=offsets, size=offsets, chunk=st.integers(1, 70))
def test_split_ranges_tile_the_whole(start: int, size: int, chunk: int) -> None:
    """The pieces follow one another without gap or overlap, and only the last one may be short."""
    pieces = list(split_range(start, start + size, chunk))
    assert sum(piece.size for piece in pieces) == size
    at = start
    for piece in pieces:
        assert piece.start == at
        at = piece.stop
    assert all(piece.size == chunk for piece in pieces[:-1])
    assert all(piece.size > 0 for piece in pieces)


@given(wanted=st.lists(ranges, max_size=12), gap=st.integers(0, 50), cap=st.none() | st.integers(1, 200))
def test_coalesced_spans_cover_every_range_once(wanted: list[ByteRange], gap: int, cap: int | None) -> None:
    """Each range lies in exactly one span, spans begin and end with a range, and the cap holds for joined spans."""
    joined = coalesce_ranges(wanted, max_gap_bytes=gap, max_span_bytes=cap)
    assert sorted(index for item in joined for index in item.parts) == list(range(len(wanted)))
    for item in joined:
        parts = [wanted[index] for index in item.parts]
        assert item.span.start == min(part.start for part in parts)
        assert item.span.stop == max(part.stop for part in parts)
        if cap is not None and len(parts) > 1:
            assert item.span.size <= cap
        reach = parts[0].stop
        for part in parts[1:]:
            assert part.start - reach <= gap
            reach = max(reach, part.stop)
    if cap is None:
        for left, right in itertools.pairwise(joined):
            assert right.span.start - left.span.stop > gap


def test_neighbours_are_joined_and_far_ones_are_not() -> None:
    """The gap decides."""
    wanted = [ByteRange(100, 110), ByteRange(0, 10), ByteRange(12, 20)]
    assert [(item.span, item.parts) for item in coalesce_ranges(wanted, max_gap_bytes=2)] == [
        (ByteRange(0, 20), (1, 2)),
        (ByteRange(100, 110), (0,)),
    ]
    assert len(coalesce_ranges(wanted, max_gap_bytes=1)) == 3


@pytest.mark.parametrize("bad", [(-1, 2), (3, 2)])
def test_impossible_ranges_are_refused(bad: tuple[int, int]) -> None:
    """A range has a start at or before its stop, and neither is negative."""
    with pytest.raises(ValueError, match="not a byte range"):
        ByteRange(*bad)


def test_senseless_limits_are_refused() -> None:
    """Chunk sizes are positive, gaps not negative."""
    with pytest.raises(ValueError, match="chunk_bytes"):
        list(split_range(0, 1, 0))
    with pytest.raises(ValueError, match="max_gap_bytes"):
        coalesce_ranges([], max_gap_bytes=-1)
