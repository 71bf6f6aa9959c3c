"""A training step that keeps the interpreter busy, beside the threads that read: who slows whom.

    python -m benchmarks.noisy_trainer [--quick]

40 KB records come over a link of 40 ms, 90 MB/s a stream and 800 MB/s in all; after every batch of 64 the consuming
thread works for some milliseconds: not at all on the processor (quiet), in a pure-Python loop that never gives the
interpreter's lock up by itself, or in numpy's matrix product, which does. The work of a step is fixed, and timed alone
before. Reads have time limits of half a second, so that a reading thread which is kept from running shows as a retry:
the server itself never fails.

Every trainer has the loader in its own process, and in one of its own beside it (``isolate=True``).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import asyncdata as ad
from benchmarks.conditions import conditions
from benchmarks.datasets import RAW_BYTES, Shards, write_shards
from benchmarks.launch import run_json
from benchmarks.links import LINK, link
from benchmarks.measure import in_turn, tree_cpu_s
from benchmarks.table import markdown, median_cell, ratio_cell

TRAINERS: Final = ("quiet", "python", "numpy")
LOADERS: Final = ("here", "isolated")
HEAD: Final = (
    "trainer",
    "loader",
    "MB/s",
    "x quiet, here",
    "step alone ms",
    "step beside ms",
    "x alone",
    "slowest 1 % ms",
    "wait for batch ms",
    "CPU s/GB less steps",
    "retries",
)
FULL: Final = Shards(kind="raw", shards=64, records=400)
QUICK: Final = Shards(kind="raw", shards=4, records=32)
BATCH: Final = 64
TIME_LIMIT_S: Final = 0.5
_SIDE: Final = 192


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What one process does.

    Attributes:
        trainer: One of `TRAINERS`.
        endpoint: URL of the server.
        bucket: Where the shards are.
        step_s: Length of a step when nothing else runs.
        isolate: Whether the loader has a process of its own.
    """

    trainer: str
    endpoint: str
    bucket: str
    step_s: float
    isolate: bool


def make_step(trainer: str, step_s: float) -> Callable[[], object]:
    """A function that always does the same work, which takes `step_s` alone."""
    if trainer == "quiet":
        return functools.partial(time.sleep, step_s)
    unit: Callable[[], object] = _python_unit
    if trainer == "numpy":
        square = np.ones((_SIDE, _SIDE), np.float32)
        unit = functools.partial(np.matmul, square, square, np.empty_like(square))
    count = 1
    while (spent := _time_of(_repeat(unit, count))) < step_s / 2:
        count *= 2
    spent = min(_time_of(_repeat(unit, count)) for _ in range(5))
    return _repeat(unit, max(1, round(count * step_s / spent)))


def _python_unit() -> int:
    total = 0
    for number in range(1000):
        total ^= number
    return total


def _repeat(unit: Callable[[], object], count: int) -> Callable[[], object]:
    def step() -> None:
        for _ in range(count):
            unit()

    return step


def _time_of(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def train(training: Training) -> dict[str, float | list[float]]:
    """One pass over the data with a step after each batch."""
    step = make_step(training.trainer, training.step_s)
    alone = [_time_of(step) for _ in range(30)]
    step_cpu = time.thread_time()
    step()
    step_cpu = time.thread_time() - step_cpu
    limits = ad.TimeoutOptions(first_byte_s=TIME_LIMIT_S, idle_s=TIME_LIMIT_S)
    storage = {"gs": {"endpoint_url": training.endpoint, "token": "anon"}}
    ds = (
        ad.Dataset.list_files(f"gs://{training.bucket}/shard-*.tfrecord", shuffle=False)
        .interleave(ad.TFRecordDataset, cycle_length=16, deterministic=False)
        .batch(BATCH)
        .prefetch(ad.AUTOTUNE)
    )
    steps: list[float] = []
    waits: list[float] = []
    with ad.Runtime(ad.Options(storage=storage, timeouts=limits, isolate=training.isolate), pipelines=1):
        list(ad.Dataset.range(1))  # the Runtime has started, wherever it is
        cpu = tree_cpu_s(os.getpid())
        with ds.iterator() as batches:
            next(batches)
            began = asked = time.perf_counter()
            for _batch in batches:
                waits.append(time.perf_counter() - asked)
                steps.append(_time_of(step))
                asked = time.perf_counter()
            wall = time.perf_counter() - began
            fetch = batches.stats().fetch
            spent = tree_cpu_s(os.getpid()) - cpu
    return {
        "batches_per_s": len(steps) / wall,
        "bytes": float(fetch["bytes"]),
        "alone_ms": statistics.median(alone) * 1e3,
        "beside_ms": statistics.median(steps) * 1e3,
        "slowest_ms": sorted(steps)[int(len(steps) * 0.99)] * 1e3,
        "wait_ms": statistics.mean(waits) * 1e3,
        "cpu_s": spent - step_cpu * len(steps),
        "retries": float(fetch["retries"]),
    }


def _run(training: Training) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.noisy_trainer", "--train", json.dumps(dataclasses.asdict(training))]
    # One thread for the matrix product: what is measured is the reading beside it.
    result: dict[str, float] = run_json(command, {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    return result


def rows_of(results: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """The table's lines."""
    rates = {name: [run["batches_per_s"] * BATCH * RAW_BYTES / 1e6 for run in runs] for name, runs in results.items()}

    def values(name: str, key: str) -> list[float]:
        return [run[key] for run in results[name]]

    return [
        [
            *name.split(", "),
            median_cell(rates[name], 0),
            ratio_cell(rates[name], rates["quiet, here"]),
            median_cell(values(name, "alone_ms")),
            median_cell(values(name, "beside_ms")),
            ratio_cell(values(name, "beside_ms"), values(name, "alone_ms")),
            median_cell(values(name, "slowest_ms"), 1),
            median_cell(values(name, "wait_ms")),
            median_cell([run["cpu_s"] / run["bytes"] * 1e9 for run in results[name]]),
            median_cell(values(name, "retries"), 0),
        ]
        for name in results
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.noisy_trainer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean nothing")
    parser.add_argument("--rounds", type=int, help="measurements of each (default: 5)")
    parser.add_argument("--step-ms", type=float, default=5.0, help="length of a step alone (default: 5)")
    parser.add_argument("--data", type=Path, help="folder to keep the files in (default: a temporary one)")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.train:
        print(json.dumps(train(Training(**json.loads(options.train)))))
        return 0
    shards = QUICK if options.quick else FULL
    rounds = options.rounds or (1 if options.quick else 5)
    with contextlib.ExitStack() as stack:
        root = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncdata-bench-")))
        write_shards(root.absolute(), shards)
        server = stack.enter_context(link(root.absolute(), shards))
        start = conditions()
        runs = {
            f"{name}, {loader}": functools.partial(
                _run,
                Training(
                    trainer=name,
                    endpoint=server.url,
                    bucket=shards.name,
                    step_s=options.step_ms / 1e3,
                    isolate=loader == "isolated",
                ),
            )
            for name in TRAINERS
            for loader in LOADERS
        }
        results = in_turn(rounds, runs, lambda text: print(f"  {text}", file=sys.stderr, flush=True))
    print(f"{start} Link: {LINK['name']}; time limits of {TIME_LIMIT_S} s.\n\n{markdown(HEAD, rows_of(results))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
