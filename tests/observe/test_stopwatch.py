"""Stopwatches add up intervals, open ones included."""

from __future__ import annotations

import contextlib

import pytest

from asyncdata.observe import stopwatch
from asyncdata.observe.stopwatch import Stopwatch


def test_intervals_add_up_and_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that overlap both count; the open one up to now; exceptions close it."""
    now = [10.0]
    monkeypatch.setattr(stopwatch, "clock", lambda: now[0])
    watch = Stopwatch()
    assert watch.seconds() == 0
    watch.begin()
    now[0] = 11.0
    assert watch.seconds() == 1
    with contextlib.suppress(ZeroDivisionError), watch:
        now[0] = 13.0
        assert (watch.open, watch.seconds()) == (2, 5)
        raise ZeroDivisionError
    watch.end()
    now[0] = 99.0
    assert (watch.open, watch.seconds()) == (0, 5)


def test_it_never_shows_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that took the time before the interval began."""
    monkeypatch.setattr(stopwatch, "clock", lambda: 10.0)
    watch = Stopwatch()
    watch.begin()
    assert watch.seconds(9.0) == 0
