"""How much of a slow first byte is hidden: first-byte time x stream rate x cycle_length, against the ideal.

    python -m benchmarks.latency_hiding [--quick] [--plot FILE.png]

40 KB records as batches of bytes from shards of 16 MB over a link of 500 MB/s in all. The ideal waits for one listing
and one first byte, and then uses the whole link: ``2 x first byte + bytes / 500 MB/s``. The clock runs from the first
request of a Runtime whose workers are ready, for starting processes is not what is asked about here. The whole grid is
measured in turn: three rounds, or as many as end within ten minutes (see *rounds*).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.conditions import conditions
from benchmarks.datasets import Shards, write_shards
from benchmarks.launch import run_here
from benchmarks.measure import in_turn
from benchmarks.servers import Server, fake_gcs
from benchmarks.table import markdown, median_cell
from benchmarks.workloads import Epoch, Work

TOTAL_BYTES_PER_S: Final = 500e6
HEAD: Final = (
    "first byte ms",
    "MB/s a stream",
    "cycle_length",
    "order",
    "MB/s",
    "share of the ideal",
    "first batch s",
    "rounds",
)
_LIMIT_S: Final = 540.0
"""For all rounds; on a slow machine there are fewer of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is varied."""

    shards: Shards
    first_byte_s: tuple[float, ...]
    stream_bytes_per_s: tuple[float, ...]
    cycles: tuple[int, ...]
    orders: tuple[str, ...]
    rounds: int


FULL: Final = Sizes(
    shards=Shards(kind="raw", shards=32, records=400),
    first_byte_s=(0.0, 0.04, 0.12),
    stream_bytes_per_s=(25e6, 50e6, 100e6),
    cycles=(1, 4, 16),
    orders=("deterministic", "sloppy"),
    rounds=3,
)
QUICK: Final = Sizes(
    shards=Shards(kind="raw", shards=4, records=40),
    first_byte_s=(0.01,),
    stream_bytes_per_s=(50e6,),
    cycles=(1, 4),
    orders=("deterministic",),
    rounds=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One cell of the grid, and what was measured there."""

    first_byte_s: float
    stream_bytes_per_s: float
    cycle: int
    order: str
    epochs: tuple[Epoch, ...]

    @property
    def rates(self) -> list[float]:
        """Bytes a second, epoch by epoch."""
        return [epoch.nbytes / epoch.wall_s for epoch in self.epochs]

    @property
    def shares(self) -> list[float]:
        """Of the ideal, epoch by epoch."""
        ideals = [2 * self.first_byte_s + epoch.nbytes / TOTAL_BYTES_PER_S for epoch in self.epochs]
        return [ideal / epoch.wall_s for ideal, epoch in zip(ideals, self.epochs, strict=True)]


def measure(sizes: Sizes, root: Path, note: Callable[[str], None]) -> list[Point]:
    """The whole grid in turn."""
    note(f"writing {sizes.shards.shards} shards")
    write_shards(root, sizes.shards)
    cells = [
        (first_byte_s, stream_bytes_per_s, cycle, order)
        for first_byte_s in sizes.first_byte_s
        for stream_bytes_per_s in sizes.stream_bytes_per_s
        for cycle in sizes.cycles
        for order in sizes.orders
    ]
    # One server for all: its files are read, and their checksums formed, once.
    with fake_gcs(root, {"name": "latency_hiding"}) as server:
        for number in range(sizes.shards.shards):
            server.touch(sizes.shards.name, f"shard-{number:05d}.tfrecord")
        runs = {_title(*cell): functools.partial(_run, sizes.shards, server, *cell) for cell in cells}
        results = in_turn(sizes.rounds, runs, note, _LIMIT_S)
    return [
        Point(
            first_byte_s=first_byte_s,
            stream_bytes_per_s=stream_bytes_per_s,
            cycle=cycle,
            order=order,
            epochs=tuple(results[_title(first_byte_s, stream_bytes_per_s, cycle, order)]),
        )
        for first_byte_s, stream_bytes_per_s, cycle, order in cells
    ]


def _title(first_byte_s: float, stream_bytes_per_s: float, cycle: int, order: str) -> str:
    return f"{first_byte_s * 1e3:.0f} ms, {stream_bytes_per_s / 1e6:.0f} MB/s a stream, cycle_length={cycle}, {order}"


def _run(
    shards: Shards, server: Server, first_byte_s: float, stream_bytes_per_s: float, cycle: int, order: str
) -> Epoch:
    server.change_profile(
        {
            "name": "latency_hiding",
            "latency": {"kind": "fixed", "median_s": first_byte_s},
            "stream_bytes_per_s": stream_bytes_per_s,
            "total_bytes_per_s": TOTAL_BYTES_PER_S,
        }
    )
    work = Work(
        kind=shards.kind,
        shards=shards.shards,
        records=shards.records,
        pattern=f"gs://{shards.name}/shard-*.tfrecord",
        endpoint=server.url,
        deterministic=order == "deterministic",
        cycle=cycle,
        epochs=2,
    )
    return run_here(work)[1]


def plot(points: Sequence[Point], path: Path) -> None:
    """One panel for each rate of a stream."""
    # Reached only with --plot, which is what needs matplotlib.
    from benchmarks.plots import Panel, save_panels  # noqa: PLC0415 -- as above

    def line(first_byte_s: float, rate: float) -> list[tuple[float, float]]:
        wanted = [p for p in points if (p.first_byte_s, p.stream_bytes_per_s) == (first_byte_s, rate)]
        first_order = wanted[0].order
        return [(p.cycle, sorted(p.shares)[len(p.shares) // 2]) for p in wanted if p.order == first_order]

    rates = sorted({point.stream_bytes_per_s for point in points})
    latencies = sorted({point.first_byte_s for point in points})
    panels = [
        Panel(
            title=f"{rate / 1e6:.0f} MB/s a stream",
            lines={f"{latency * 1e3:.0f} ms to the first byte": line(latency, rate) for latency in latencies},
            dashed=1.0,
        )
        for rate in rates
    ]
    save_panels(path, panels, x="cycle_length", y="share of the ideal", logarithmic=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latency_hiding",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean nothing")
    parser.add_argument("--rounds", type=int, help="measurements of each (default: 3)")
    parser.add_argument("--data", type=Path, help="folder to keep the files in (default: a temporary one)")
    parser.add_argument("--plot", type=Path, help="also draw the shares into this PNG file")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    if options.rounds:
        sizes = dataclasses.replace(sizes, rounds=options.rounds)
    with contextlib.ExitStack() as stack:
        root = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncdata-bench-")))
        start = conditions()
        points = measure(sizes, root.absolute(), lambda text: print(f"  {text}", file=sys.stderr, flush=True))
    rows = [
        [
            f"{point.first_byte_s * 1e3:.0f}",
            f"{point.stream_bytes_per_s / 1e6:.0f}",
            str(point.cycle),
            point.order,
            median_cell([rate / 1e6 for rate in point.rates], 0),
            median_cell(point.shares),
            median_cell([epoch.first_s for epoch in point.epochs]),
            str(len(point.epochs)),
        ]
        for point in points
    ]
    print(f"{start}\n\n{markdown(HEAD, rows)}")
    if options.plot:
        plot(points, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
