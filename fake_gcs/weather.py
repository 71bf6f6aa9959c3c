"""Decides what one request meets: its latency, its bandwidth, its fault.

Draws are not taken from a running generator, for concurrent requests arrive in a different order every time. Each draw
is a hash of the seed, the request and how often the same request came before: the n-th GET of one range of one object
meets the same weather in every run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fake_gcs.faults import Fault, Rule
from fake_gcs.profiles import Profile

_MAX_COUNTED = 1_000_000
_SCALE = float(1 << 64)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a request meets.

    Attributes:
        latency_s: Wait before the first byte, in seconds.
        bytes_per_s: Bandwidth of the answer, or None.
        fault: What goes wrong, with every range drawn; None when nothing does.
    """

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    fault: Fault | None = None


CALM = Verdict()
"""Nothing happens."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the weather may look at.

    Attributes:
        operation: Such as ``storage.objects.get``.
        target: ``bucket/object``; empty without an object.
        span: The ``Range`` header, or an empty text.
        test_id: Of the client's test, or an empty text.
        media: The answer would send an object's bytes.
    """

    operation: str
    target: str = ""
    span: str = ""
    test_id: str = ""
    media: bool = False


@dataclass(slots=True)
class _Watch:
    """A rule with its counters."""

    rule: Rule
    operations: re.Pattern[str] | None
    objects: re.Pattern[str] | None
    seen: int = 0
    struck: int = 0

    def strikes(self, asked: Asked, draw: Iterator[float]) -> bool:
        rule = self.rule
        if (
            (rule.media_only and not asked.media)
            or (rule.test_id is not None and rule.test_id != asked.test_id)
            or (self.operations is not None and not self.operations.match(asked.operation))
            or (self.objects is not None and not self.objects.match(asked.target))
        ):
            return False
        self.seen += 1
        if (
            (rule.limit is not None and self.struck >= rule.limit)
            or (rule.nth and self.seen not in rule.nth)
            or (rule.every and self.seen % rule.every)
            or (rule.rate < 1.0 and next(draw) >= rule.rate)
        ):
            return False
        self.struck += 1
        return True


class Weather:
    """The weather of one server, under one profile."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._watches = [_Watch(rule, *rule.patterns()) for rule in profile.rules]
        self._counts: dict[int, int] = {}
        self._tokens = float(profile.request_burst)
        self._refilled = 0.0
        latency = profile.latency
        slow = any(latency.values_s) if latency.kind == "trace" else latency.at(0.99) > 0
        self._calm = not slow and profile.stream_bytes_per_s is None and not profile.rules

    def judge(self, asked: Asked, now: float) -> Verdict:
        """What this request meets. Called once for each request; ``now`` is any clock in seconds."""
        if self.profile.requests_per_s is not None and not self._admit(self.profile.requests_per_s, now):
            return Verdict(fault=Fault(kind="status", status=429, retry_after_s=1.0))
        if self._calm:
            return CALM
        draw = self._draws(asked)
        latency_s = self.profile.latency.at(next(draw))
        rate = self.profile.stream_bytes_per_s
        if isinstance(rate, tuple):
            rate = rate[0] + (rate[1] - rate[0]) * next(draw)
        for watch in self._watches:
            if watch.strikes(asked, draw):
                return Verdict(latency_s, rate, _drawn(watch.rule.fault, draw))
        return Verdict(latency_s, rate)

    def _admit(self, rate: float, now: float) -> bool:
        burst = float(self.profile.request_burst)
        self._tokens = min(burst, self._tokens + (now - self._refilled) * rate)
        self._refilled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _draws(self, asked: Asked) -> Iterator[float]:
        key = f"{self.profile.seed}\0{asked.operation}\0{asked.target}\0{asked.span}\0{asked.test_id}"
        stem = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
        number = int.from_bytes(stem, "little")
        if len(self._counts) >= _MAX_COUNTED:
            self._counts.clear()
        count = self._counts[number] = self._counts.get(number, 0) + 1
        return _uniform(stem + count.to_bytes(8, "little"))


def _uniform(key: bytes) -> Iterator[float]:
    """Numbers in [0, 1), a function of the key alone."""
    block = 0
    while True:
        digest = hashlib.blake2b(key + block.to_bytes(4, "little"), digest_size=64).digest()
        for at in range(0, 64, 8):
            yield int.from_bytes(digest[at : at + 8], "little") / _SCALE
        block += 1


def _drawn(fault: Fault, draw: Iterator[float]) -> Fault:
    """The fault with one value drawn from each range in it."""
    if isinstance(fault.seconds, tuple):
        low, high = fault.seconds
        fault = replace(fault, seconds=low + (high - low) * next(draw))
    if fault.after_fraction is not None:
        low, high = fault.after_fraction
        fraction = low + (high - low) * next(draw)
        fault = replace(fault, after_fraction=(fraction, fraction))
    return fault
