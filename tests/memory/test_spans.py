"""Spans never overlap, are cached within the limit, and are all accounted for."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from asyncdata.memory.spans import GRANULE, Span, SpanAllocator, Taken

SOAK = bool(os.environ.get("ASYNCDATA_SOAK"))
G = 4096


def took(taken: Taken | None) -> Taken:
    """The taken span, which has to be there."""
    assert taken is not None
    return taken


class Arena(RuleBasedStateMachine):
    """Drives an allocator against a model that knows each granule of the space by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.spans = SpanAllocator(G, G, G)
        self.live: dict[int, Span] = {}
        self.resident: set[int] = set()
        self.limit = self.space = self.elsewhere = self.punched = 0

    @initialize(limit=st.integers(1, 60), times=st.integers(1, 8), odd=st.integers(0, G - 1))
    def start(self, limit: int, times: int, odd: int) -> None:
        """A limit that need not be a multiple of the granule, in a space that may be as small as the limit."""
        self.limit, self.space = limit * G, limit * times * G
        self.spans = SpanAllocator(self.space + odd, self.limit + odd, G)

    def granules(self, offset: int, nbytes: int) -> range:
        return range(offset // G, (offset + nbytes) // G)

    def punch(self, ranges: list[tuple[int, int]]) -> None:
        """Plays the system: a punched range loses its pages, and had every one of them."""
        for offset, nbytes in ranges:
            self.punched += nbytes
            for granule in self.granules(offset, nbytes):
                assert granule in self.resident, "a range without pages was punched"
                self.resident.remove(granule)

    def widest_gap(self) -> int:
        """The longest range without a live span."""
        edges = [0, *(edge for span in sorted(self.live.values()) for edge in (span.offset, span.offset + span.nbytes))]
        edges.append(self.space)
        return max(end - start for start, end in zip(edges[::2], edges[1::2], strict=True))

    def check(self, taken: Taken, nbytes: int) -> None:
        span, punch, is_new = taken
        for offset, length in punch:
            for live in self.live.values():
                assert offset + length <= live.offset or live.offset + live.nbytes <= offset, "punched a live span"
        self.punch(punch)
        assert span.offset % G == 0
        assert span.nbytes % G == 0
        assert span.nbytes >= nbytes
        assert 0 <= span.offset <= span.offset + span.nbytes <= self.space
        granules = -(-nbytes // G)
        assert span.nbytes == granules * G or span.nbytes <= granules * G * 1.125
        for live in self.live.values():
            assert span.offset + span.nbytes <= live.offset or live.offset + live.nbytes <= span.offset, "overlap"
        pages = self.resident.intersection(self.granules(*span))
        assert len(pages) == (0 if is_new else len(self.granules(*span))), "some pages are there, or none are"
        self.live[span.offset] = span
        self.resident.update(self.granules(*span))

    @rule(share=st.floats(0.0, 1.2), exact=st.booleans())
    def take(self, share: float, exact: bool) -> None:
        """Takes anything from one byte to more than the limit."""
        nbytes = max(1, int(self.limit * share))
        if exact:
            nbytes = max(G, nbytes - nbytes % G)
        before = self.spans.used_bytes
        size = self.spans.span_bytes(nbytes)
        taken = self.spans.take(nbytes)
        if taken is None:
            assert self.spans.used_bytes == before
            assert self.widest_gap() < size, "refused although the space has room"
        else:
            assert taken.span.nbytes == size
            self.check(taken, nbytes)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        """Gives any live span back, in any order."""
        offset = data.draw(st.sampled_from(sorted(self.live)))
        assert self.spans.span_at(offset) == self.live.pop(offset)
        self.spans.give(offset)
        assert self.spans.span_at(offset) is None
        with pytest.raises(ValueError, match="no live span"):
            self.spans.give(offset)

    @precondition(lambda self: self.live and self.spans.used_bytes <= self.limit - self.elsewhere)
    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        """A span that is given and asked for again is the same span, without a punch."""
        span = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        self.spans.give(span.offset)
        owed = self.spans.resident_bytes - self.spans.used_bytes - self.spans.cached_bytes
        taken = took(self.spans.take(span.nbytes))
        assert taken.span == span
        assert sum(nbytes for _, nbytes in taken.punch) == owed
        self.check(taken, span.nbytes)

    @rule(keep=st.integers(0, 60))
    def trim(self, keep: int) -> None:
        """Trimming leaves no more cached than asked for."""
        self.punch(self.spans.trim(keep * G))
        assert self.spans.cached_bytes <= keep * G

    @rule(share=st.floats(0.0, 1.2))
    def leave(self, share: float) -> None:
        """What is taken elsewhere is not cached; it comes back when it is not needed there any more."""
        before, self.elsewhere = self.elsewhere, int(self.limit * share)
        self.punch(self.spans.leave(self.elsewhere - before))

    @rule(share=st.floats(0.0, 1.0))
    def everything_back(self, share: float) -> None:
        """With everything given back, any size up to the limit can be taken."""
        for offset in list(self.live):
            self.spans.give(offset)
        self.live.clear()
        assert self.spans.used_bytes == 0
        nbytes = max(1, int(self.limit * share))
        self.check(took(self.spans.take(nbytes)), nbytes)

    @invariant()
    def accounted(self) -> None:
        """Every byte is used, cached or owed, and the pages the system has are these and no others."""
        spans = self.spans
        assert spans.used_bytes == sum(span.nbytes for span in self.live.values())
        assert not spans.cached_bytes or spans.used_bytes + spans.cached_bytes <= self.limit - self.elsewhere
        assert spans.resident_bytes == len(self.resident) * G
        assert spans.used_bytes + spans.cached_bytes <= spans.resident_bytes
        assert spans.punched_bytes == self.punched
        assert all(span.offset + span.nbytes <= spans.top_offset for span in self.live.values())
        assert f"used {spans.used_bytes} " in repr(spans)


def test_state_machine() -> None:
    """No sequence of takes, gives and trims breaks a law of the allocator."""
    run_state_machine_as_test(
        Arena,
        settings=settings(
            max_examples=4000 if SOAK else 120,
            stateful_step_count=80 if SOAK else 40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=not SOAK,
        ),
    )


@given(st.integers(1, 1 << 34))
def test_classes_waste_at_most_an_eighth(nbytes: int) -> None:
    """A class holds its request, is a fixed point, and wastes at most 12.5 % beyond whole granules."""
    spans = SpanAllocator(1 << 40, 1 << 36)
    size = spans.span_bytes(nbytes)
    granules = -(-nbytes // GRANULE)
    assert granules * GRANULE <= size <= granules * GRANULE * 9 // 8
    assert spans.span_bytes(size) == size
    assert spans.span_bytes(nbytes + 1) >= size


def test_eight_classes_per_doubling() -> None:
    """Between 1 and 2 GiB there are eight classes, whatever is asked for."""
    spans = SpanAllocator(1 << 40, 1 << 36)
    assert len({spans.span_bytes(nbytes) for nbytes in range((1 << 30) + 1, 1 << 31, 1 << 20)}) == 8


def test_the_newest_of_a_class_comes_first() -> None:
    """Spans of one class come back last in, first out."""
    spans = SpanAllocator(100 * G, 10 * G, G)
    offsets = [took(spans.take(2 * G)).span.offset for _ in range(3)]
    for offset in offsets:
        spans.give(offset)
    assert [took(spans.take(G + 1)).span.offset for _ in range(3)] == offsets[::-1]


def test_the_oldest_is_evicted_and_no_more_than_needed() -> None:
    """A span that does not fit evicts the cached spans that were given back first."""
    spans = SpanAllocator(100 * G, 10 * G, G)
    offsets = [took(spans.take(2 * G)).span.offset for _ in range(5)]
    for offset in (offsets[3], offsets[0], offsets[4]):
        spans.give(offset)
    taken = took(spans.take(3 * G))
    assert taken.punch == [(offsets[3], 2 * G), (offsets[0], 2 * G)]
    assert spans.cached_bytes == 2 * G
    assert spans.resident_bytes == 9 * G


def test_the_smallest_hole_is_taken_when_the_space_is_used_up() -> None:
    """Without space above, the best fitting hole serves, the lowest of equals."""
    spans = SpanAllocator(12 * G, 12 * G, G)
    offsets = [took(spans.take(n * G)).span.offset for n in (3, 1, 2, 1, 2, 1, 2)]
    for at in (0, 2, 4):
        spans.give(offsets[at])
    assert spans.trim() == [(offsets[0], 3 * G), (offsets[2], 2 * G), (offsets[4], 2 * G)]
    assert took(spans.take(G)).span.offset == offsets[2]
    assert took(spans.take(2 * G)).span.offset == offsets[4]
    assert took(spans.take(3 * G)).span.offset == offsets[0]
    assert took(spans.take(G)).span.offset == offsets[2] + G
    assert spans.take(1) is None


def test_a_failed_take_still_owes_its_punches() -> None:
    """What a failed request evicted stays counted until it is handed out for punching."""
    spans = SpanAllocator(6 * G, 6 * G, G)
    offsets = [took(spans.take(G)).span.offset for _ in range(6)]
    for at in (0, 2, 4):
        spans.give(offsets[at])
    assert spans.take(2 * G) is None
    assert spans.resident_bytes == 6 * G
    taken = took(spans.take(G))
    assert taken.punch == [(offsets[0], G), (offsets[2], G), (offsets[4], G)]
    assert taken.span.offset == offsets[0]
    assert spans.resident_bytes == 4 * G


@pytest.mark.parametrize(("space", "limit", "granule"), [(10, 20, 4), (20, 3, 4), (20, 20, 0)])
def test_senseless_sizes_are_refused(space: int, limit: int, granule: int) -> None:
    """The constructor refuses a space below the limit and a limit below the granule."""
    with pytest.raises(ValueError, match=r"granule|space_bytes"):
        SpanAllocator(space, limit, granule)


def test_nothing_has_a_place_of_its_own() -> None:
    """Empty strings, arrays without elements: a request for no bytes is one for a granule."""
    spans = SpanAllocator(100 * G, 10 * G, G)
    one, other = spans.take(0), spans.take(0)
    assert one is not None
    assert other is not None
    assert one.span.offset != other.span.offset
    assert spans.used_bytes == 2 * G == 2 * spans.span_bytes(0)
    with pytest.raises(ValueError, match="-1 bytes"):
        spans.take(-1)
