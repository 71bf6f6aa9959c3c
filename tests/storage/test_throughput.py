from __future__ import annotations

import pytest

from asyncdata.storage.throughput import Durations, Filling, Rate, Sample


def _slice(durations: Durations, took_s: float, *, limited: bool = True) -> Filling:
    filling = Filling.UNKNOWN
    for _ in range(16):
        filling = durations.add(Sample(took_s, 0.0, 1, -1.0, limited), 32)
        if filling is not Filling.UNKNOWN:
            break
    return filling


def test_reads_that_take_longer_tell_of_a_full_link() -> None:
    """Against those that took least, not against the first."""
    durations = Durations()
    assert _slice(durations, 1.0) is Filling.EMPTY
    assert _slice(durations, 0.5) is Filling.EMPTY
    assert _slice(durations, 0.6) is Filling.EMPTY
    assert _slice(durations, 0.8) is Filling.FULL
    assert durations.shortest_s == 0.5


def test_reads_that_were_not_held_back_tell_nothing() -> None:
    """The program asks for less: how long its reads take is not the window's doing."""
    durations = Durations()
    assert _slice(durations, 1.0) is Filling.EMPTY
    assert _slice(durations, 5.0, limited=False) is Filling.UNKNOWN


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
