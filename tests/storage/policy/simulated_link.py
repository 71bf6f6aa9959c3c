"""A network and a server in virtual time: how long reads take with so many in flight. Deterministic, without sockets.

::

    start ─▶ request-rate limit ─429─▶ back-off, asked again
                 │
                 ▼
             a place at the server (first come, first served) ─▶ first byte (log-normal) ─▶ body ─▶ CPU ─▶ done

Bodies share the link fairly: each comes at ``min(stream rate, total / streams)``. As all streams have one rate at any
moment, a body ends when a common counter of bytes per stream reaches the value it had at its beginning plus its size.
The CPU of the client works at one body after another.

What chance decides about a read (its size, its latency, whether it fails) is drawn by its number, not by the moment: in
every run over a link with one seed, whatever the window, the n-th read is the same. Two runs are then compared with
little noise.
"""

from __future__ import annotations

import functools
import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from asyncdata.storage.policy.throughput import Sample
from asyncdata.storage.policy.window import RequestWindow

DEMAND: Final = 1024
"""Reads that a program wants at a time, those included that wait to be asked again: memory ends somewhere."""

_BURST: Final = 50.0
_DRAWS: Final = 1 << 14
_BEGIN, _HEAD, _REFUSED, _WORKED = range(4)
_MOST_CROWD: Final = 16.0


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
        cpu_bytes_per_s: What the client's CPU works at.
        bloat_s: How much later the first byte comes for each time that there are as many requests as fill the link, at
            most 16: buffers on the way fill.
        decline: How much less all get together, in the same measure: a crowded link loses packets.
        changes: After so many reads all get together this many times what they got at first.
        burst_every_s: So often everything is answered 429 ...
        burst_s: ... for so long.
    """

    first_byte_s: float
    sigma: float
    stream_bytes_per_s: float
    total_bytes_per_s: float = math.inf
    places: int = 1 << 30
    requests_per_s: float = math.inf
    errors: float = 0.0
    size: int = 8 << 20
    cpu_bytes_per_s: float = math.inf
    bloat_s: float = 0.0
    decline: float = 0.0
    changes: tuple[tuple[int, float], ...] = ()
    burst_every_s: float = 0.0
    burst_s: float = 0.0

    def crowd(self, in_flight: int, total: float) -> float:
        """How many times as many requests there are as fill the link, beyond the first time; at most 16."""
        fill_it = total * (self.first_byte_s / self.size + 1 / self.stream_bytes_per_s)
        return min(_MOST_CROWD, max(0.0, in_flight / fill_it - 1))


@dataclass(slots=True)
class Outcome:
    """How a run went.

    Attributes:
        elapsed_s: Virtual time for all reads.
        bytes: Received.
        steady_s: Virtual time of the reads after those left out.
        throttled: Requests answered 429 or 503.
        windows: The window at each end of a read.
    """

    elapsed_s: float = 0.0
    bytes: int = 0
    steady_bytes: int = 0
    steady_s: float = 0.0
    throttled: int = 0
    windows: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Bytes per second over the whole run."""
        return self.bytes / self.elapsed_s

    @property
    def steady_rate(self) -> float:
        """Bytes per second once so many reads as were left out had come."""
        return self.steady_bytes / self.steady_s


@functools.lru_cache(maxsize=4)
def _drawn(seed: int, sigma: float) -> tuple[list[float], list[float]]:
    """Factors of the latency, and numbers between 0 and 1."""
    draw = random.Random(seed)
    return [math.exp(sigma * draw.gauss(0, 1)) for _ in range(_DRAWS)], [draw.random() for _ in range(_DRAWS)]


class Run:
    """Some thousand reads over a link.

    Args:
        link: What it is like.
        window: A fixed number of requests, or a controller that is asked.
        reads: How many.
        seed: Of all draws.
        left_out: Reads that end before the steady rate is measured; half of them unless given.
        demand: Most reads the program wants at a time.
        epoch: After so many reads the program waits for all of them before it goes on; 0 for never.
    """

    def __init__(
        self,
        link: Link,
        window: int | RequestWindow,
        *,
        reads: int,
        seed: int,
        left_out: int | None = None,
        demand: int = DEMAND,
        epoch: int = 0,
    ) -> None:
        self._link = link
        self._window = None if isinstance(window, int) else window
        self._limit = window if isinstance(window, int) else window.limit
        self._reads = reads
        self._left_out = reads // 2 if left_out is None else left_out
        self._demand = demand
        self._epoch = epoch
        self._until = epoch or reads + DEMAND
        self._latencies, self._chances = _drawn(seed, link.sigma)
        self._now = 0.0
        self._events: list[tuple[float, int, int]] = []
        self._in_flight = 0
        self._waiting_out = 0
        self._ready: deque[int] = deque()
        self._begun = 0
        self._done = 0
        self._at_server = 0
        self._queue: deque[int] = deque()
        self._tokens = _BURST
        self._tokens_at = 0.0
        self._streams: list[tuple[float, int]] = []
        self._counter = 0.0
        self._began: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self._throttled: set[int] = set()
        self._total = link.total_bytes_per_s
        self._changes = deque(link.changes)
        self._idle_at = 0.0
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """All of them."""
        outcome, events, streams = self.outcome, self._events, self._streams
        link = self._link
        stream_rate, cpu = link.stream_bytes_per_s, link.cpu_bytes_per_s
        steady_from_s = 0.0
        self._fill()
        while self._done < self._reads:
            pace, body_at = stream_rate, math.inf
            if streams:
                total = self._total
                if link.decline:
                    total /= 1 + link.decline * link.crowd(self._in_flight, total)
                pace = min(stream_rate, total / len(streams))
                body_at = self._now + max(0.0, streams[0][0] - self._counter) / pace
            if events and events[0][0] <= body_at:
                at, what, number = heapq.heappop(events)
                self._counter += (at - self._now) * pace
                self._now = at
                if what == _HEAD:
                    self._first[number] = at
                    heapq.heappush(streams, (self._counter + self._size(number), number))
                elif what == _REFUSED:
                    self._refuse(number)
                elif what == _WORKED:
                    self._finish(number)
                else:
                    self._waiting_out -= 1
                    self._ready.append(number)
            else:
                self._counter += (body_at - self._now) * pace
                self._now = body_at
                number = heapq.heappop(streams)[1]
                if cpu == math.inf:
                    self._finish(number)
                else:
                    self._idle_at = max(self._idle_at, body_at) + self._size(number) / cpu
                    heapq.heappush(events, (self._idle_at, _WORKED, number))
            if self._done == self._left_out > 0 and not steady_from_s:
                steady_from_s = self._now
                outcome.steady_bytes = -outcome.bytes
            if self._in_flight < self._limit:
                self._fill()
        outcome.elapsed_s = self._now
        outcome.steady_s = self._now - steady_from_s
        outcome.steady_bytes += outcome.bytes
        return outcome

    def _size(self, number: int) -> int:
        size = self._link.size
        return size if number % 10 else int(size * self._chances[number % _DRAWS]) + 1

    def _fill(self) -> None:
        while self._in_flight < self._limit:
            if self._ready:
                self._begin(self._ready.popleft())
            elif self._begun == self._until:
                if self._in_flight + self._waiting_out:
                    return
                self._until += self._epoch
            elif self._in_flight + self._waiting_out < self._demand:
                self._begin(self._begun)
                self._begun += 1
            else:
                return

    def _begin(self, number: int) -> None:
        self._in_flight += 1
        self._began[number] = self._now
        link = self._link
        # Another draw for each attempt.
        drawn = (number + 7919 * self._tries.get(number, 0)) % _DRAWS
        admitted = self._admitted()
        if not admitted or self._chances[drawn - 1] < link.errors:
            if not admitted:
                self._throttled.add(number)
            heapq.heappush(self._events, (self._now + link.first_byte_s * self._latencies[drawn], _REFUSED, number))
        elif self._at_server < link.places:
            self._serve(number)
        else:
            self._queue.append(number)

    def _admitted(self) -> bool:
        link = self._link
        if link.burst_every_s and self._now % link.burst_every_s > link.burst_every_s - link.burst_s:
            return False
        if link.requests_per_s == math.inf:
            return True
        self._tokens = min(_BURST, self._tokens + (self._now - self._tokens_at) * self._link.requests_per_s)
        self._tokens_at = self._now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _serve(self, number: int) -> None:
        self._at_server += 1
        link = self._link
        latency_s = link.first_byte_s * self._latencies[number % _DRAWS]
        if link.bloat_s:
            latency_s += link.bloat_s * link.crowd(self._in_flight, self._total)
        heapq.heappush(self._events, (self._now + latency_s, _HEAD, number))

    def _refuse(self, number: int) -> None:
        self.outcome.throttled += 1
        self._in_flight -= 1
        self._waiting_out += 1
        throttled = number in self._throttled
        self._throttled.discard(number)
        if self._window is not None:
            self._window.refused(now=self._now, began=self._began[number], throttled=throttled)
            self._limit = self._window.limit
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        chance = self._chances[(number * 31 + tries) % _DRAWS]
        heapq.heappush(self._events, (self._now + chance * min(16.0, 0.25 * 2 ** (tries - 1)), _BEGIN, number))

    def _finish(self, number: int) -> None:
        full = self._in_flight >= self._limit
        self._in_flight -= 1
        self._at_server -= 1
        if self._queue:
            self._serve(self._queue.popleft())
        self._done += 1
        if self._changes and self._done >= self._changes[0][0]:
            self._total = self._link.total_bytes_per_s * self._changes.popleft()[1]
        size = self._size(number)
        self.outcome.bytes += size
        began, first = self._began.pop(number), self._first.pop(number)
        if self._window is not None:
            self._window.done(Sample(now=self._now, began=began, size=size, first_byte_s=first - began, limited=full))
            self._limit = self._window.limit
            self.outcome.windows.append(self._limit)


def draw_link(seed: int) -> Link:
    """One of all sorts of networks."""
    draw = random.Random(seed)
    first_byte_s = 10 ** draw.uniform(-3.3, -0.6)
    stream = 10 ** draw.uniform(6.7, 8.7)
    size = int(2 ** draw.uniform(16, 25))
    slot_s = first_byte_s + size / stream
    kind = draw.choice(["total", "total", "places", "requests", "free", "cpu", "bloat", "decline"])
    knee = 2 ** draw.uniform(0.5, 7.5)
    needed = knee * size / slot_s
    return Link(
        first_byte_s=first_byte_s,
        # Where the answer depends on the load it does not come in lockstep.
        sigma=max(0.1 if kind in {"requests", "bloat", "decline"} else 0.0, draw.choice([0.0, 0.2, 0.5, 0.77])),
        stream_bytes_per_s=stream,
        total_bytes_per_s=needed if kind in {"total", "bloat", "decline"} else math.inf,
        places=max(1, int(knee)) if kind == "places" else 1 << 30,
        requests_per_s=knee / slot_s if kind == "requests" else math.inf,
        errors=draw.choice([0.0, 0.0, 0.0, 0.01, 0.05]),
        size=size,
        cpu_bytes_per_s=needed if kind == "cpu" else math.inf,
        bloat_s=slot_s * draw.uniform(0.1, 0.5) if kind == "bloat" else 0.0,
        decline=draw.uniform(0.02, 0.1) if kind == "decline" else 0.0,
    )
