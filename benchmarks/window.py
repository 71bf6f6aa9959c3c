"""The window of requests that is found, against the best of those that are given.

    python -m benchmarks.window [--quick] [--plot FILE.png]

8 MiB ranges of large objects, read by the storage layer alone, as many at a time as the window lets through. On each
network a sweep of fixed windows comes first; the best of them is then run again against the adaptive one, in turn:
five pairs, or as many as end within two minutes a network (see *pairs*).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from asyncdata.options import AUTOTUNE, Environment, Options
from asyncdata.storage.fetch import Fetcher
from benchmarks.conditions import conditions
from benchmarks.launch import run_json
from benchmarks.measure import in_turn
from benchmarks.servers import Server, fake_gcs
from benchmarks.table import markdown, median_cell, ratio_cell

RANGE_BYTES: Final = 8 << 20
_OBJECT_BYTES: Final = 256 << 20
_SWEEP: Final = (4, 8, 16, 32, 64, 128)
# The last three of these have no faults: a stall of 20 s would hide what the window does.
_NETWORKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "zero": {"name": "zero"},
    "regional": {"extends": "regional", "rules": []},
    "far": {"extends": "far", "rules": []},
    "40 ms, 50 MB/s a stream": {"latency": {"kind": "fixed", "median_s": 0.04}, "stream_bytes_per_s": 50e6},
    "500 MB/s in all": {
        "latency": {"kind": "fixed", "median_s": 0.04},
        "stream_bytes_per_s": 50e6,
        "total_bytes_per_s": 500e6,
    },
}
_HEAD: Final = (
    "network",
    "best of the sweep",
    "its MB/s",
    "adaptive MB/s",
    "x best",
    "came to",
    "most in flight",
    "pairs",
)
_LIMIT_S: Final = 110.0
"""For one network; on a slow machine there are fewer pairs, and at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What was measured on one.

    Attributes:
        name: Of the network.
        sweep: MB/s of every fixed window.
        best: The fixed window that was fastest.
        fixed: MB/s of that one, run again and again, in turn with ...
        adaptive: ... MB/s of the window that is found.
        windows: What it came to.
        peak: Requests in flight at most.
    """

    name: str
    sweep: Mapping[int, float]
    best: int
    fixed: Sequence[float]
    adaptive: Sequence[float]
    windows: Sequence[float]
    peak: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints one table; with ``--read`` it is the process that reads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of short runs: whether it runs at all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one measurement; a quarter is left out first")
    parser.add_argument("--only", nargs="*", default=list(_NETWORKS), help="networks")
    parser.add_argument("--plot", type=Path, help="also draw the sweeps into this PNG file")
    parser.add_argument("--read", nargs=3, metavar=("URL", "WINDOW", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.read:
        url, window, seconds = given.read
        print(json.dumps(uvloop.run(_read(url, int(window), float(seconds)))))
        return 0
    rounds, seconds = (1, 1.0) if given.quick else (given.rounds, given.seconds)
    print(f"{conditions(packages=('asyncdata', 'uvloop'))}\n")
    networks = []
    with tempfile.TemporaryDirectory(prefix="benchmark-window-") as home:
        root = Path(home)
        (root / "data").mkdir()
        (root / "data" / "0.bin").write_bytes(os.urandom(1 << 20) * (_OBJECT_BYTES >> 20))
        with fake_gcs(root) as server:
            _run(server, 4, 1.0)  # The object's checksum is computed, its pages are touched.
            for name in given.only:
                server.change_profile(_NETWORKS[name])
                networks.append(_measure(name, server, rounds, seconds))
    print(markdown(_HEAD, [_row(network) for network in networks]))
    if given.plot:
        _plot(networks, given.plot)
    return 0


def _measure(name: str, server: Server, rounds: int, seconds: float) -> Network:
    began = time.monotonic()
    _note(name)
    sweep = in_turn(1, {str(window): _runs(server, window, seconds / 2) for window in _SWEEP}, _note)
    best = max(_SWEEP, key=lambda window: sweep[str(window)][0]["rate"])
    pair = {"fixed": _runs(server, best, seconds), "adaptive": _runs(server, AUTOTUNE, seconds)}
    measured = in_turn(rounds, pair, _note, _LIMIT_S - (time.monotonic() - began))
    rates = {who: [one["rate"] / 1e6 for one in results] for who, results in measured.items()}
    return Network(
        name=name,
        sweep={window: sweep[str(window)][0]["rate"] / 1e6 for window in _SWEEP},
        best=best,
        fixed=rates["fixed"],
        adaptive=rates["adaptive"],
        windows=[one["window"] for one in measured["adaptive"]],
        peak=max(one["peak"] for one in measured["adaptive"]),
    )


def _row(network: Network) -> list[str]:
    return [
        network.name,
        str(network.best),
        median_cell(network.fixed, 0),
        median_cell(network.adaptive, 0),
        ratio_cell(network.adaptive, network.fixed),
        f"{min(network.windows):.0f}-{max(network.windows):.0f}",
        f"{network.peak:.0f}",
        str(len(network.fixed)),
    ]


def _plot(networks: Sequence[Network], path: Path) -> None:
    """One panel for each network: what every fixed window brings, and what the one that is found does."""
    # Reached only with --plot, which is what needs matplotlib.
    from benchmarks.plots import Panel, save_panels  # noqa: PLC0415 -- as above

    panels = []
    for network in networks:
        whole = statistics.median(network.fixed)
        found = statistics.median(network.adaptive) / whole
        points = [(float(window), rate / whole) for window, rate in network.sweep.items()]
        panels.append(Panel(title=network.name, lines={"fixed": points}, dashed=found, dashed_name="found by itself"))
    save_panels(path, panels, x="requests in flight", y="rate, of the best fixed window's", logarithmic=True)


def _runs(server: Server, window: int, seconds: float) -> Callable[[], dict[str, float]]:
    return lambda: _run(server, window, seconds)


def _run(server: Server, window: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.window", "--read", server.url, str(window), str(seconds)]
    values: dict[str, float] = run_json(command)
    return values


async def _read(url: str, window: int, seconds: float) -> dict[str, float]:
    """Reads ranges for so long; the first quarter is not counted."""
    fetcher = Fetcher(
        Options(max_requests_in_flight=window, memory_limit_bytes=1 << 40), Environment(storage_emulator_host=url)
    )
    info = await fetcher.stat("gs://data/0.bin")
    began = time.perf_counter()
    counted_from = began + seconds / 4
    until = began + seconds
    ranges = info.size // RANGE_BYTES
    received = 0
    slab = memoryview(bytearray(RANGE_BYTES))

    reading = 0

    async def read_on(number: int) -> None:
        # All write to one place: what arrives is not looked at, and memory is not what is measured.
        nonlocal received, reading
        while time.perf_counter() < until and reading <= fetcher.window:
            await fetcher.read(info, number * 7 % ranges * RANGE_BYTES, slab)
            number += 1
            if counted_from <= time.perf_counter() < until:
                received += RANGE_BYTES
            fill()
        reading -= 1

    def fill() -> None:
        nonlocal reading
        while reading < fetcher.window and time.perf_counter() < until:
            reading += 1
            group.create_task(read_on(reading))

    async with asyncio.TaskGroup() as group:
        fill()
    stats = fetcher.stats()
    await fetcher.aclose()
    return {"rate": received / (until - counted_from), "window": stats.limit, "peak": stats.peak_in_flight}


def _note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
