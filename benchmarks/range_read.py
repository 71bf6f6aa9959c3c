"""Ranges over HTTP and TLS: this library's storage layer beside other clients, and beside the least that it takes.

    python -m benchmarks.range_read [--quick] [--only http tls paced receivers quota] [--server nginx]

Every client is a process of its own on one processor, the server one on another. Clients that fill the caller's memory
(bare, asyncdata, aiohttp) receive into warm slabs; gcsfs and obstore return memory of their own, and the copy into a
slab that would still have to follow is not counted. *bare* is an epoll loop around ``recv_into``. *buffered* and
*reader* are the two ways a body can come on an event loop, uvloop as for asyncdata, with nothing around them; ``x
path`` is against the better of the two.

paced: 16 streams that the server holds at 50 and 90 MB/s, where bodies come in small pieces and waking up costs more
than copying; with and without SO_RCVLOWAT.

receivers: one, two, four and eight processes; client and server share the processors. ``of CPUs`` is how much of all
processors the bytes cost, the server's part included: at 1 nothing was left to win.

quota: the same, with each process of the client held to 15 % of a processor, where control groups can do that.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from asyncdata.machine import usable_cpus
from benchmarks.conditions import SEED, conditions
from benchmarks.cpu_quota import is_possible
from benchmarks.launch import run_json
from benchmarks.measure import in_turn, tree_cpu_s
from benchmarks.range_clients import RECEIVERS, Task
from benchmarks.servers import Server, fake_gcs, find_nginx, nginx
from benchmarks.table import markdown, median_cell, ratio_cell

PARTS: Final = ("http", "tls", "paced", "receivers", "quota")
PATHS: Final = ("buffered", "reader")
CLIENTS: Final = ("bare", *PATHS, "asyncdata", "obstore", "aiohttp", "gcsfs")
HEAD: Final = ("ranges", "client", "GB/s", "CPU s/GB", "CPU us/range", "x bare", "x path", "x gcsfs")
RECEIVERS_HEAD: Final = ("ranges", "client", "GB/s", "x one", "client CPU s/GB", "server CPU s/GB", "of CPUs")
_BUCKET: Final = "ranges"

Result = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Ranges of one size.

    Attributes:
        chunk_bytes: Length of each.
        window: In flight at a time.
        requests: In all, with HTTP; a third as many with TLS.
    """

    chunk_bytes: int
    window: int
    requests: int

    @property
    def title(self) -> str:
        """``8 MiB x 16``."""
        size = f"{self.chunk_bytes >> 20} MiB" if self.chunk_bytes >= 1 << 20 else f"{self.chunk_bytes >> 10} KiB"
        return f"{size} x {self.window}"


FULL: Final = (
    Load(chunk_bytes=8 << 20, window=16, requests=400),
    Load(chunk_bytes=64 << 10, window=64, requests=8_000),
)
QUICK: Final = (
    Load(chunk_bytes=1 << 20, window=4, requests=16),
    Load(chunk_bytes=64 << 10, window=8, requests=64),
)
STREAMS: Final = 16
RATES: Final = (50e6, 90e6)
_QUOTA: Final = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all parts share.

    Attributes:
        root: Folder of buckets.
        nginx: Processes of nginx, where it is the server; 0: it is not.
        quick: Tiny sizes.
        rounds: Measurements of each.
        cpus: Processor of the client, and of the server; None where there are not two.
        note: Told what goes on.
    """

    root: Path
    nginx: int
    quick: bool
    rounds: int
    cpus: tuple[int | None, int | None]
    note: Callable[[str], None]


def free(bench: Bench, *, tls: bool) -> list[list[str]]:
    """As fast as it goes."""
    rows = []
    serve = nginx if bench.nginx else fake_gcs
    with serve(bench.root, tls=tls, cpu=bench.cpus[1]) as server:
        _touch(bench, server)
        for load in QUICK if bench.quick else FULL:
            task = _task(bench, server, load)
            if tls:
                task = dataclasses.replace(task, requests=max(load.window, task.requests // 3))
            runs = {name: functools.partial(_run, dataclasses.replace(task, client=name)) for name in CLIENTS}
            results = in_turn(bench.rounds, runs, bench.note)
            for name in CLIENTS:
                title = f"{'TLS' if tls else 'HTTP'}, {load.title}"
                path = min((results[path] for path in PATHS), key=lambda runs: statistics.median(_cpu_s_per_gb(runs)))
                rows.append(_row(title, name, results[name], [results["bare"], path, results["gcsfs"]]))
    return rows


def paced(bench: Bench) -> list[list[str]]:
    """At the pace of the streams."""
    rows = []
    load = Load(chunk_bytes=8 << 20, window=STREAMS, requests=STREAMS * 16)
    if bench.quick:
        load = Load(chunk_bytes=1 << 20, window=STREAMS, requests=STREAMS)
    names = ("asyncdata", "asyncdata without SO_RCVLOWAT")
    for rate in RATES[:1] if bench.quick else RATES:
        profile = {"name": "paced", "stream_bytes_per_s": rate}
        with fake_gcs(bench.root, profile, cpu=bench.cpus[1]) as server:
            _touch(bench, server)
            task = _task(bench, server, load)
            runs = {name: functools.partial(_run, dataclasses.replace(task, client=name)) for name in names}
            results = in_turn(bench.rounds, runs, bench.note)
            title = f"HTTP, {load.title}, {rate / 1e6:.0f} MB/s each"
            rows += [_row(title, name, results[name], [[]] * 3) for name in names]
            saved = ratio_cell(_cpu_s_per_gb(results[names[0]]), _cpu_s_per_gb(results[names[1]]))
            bench.note(f"SO_RCVLOWAT at {rate / 1e6:.0f} MB/s a stream: {saved} of the CPU time")
    return rows


def receivers(bench: Bench, quota: float = 0.0) -> list[list[str]]:
    """More processes that receive, on as many processors as there are, or each with a part of one."""
    rows = []
    names = ("asyncdata", *(f"asyncdata, {count} receivers" for count in RECEIVERS))
    part = f", {quota:.0%} of a processor each" if quota else ""
    for tls in (False, True):
        serve = functools.partial(nginx, workers=bench.nginx) if bench.nginx else fake_gcs
        with serve(bench.root, tls=tls) as server:
            _touch(bench, server)
            load = QUICK[0] if bench.quick else FULL[0]
            task = dataclasses.replace(_task(bench, server, load), cpu=None, quota=quota)
            if quota:
                task = dataclasses.replace(task, requests=task.window * (12 if tls else 36))
            runs = {
                name: functools.partial(_run_both, dataclasses.replace(task, client=name), server.pid) for name in names
            }
            results = in_turn(bench.rounds, runs, bench.note)
        for name in names:
            rates, ones = ([run["bytes"] / run["wall_s"] / 1e9 for run in results[each]] for each in (name, names[0]))
            both = [run["cpu_s"] + run["server_s"] for run in results[name]]
            shares = [s / run["wall_s"] / usable_cpus() for s, run in zip(both, results[name], strict=True)]
            rows.append(
                [
                    f"{'TLS' if tls else 'HTTP'}, {load.title}{part}",
                    name,
                    median_cell(rates),
                    ratio_cell(rates, ones),
                    median_cell(_cpu_s_per_gb(results[name]), 3),
                    median_cell([run["server_s"] / run["bytes"] * 1e9 for run in results[name]], 3),
                    median_cell(shares),
                ]
            )
    return rows


def _run_both(task: Task, server: int) -> Result:
    """The result of a client, with what it cost the server."""
    before = tree_cpu_s(server)
    result = _run(task)
    return result | {"server_s": tree_cpu_s(server) - before}


def _task(bench: Bench, server: Server, load: Load) -> Task:
    return Task(
        client="",
        endpoint=server.url,
        ca_file=server.ca_file,
        folder=str(bench.root / _BUCKET),
        chunk_bytes=load.chunk_bytes,
        window=load.window,
        requests=load.requests,
        cpu=bench.cpus[0],
    )


def _run(task: Task) -> Result:
    environment = {
        # gcsfs otherwise asks a gRPC service for the kind of bucket and waits for it for a minute.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    if task.ca_file:
        environment["SSL_CERT_FILE"] = task.ca_file
    result: Result = run_json(
        [sys.executable, "-m", "benchmarks.range_clients", json.dumps(dataclasses.asdict(task))], environment
    )
    return result | {"requests": float(task.requests)}


def _cpu_s_per_gb(results: Sequence[Result]) -> list[float]:
    return [result["cpu_s"] / result["bytes"] * 1e9 for result in results]


def _row(title: str, name: str, results: Sequence[Result], others: Sequence[Sequence[Result]]) -> list[str]:
    costs = _cpu_s_per_gb(results)
    return [
        title,
        name,
        median_cell([result["bytes"] / result["wall_s"] / 1e9 for result in results]),
        median_cell(costs, 3),
        median_cell([result["cpu_s"] / result["requests"] * 1e6 for result in results], 0),
        *(ratio_cell(costs, _cpu_s_per_gb(other)) for other in others),
    ]


def write_objects(root: Path, *, quick: bool) -> None:
    """Files of noise."""
    folder = root / _BUCKET
    count, size = (2, 4 << 20) if quick else (32, 64 << 20)
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    for number in range(count):
        path = folder / f"object-{number:02d}"
        if not path.exists() or path.stat().st_size != size:
            path.write_bytes(random.bytes(size))


def _touch(bench: Bench, server: Server) -> None:
    """Reads a byte of every object: fake_gcs computes checksums at the first touch."""
    for path in sorted((bench.root / _BUCKET).iterdir()):
        server.touch(_BUCKET, path.name)


# --- the command -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.range_read",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run (default: all)")
    parser.add_argument("--server", choices=("fake_gcs", "nginx"), default="fake_gcs", help="for http and tls")
    parser.add_argument("--server-processes", type=int, default=1, help="of nginx for receivers (default: 1)")
    parser.add_argument("--rounds", type=int, help="measurements of each (default: 3)")
    parser.add_argument("--data", type=Path, help="folder to keep the files in (default: a temporary one)")
    options = parser.parse_args(arguments)
    if "quota" in options.only and not is_possible():
        print("  quota is left out: no control groups of version 1 for this user", file=sys.stderr)
        options.only.remove("quota")
    if options.server == "nginx" and find_nginx() is None:
        parser.error("nginx is not installed")
    with contextlib.ExitStack() as stack:
        root = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncdata-bench-")))
        bench = Bench(
            root=root.absolute() / ("ranges-quick" if options.quick else "ranges-full"),
            nginx=options.server_processes if options.server == "nginx" else 0,
            quick=options.quick,
            rounds=options.rounds or (1 if options.quick else 3),
            cpus=_two_cpus(),
            note=lambda text: print(f"  {text}", file=sys.stderr, flush=True),
        )
        write_objects(bench.root, quick=options.quick)
        start = conditions()
        rows: list[list[str]] = []
        more: list[list[str]] = []
        for part in options.only:
            bench.note(part)
            if part in ("receivers", "quota"):
                more += receivers(bench, _QUOTA if part == "quota" else 0.0)
            else:
                rows += paced(bench) if part == "paced" else free(bench, tls=part == "tls")
    is_pinned = bench.cpus[0] is not None and not {"receivers", "quota"}.issuperset(options.only)
    where = "client and server on one processor each" if is_pinned else "processors are not assigned"
    tables = [markdown(head, part) for head, part in ((HEAD, rows), (RECEIVERS_HEAD, more)) if part]
    print("\n\n".join([f"{start} Server: {options.server}, {where}.", *tables]))
    return 0


def _two_cpus() -> tuple[int | None, int | None]:
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


if __name__ == "__main__":
    sys.exit(main())
