"""The same remote epoch read by this library and by others, in clear and in bad weather.

    python -m benchmarks.remote [--quick] [--work raw blobs tiny jpeg] [--only clear stalls errors hang] [--tls]

From shards behind 40 ms (lognormal) to the first byte and 50 MB/s a stream:

raw      40 KB records as byte strings, in batches of 64
blobs    Examples of 40 KB parsed to a byte string and a number, in batches of 64; every reader delivers ``bytes``
tiny     Examples of 200 bytes parsed likewise, in batches of 1024
jpeg     Examples with a picture of 44 KB, decoded to 224x224, in batches of 64; *plain obstore* decodes in two
         processes with this library's decoder, and drops the pixels

clear    nothing else
stalls   1 of 100 answers waits 2 s before its first byte
errors   1 of 20 answers is 503
hang     one body stops half-way and never goes on

Faults are counted out, not drawn. Each run is a process of its own, every record's number is checked, and readers and
weathers are measured in turn: five rounds, or as many as end within ten minutes (see *runs*). Others than this library
meet the `hang` once, and who has not finished 20 s after the time of a clear epoch is stopped.

``of CPUs`` is how much of all processors client and server used together: near 1, no reader can be faster than their
CPU time allows.

In clear weather the same bytes are also received by bare sockets and dropped, without a record, a checksum or a second
attempt: what client and server can do together on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from asyncdata.machine import usable_cpus
from benchmarks.conditions import conditions
from benchmarks.datasets import RAW_BYTES, Shards, write_shards
from benchmarks.launch import PEERS_PYTHON, find_python, run_here, run_json, run_peer
from benchmarks.measure import cpu_s, in_turn
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
    # In the middle of every hundred, so that a reader that asks for each shard as a whole meets one, too.
    "stalls": ({"fault": {"kind": "stall", "seconds": 2.0}, "nth": list(range(50, 10_000, 100)), **_WHERE},),
    "errors": ({"fault": {"kind": "status", "status": 503}, "every": 20, **_WHERE},),
    "hang": ({"fault": {"kind": "stall", "after_fraction": [0.5, 0.5]}, "nth": [9], **_WHERE},),
}
_PEERS: Final = {
    "plain obstore": ("plain_obstore.py", ("obstore",)),
    "plain gcsfs": ("plain_gcsfs.py", ("gcsfs",)),
    "SPDL + obstore": ("spdl_obstore.py", ("spdl", "obstore")),
    "PyTorch + gcsfs": ("torch_gcsfs.py", ("torch", "gcsfs", "cv2")),
    "tf.data, local files": ("tf_data.py", ("tensorflow",)),
}
_BARE: Final = "bare sockets, bytes dropped"
_NO_NETWORK: Final = "tf.data, local files"
"""Its own client of GCS reaches no other host, so that it is spared the network."""
_FRAME_BYTES: Final = 16
_FINISH_S: Final = 20.0
_START_S: Final = 10.0
"""For a reader to start and to read all there is, where that was not measured."""

_LIMIT_S: Final = 540.0
"""For all rounds; on a slow machine there are fewer of them."""

_FULL: Final = {
    "raw": Shards(kind="raw", shards=64, records=400),
    "blobs": Shards(kind="blobs", shards=64, records=400),
    "tiny": Shards(kind="tiny", shards=64, records=20_000),
    "jpeg": Shards(kind="jpeg", shards=64, records=160),
}
_QUICK: Final = {
    "raw": Shards(kind="raw", shards=4, records=40),
    "blobs": Shards(kind="blobs", shards=4, records=40),
    "tiny": Shards(kind="tiny", shards=4, records=2000),
    "jpeg": Shards(kind="jpeg", shards=4, records=20),
}
_OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "asyncdata": {},
    "asyncdata, deterministic": {"deterministic": True},
    "asyncdata, later epochs": {"epochs": 4},
}
_OWN_PARSING: Final[Mapping[str, Mapping[str, Any]]] = {
    **_OWN,
    "asyncdata, parsed inline": {"executor": "inline"},
    "asyncdata, parsed in workers": {"executor": "process"},
    "asyncdata, byte strings left in place": {"strings": False},
    "asyncdata, not parsed": {"parse": False},
}
"""Ways to do the work with this library, and what each asks of it."""

_NO_PICTURES: Final = ("plain gcsfs",)
"""Readers that are not made to decode."""

_HEAD: Final = (
    "work",
    "weather",
    "reader",
    "first batch s",
    "MB/s",
    "1000 records/s",
    "CPU s/GB",
    "server CPU s/GB",
    "of CPUs",
    "x clear",
    "x asyncdata",
    "runs",
)


def run_all(
    weathers: Sequence[str],
    root: Path,
    shards: Shards,
    peers: Mapping[str, str],
    rounds: int,
    note: Callable[[str], None],
    *,
    tls: bool = False,
) -> dict[str, dict[str, list[Epoch]]]:
    """Weather to reader to epochs, all of them in turn; a reader that does not finish has no epoch."""
    took_s: dict[str, float] = {}
    own = _ways(shards.kind)
    if shards.kind == "jpeg":
        peers = {reader: python for reader, python in peers.items() if reader not in _NO_PICTURES}

    def once(name: str, reader: str, server: Server) -> Epoch | None:
        # Other weather begins to count its requests anew.
        server.change_profile({**_LINK, "rules": _RULES[name]})
        work = Work(
            kind=shards.kind,
            shards=shards.shards,
            records=shards.records,
            pattern=f"gs://{shards.name}/shard-*.tfrecord",
            endpoint=server.url,
            ca_file=server.ca_file,
            deterministic=False,
            batch=1024 if shards.kind == "tiny" else 64,
        )
        limit_s = took_s.get(reader, _START_S) + _FINISH_S if name == "hang" and reader in _PEERS else None
        began, before_s = time.monotonic(), cpu_s(server.pid)
        try:
            epochs = run_reader(reader, work, shards, peers, root, limit_s)
        except subprocess.TimeoutExpired:
            return None
        except subprocess.CalledProcessError:
            note(f"{reader} failed")
            return None
        finally:
            if name == "clear":
                took_s[reader] = time.monotonic() - began
        # Of several epochs the last one counts: the first had to start everything.
        return dataclasses.replace(epochs[-1], server_cpu_s=(cpu_s(server.pid) - before_s) / len(epochs))

    # One server for all: its files are read, and their checksums formed, once.
    with fake_gcs(root, {**_LINK, "rules": []}, tls=tls) as server:
        for number in range(shards.shards):
            server.touch(shards.name, f"shard-{number:05d}.tfrecord")
        # Peers that hang are waited for, once.
        often: dict[str, Callable[[], Epoch | None]] = {}
        waiting: dict[str, Callable[[], Epoch | None]] = {}
        for reader in (*own, *peers):
            for name in _weathers_of(reader, shards.kind, weathers):
                run = functools.partial(once, name, reader, server)
                (waiting if reader in peers and name == "hang" else often)[f"{name}, {reader}"] = run
        if "clear" in weathers and shards.kind == "raw" and not tls:
            often[f"clear, {_BARE}"] = functools.partial(once, "clear", _BARE, server)
        results = in_turn(rounds, often, note, _LIMIT_S - len(waiting) * (_FINISH_S + _START_S))
        results |= in_turn(1, waiting, note)
    found: dict[str, dict[str, list[Epoch]]] = {name: {} for name in weathers}
    for title, epochs in results.items():
        name, _, reader = title.partition(", ")
        found[name][reader] = [epoch for epoch in epochs if epoch is not None]
    return found


def run_reader(
    reader: str, work: Work, shards: Shards, peers: Mapping[str, str], root: Path, limit_s: float | None
) -> list[Epoch]:
    """The work done once by a reader, in as many epochs as it needs.

    Raises:
        subprocess.TimeoutExpired: It took longer than the limit.
        subprocess.CalledProcessError: It failed.
    """
    if reader == _BARE:
        return [run_bare(work, shards)]
    if reader in _PEERS:
        return run_peer(peers[reader], _PEERS[reader][0], _reached(reader, work, root), timeout_s=limit_s)
    return run_here(dataclasses.replace(work, **_ways(work.kind)[reader]))


def _ways(kind: str) -> Mapping[str, Mapping[str, Any]]:
    return _OWN if kind in ("raw", "jpeg") else _OWN_PARSING


def _weathers_of(reader: str, kind: str, weathers: Sequence[str]) -> Sequence[str]:
    """Those that a reader is measured in: nothing of the weather reaches local files."""
    if reader != _NO_NETWORK:
        return weathers
    return [name for name in weathers if name == "clear" and kind != "raw"]


def _reached(reader: str, work: Work, root: Path) -> Work:
    """The work where this reader finds the files."""
    if reader != _NO_NETWORK:
        return work
    pattern = work.pattern.replace("gs://", f"{root}/")
    return dataclasses.replace(work, pattern=pattern, endpoint="")


def run_bare(work: Work, shards: Shards) -> Epoch:
    """The bytes of all shards, received and dropped."""
    size = shards.records * (RAW_BYTES + _FRAME_BYTES)
    where = f"/download/storage/v1/b/{shards.name}/o"
    objects = [(f"{where}/shard-{number:05d}.tfrecord?alt=media", size) for number in range(shards.shards)]
    script = REPOSITORY / "benchmarks" / "peers" / "bare_sockets.py"
    values = run_json([sys.executable, str(script), json.dumps({"endpoint": work.endpoint, "objects": objects})])
    records = shards.shards * shards.records
    return Epoch(
        first_s=0.0,
        wall_s=values["wall_s"],
        first_records=0,
        records=records,
        nbytes=shards.shards * size,
        cpu_s=values["cpu_s"],
        parent_cpu_s=values["cpu_s"],
        tasks=0,
    )


def rows(
    name: str, shards: Shards, record_bytes: float, results: Mapping[str, list[Epoch]], clear: Mapping[str, list[Epoch]]
) -> list[list[str]]:
    """The lines of one weather; the rate is that of the stored bytes, the first batch included."""
    lines = []

    def rate(epoch: Epoch) -> float:
        return epoch.records * record_bytes / epoch.wall_s / 1e6

    own = [rate(epoch) for epoch in results["asyncdata"]]
    for reader, epochs in results.items():
        if not epochs:
            how = f"not finished {_FINISH_S:.0f} s later" if name == "hang" else "failed"
            lines.append([shards.kind, name, reader, *["-"] * (len(_HEAD) - 5), how, "0"])
            continue
        rates = [rate(epoch) for epoch in epochs]
        calm = clear.get(reader, ())
        share = ratio_cell(rates, [rate(epoch) for epoch in calm])
        if name == "hang" and calm:
            longer = statistics.median(hung.wall_s - epoch.wall_s for hung, epoch in zip(epochs, calm, strict=False))
            share += f" ({longer:+.1f} s)"
        lines.append(
            [
                shards.kind,
                name,
                reader,
                "-" if reader == _BARE else median_cell([epoch.first_s for epoch in epochs]),
                median_cell(rates, 0),
                median_cell([epoch.records / epoch.wall_s / 1e3 for epoch in epochs], 1),
                median_cell([epoch.cpu_s / (epoch.records * record_bytes / 1e9) for epoch in epochs]),
                median_cell([epoch.server_cpu_s / (epoch.records * record_bytes / 1e9) for epoch in epochs]),
                median_cell([(epoch.cpu_s + epoch.server_cpu_s) / (epoch.wall_s * usable_cpus()) for epoch in epochs]),
                share,
                ratio_cell(rates, own),
                str(len(epochs)),
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
    parser.add_argument("--work", nargs="+", choices=list(_FULL), default=["raw"], help="what to read (default: raw)")
    parser.add_argument("--only", nargs="+", choices=list(_RULES), default=list(_RULES), help="weathers (default: all)")
    parser.add_argument("--tls", action="store_true", help="HTTPS")
    parser.add_argument("--rounds", type=int, help="measurements of each, at most (default: 5)")
    parser.add_argument("--data", type=Path, help="folder to keep the files in (default: a temporary one)")
    where = f"(default: this interpreter, else {PEERS_PYTHON.relative_to(REPOSITORY)})"
    parser.add_argument("--peers", metavar="PYTHON", help=f"interpreter that has the other readers {where}")
    options = parser.parse_args(arguments)
    works = _QUICK if options.quick else _FULL
    rounds = options.rounds or (1 if options.quick else 5)
    found = {reader: find_python(modules, options.peers) for reader, (_, modules) in _PEERS.items()}
    peers = {reader: python for reader, python in found.items() if python is not None}

    def note(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        root = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncdata-bench-")))
        start = conditions()
        lines: list[list[str]] = []
        for shards in (works[kind] for kind in options.work):
            note(f"writing {shards.shards} shards")
            folder = write_shards(root.absolute(), shards)
            stored = sum(path.stat().st_size for path in folder.iterdir())
            results = run_all(options.only, root.absolute(), shards, peers, rounds, note, tls=options.tls)
            for name in options.only:
                mean_bytes = stored / (shards.shards * shards.records)
                lines += rows(name, shards, mean_bytes, results[name], results.get("clear", {}))
    missing = [reader for reader in _PEERS if reader not in peers]
    print(f"{start}\n\n{markdown(_HEAD, lines)}")
    if missing:
        print(f"\nNot measured, for no interpreter has them: {', '.join(missing)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
