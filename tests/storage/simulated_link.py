"""A network and a server in virtual time: how long reads take with so many in flight. Deterministic, without sockets.

::

    start ─▶ request-rate limit ─429─▶ back-off, asked again
                 │
                 ▼
             a place at the server (first come, first served) ─▶ first byte (log-normal) ─▶ body ─▶ done

Bodies share the link fairly: each comes at ``min(stream rate, total / streams)``. As all streams have one rate at any
moment, a body ends when a common counter of bytes per stream reaches the value it had at its beginning plus its size.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from asyncdata.storage.window import Sample, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a run meets.

    Attributes:
        first_byte_s: Median time to the first byte.
        sigma: Of its logarithm.
        stream_bytes_per_s: Most a body gets.
        total_bytes_per_s: Most all get together.
        places: Requests the server works at; more wait.
        requests_per_s: Requests that are served; more are answered 429.
        errors: Fraction of requests answered 503, whatever the load.
        size: Bytes of a range; about a tenth of them are shorter.
    """

    first_byte_s: float
    sigma: float
    stream_bytes_per_s: float
    total_bytes_per_s: float = math.inf
    places: int = 1 << 30
    requests_per_s: float = math.inf
    errors: float = 0.0
    size: int = 8 << 20


@dataclass(slots=True)
class Outcome:
    """How a run went.

    Attributes:
        elapsed_s: Virtual time for all reads.
        bytes: Received.
        half_s: Virtual time of the second half of the reads.
        throttled: Requests answered 429 or 503.
        windows: The window at each end of a read.
    """

    elapsed_s: float = 0.0
    bytes: int = 0
    half_bytes: int = 0
    half_s: float = 0.0
    throttled: int = 0
    windows: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Bytes per second over the whole run."""
        return self.bytes / self.elapsed_s

    @property
    def steady_rate(self) -> float:
        """Bytes per second over its second half."""
        return self.half_bytes / self.half_s


class Run:
    """Some thousand reads over a link.

    Args:
        link: What it is like.
        window: A fixed number of requests, or a controller that is asked.
        reads: How many.
        seed: Of all draws.
        demand: Most reads the program wants at a time.
    """

    def __init__(self, link: Link, window: int | Window, *, reads: int, seed: int, demand: int = 1 << 30) -> None:
        self._link = link
        self._window = window
        self._reads = reads
        self._draw = random.Random(seed)
        self._demand = demand
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[int], None], int]] = []
        self._count = 0
        self._in_flight = 0
        self._waiting_out = 0
        self._ready: deque[int] = deque()
        self._begun = 0
        self._done = 0
        self._at_server = 0
        self._queue: deque[int] = deque()
        self._tokens = 50.0
        self._tokens_at = 0.0
        self._streams: list[tuple[float, int]] = []
        self._counter = 0.0
        self._sizes: dict[int, int] = {}
        self._began: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self._throttled: dict[int, bool] = {}
        self.outcome = Outcome()

    def _limit(self) -> int:
        return self._window if isinstance(self._window, int) else self._window.limit

    def run(self) -> Outcome:
        """All of them."""
        half = self._reads // 2
        half_at = 0.0
        self._fill()
        while self._done < self._reads:
            body_at = math.inf
            if self._streams:
                body_at = self._now + max(0.0, self._streams[0][0] - self._counter) / self._pace()
            if self._events and self._events[0][0] <= body_at:
                at, _, action, number = heapq.heappop(self._events)
                self._advance(at)
                action(number)
            else:
                self._advance(body_at)
                number = heapq.heappop(self._streams)[1]
                self._finish(number)
                if self._done == half:
                    half_at = self._now
                    self.outcome.half_bytes = -self.outcome.bytes
            self._fill()
        self.outcome.elapsed_s = self._now
        self.outcome.half_s = self._now - half_at
        self.outcome.half_bytes += self.outcome.bytes
        return self.outcome

    def _pace(self) -> float:
        return min(self._link.stream_bytes_per_s, self._link.total_bytes_per_s / len(self._streams))

    def _advance(self, at: float) -> None:
        if self._streams:
            self._counter += (at - self._now) * self._pace()
        self._now = at

    def _at(self, delay_s: float, action: Callable[[int], None], number: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (self._now + delay_s, self._count, action, number))

    def _fill(self) -> None:
        limit = self._limit()
        while self._in_flight < limit and self._in_flight + self._waiting_out < self._demand:
            self._in_flight += 1
            if self._ready:
                self._begin(self._ready.popleft())
                continue
            number = self._begun
            self._begun += 1
            self._sizes[number] = self._link.size if number % 10 else int(self._link.size * self._draw.random()) + 1
            self._begin(number)

    def _begin(self, number: int) -> None:
        self._began[number] = self._now
        admitted = self._admitted()
        if not admitted or self._draw.random() < self._link.errors:
            self._throttled[number] = not admitted
            self._at(self._latency_s(), self._refused, number)
        elif self._at_server < self._link.places:
            self._serve(number)
        else:
            self._queue.append(number)

    def _admitted(self) -> bool:
        rate = self._link.requests_per_s
        if rate == math.inf:
            return True
        self._tokens = min(50.0, self._tokens + (self._now - self._tokens_at) * rate)
        self._tokens_at = self._now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _latency_s(self) -> float:
        return self._link.first_byte_s * math.exp(self._link.sigma * self._draw.gauss(0, 1))

    def _serve(self, number: int) -> None:
        self._at_server += 1
        self._at(self._latency_s(), self._first_byte, number)

    def _first_byte(self, number: int) -> None:
        self._first[number] = self._now
        heapq.heappush(self._streams, (self._counter + self._sizes[number], number))

    def _refused(self, number: int) -> None:
        self.outcome.throttled += 1
        self._in_flight -= 1
        self._waiting_out += 1
        if isinstance(self._window, Window):
            self._window.refused(now=self._now, began=self._began[number], throttled=self._throttled[number])
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        self._at(self._draw.random() * min(16.0, 0.25 * 2 ** (tries - 1)), self._retry, number)

    def _retry(self, number: int) -> None:
        self._waiting_out -= 1
        self._ready.append(number)

    def _finish(self, number: int) -> None:
        full = self._in_flight >= self._limit()
        self._in_flight -= 1
        self._at_server -= 1
        if self._queue:
            self._serve(self._queue.popleft())
        self._done += 1
        self.outcome.bytes += self._sizes[number]
        if isinstance(self._window, Window):
            self._window.done(
                Sample(
                    now=self._now,
                    began=self._began[number],
                    size=self._sizes[number],
                    first_byte_s=self._first[number] - self._began[number],
                    limited=full,
                )
            )
            self.outcome.windows.append(self._window.limit)
        for table in (self._sizes, self._began, self._first):
            del table[number]


def draw_link(seed: int) -> Link:
    """One of all sorts of networks."""
    draw = random.Random(seed)
    first_byte_s = 10 ** draw.uniform(-3.3, -0.6)
    stream = 10 ** draw.uniform(6.7, 8.7)
    size = int(2 ** draw.uniform(16, 25))
    slot_s = first_byte_s + size / stream
    kind = draw.choice(["total", "total", "places", "requests", "free"])
    knee = 2 ** draw.uniform(0.5, 7.5)
    return Link(
        first_byte_s=first_byte_s,
        sigma=draw.choice([0.0, 0.2, 0.5, 0.77]),
        stream_bytes_per_s=stream,
        total_bytes_per_s=knee * size / slot_s if kind == "total" else math.inf,
        places=max(1, int(knee)) if kind == "places" else 1 << 30,
        requests_per_s=knee / slot_s if kind == "requests" else math.inf,
        errors=draw.choice([0.0, 0.0, 0.0, 0.01, 0.05]),
        size=size,
    )
