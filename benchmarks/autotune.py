"""What AUTOTUNE finds, against the best of settings that are fixed, and against the defaults that it begins with.

    python -m benchmarks.autotune [--quick] [--only WORK …] [--rounds N] [--seconds S]

For each work all listed settings are run once. The best three of them, the defaults and AUTOTUNE are then run in turn.
Rates are measured after ten seconds with AUTOTUNE (and ten seconds after a change of the work), after 1.5 s with fixed
settings. *x best* is the ratio to the setting that was the best in these rounds. Ratios are medians of pairs, and the
lowest and the highest of them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.autotune_works import DEFAULT, FOUND, WORKS, Setting, Work
from benchmarks.conditions import conditions
from benchmarks.datasets import write_shards
from benchmarks.launch import run_json
from benchmarks.measure import in_turn
from benchmarks.servers import fake_gcs
from benchmarks.table import markdown, median_cell

_SETTLING_S: Final = 10.0
_WARMING_S: Final = 1.5
_BEST: Final = 3
_LINK: Final = {
    "name": "40 ms, 20 MB/s a stream, 120 MB/s in all",
    "latency": {"kind": "fixed", "median_s": 0.04},
    "stream_bytes_per_s": 20e6,
    "total_bytes_per_s": 120e6,
}
_HEAD: Final = (
    "work",
    "settings",
    "best fixed setting",
    "its elements/s",
    "AUTOTUNE elements/s",
    "x best",
    "x default",
    "AUTOTUNE came to",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of short runs: whether it runs at all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--only", nargs="*", default=list(WORKS), help="works")
    given = parser.parse_args(arguments)
    print(f"{conditions(packages=('asyncdata', 'uvloop'))}\n")
    rows = []
    with tempfile.TemporaryDirectory(prefix="benchmark-autotune-") as home:
        for name in given.only:
            _note(name)
            with _files(WORKS[name], Path(home)) as (pattern, url):
                rows.append(
                    _measure(name, 1 if given.quick else given.rounds, given.seconds, pattern, url, given.quick)
                )
    print(markdown(_HEAD, rows))
    return 0


@contextlib.contextmanager
def _files(work: Work, root: Path) -> Iterator[tuple[str, str]]:
    """Where a work's files are, and the server that has them; empty where there are none."""
    if work.shards is None:
        yield "", ""
        return
    folder = write_shards(root, work.shards)
    if not work.remote:
        yield f"{folder}/*.tfrecord", ""
        return
    with fake_gcs(root, _LINK) as server:
        for path in folder.iterdir():
            server.touch(folder.name, path.name)
        yield f"gs://{folder.name}/*.tfrecord", server.url


def _measure(name: str, rounds: int, seconds: float, pattern: str, url: str, quick: bool) -> list[str]:
    work = WORKS[name]

    def run(setting: Setting) -> dict[str, Any]:
        before_s = 0.2 if quick else work.changes_s + _SETTLING_S if setting == FOUND else _WARMING_S
        words = [name, json.dumps(setting), str(before_s), str(0.2 if quick else seconds), pattern, url]
        found: dict[str, Any] = run_json([sys.executable, "-m", "benchmarks.autotune_works", *words])
        return found

    listed = work.settings[:: len(work.settings) - 1] if quick else work.settings
    settings = {_named(setting): setting for setting in listed}
    sweep = in_turn(1, {text: functools.partial(run, setting) for text, setting in settings.items()}, _note)
    chosen = sorted(settings, key=lambda text: sweep[text][0]["rate"], reverse=True)[:_BEST]
    again = {**{text: settings[text] for text in chosen}, "default": DEFAULT, "AUTOTUNE": FOUND}
    found = in_turn(rounds, {text: functools.partial(run, setting) for text, setting in again.items()}, _note)
    rates = {who: [one["rate"] for one in results] for who, results in found.items()}
    best = max(chosen, key=lambda text: statistics.median(rates[text]))
    return [
        name,
        str(len(work.settings)),
        best,
        median_cell(rates[best], 0),
        median_cell(rates["AUTOTUNE"], 0),
        _ratios(rates["AUTOTUNE"], rates[best]),
        _ratios(rates["AUTOTUNE"], rates["default"]),
        _came_to([one["knobs"] for one in found["AUTOTUNE"]]),
    ]


def _named(setting: Setting) -> str:
    return ", ".join(f"{key} {value}" for key, value in setting.items())


def _ratios(values: Sequence[float], others: Sequence[float]) -> str:
    """The median ratio of runs in one round, the lowest and the highest."""
    return median_cell([value / other for value, other in zip(values, others, strict=True) if other])


def _came_to(knobs: Sequence[Mapping[str, int]]) -> str:
    """The lowest and the highest value of each setting."""
    found = {name: [one[name] for one in knobs if name in one] for name in knobs[0]}
    return "; ".join(f"{name} {min(values)}-{max(values)}" for name, values in found.items())


def _note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
