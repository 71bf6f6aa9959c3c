"""What AUTOTUNE finds, against the best of settings that are fixed, and against the default that it begins with.

    python -m benchmarks.autotune [--quick] [--only WORK …] [--rounds N]

Each work has one kind of setting that matters. A sweep of fixed values comes first; the best of them, the default and
AUTOTUNE are then run in turn. Rates are measured after ten seconds with AUTOTUNE, after two with fixed values.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from asyncdata.planner import autotune
from benchmarks.conditions import conditions
from benchmarks.launch import run_json
from benchmarks.measure import in_turn
from benchmarks.table import markdown, median_cell, ratio_cell

FOUND: Final = -1
"""Stands for AUTOTUNE where values are given."""

_SETTLING_S: Final = 10.0
_WARMING_S: Final = 2.0
_COMPUTING_S: Final = 0.002
_STEP_S: Final = 0.02
_HEAD: Final = (
    "work",
    "best fixed value",
    "its elements/s",
    "AUTOTUNE elements/s",
    "x best",
    "default",
    "x default",
    "AUTOTUNE came to",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One pipeline.

    Attributes:
        counts: The kind of setting that matters.
        sweep: Fixed values for it.
        default: Which of them AUTOTUNE begins with.
    """

    counts: str
    sweep: Sequence[int]
    default: int


WORKS: Final[Mapping[str, Work]] = {
    "async map, 50 ms": Work(counts="calls", sweep=(4, 16, 64, 256), default=16),
    "async maps, 50 and 20 ms": Work(counts="calls", sweep=(4, 16, 64, 256), default=16),
    "map in workers, 2 ms of CPU": Work(counts="tasks", sweep=(2, 4, 8, 16), default=4),
    "async map, 50 ms, busy consumer": Work(counts="calls", sweep=(4, 16, 64, 256), default=16),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints one table; with ``--run`` it is the process that iterates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of short runs: whether it runs at all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement")
    parser.add_argument("--only", nargs="*", default=list(WORKS), help="works")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.run:
        name, value, before, seconds = given.run
        print(json.dumps(_iterate(name, int(value), float(before), float(seconds))))
        return 0
    print(f"{conditions(packages=('asyncdata', 'uvloop'))}\n")
    rows = []
    for name in given.only:
        _note(name)
        rows.append(_measure(name, 1 if given.quick else given.rounds, given.seconds, given.quick))
    print(markdown(_HEAD, rows))
    return 0


def _measure(name: str, rounds: int, seconds: float, quick: bool) -> list[str]:
    work = WORKS[name]

    def runs(value: int) -> Callable[[], dict[str, float]]:
        before = 0.2 if quick else _SETTLING_S if value == FOUND else _WARMING_S
        words = ["--run", name, str(value), str(before), str(0.2 if quick else seconds)]
        return lambda: run_json([sys.executable, "-m", "benchmarks.autotune", *words])

    sweep = in_turn(1, {str(value): runs(value) for value in work.sweep}, _note)
    best = max(work.sweep, key=lambda value: sweep[str(value)][0]["rate"])
    found = in_turn(rounds, {"best": runs(best), "AUTOTUNE": runs(FOUND), "default": runs(work.default)}, _note)
    rates = {who: [one["rate"] for one in results] for who, results in found.items()}
    values = [int(one["value"]) for one in found["AUTOTUNE"]]
    return [
        name,
        f"{best} {work.counts}",
        median_cell(rates["best"], 0),
        median_cell(rates["AUTOTUNE"], 0),
        ratio_cell(rates["AUTOTUNE"], rates["best"]),
        str(work.default),
        ratio_cell(rates["AUTOTUNE"], rates["default"]),
        f"{min(values)}-{max(values)}",
    ]


def _fix(counts: str, value: int) -> None:
    """Leaves nothing to find: every setting of a kind has this value. Called before what uses the ranges is loaded."""
    fixed = autotune.KnobRange(first=value, most=value)
    if counts == "calls":
        autotune.CALLS = fixed  # type: ignore[misc]  # for the whole process
    else:
        autotune.tasks = lambda workers: fixed  # noqa: ARG005 -- whatever there are


async def _wait(x: Any, seconds: float = 0.05) -> Any:
    await asyncio.sleep(seconds)
    return x


async def _wait_less(x: Any) -> Any:
    return await _wait(x, 0.02)


def _compute(x: Any) -> Any:
    until = time.thread_time() + _COMPUTING_S
    while time.thread_time() < until:
        pass
    return x


def _iterate(name: str, value: int, before_s: float, seconds: float) -> dict[str, float]:
    """Elements per second behind the first seconds, and the value of the setting at the end."""
    work = WORKS[name]
    if value != FOUND:
        _fix(work.counts, value)
    import asyncdata as ad  # noqa: PLC0415 -- behind the line above

    numbers = ad.Dataset.range(1 << 40)
    if work.counts == "tasks":
        ds = numbers.map(_compute, num_parallel_calls=ad.AUTOTUNE)
    else:
        ds = numbers.map(_wait, num_parallel_calls=ad.AUTOTUNE)
        if "and" in name:
            ds = ds.map(_wait_less, num_parallel_calls=ad.AUTOTUNE)
    options = ad.Options(num_workers=2)
    step_s = _STEP_S if "consumer" in name else 0.0
    with ds.batch(16).prefetch(ad.AUTOTUNE).with_options(options).iterator() as batches:
        began = now = time.perf_counter()
        count, at = 0, 0.0
        for batch in batches:
            now = time.perf_counter() - began
            if now >= before_s:
                if at:
                    count += len(batch)
                else:
                    at = now
            if at and now >= at + seconds:
                break
            until = time.perf_counter() + step_s
            while time.perf_counter() < until:
                pass
        knobs = [knob.value for knob in batches.stats().knobs if knob.counts == "calls"]
    return {"rate": count / (now - at), "value": float(max(knobs, default=0))}


def _note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
