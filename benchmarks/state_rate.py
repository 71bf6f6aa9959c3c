"""What states cost a running pipeline: its rate with and without them, in alternating pairs of passes.

    python -m benchmarks.state_rate [--quick] [--pairs 15]

Local files, read in turn from 16 at a time, on one Runtime with two worker processes. *with* keeps what states of the
last 16 batches need, as every iterator does, and asks for a state after every 100 batches and turns it into JSON.
*without* keeps nothing: what the consumer enters for each batch is replaced by a counter. A ratio is that of one pair;
medians, and the quartiles of all pairs. *entering* is CPU time of the consumer's thread for a batch, the 99th
percentile; batches that come together are entered together, and each counts with its share. *counting* is the same
time of the counter: what any call costs between batches, when functions have filled the processor's caches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import asyncdata as ad
from asyncdata.memory.advance import Advance
from asyncdata.runtime.consumer.positions import Positions
from asyncdata.runtime.state.tracks import Event
from benchmarks.conditions import conditions
from benchmarks.datasets import Shards, write_shards
from benchmarks.measure import tree_cpu_s
from benchmarks.table import markdown, median_cell
from benchmarks.workloads import Work, pipeline

EVERY: Final = 100
HEAD: Final = (
    "work",
    "states of a pass",
    "state ms",
    "rate with / without",
    "CPU with / without",
    "entering us, p99",
    "counting us, p99",
)
WORKS: Final[dict[str, dict[str, Any]]] = {
    "158 B, parsed": {"kind": "small", "batch": 1024},
    "158 B, parsed, shuffle 10000": {"kind": "small", "batch": 1024, "shuffle": 10_000},
    "158 B, parsed, any order, shuffle 10000": {
        "kind": "small",
        "batch": 1024,
        "shuffle": 10_000,
        "deterministic": False,
    },
    "jpeg": {"kind": "jpeg"},
}
_FULL: Final = {"small": (64, 32_000), "jpeg": (64, 200)}
_QUICK: Final = {"small": (4, 1000), "jpeg": (4, 20)}
"""Files, and records in each."""

_QUARTERS: Final = 4


class _Passed(NamedTuple):
    """One pass: seconds behind its first batch, CPU seconds, what states took, and what entering each batch did."""

    wall_s: float
    cpu_s: float
    states_s: list[float]
    entering_s: list[float]


@contextlib.contextmanager
def _entering(kept: list[float], *, with_states: bool) -> Generator[None]:
    """Times what is entered for a batch: what states need, or its elements alone."""
    receive = Positions.receive

    def count(self: Positions, advance: Advance, _: Sequence[Event] = ()) -> None:
        self._end += advance.rows

    enter = receive if with_states else count

    def timed(self: Positions, advance: Advance, events: Sequence[Event] = ()) -> None:
        began = time.thread_time()
        enter(self, advance, events)
        kept.append((time.thread_time() - began) / max(1, advance.rows))

    with mock.patch.object(Positions, "receive", timed):
        yield


def _pass(dataset: ad.Dataset, pid: int, *, with_states: bool) -> _Passed:
    states: list[float] = []
    entering: list[float] = []
    cpu = tree_cpu_s(pid)
    with _entering(entering, with_states=with_states), dataset.iterator() as batches:
        next(batches)
        began = time.perf_counter()
        for number, _ in enumerate(batches):
            if with_states and not number % EVERY:
                asked = time.perf_counter()
                json.dumps(batches.state_dict())
                states.append(time.perf_counter() - asked)
        wall = time.perf_counter() - began
    return _Passed(wall, tree_cpu_s(pid) - cpu, states, entering)


def measure(work: Work, pairs: int) -> list[str]:
    """The cells of one work, without its name."""
    dataset, pid = pipeline(work), os.getpid()
    with_states: list[_Passed] = []
    without: list[_Passed] = []
    with ad.Runtime(ad.Options(num_workers=2, deterministic=work.deterministic), pipelines=1):
        _pass(dataset, pid, with_states=False)
        for pair in range(pairs):
            for states in (pair % 2 == 0, pair % 2 == 1):
                (with_states if states else without).append(_pass(dataset, pid, with_states=states))
    return [
        str(len(with_states[0].states_s)),
        median_cell([statistics.median(each.states_s) * 1e3 for each in with_states]),
        _ratio([bare.wall_s / each.wall_s for each, bare in zip(with_states, without, strict=True)]),
        _ratio([each.cpu_s / bare.cpu_s for each, bare in zip(with_states, without, strict=True)]),
        _highest_us(with_states),
        _highest_us(without),
    ]


def _highest_us(passes: Sequence[_Passed]) -> str:
    entering = sorted(second for each in passes for second in each.entering_s)
    return f"{entering[len(entering) * 99 // 100] * 1e6:.1f}"


def _ratio(ratios: Sequence[float]) -> str:
    if len(ratios) < _QUARTERS:
        return f"{statistics.median(ratios):.3f}"
    low, middle, high = statistics.quantiles(ratios)
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.state_rate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean nothing")
    parser.add_argument("--pairs", type=int, help="of passes (default: 15)")
    parser.add_argument("--work", nargs="+", choices=list(WORKS), default=list(WORKS), help="what is read")
    options = parser.parse_args(arguments)
    start = conditions()
    rows = []
    with tempfile.TemporaryDirectory(prefix="asyncdata-bench-") as folder:
        for name in options.work:
            print(f"  {name}", file=sys.stderr, flush=True)
            kind = WORKS[name]["kind"]
            shards, records = (_QUICK if options.quick else _FULL)[kind]
            files = write_shards(Path(folder), Shards(kind=kind, shards=shards, records=records))
            work = Work(shards=shards, records=records, pattern=f"{files}/shard-*.tfrecord", **WORKS[name])
            rows.append([name, *measure(work, options.pairs or (1 if options.quick else 15))])
    print(f"{start}\n\n{markdown(HEAD, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
