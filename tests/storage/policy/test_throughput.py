from __future__ import annotations

import pytest

from asyncdata.storage.policy.throughput import Durations, Fullness, Rate, Sample


def _slice(durations: Durations, took_s: float, *, limited: bool = True) -> Fullness:
    filling = Fullness.UNKNOWN
    for _ in range(16):
        filling = durations.add(Sample(took_s, 0.0, 1, -1.0, limited), 32)
        if filling is not Fullness.UNKNOWN:
            break
    return filling


def test_reads_that_take_longer_tell_of_a_full_link() -> None:
    """Against those that took least, not against the first."""
    durations = Durations(12)
    assert _slice(durations, 1.0) is Fullness.EMPTY
    assert _slice(durations, 0.5) is Fullness.EMPTY
    assert _slice(durations, 0.6) is Fullness.EMPTY
    assert _slice(durations, 0.8) is Fullness.FULL
    assert durations.shortest_s == 0.5


def test_reads_that_were_not_held_back_tell_nothing() -> None:
    """The program asks for less: how long its reads take is not the window's doing."""
    durations = Durations(12)
    assert _slice(durations, 1.0) is Fullness.EMPTY
    assert _slice(durations, 5.0, limited=False) is Fullness.UNKNOWN


def test_how_many_reads_were_of_use_bounds_the_window() -> None:
    """Somewhat more than the first guess at first, then twice and more; nothing is added where reads take longer."""
    durations = Durations(12)
    assert durations.proven == pytest.approx(1.6 * 12)
    _slice(durations, 1.0)
    assert durations.proven == pytest.approx(1.6 * 12)
    _slice(durations, 1.0)
    assert durations.proven == pytest.approx(2.4 * 12)
    durations.moved(-1.0, 24)
    _slice(durations, 2.0)
    assert durations.proven == pytest.approx(1.6 * 12)


def test_reads_of_other_sizes_are_compared_at_one_size() -> None:
    """Small reads that end sooner do not make the larger ones look slow."""
    durations = Durations(12)
    for size, took_s in ((1000, 0.2), (9000, 1.0)):
        fillings = [durations.add(Sample(took_s, 0.0, size, 0.1, limited=True), 24) for _ in range(12)]
        assert fillings[-1] is Fullness.EMPTY


def test_a_rate_knows_its_error() -> None:
    """From how many reads there were, then from how its blocks differ."""
    rate = Rate()
    rate.add(1000, 1.0, 100)
    assert (rate.mean, rate.reads_per_s) == (1000.0, 100.0)
    assert rate.error == pytest.approx(0.04)
    rate.add(1000, 1.0, 100)
    rate.add(1000, 1.0, 100)
    assert rate.error == 0
    rate.add(4000, 1.0, 400)
    assert 0.3 < rate.error < 0.6
    assert rate.without_first == 2000
