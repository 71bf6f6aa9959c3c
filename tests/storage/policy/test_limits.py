from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from asyncdata.options import HedgeOptions, TimeoutOptions
from asyncdata.storage.policy.limits import ENOUGH, CensoredQuantiles, Observations

CAPS = TimeoutOptions()
HEDGE = HedgeOptions()


def test_before_enough_was_seen_the_options_hold() -> None:
    """The longest limits, and the longest wait before a second attempt."""
    observed = Observations(CAPS, HEDGE)
    for _ in range(ENOUGH - 1):
        observed.first_byte(1000, 0.01)
    limits = observed.limits(1000)
    assert (limits.connect_s, limits.first_byte_s, limits.idle_s) == (10.0, 5.0, 3.0)
    assert limits.least_bytes_per_s == CAPS.least_bytes_per_s
    assert observed.hedge_after_s(1000) == HEDGE.most_delay_s


def test_what_is_enough_holds_at_once() -> None:
    """Whoever asked before hears of it with the very observation that makes it enough, not some later."""
    observed = Observations(CAPS, HEDGE)
    for _ in range(ENOUGH):
        assert observed.hedge_after_s(1000) == HEDGE.most_delay_s
        observed.first_byte(1000, 0.01)
    assert observed.hedge_after_s(1000) == HEDGE.least_delay_s


@given(first=st.floats(1e-4, 50), body=st.floats(1e-5, 100), connect=st.floats(1e-5, 100), size=st.integers(1, 1 << 25))
def test_limits_lie_between_floor_and_cap(first: float, body: float, connect: float, size: int) -> None:
    """Whatever was observed."""
    observed = Observations(CAPS, HEDGE)
    for _ in range(200):
        observed.first_byte(size, first)
        observed.body(size, body)
        observed.connect(connect)
    limits = observed.limits(size)
    assert CAPS.floor_s <= limits.connect_s <= CAPS.connect_s
    assert CAPS.floor_s <= limits.first_byte_s <= CAPS.first_byte_s
    assert CAPS.floor_s <= limits.idle_s <= CAPS.idle_s
    assert CAPS.least_bytes_per_s <= limits.least_bytes_per_s <= 16 << 10
    assert HEDGE.least_delay_s <= observed.hedge_after_s(size) <= HEDGE.most_delay_s


def test_large_ranges_have_limits_of_their_own() -> None:
    """A server that takes long before a large range is not blamed for it; what is unknown follows all others."""
    observed = Observations(CAPS, HEDGE)
    for _ in range(100):
        observed.first_byte(64 << 10, 0.05)
        observed.first_byte(8 << 20, 0.3)
    assert observed.limits(64 << 10).first_byte_s < observed.limits(8 << 20).first_byte_s
    assert observed.hedge_after_s(64 << 10) < observed.hedge_after_s(8 << 20)
    assert observed.limits(1).first_byte_s == observed.limits(8 << 20).first_byte_s


def test_hedged_and_abandoned_attempts_do_not_lengthen_the_wait() -> None:
    """With one stall in ten the tail estimate stays that of the reads that went well."""
    observed = Observations(CAPS, HEDGE)
    for number in range(2000):
        observed.first_byte(1000, 0.06 if number % 10 else 0.5, censored=number % 10 == 0)
    assert observed.hedge_after_s(1000) < 0.3


def test_a_floor_above_the_cap_gives_way() -> None:
    """Who sets a short limit gets it."""
    observed = Observations(TimeoutOptions(first_byte_s=0.2), HEDGE)
    for _ in range(100):
        observed.first_byte(1000, 0.01)
    assert observed.limits(1000).first_byte_s == 0.2


def test_nothing_seen_tells_nothing() -> None:
    """No value, no estimate."""
    assert CensoredQuantiles().at(0.9) is None


@given(values=st.lists(st.floats(1e-4, 100), min_size=1, max_size=200), fraction=st.floats(0.01, 1.0))
def test_an_estimate_is_at_most_a_class_above_the_truth(values: list[float], fraction: float) -> None:
    """At least the asked fraction lies below it, and it is no more than one class (19 %) too high."""
    seen = CensoredQuantiles()
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
    seen = CensoredQuantiles()
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
    seen = CensoredQuantiles()
    for _ in range(3000):
        seen.add(0.02)
    for _ in range(4000):
        seen.add(0.2)
    estimate = seen.at(0.5)
    assert estimate is not None
    assert 0.2 <= estimate < 0.25
