"""Whole pipelines: against a bounded network, against other readers on the same work, and what the parent process pays.

    python -m benchmarks.end_to_end [--quick] [--only network remote parent]

network   40 KB records over a link of 40 ms, 90 MB/s a stream and 800 MB/s in all: the share of the link that is used
remote    pictures and 40 KB records from fake_gcs over the same link, beside PyTorch's DataLoader with gcsfs
parent    CPU time of the parent process per record, from local files, in warm memory

Every run is a process of its own (imports are not counted, starting workers is), every number of every record is
checked, and what is compared is measured in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.conditions import conditions
from benchmarks.datasets import Shards, write_shards
from benchmarks.launch import PEERS_PYTHON, find_python, run_here, run_peer
from benchmarks.links import TOTAL_BYTES_PER_S, link
from benchmarks.measure import in_turn
from benchmarks.servers import REPOSITORY
from benchmarks.table import markdown, median_cell, ratio_cell
from benchmarks.workloads import Epoch, Work

PARTS: Final = ("network", "remote", "parent")
TASK_US: Final = 25.0
PEER: Final = "PyTorch + gcsfs"
HEAD: Final = (
    "work",
    "reader",
    "first batch s",
    "1000 records/s",
    "MB/s",
    "CPU us/record",
    "parent us/record",
    "compared",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is read."""

    link: Shards
    pictures: Shards
    small: Shards
    records: Shards
    rounds: int


FULL: Final = Sizes(
    link=Shards(kind="raw", shards=64, records=1600),
    pictures=Shards(kind="jpeg", shards=64, records=80),
    small=Shards(kind="small", shards=32, records=20_000),
    records=Shards(kind="raw", shards=64, records=400),
    rounds=3,
)
QUICK: Final = Sizes(
    link=Shards(kind="raw", shards=4, records=20),
    pictures=Shards(kind="jpeg", shards=2, records=8),
    small=Shards(kind="small", shards=2, records=2000),
    records=Shards(kind="raw", shards=4, records=20),
    rounds=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all parts share."""

    root: Path
    sizes: Sizes
    rounds: int
    torch: str | None
    note: Callable[[str], None]


def work_on(shards: Shards, place: str, **changes: Any) -> Work:
    """The work of reading a set of shards."""
    batch = 1024 if shards.kind == "small" else 64
    values: dict[str, Any] = {
        "kind": shards.kind,
        "shards": shards.shards,
        "records": shards.records,
        "pattern": f"{place}/shard-*.tfrecord",
        "batch": batch,
    }
    return Work(**values | changes)


def row(work: str, reader: str, results: Sequence[Epoch], compared: str) -> list[str]:
    """One line of the table."""
    return [
        work,
        reader,
        median_cell([result.first_s for result in results]),
        median_cell([result.records / result.wall_s / 1e3 for result in results], 1),
        median_cell([result.nbytes / result.wall_s / 1e6 for result in results], 0),
        median_cell([result.cpu_s / result.records * 1e6 for result in results], 1),
        median_cell([result.parent_cpu_s / result.records * 1e6 for result in results], 2),
        compared,
    ]


# --- the parts ---------------------------------------------------------------------------------------------------


def network(bench: Bench) -> list[list[str]]:
    """Share of a bounded link that is used."""
    shards = bench.sizes.link
    write_shards(bench.root, shards)
    with link(bench.root, shards) as server:
        work = work_on(shards, f"gs://{shards.name}", endpoint=server.url)
        results = in_turn(
            bench.rounds,
            {
                order: functools.partial(_once, dataclasses.replace(work, deterministic=order == "deterministic"))
                for order in ("sloppy", "deterministic")
            },
            bench.note,
        )
    rows = []
    for order, epochs in results.items():
        whole = [epoch.nbytes / epoch.wall_s / TOTAL_BYTES_PER_S for epoch in epochs]
        mean_bytes = epochs[0].nbytes / epochs[0].records
        steady = [epoch.steady_records_per_s * mean_bytes / TOTAL_BYTES_PER_S for epoch in epochs]
        compared = f"{median_cell(steady)} of the link behind the first batch, {median_cell(whole)} in all"
        rows.append(row(f"40 KB, link, {order}", "asyncdata", epochs, compared))
    return rows


def remote(bench: Bench) -> list[list[str]]:
    """Beside PyTorch's DataLoader with gcsfs, over the link."""
    rows = []
    for title, shards in (("JPEG, link", bench.sizes.pictures), ("40 KB, link", bench.sizes.records)):
        folder = write_shards(bench.root, shards)
        with link(bench.root, shards) as server:
            work = work_on(shards, f"gs://{shards.name}", endpoint=server.url)
            runs: dict[str, Callable[[], Epoch]] = {"asyncdata": functools.partial(_once, work)}
            if bench.torch is not None:
                runs[PEER] = functools.partial(_peer_once, bench.torch, work)
            rows += _beside(bench, title, folder, runs)
    return rows


def _beside(bench: Bench, title: str, folder: Path, runs: dict[str, Callable[[], Epoch]]) -> list[list[str]]:
    nbytes = sum(path.stat().st_size for path in folder.iterdir())
    results = {
        name: [dataclasses.replace(epoch, nbytes=nbytes) for epoch in epochs]
        for name, epochs in in_turn(bench.rounds, runs, bench.note).items()
    }
    if PEER not in results:
        missing = [title, PEER, *["-"] * (len(HEAD) - 3), "not measured: no interpreter with torch and gcsfs"]
        return [row(title, "asyncdata", results["asyncdata"], "-"), missing]
    rates = {name: [epoch.records / epoch.wall_s for epoch in epochs] for name, epochs in results.items()}
    costs = {name: [epoch.cpu_s for epoch in epochs] for name, epochs in results.items()}
    compared = (
        f"{ratio_cell(rates['asyncdata'], rates[PEER])} x the rate, "
        f"{ratio_cell(costs['asyncdata'], costs[PEER])} x the CPU of {PEER}"
    )
    return [row(title, "asyncdata", results["asyncdata"], compared), row(title, PEER, results[PEER], "1.00")]


def parent(bench: Bench) -> list[list[str]]:
    """CPU time of the parent process alone, on a Runtime that has read the same files before."""
    epochs = 1 + bench.rounds
    rows = []
    small = work_on(bench.sizes.small, str(write_shards(bench.root, bench.sizes.small)), epochs=epochs)
    for title, changes in (
        ("158 B, local, read", {"parse": False}),
        ("158 B, local, read and parse", {}),
        ("158 B, local, shuffle 10000, parse", {"shuffle": 10_000}),
    ):
        bench.note(title)
        results = run_here(dataclasses.replace(small, **changes))[1:]
        rows.append(row(title, "asyncdata", results, f"{_tasks_per_1000(results)} tasks per 1000 records"))
    folder = write_shards(bench.root, bench.sizes.link)
    records = work_on(bench.sizes.link, str(folder), epochs=epochs, bare=True)
    # Whoever has the memory for larger chunks pays for fewer of them.
    large = dataclasses.replace(records, chunk_bytes=32 << 20, memory_limit_bytes=8 << 30)
    for title, work in (
        ("40 KB, local, read", records),
        ("the same, chunks of 32 MiB within 8 GiB", large),
    ):
        bench.note(title)
        results = run_here(work)[1:]
        rows.append(row(title, "asyncdata", results, _beyond_preadv(results)))
    return rows


def _beyond_preadv(results: Sequence[Epoch]) -> str:
    """What the parent costs beyond reading the same bytes: alone, and while another processor works beside."""
    count = results[0].records

    def us(values: Iterable[float]) -> str:
        return median_cell([1e6 * value / count for value in values], 1)

    allowed = 2.0 + TASK_US * results[0].tasks / count
    alone = us(result.preadv_s for result in results)
    busy = us(result.busy_preadv_s for result in results)
    return (
        f"preadv {alone} us, beside a busy processor {busy}; beyond it "
        f"{us(result.parent_cpu_s - result.preadv_s for result in results)} us and "
        f"{us(result.parent_cpu_s - result.busy_preadv_s for result in results)} "
        f"({allowed:.2f} = 2 us + 25 us a task)"
    )


def _tasks_per_1000(results: Sequence[Epoch]) -> str:
    return median_cell([1000 * result.tasks / result.records for result in results], 1)


def _once(work: Work) -> Epoch:
    (epoch,) = run_here(work)
    return epoch


def _peer_once(python: str, work: Work) -> Epoch:
    (epoch,) = run_peer(python, "torch_gcsfs.py", work)
    return epoch


# --- the command -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.end_to_end",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run (default: all)")
    parser.add_argument("--rounds", type=int, help="measurements of each (default: 3)")
    parser.add_argument("--data", type=Path, help="folder to keep the files in (default: a temporary one)")
    peers = f"(default: this interpreter, else {PEERS_PYTHON.relative_to(REPOSITORY)})"
    parser.add_argument("--torch", metavar="PYTHON", help=f"interpreter that has torch, gcsfs and OpenCV {peers}")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    with contextlib.ExitStack() as stack:
        root = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncdata-bench-")))
        bench = Bench(
            root=root.absolute(),
            sizes=sizes,
            rounds=options.rounds or sizes.rounds,
            torch=find_python(("torch", "gcsfs", "cv2"), options.torch),
            note=lambda text: print(f"  {text}", file=sys.stderr, flush=True),
        )
        start = conditions()
        rows: list[list[str]] = []
        for part in options.only:
            bench.note(part)
            rows += {"network": network, "remote": remote, "parent": parent}[part](bench)
    print(f"{start}\n\n{markdown(HEAD, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
