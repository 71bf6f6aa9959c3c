"""Counters of the storage layer. The I/O loop is the only writer. Snapshots are frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from asyncdata.errors import TransientStorageError
from asyncdata.storage.failures import TIMEOUT_CAUSES, FailureCause, ReadFailedError


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStats:
    """The window that the controller chose, and why.

    Attributes:
        limit: The most requests in flight.
        reason: Why, in words.
        first_byte_s: Mean time to the first byte.
        stream_bytes_per_s: Mean rate of one body.
        bytes_per_s: Rate of all bodies while the window was full; 0 before that was measured.
        backoffs: How often the window shrank because requests were refused.
    """

    limit: int
    reason: str
    first_byte_s: float = 0.0
    stream_bytes_per_s: float = 0.0
    bytes_per_s: float = 0.0
    backoffs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStats:
    """A snapshot of the counters.

    Attributes:
        requests: Attempts at a body, including failed ones.
        metadata_requests: Attempts at ``stat`` and ``glob``.
        bytes: Bytes of bodies that were kept.
        retries: Attempts that followed a failure. Many of them, with few bytes per request: the server fails or
            throttles; see ``failures``.
        resumes: Retries that continued in the middle of a range.
        resends: Requests sent again at once because the server had closed a kept connection; not counted as retries.
        hedges: Second attempts at silent reads; counted in ``requests``.
        hedges_won: Second attempts that finished first. Many: the server or the network stalls.
        wasted_bytes: Bytes received and dropped: duplicates of second attempts, and what servers without ranges send
            before the wanted part.
        failures: Failed attempts by cause.
        timeouts: Failed attempts that hit a time limit, by kind.
        backoff_s: Seconds spent waiting between attempts, summed over reads.
        in_flight: Reads that hold a slot now, never more than a given limit. A hedged read holds one slot, for its
            first attempt.
        peak_in_flight: The most that ever did.
        hedges_in_flight: Second attempts in flight now, in addition to the limit: at most ``HedgeOptions.max_at_once``.
        peak_hedges_in_flight: The most that ever were. At most the sum of both peaks was in flight.
        hedge_bytes: Memory of second attempts now, from the part of the memory limit that is set aside for them.
        peak_hedge_bytes: The most that they ever held.
        waiting: Reads that wait for their turn. Above zero for long: the request limit is the bottleneck.
        limit: The limit of requests in flight.
        window: How that limit was found, and why; None if it was given.
        first_byte_median_s: Half of the first bytes arrived within this time; 0 before enough were seen.
        first_byte_p90_s: Nine in ten first bytes arrived within this time; 0 before enough were seen. Time limits and
            second attempts follow from it, separately for small and large ranges.
        first_byte_p99_s: 99 in 100 did. Far above the median: single reads stall.
        restarts: Files that were read again because their object was replaced (``Options.on_change``).
        fallbacks: Bodies that aiohttp received instead of the range client, by reason: ``proxy``, ``unframed``
            (chunked, or until the connection closes), ``range_ignored``, ``malformed_head``. They cost about three
            times the CPU.
        receivers: Processes that receive (``Options.receivers``); 1: this one alone, by one event loop.
        receivers_s: CPU seconds of receiving; 0 where the system does not say.
    """

    requests: int = 0
    metadata_requests: int = 0
    bytes: int = 0
    retries: int = 0
    resumes: int = 0
    resends: int = 0
    hedges: int = 0
    hedges_won: int = 0
    wasted_bytes: int = 0
    failures: Mapping[FailureCause, int] = field(default_factory=dict)
    timeouts: Mapping[FailureCause, int] = field(default_factory=dict)
    backoff_s: float = 0.0
    in_flight: int = 0
    peak_in_flight: int = 0
    hedges_in_flight: int = 0
    peak_hedges_in_flight: int = 0
    hedge_bytes: int = 0
    peak_hedge_bytes: int = 0
    waiting: int = 0
    limit: int = 0
    window: WindowStats | None = None
    first_byte_median_s: float = 0.0
    first_byte_p90_s: float = 0.0
    first_byte_p99_s: float = 0.0
    restarts: int = 0
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    receivers: int = 1
    receivers_s: float = 0.0


class FetchCounters:
    """The running numbers behind ``FetchStats``. Numbers that every read changes are plain attributes."""

    def __init__(self) -> None:
        self.requests = 0
        """Attempts at a body so far."""
        self._metadata_requests = 0
        self.bytes = 0
        """Bytes that arrived and were kept."""
        self._retries = 0
        self._resumes = 0
        self._resends = 0
        self._hedges = 0
        self._hedges_won = 0
        self._wasted = 0
        self._backoff_s = 0.0
        self.in_flight = 0
        """Attempts at a body that have not ended."""
        self._peak = 0
        self._hedges_in_flight = 0
        self._peak_hedges = 0
        self._restarts = 0
        self._failures: Counter[FailureCause] = Counter()

    def resent(self, count: int) -> None:
        """Counts requests that were sent again over another connection."""
        self._resends += count

    def hedged(self) -> None:
        """Counts the start of a second attempt."""
        self.requests += 1
        self._hedges += 1
        self._hedges_in_flight += 1
        self._peak_hedges = max(self._peak_hedges, self._hedges_in_flight)

    def hedge_ended(self, *, won: bool, wasted: int) -> None:
        """Counts its end, or that it ended the first attempt; so many bytes were received in vain."""
        self._hedges_in_flight -= 1
        self._hedges_won += won
        self._wasted += wasted

    def began(self, resumed: bool = False) -> None:
        """Counts the start of an attempt at a body."""
        self.requests += 1
        self._resumes += resumed
        self.in_flight = now = self.in_flight + 1
        self._peak = max(self._peak, now)

    def asked(self) -> None:
        """Counts the start of an attempt at metadata."""
        self._metadata_requests += 1

    def wasted(self, size: int) -> None:
        """Counts bytes that were counted as received and are dropped."""
        self.bytes -= size
        self._wasted += size

    def skipped(self, size: int) -> None:
        """Counts bytes that were never wanted."""
        self._wasted += size

    def failed(self, error: TransientStorageError) -> None:
        """Counts a failed attempt."""
        self._failures[error.cause if isinstance(error, ReadFailedError) else FailureCause.BACKEND] += 1

    def retried(self, delay_s: float) -> None:
        """Counts another attempt that follows after a delay."""
        self._retries += 1
        self._backoff_s += delay_s

    def restarted(self) -> None:
        """Counts a file that is read again."""
        self._restarts += 1

    def snapshot(self, *, waiting: int, limit: int, window: WindowStats | None = None) -> FetchStats:
        """Returns the current numbers."""
        failures = dict(self._failures)
        return FetchStats(
            requests=self.requests,
            metadata_requests=self._metadata_requests,
            bytes=self.bytes,
            retries=self._retries,
            resumes=self._resumes,
            resends=self._resends,
            hedges=self._hedges,
            hedges_won=self._hedges_won,
            wasted_bytes=self._wasted,
            failures=MappingProxyType(failures),
            timeouts=MappingProxyType({cause: failures[cause] for cause in TIMEOUT_CAUSES if cause in failures}),
            backoff_s=self._backoff_s,
            in_flight=self.in_flight,
            peak_in_flight=self._peak,
            hedges_in_flight=self._hedges_in_flight,
            peak_hedges_in_flight=self._peak_hedges,
            waiting=waiting,
            limit=limit,
            window=window,
            restarts=self._restarts,
        )
