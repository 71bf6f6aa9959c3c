"""Which requests use aiohttp instead of the range client, and why. Pure.

The range client is strict and fast; aiohttp is lenient and costs about three times as much. A URL that the server sends
without a length or without ranges uses aiohttp from then on. A whole origin does after three such responses in a row,
without a regular response between them. Every five hundredth request to such an origin tries the range client again, so
that one bad day does not last forever.

Responses that the range client cannot handle fill the tables. Both are bounded; the oldest entry is dropped first.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from typing import Final

from asyncdata.storage.urls import Origin

STRIKES: Final = 3
PROBE_EVERY: Final = 500
_MOST_URLS: Final = 10_000
_MOST_ORIGINS: Final = 1_000


class Why(enum.StrEnum):
    """Why a body was fetched by aiohttp."""

    PROXY = "proxy"
    UNFRAMED = "unframed"
    RANGE_IGNORED = "range_ignored"
    MALFORMED_HEAD = "malformed_head"


class Fallback:
    """See the module's text."""

    def __init__(self) -> None:
        self._urls: OrderedDict[str, Why] = OrderedDict()
        self.origins: OrderedDict[Origin, tuple[int, Why]] = OrderedDict()
        """Those with an answer that the range client could not take; to be changed here only."""
        self._since_probe: Counter[Origin] = Counter()
        self.counts: Counter[Why] = Counter()
        """Bodies that were asked for by aiohttp."""

    def __repr__(self) -> str:
        odd = sum(strikes >= STRIKES for strikes, _ in self.origins.values())
        return f"<Fallback {len(self._urls)} URLs, {odd} origins>"

    def reason(self, origin: Origin, key: str) -> Why | None:
        """Why a request is to go by aiohttp; None for the range client.

        Args:
            origin: Where it goes.
            key: The URL, without what changes from one request to the next.
        """
        if not self.origins:
            return None
        strikes, why = self.origins.get(origin, (0, None))
        if why is None:
            return None
        if strikes < STRIKES:
            return self._urls.get(key)
        self._since_probe[origin] += 1
        if self._since_probe[origin] >= PROBE_EVERY:
            self._since_probe[origin] = 0
            self._urls.pop(key, None)
            return None
        return why

    def went_well(self, origin: Origin) -> None:
        """The range client took an answer of the origin."""
        if self.origins and origin in self.origins:
            _, why = self.origins[origin]
            self.origins[origin] = (0, why)
            self._since_probe.pop(origin, None)

    def struck(self, origin: Origin, key: str, why: Why) -> None:
        """The range client could not take an answer."""
        strikes, _ = self.origins.pop(origin, (0, why))
        self.origins[origin] = (strikes + 1, why)
        if why is not Why.MALFORMED_HEAD:
            # A broken head may be an accident of the network; the others are how the server is.
            self._urls.pop(key, None)
            self._urls[key] = why
            if len(self._urls) > _MOST_URLS:
                self._urls.popitem(last=False)
        if len(self.origins) > _MOST_ORIGINS:
            forgotten, _ = self.origins.popitem(last=False)
            self._since_probe.pop(forgotten, None)

    def used(self, why: Why) -> None:
        """A body is asked for by aiohttp."""
        self.counts[why] += 1
