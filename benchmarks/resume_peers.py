"""What a state costs, and how soon the first batch comes behind it: asyncdata beside other loaders that have states.

    python -m benchmarks.resume_peers --python PYTHON [--plot resume-peers.png] [--quick]

Records of 4 KB in local files, in batches of 64, behind a shuffle of 10,000. Each step runs in a process of its own:
one takes a state at a part of the epoch, one begins there, one begins at the beginning. All read to the end of the
epoch, and must deliver as many batches as are left. PYTHON needs grain, torchdata and mosaicml-streaming; without it
asyncdata is measured alone.

The loaders do different things: asyncdata and Grain shuffle in a window, which has to be filled. StatefulDataLoader and
MosaicML Streaming ask for each record by its number, in an order of all of them, which local files allow at no cost.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncdata as ad
from benchmarks.conditions import conditions
from benchmarks.launch import find_python, run_json
from benchmarks.measure import in_turn
from benchmarks.servers import REPOSITORY
from benchmarks.table import markdown, median_cell

HEAD: Final = (
    *("loader", "part of the epoch", "state ms", "state KB"),
    *("first batch s", "at the beginning s", "MB for the first batch", "MB up to the end / MB left"),
)
PEERS: Final = ("Grain", "StatefulDataLoader", "MosaicML Streaming")
BATCH: Final = 64
RECORD_BYTES: Final = 4096


class Sizes(NamedTuple):
    """What is read."""

    shards: int
    records: int
    buffer: int
    parts: tuple[float, ...]
    rounds: int


FULL: Final = Sizes(64, 1000, 10_000, (0.1, 0.5, 0.9), 3)
QUICK: Final = Sizes(4, 200, 100, (0.5,), 1)


def measure(sizes: Sizes, folder: Path, python: str | None, note: Callable[[str], None]) -> dict[str, list[Any]]:
    """Every loader at every part, in turn."""
    (folder / "tfrecord").mkdir()
    for shard in range(sizes.shards):
        with ad.TFRecordWriter(folder / "tfrecord" / f"{shard:05}") as writer:
            writer.write_many([b"%08d" % n * (RECORD_BYTES // 8) for n in range(sizes.records)])
    loaders = {"asyncdata": sys.executable} | ({} if python is None else dict.fromkeys(PEERS, python))
    runs = {
        json.dumps([loader, part]): functools.partial(_run, sizes, folder, loader, interpreter, part)
        for (loader, interpreter), part in itertools.product(loaders.items(), sizes.parts)
    }
    return in_turn(sizes.rounds, runs, note, 900.0)


def _run(sizes: Sizes, folder: Path, loader: str, python: str, part: float) -> dict[str, float]:
    batches = sizes.shards * sizes.records // BATCH
    position = int(batches * part)
    work = {
        "loader": loader,
        "folder": str(folder),
        "position": position,
        "batch": BATCH,
        "records": sizes.records,
        "record_bytes": RECORD_BYTES,
        "buffer": sizes.buffer,
    }
    script = str(REPOSITORY / "benchmarks" / "peers" / "saved_states.py")

    def step(**more: Any) -> dict[str, Any]:
        found: dict[str, Any] = run_json([python, script, json.dumps({**work, **more})])
        return found

    taken = step(step="take")
    cold, resumed = step(step="first", resumes=False), step(step="first", resumes=True)
    left = -(-sizes.shards * sizes.records // BATCH) - position
    if resumed["batches"] != left:
        raise RuntimeError(f"{loader} delivered {resumed['batches']} batches behind its state, not {left}")
    return {
        **taken,
        "first_s": resumed["first_s"],
        "cold_s": cold["first_s"],
        "first_mb": resumed["first_bytes"] / 1e6,
        "read": resumed["read_bytes"] / (left * BATCH * RECORD_BYTES),
    }


def save_plot(path: Path, results: dict[str, list[Any]]) -> None:
    """Seconds to the first batch by position, for each loader."""
    from benchmarks.plots import Panel, save_panels  # noqa: PLC0415 -- matplotlib is needed for this only

    lines: dict[str, dict[str, list[tuple[float, float]]]] = {"first_s": {}, "cold_s": {}}
    for name, found in results.items():
        loader, part = json.loads(name)
        for key, each in lines.items():
            values = sorted(one[key] for one in found)
            each.setdefault(loader, []).append((100 * part, values[len(values) // 2]))
    panels = [
        Panel(title="behind a state", lines=lines["first_s"]),
        Panel(title="at the beginning", lines=lines["cold_s"]),
    ]
    save_panels(path, panels, x="part of the epoch, %", y="first batch, s")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.resume_peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--python", help="an interpreter that has the other loaders")
    parser.add_argument("--plot", type=Path, help="a .png file to write")
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean nothing")
    options = parser.parse_args(arguments)
    python = find_python(("grain", "torchdata", "streaming"), options.python)
    start = conditions()
    with tempfile.TemporaryDirectory(prefix="asyncdata-bench-") as folder:
        sizes = QUICK if options.quick else FULL
        note = functools.partial(print, file=sys.stderr, flush=True)
        results = measure(sizes, Path(folder), python, note)
    rows = []
    for name, found in results.items():
        loader, part = json.loads(name)
        columns = {key: [one[key] for one in found] for key in found[0]}
        rows.append(
            [
                *(loader, f"{part:.0%}"),
                median_cell([1e3 * value for value in columns["state_s"]]),
                median_cell([value / 1e3 for value in columns["state_bytes"]], 1),
                *(median_cell(columns[key]) for key in ("first_s", "cold_s")),
                median_cell(columns["first_mb"], 0),
                median_cell(columns["read"]),
            ]
        )
    if options.plot is not None:
        save_plot(options.plot, results)
    print(f"{start}\n\n{markdown(HEAD, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
