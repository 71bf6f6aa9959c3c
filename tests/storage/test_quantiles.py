from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from asyncdata.storage.quantiles import Quantiles


def test_nothing_seen_tells_nothing() -> None:
    """No value, no estimate."""
    assert Quantiles().at(0.9) is None


@given(values=st.lists(st.floats(1e-4, 100), min_size=1, max_size=200), fraction=st.floats(0.01, 1.0))
def test_an_estimate_is_at_most_a_class_above_the_truth(values: list[float], fraction: float) -> None:
    """At least the asked fraction lies below it, and it is no more than one class (19 %) too high."""
    seen = Quantiles()
    for value in values:
        seen.add(value)
    estimate = seen.at(fraction)
    assert estimate is not None
    assert sum(value <= estimate for value in values) >= fraction * len(values) - 1e-6
    below = [value for value in values if value <= estimate / 2 ** (1 / 4) * 0.999]
    assert len(below) < fraction * len(values) + 1e-6


def test_stalls_that_were_cut_short_teach_nothing() -> None:
    """One in five reads stalls and is given up after 2 s: the 90th percentile stays that of the others."""
    draw = random.Random(1)
    seen = Quantiles()
    for number in range(5000):
        if number % 5:
            seen.add(draw.uniform(0.02, 0.04))
        else:
            seen.add(2.0, censored=True)
    estimate = seen.at(0.9)
    assert estimate is not None
    assert estimate < 0.05


def test_what_was_is_forgotten() -> None:
    """A network that becomes ten times slower is known to be after some thousand reads."""
    seen = Quantiles()
    for _ in range(3000):
        seen.add(0.02)
    for _ in range(4000):
        seen.add(0.2)
    estimate = seen.at(0.5)
    assert estimate is not None
    assert 0.2 <= estimate < 0.25
