"""The same remote epoch read by this library and by others, in clear and in bad weather.

    python -m benchmarks.remote [--quick] [--only clear stalls errors hang]

40 KB records as byte strings in batches of 64, from shards behind 40 ms (lognormal) to the first byte and 50 MB/s a
stream:

clear    nothing else
stalls   1 of 100 answers waits 2 s before its first byte
errors   1 of 20 answers is 503
hang     one body stops half-way and never goes on

Faults are counted out, not drawn. Each run is a process of its own, every record's number is checked, and what is
compared is measured in turn. A reader that has not finished a `hang` after 20 s beyond its clear epoch is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.conditions import conditions
from benchmarks.datasets import RAW_BYTES, Shards, write_shards
from benchmarks.launch import PEERS_PYTHON, find_python, run_here, run_peer
from benchmarks.links import touch
from benchmarks.measure import in_turn
from benchmarks.servers import REPOSITORY, Server, fake_gcs
from benchmarks.table import markdown, median_cell, ratio_cell
from benchmarks.workloads import Epoch, Work

_LINK: Final = {
    "name": "40 ms, 50 MB/s a stream",
    "latency": {"kind": "lognormal", "median_s": 0.04, "sigma": 0.25},
    "stream_bytes_per_s": 50e6,
}
_WHERE: Final = {"operations": "storage.objects.get", "media_only": True}
_RULES: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "clear": (),
    "stalls": ({"fault": {"kind": "stall", "seconds": 2.0}, "every": 100, **_WHERE},),
    "errors": ({"fault": {"kind": "status", "status": 503}, "every": 20, **_WHERE},),
    "hang": ({"fault": {"kind": "stall", "after_fraction": [0.5, 0.5]}, "nth": [9], **_WHERE},),
}
_PEERS: Final = {
    "plain obstore": ("plain_obstore.py", ("obstore",)),
    "plain gcsfs": ("plain_gcsfs.py", ("gcsfs",)),
    "SPDL + obstore": ("spdl_obstore.py", ("spdl", "obstore")),
    "PyTorch + gcsfs": ("torch_gcsfs.py", ("torch", "gcsfs", "cv2")),
}
_FINISH_S: Final = 20.0
_FULL: Final = Shards(kind="raw", shards=64, records=400)
_QUICK: Final = Shards(kind="raw", shards=4, records=40)
_HEAD: Final = ("weather", "reader", "first batch s", "MB/s", "CPU s/GB", "x clear", "x asyncdata")


@contextlib.contextmanager
def weather(name: str, root: Path, shards: Shards) -> Iterator[Server]:
    """A server behind the link with these faults; it knows the checksums of its objects already."""
    with fake_gcs(root, {**_LINK, "rules": []}) as server:
        for number in range(shards.shards):
            touch(f"{server.url}/storage/v1/b/{shards.name}/o/shard-{number:05d}.tfrecord?alt=media")
        server.change_profile({**_LINK, "rules": _RULES[name]})
        yield server


def run_all(
    name: str, root: Path, shards: Shards, peers: Mapping[str, str], rounds: int, note: Callable[[str], None]
) -> dict[str, list[Epoch]]:
    """Every reader in turn under one weather; a reader that does not finish has no epoch."""

    def once(reader: str) -> Epoch | None:
        # A server for each run: faults are counted from its first request.
        with weather(name, root, shards) as server:
            work = Work(
                kind=shards.kind,
                shards=shards.shards,
                records=shards.records,
                pattern=f"gs://{shards.name}/shard-*.tfrecord",
                endpoint=server.url,
                deterministic=reader == "asyncdata, deterministic",
                batch=64,
            )
            if reader not in _PEERS:
                return run_here(work)[0]
            try:
                limit_s = _FINISH_S + 10.0 if name == "hang" else None
                return run_peer(peers[reader], _PEERS[reader][0], work, timeout_s=limit_s)
            except subprocess.TimeoutExpired:
                return None

    readers = ["asyncdata", "asyncdata, deterministic", *peers]
    runs = {reader: functools.partial(once, reader) for reader in readers}
    return {
        reader: [epoch for epoch in epochs if epoch is not None]
        for reader, epochs in in_turn(1 if name == "hang" else rounds, runs, note).items()
    }


def rate(epoch: Epoch) -> float:
    """Payload in MB/s, the first batch included."""
    return epoch.records * RAW_BYTES / epoch.wall_s / 1e6


def rows(name: str, results: Mapping[str, list[Epoch]], clear: Mapping[str, list[Epoch]]) -> list[list[str]]:
    """The lines of one weather."""
    lines = []
    own = [rate(epoch) for epoch in results["asyncdata"]]
    for reader, epochs in results.items():
        if not epochs:
            lines.append([name, reader, *["-"] * (len(_HEAD) - 3), f"not finished {_FINISH_S:.0f} s later"])
            continue
        rates = [rate(epoch) for epoch in epochs]
        against = [rate(epoch) for epoch in clear.get(reader, ())]
        share = f"{statistics.median(rates) / statistics.median(against):.2f}" if against else "-"
        if name == "hang" and against:
            calm = statistics.median(epoch.wall_s for epoch in clear[reader])
            share += f" ({epochs[0].wall_s - calm:+.1f} s)"
        lines.append(
            [
                name,
                reader,
                median_cell([epoch.first_s for epoch in epochs]),
                median_cell(rates, 0),
                median_cell([epoch.cpu_s / (epoch.records * RAW_BYTES / 1e9) for epoch in epochs]),
                share,
                ratio_cell(rates, own),
            ]
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.remote",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=list(_RULES), default=list(_RULES), help="weathers (default: all)")
    parser.add_argument("--rounds", type=int, help="measurements of each (default: 5)")
    parser.add_argument("--data", type=Path, help="folder to keep the files in (default: a temporary one)")
    where = f"(default: this interpreter, else {PEERS_PYTHON.relative_to(REPOSITORY)})"
    parser.add_argument("--peers", metavar="PYTHON", help=f"interpreter that has the other readers {where}")
    options = parser.parse_args(arguments)
    shards = _QUICK if options.quick else _FULL
    rounds = options.rounds or (1 if options.quick else 5)
    found = {reader: find_python(modules, options.peers) for reader, (_, modules) in _PEERS.items()}
    peers = {reader: python for reader, python in found.items() if python is not None}

    def note(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    lines: list[list[str]] = []
    clear: dict[str, list[Epoch]] = {}
    with contextlib.ExitStack() as stack:
        root = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncdata-bench-")))
        start = conditions()
        write_shards(root.absolute(), shards)
        for name in options.only:
            note(name)
            results = run_all(name, root.absolute(), shards, peers, rounds, note)
            clear = results if name == "clear" else clear
            lines += rows(name, results, clear)
    missing = [reader for reader in _PEERS if reader not in peers]
    print(f"{start}\n\n{markdown(_HEAD, lines)}")
    if missing:
        print(f"\nNot measured, for no interpreter has them: {', '.join(missing)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
