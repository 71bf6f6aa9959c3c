"""Profiles and rules as data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fake_gcs.faults import Fault, Rule, fault_from
from fake_gcs.profiles import Latency, Profile, far, profile_from, profile_named, regional, zero


@pytest.mark.parametrize("profile", [zero(), regional(), far()], ids=lambda profile: profile.name)
def test_a_profile_survives_json(profile: Profile) -> None:
    """What ``asdict`` and JSON make of a profile gives the same profile."""
    assert profile_from(json.loads(json.dumps(asdict(profile)))) == profile
    assert profile_named(profile.name) == profile


def test_files_extend_built_in_profiles(tmp_path: Path) -> None:
    """TOML and JSON files name what differs."""
    toml = tmp_path / "weather.toml"
    toml.write_text(
        """
        extends = "regional"
        stream_bytes_per_s = 5e6
        seed = 7
        [latency]
        kind = "trace"
        values_s = [0.01, 0.02]
        [[rules]]
        rate = 0.5
        objects = "b/*.tfrecord"
        [rules.fault]
        kind = "stall"
        seconds = [1.0, 2.0]
        after_bytes = 100
        """
    )
    profile = profile_named(str(toml))
    fault = Fault(kind="stall", seconds=(1.0, 2.0), after_bytes=100)
    assert profile.rules == (Rule(fault=fault, rate=0.5, objects="b/*.tfrecord"),)
    assert (profile.stream_bytes_per_s, profile.seed, profile.requests_per_s) == (5e6, 7, 5000.0)
    assert profile.latency.at(0.0) == 0.01
    assert profile.latency.at(0.99) == 0.02
    same = tmp_path / "weather.json"
    same.write_text(json.dumps(asdict(profile)))
    assert profile_named(str(same)) == profile


@pytest.mark.parametrize(
    "value",
    [
        {"colour": "red"},
        {"extends": "nowhere"},
        {"latency": {"kind": "gauss"}},
        {"latency": {"median_s": -1.0}},
        {"latency": {"kind": "trace"}},
        {"latency": 5},
        {"stream_bytes_per_s": 0},
        {"rules": [{"rate": 0.5}]},
        {"rules": [{"fault": {"kind": "quake"}}]},
        {"rules": [{"fault": {"kind": "status", "status": 200}}]},
        {"rules": [{"fault": {"kind": "status"}, "rate": 2}]},
        {"rules": [{"fault": {"kind": "status"}, "objects": "["}]},
        {"rules": [5]},
    ],
)
def test_what_makes_no_sense_is_refused(value: dict[str, object]) -> None:
    """A profile that could not be carried out is a ValueError, not a surprise later."""
    with pytest.raises(ValueError, match=r"."):
        profile_from(value)


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    """A name that is neither built in nor a readable file is a ValueError."""
    broken = tmp_path / "x.json"
    broken.write_text("{")
    for name in ("windy", str(tmp_path / "none.toml"), str(broken)):
        with pytest.raises(ValueError, match=r"."):
            profile_named(name)


def test_latency_has_its_quantiles() -> None:
    """The lognormal's median and 99th percentile are the ones of the regional model; limits hold."""
    latency = regional().latency
    assert latency.at(0.5) == pytest.approx(0.025, rel=0.01)
    assert latency.at(0.99) == pytest.approx(0.150, rel=0.01)
    assert Latency(kind="lognormal", median_s=1.0, sigma=3.0, limit_s=5.0).at(0.999) == 5.0
    assert Latency(median_s=0.5).at(0.9) == 0.5


def test_a_fault_is_one_line() -> None:
    """The line names what differs from the defaults."""
    assert fault_from({"kind": "stall", "seconds": [1, 2], "after_bytes": 9}).describe() == (
        "stall after_bytes=9 seconds=(1, 2)"
    )
    assert Fault(kind="status").describe() == "status status=503"
