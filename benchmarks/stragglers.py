"""``python -m benchmarks.stragglers [--quick]``: what reads that stall cost, with and without second attempts.

40 KB records as byte strings in batches of 64, from shards behind 40 ms to the first byte, 50 MB/s a stream and
500 MB/s in all; every hundredth answer is silent for 5 s, half of them before the head and half inside the body. Each
run is a process of its own that reads several epochs. Runs without stalls and with them are measured in turn: five
pairs, or as many as end within ten minutes (see *runs*). Without second attempts it is measured once or twice only, for
that takes long and is far away.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.conditions import conditions
from benchmarks.datasets import RAW_BYTES, Shards, write_shards
from benchmarks.launch import run_here
from benchmarks.measure import in_turn
from benchmarks.servers import Server, fake_gcs
from benchmarks.table import markdown, median_cell, ratio_cell
from benchmarks.workloads import Work

_LINK: Final = {
    "name": "40 ms, 50 MB/s a stream, 500 MB/s in all",
    "latency": {"kind": "fixed", "median_s": 0.04},
    "stream_bytes_per_s": 50e6,
    "total_bytes_per_s": 500e6,
}
_WHERE: Final = {"operations": "storage.objects.get", "media_only": True}
_STALLS: Final = (
    {"fault": {"kind": "stall", "seconds": 5.0}, "every": 200, **_WHERE},
    {"fault": {"kind": "stall", "seconds": 5.0, "after_fraction": [0.2, 0.8]}, "every": 199, **_WHERE},
)
_FULL: Final = Shards(kind="raw", shards=64, records=400)
_QUICK: Final = Shards(kind="raw", shards=16, records=200)
_HEAD: Final = ("order, stalls, second attempts", "MB/s", "of without stalls", "s longer per epoch", "runs")
_LIMIT_S: Final = 270.0
"""For one order; on a slow machine there are fewer rounds, and at least one."""

_SLOW_ROUNDS: Final = 2
"""Without second attempts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of little work: whether it runs at all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args(arguments)
    shards = _QUICK if given.quick else _FULL
    rounds = 1 if given.quick else given.rounds
    print(f"{conditions(packages=('asyncdata', 'uvloop'))}\n\n{_LINK['name']}; 1 of 100 answers stalls for 5 s.\n")
    with tempfile.TemporaryDirectory(prefix="benchmark-stragglers-") as home:
        root = Path(home)
        write_shards(root, shards)
        with fake_gcs(root, _LINK) as server:
            for number in range(shards.shards):
                server.touch(shards.name, f"shard-{number:05d}.tfrecord")
            rows = _rows(server, shards, False, given, rounds) + _rows(server, shards, True, given, rounds)
    print(markdown(_HEAD, rows))
    return 0


def _rows(
    server: Server, shards: Shards, deterministic: bool, given: argparse.Namespace, rounds: int
) -> list[list[str]]:
    def run(stalls: bool, hedge: bool) -> Callable[[], float]:
        def one() -> float:
            server.change_profile({**_LINK, "rules": _STALLS if stalls else ()})
            work = Work(
                kind=shards.kind,
                shards=shards.shards,
                records=shards.records,
                pattern=f"gs://{shards.name}/shard-*.tfrecord",
                endpoint=server.url,
                deterministic=deterministic,
                epochs=given.epochs,
                hedge=hedge,
            )
            return sum(epoch.wall_s for epoch in run_here(work))

        return one

    order = "kept" if deterministic else "sloppy"
    names = (f"{order}, none", f"{order}, 1 %, yes", f"{order}, 1 %, no")
    began = time.monotonic()
    slow = in_turn(min(rounds, _SLOW_ROUNDS), {names[2]: run(True, False)}, _note, _LIMIT_S / 4)
    pair = {names[0]: run(False, True), names[1]: run(True, True)}
    measured = in_turn(rounds, pair, _note, _LIMIT_S - (time.monotonic() - began)) | slow
    clear = measured[names[0]]
    volume = given.epochs * shards.shards * shards.records * RAW_BYTES / 1e6
    return [
        [
            name,
            median_cell([volume / wall_s for wall_s in measured[name]], 0),
            ratio_cell(clear, measured[name]),
            median_cell([(wall_s - best) / given.epochs for wall_s, best in zip(measured[name], clear, strict=False)]),
            str(len(measured[name])),
        ]
        for name in names
    ]


def _note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
