"""Decoding local files at its limit: beside decoding alone and beside other readers; a Markdown table.

    python -m benchmarks.decode [--quick] [--work jpeg small wide tokens]

jpeg     pictures of 500x375 resized to 224x224, in batches of 64
small    Examples of 158 bytes, five integers and five floats, in batches of 1024
wide     Examples of 40 features, in batches of 1024
tokens   lists of 1 to 512 integers, padded to the longest of a batch of 256

Every reader has two worker processes (SPDL: two threads; tf.data: what AUTOTUNE takes) and makes two passes in a
process of its own. *cold* is the time to the first batch of the first pass, the start of the workers included and
imports excluded. *warm*, rate and CPU time are those of the second pass, from making its iterator to its last batch. A
pass takes some seconds, so that readers that look for their settings have found them in the first one. PyTorch and SPDL
decode with the functions of this library, whole batches at a time.

*bare* is decoding alone: as many processes decode records that are in their memory, with the same functions.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.conditions import conditions
from benchmarks.datasets import Shards, write_shards
from benchmarks.launch import PEERS_PYTHON, find_python, run_here, run_peer
from benchmarks.measure import in_turn
from benchmarks.servers import REPOSITORY
from benchmarks.table import markdown, median_cell, ratio_cell
from benchmarks.workloads import Epoch, Work

WORKERS: Final = 2
HEAD: Final = (
    "work",
    "reader",
    "1000 records/s",
    "CPU us/record",
    "cold, s",
    "warm, s",
    "x bare rate",
    "x bare CPU",
    "x tf.data rate",
    "x tf.data CPU",
)
_BATCH: Final = {"jpeg": 64, "small": 1024, "wide": 1024, "tokens": 256}
_FULL: Final = {"jpeg": 80, "small": 32_000, "wide": 16_000, "tokens": 8000}
_QUICK: Final = {"jpeg": 4, "small": 200, "wide": 100, "tokens": 100}
"""Records of a shard."""

_SHARDS: Final = 64
_QUICK_SHARDS: Final = 4
_PEERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "tf.data": ("tf_data.py", ("tensorflow",)),
    "PyTorch": ("torch_files.py", ("torch", "cv2")),
    "SPDL": ("spdl_files.py", ("spdl", "cv2")),
}


def measure(
    folder: Path, shards: Shards, peers: Mapping[str, str], rounds: int, note: Callable[[str], None]
) -> dict[str, list[list[Epoch]]]:
    """Reader to rounds to epochs, all readers in turn."""
    work = Work(
        kind=shards.kind,
        shards=shards.shards,
        records=shards.records,
        pattern=f"{folder}/shard-*.tfrecord",
        batch=_BATCH[shards.kind],
        epochs=2,
        workers=WORKERS,
    )
    runs: dict[str, Callable[[], list[Epoch]]] = {
        "bare": functools.partial(run_peer, sys.executable, "bare_decode.py", work),
        "asyncdata": functools.partial(run_here, work),
    }
    for reader, python in peers.items():
        runs[reader] = functools.partial(run_peer, python, _PEERS[reader][0], work)
    return in_turn(rounds, runs, lambda text: note(f"{shards.kind}, {text}"))


def rows(kind: str, results: Mapping[str, list[list[Epoch]]]) -> list[list[str]]:
    """The lines of one work."""
    digits = 2 if kind == "jpeg" else 1
    last = {reader: [epochs[-1] for epochs in found] for reader, found in results.items()}
    rates = {reader: [epoch.records / epoch.wall_s / 1e3 for epoch in found] for reader, found in last.items()}
    costs = {reader: [epoch.cpu_s / epoch.records * 1e6 for epoch in found] for reader, found in last.items()}
    lines = []
    for reader, found in results.items():
        waits = [[epochs[number].first_s for epochs in found] for number in (0, -1)]
        lines.append(
            [
                kind,
                reader,
                median_cell(rates[reader], digits),
                median_cell(costs[reader], digits),
                *("-" if reader == "bare" else median_cell(seconds) for seconds in waits),
                *(ratio_cell(of[reader], of.get(other, ())) for other in ("bare", "tf.data") for of in (rates, costs)),
            ]
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean nothing")
    parser.add_argument("--work", nargs="+", choices=list(_FULL), default=list(_FULL), help="what to decode")
    parser.add_argument("--rounds", type=int, help="measurements of each (default: 5)")
    parser.add_argument("--data", type=Path, help="folder to keep the files in (default: a temporary one)")
    where = f"(default: this interpreter, else {PEERS_PYTHON.relative_to(REPOSITORY)})"
    for option, has in (("tensorflow", "tensorflow"), ("torch", "torch and OpenCV"), ("spdl", "SPDL and OpenCV")):
        parser.add_argument(f"--{option}", metavar="PYTHON", help=f"interpreter that has {has} {where}")
    options = parser.parse_args(arguments)
    peers: dict[str, str] = {}
    for (reader, (_, modules)), wish in zip(
        _PEERS.items(), (options.tensorflow, options.torch, options.spdl), strict=True
    ):
        python = find_python(modules, wish)
        if python is not None:
            peers[reader] = python
    rounds = options.rounds or (1 if options.quick else 5)

    def note(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        root = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncdata-bench-")))
        start = conditions()
        lines: list[list[str]] = []
        for kind in options.work:
            shards = Shards(
                kind=kind,
                shards=_QUICK_SHARDS if options.quick else _SHARDS,
                records=(_QUICK if options.quick else _FULL)[kind],
            )
            note(f"{kind}, writing {shards.shards} shards")
            folder = write_shards(root.absolute(), shards)
            lines += rows(kind, measure(folder, shards, peers, rounds, note))
    print(f"{start}\n\n{markdown(HEAD, lines)}")
    missing = [reader for reader in _PEERS if reader not in peers]
    if missing:
        print(f"\nNot measured, because no interpreter has them: {', '.join(missing)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
