"""Network behaviour as data: how long, how fast, how often it goes wrong.

Three profiles are built in. ``zero`` adds nothing. ``regional`` is a model of reading from the same region, fitted to
published means; it is not a measurement. ``far`` is the same from another continent.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

from fake_gcs.faults import Fault, Rule, rule_from

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Time from a complete request head to the first byte of the answer.

    Attributes:
        kind: ``fixed``, ``lognormal`` or ``trace``.
        median_s: The median; for ``fixed`` the value itself.
        sigma: Shape of the lognormal; p99 is median * exp(2.33 * sigma).
        values_s: Measured latencies, of which one is drawn.
        limit_s: Longest latency that is given.
    """

    kind: Literal["fixed", "lognormal", "trace"] = "fixed"
    median_s: float = 0.0
    sigma: float = 0.0
    values_s: tuple[float, ...] = ()
    limit_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what can not be drawn from."""
        if self.kind not in {"fixed", "lognormal", "trace"}:
            raise ValueError(f"unknown latency kind {self.kind!r}")
        if self.median_s < 0 or self.sigma < 0 or any(value < 0 for value in self.values_s):
            raise ValueError("latencies must not be negative")
        if self.kind == "trace" and not self.values_s:
            raise ValueError("a latency trace needs values_s")

    def at(self, fraction: float) -> float:
        """The latency at a fraction of the distribution, in seconds."""
        if self.kind == "trace":
            return min(self.limit_s, self.values_s[int(fraction * len(self.values_s))])
        if self.kind == "lognormal" and self.median_s:
            quantile = _NORMAL.inv_cdf(min(max(fraction, 1e-9), 1 - 1e-9))
            return min(self.limit_s, self.median_s * math.exp(self.sigma * quantile))
        return min(self.limit_s, self.median_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The weather of a server.

    Attributes:
        name: For messages.
        latency: First-byte latency.
        stream_bytes_per_s: Bandwidth of one answer: a number, a range of which one is drawn, or None for no limit.
        total_bytes_per_s: Bandwidth of all answers together, or None.
        requests_per_s: Requests that are served; above it 429 is answered. None for no limit.
        request_burst: Requests that may come at once before the limit bites.
        rules: Faults; of the rules that strike, the first is taken.
        seed: Of every draw.
    """

    name: str = "zero"
    latency: Latency = field(default_factory=Latency)
    stream_bytes_per_s: float | tuple[float, float] | None = None
    total_bytes_per_s: float | None = None
    requests_per_s: float | None = None
    request_burst: int = 100
    rules: tuple[Rule, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse rates that would never send anything."""
        stream = self.stream_bytes_per_s
        rates = (*(stream if isinstance(stream, tuple) else (stream,)), self.total_bytes_per_s, self.requests_per_s)
        if any(rate is not None and rate <= 0 for rate in rates):
            raise ValueError("rates must be positive; None means no limit")

    def with_rules(self, *rules: Rule) -> Profile:
        """The same with these rules in place of its own."""
        return replace(self, rules=rules)


def zero() -> Profile:
    """No delay, no limit, no fault."""
    return Profile()


def regional() -> Profile:
    """Same region: 25 ms median, 150 ms p99, 75-100 MB/s a stream, and a little of everything that goes wrong."""
    objects = "storage.objects.*"
    return Profile(
        name="regional",
        latency=Latency(kind="lognormal", median_s=0.025, sigma=0.77),
        stream_bytes_per_s=(75e6, 100e6),
        requests_per_s=5000.0,
        request_burst=1000,
        rules=(
            Rule(fault=Fault(kind="stall", seconds=(1.0, 20.0)), rate=0.0005, operations=objects),
            Rule(
                fault=Fault(kind="stall", seconds=(1.0, 20.0), after_fraction=(0.0, 1.0)),
                rate=0.0005,
                media_only=True,
            ),
            Rule(fault=Fault(kind="status", status=503), rate=0.0005, operations=objects),
            Rule(fault=Fault(kind="reset", after_fraction=(0.0, 1.0)), rate=0.0002, media_only=True),
            Rule(fault=Fault(kind="status", status=408), rate=0.0001, operations=objects),
        ),
    )


def far() -> Profile:
    """Another continent: 120 ms median, 25 MB/s a stream, the faults of ``regional``."""
    return replace(
        regional(),
        name="far",
        latency=Latency(kind="lognormal", median_s=0.120, sigma=0.5),
        stream_bytes_per_s=25e6,
    )


def profile_named(name: str) -> Profile:
    """A built-in profile, or one from a ``.json`` or ``.toml`` file.

    Raises:
        ValueError: No such profile, or a file that does not describe one.
    """
    built_in = {"zero": zero, "regional": regional, "far": far}
    if name in built_in:
        return built_in[name]()
    path = Path(name)
    if path.suffix not in {".json", ".toml"}:
        raise ValueError(f"unknown profile {name!r}: one of {', '.join(built_in)}, or a .json or .toml file")
    try:
        text = path.read_text()
        return profile_from(json.loads(text) if path.suffix == ".json" else tomllib.loads(text))
    except (OSError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from error


def profile_from(value: Mapping[str, Any]) -> Profile:
    """A profile from JSON or TOML data; ``extends`` names the built-in profile it starts from.

    Raises:
        ValueError: An unknown field or a value that makes no sense.
    """
    values = _frozen(value)
    start = profile_named(str(values.pop("extends", "zero")))
    if unknown := sorted(set(values) - {item.name for item in fields(Profile)}):
        raise ValueError(f"unknown profile fields: {', '.join(unknown)}")
    try:
        if "latency" in values:
            values["latency"] = Latency(**_frozen(values["latency"]))
        if "rules" in values:
            values["rules"] = tuple(rule_from(rule) for rule in values["rules"])
        return replace(start, **values)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a profile: {error}") from error


def _frozen(value: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of JSON and TOML as tuples."""
    return {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
