"""Weather: what a request meets is a function of the seed and the request."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import replace

from fake_gcs.faults import Fault, Rule
from fake_gcs.profiles import Latency, Profile, regional
from fake_gcs.weather import CALM, Asked, Verdict, Weather


def asked(number: int, *, media: bool = True, test_id: str = "") -> Asked:
    return Asked("storage.objects.get", f"b/o{number % 7}", f"bytes={number}-", test_id, media)


def test_zero_adds_nothing() -> None:
    """Without latency, limits and rules every verdict is the calm one."""
    weather = Weather(Profile())
    assert all(weather.judge(asked(number), 0.0) is CALM for number in range(100))


def test_the_order_of_arrival_changes_nothing(samples: Callable[[int, int], int]) -> None:
    """The same requests in any order meet the same weather, each its own; another seed gives other weather."""
    profile = Profile(
        latency=Latency(kind="lognormal", median_s=0.02, sigma=1.0),
        stream_bytes_per_s=(1e6, 2e6),
        rules=(
            Rule(fault=Fault(kind="stall", seconds=(1.0, 9.0), after_fraction=(0.0, 1.0)), rate=0.1),
            Rule(fault=Fault(kind="status"), rate=0.1),
        ),
    )

    def run(seed: int, order: list[int]) -> dict[int, Verdict]:
        weather = Weather(replace(profile, seed=seed))
        return {number: weather.judge(asked(number), 0.0) for number in order}

    numbers = list(range(samples(500, 20_000)))
    shuffled = random.Random(1).sample(numbers, len(numbers))
    assert run(0, numbers) == run(0, shuffled)
    assert run(0, numbers) != run(1, numbers)


def test_the_same_request_again_meets_other_weather() -> None:
    """A retry is a draw of its own, or a fault would never end."""
    weather = Weather(Profile(rules=(Rule(fault=Fault(kind="status"), rate=0.5),)))
    faults = [weather.judge(asked(0), 0.0).fault for _ in range(50)]
    assert None in faults
    assert any(faults)


def test_rates_are_kept(samples: Callable[[int, int], int]) -> None:
    """A rule strikes its fraction of the requests; latencies have their median."""
    count = samples(5_000, 100_000)
    weather = Weather(regional().with_rules(Rule(fault=Fault(kind="reset"), rate=0.05)))
    verdicts = [weather.judge(asked(number), number / 1000) for number in range(count)]
    struck = sum(verdict.fault is not None for verdict in verdicts)
    assert 0.04 < struck / count < 0.06
    assert 0.023 < statistics.median(verdict.latency_s for verdict in verdicts) < 0.027
    assert all(75e6 <= (verdict.bytes_per_s or 0) <= 100e6 for verdict in verdicts)


def test_rules_match_by_number_glob_and_test_id() -> None:
    """``nth``, ``every``, ``limit``, ``objects``, ``operations``, ``test_id`` and ``media_only`` all have to agree."""

    def struck(rule: Rule, requests: list[Asked]) -> list[int]:
        weather = Weather(Profile(rules=(rule,)))
        return [number for number, one in enumerate(requests) if weather.judge(one, 0.0).fault is not None]

    fault = Fault(kind="status")
    many = [asked(number) for number in range(10)]
    assert struck(Rule(fault=fault, nth=(1, 4)), many) == [0, 3]
    assert struck(Rule(fault=fault, every=3), many) == [2, 5, 8]
    assert struck(Rule(fault=fault, limit=2), many) == [0, 1]
    assert struck(Rule(fault=fault, objects="b/o[12]"), many) == [1, 2, 8, 9]
    assert struck(Rule(fault=fault, objects="b/o1", nth=(2,)), many) == [8]
    assert struck(Rule(fault=fault, operations="storage.buckets.*"), many) == []
    assert struck(Rule(fault=fault, test_id="t"), [asked(0), asked(1, test_id="t"), asked(2, test_id="u")]) == [1]
    assert struck(Rule(fault=fault, media_only=True), [asked(0, media=False), asked(1)]) == [1]


def test_requests_above_the_rate_get_429() -> None:
    """The bucket lets a burst through, then so many a second; the rest is told when to come again."""
    weather = Weather(Profile(requests_per_s=10.0, request_burst=5))
    first = [weather.judge(asked(0), 0.0).fault for _ in range(8)]
    assert [fault is None for fault in first] == [True] * 5 + [False] * 3
    assert first[-1] == Fault(kind="status", status=429, retry_after_s=1.0)
    later = [weather.judge(asked(0), 0.3).fault is None for _ in range(4)]
    assert later == [True, True, True, False]


def test_measured_latencies_need_no_order() -> None:
    """Each of them is drawn, wherever the zeros are."""
    weather = Weather(Profile(latency=Latency(kind="trace", values_s=(0.2, 0.0))))
    found = {weather.judge(asked(number), 0.0).latency_s for number in range(100)}
    assert found == {0.0, 0.2}
