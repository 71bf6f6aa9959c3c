from __future__ import annotations

import pytest

from asyncdata.storage.fallback import PROBE_EVERY, STRIKES, Fallback, Why
from asyncdata.storage.urls import Origin

HERE = Origin("here", 80, tls=False)
THERE = Origin("there", 80, tls=False)


def test_an_ordinary_origin_stays_with_the_range_client() -> None:
    """Nothing is remembered of answers that are in order."""
    fallback = Fallback()
    fallback.went_well(HERE)
    assert fallback.reason(HERE, "a") is None
    assert not fallback.counts


def test_a_url_that_was_odd_once_goes_by_aiohttp_from_then_on() -> None:
    """It alone: its neighbours and other origins are tried as ever."""
    fallback = Fallback()
    fallback.struck(HERE, "a", Why.UNFRAMED)
    assert fallback.reason(HERE, "a") is Why.UNFRAMED
    assert fallback.reason(HERE, "b") is None
    assert fallback.reason(THERE, "b") is None
    fallback.went_well(HERE)
    assert fallback.reason(HERE, "a") is Why.UNFRAMED


def test_one_broken_head_is_an_accident() -> None:
    """The URL is tried as ever."""
    fallback = Fallback()
    fallback.struck(HERE, "a", Why.MALFORMED_HEAD)
    assert fallback.reason(HERE, "a") is None


def test_an_origin_that_is_odd_again_and_again_goes_by_aiohttp() -> None:
    """After strikes in a row; an answer in order between them begins the count anew."""
    fallback = Fallback()
    for number in range(STRIKES - 1):
        fallback.struck(HERE, f"{number}", Why.MALFORMED_HEAD)
    fallback.went_well(HERE)
    for number in range(STRIKES - 1):
        fallback.struck(HERE, f"again {number}", Why.MALFORMED_HEAD)
        assert fallback.reason(HERE, "new") is None
    fallback.struck(HERE, "last", Why.MALFORMED_HEAD)
    assert fallback.reason(HERE, "new") is Why.MALFORMED_HEAD
    assert fallback.reason(THERE, "new") is None


def test_an_odd_origin_is_probed_now_and_then_and_may_recover() -> None:
    """One request of many; if it goes well, the origin is ordinary again."""
    fallback = Fallback()
    for number in range(STRIKES):
        fallback.struck(HERE, f"{number}", Why.RANGE_IGNORED)
    reasons = [fallback.reason(HERE, f"new {number}") for number in range(2 * PROBE_EVERY)]
    assert reasons.count(None) == 2
    fallback.went_well(HERE)
    assert fallback.reason(HERE, "new") is None


@pytest.mark.parametrize("count", [25_000])
def test_what_is_remembered_is_bounded(count: int) -> None:
    """Whatever a server or a list of servers does."""
    fallback = Fallback()
    for number in range(count):
        fallback.struck(Origin(f"h{number}", 80, tls=False), f"{number}", Why.UNFRAMED)
        fallback.reason(Origin(f"h{number}", 80, tls=False), f"{number}")
    assert repr(fallback) == "<Fallback 10000 URLs, 0 origins>"
