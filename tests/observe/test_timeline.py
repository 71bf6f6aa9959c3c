"""Timelines are bounded, keep all of an iteration, and lose no sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncdata.observe.parts import StageStats
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.timeline import MOST_STAGES, OTHERS, Arrivals, Moment, MomentSeries, moment_of

DELIVERIES = st.lists(
    st.tuples(st.integers(0, 1000), st.floats(0, 10), st.floats(0, 10)),  # elements, step, wait
    max_size=60,
)


@given(DELIVERIES, st.sampled_from([2, 4, 8]))
def test_arrivals(deliveries: list[tuple[int, float, float]], most: int) -> None:
    """However often neighbours are added up: elements, deliveries, steps and waits are all there, in order."""
    arrivals = Arrivals(most)
    now = waited = 0.0
    for elements, step, wait in deliveries:
        now, waited = now + step + wait, waited + wait
        arrivals.add(0.0, now, elements, waited)
    kept = arrivals.all()
    assert len(kept) <= most
    assert sum(each.deliveries for each in kept) == len(deliveries)
    assert sum(each.elements for each in kept) == sum(elements for elements, _, _ in deliveries)
    for sums, wanted in ((sum(each.step_s for each in kept), 1), (sum(each.wait_s for each in kept), 2)):
        assert abs(sums - sum(each[wanted] for each in deliveries)) < 1e-6
    assert [each.at_s for each in kept] == sorted(each.at_s for each in kept)
    longest = max((each.longest_wait_s for each in kept), default=0.0)
    assert abs(longest - max((wait for _, _, wait in deliveries), default=0.0)) < 1e-6


@given(st.lists(st.integers(0, 100), min_size=1, max_size=300), st.sampled_from([2, 5, 16]))
def test_moments(used: list[int], most: int) -> None:
    """The first, the last and the fullest are kept, and those between them at equal distances."""
    moments = MomentSeries(most)
    for tick, nbytes in enumerate(used):
        moments.add(Moment(at_s=float(tick), used_bytes=nbytes), keep=moments.is_wanted())
    kept = [int(each.at_s) for each in moments.all()]
    assert len(kept) <= most + 1
    assert (kept[0], kept[-1]) == (0, len(used) - 1)
    assert all(place == number * moments.every for number, place in enumerate(kept[:-1]))
    assert moments.peak is not None
    assert moments.peak.used_bytes == max(used)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 10**6)), max_size=120), st.integers(0, 40))
def test_memory_by_part(stages: list[tuple[int, int]], files: int) -> None:
    """All bytes are there under a bounded number of names, and files are added up."""
    held = [(f"step {number}", used) for number, used in stages] + [(f"read f{n}", 7) for n in range(files)]
    records = [
        StageStats(name=name, used_bytes=used, limit_bytes=0, reserved_bytes=0, peak_bytes=0, waiting=0)
        for name, used in held
    ]
    memory = moment_of(PipelineStats(stages=tuple(records)), 0.0).memory
    assert len(memory) <= MOST_STAGES
    assert sum(memory.values()) == sum(used for _, used in held)
    assert OTHERS in memory or memory.get("reads", 0) == 7 * files
