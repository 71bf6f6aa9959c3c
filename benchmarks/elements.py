"""What an element costs: CPU time per element on one core, beside tf.data in one run; a Markdown table.

    python -m benchmarks.elements [--tensorflow PYTHON] [--quick]

    range     range, interleave, shuffle, map (whole blocks at a time, inline), batch, prefetch: 1 to 10 million numbers
    records   TFRecord files from the page cache: read, framed, checksums of lengths and payloads verified, interleaved,
              shuffled, batched
    files     whole files of 4 and 100 KB from the page cache, batched
    parsing   blocks of tf.train.Examples, as `benchmarks.formats_cost` measures them

Every cell is a process of its own on one core, which counts its own CPU time, all threads: a round of the one, a round
of the other, medians of several. A round is two seconds of passes, of which the first second is not counted: the caches
are the other's then. The last column compares the very first passes. No worker processes: one core has no use for them,
and all work is counted.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncdata as ad
from benchmarks.conditions import conditions
from benchmarks.formats_cost import parsing
from benchmarks.launch import find_python
from benchmarks.servers import REPOSITORY, here

ROUNDS: Final = 5
_ROUND_S: Final = 2.0
_WARM_S: Final = 1.0
_MIB: Final = 1 << 20


def counted(work: dict[str, Any]) -> ad.Dataset:
    """Numbers from several ranges."""
    each = work["elements"] // work["shards"]
    ds = ad.Dataset.range(work["shards"]).interleave(
        lambda shard: ad.Dataset.range(int(shard) * each, (int(shard) + 1) * each),
        cycle_length=work["cycle"],
        block_length=work["block"],
    )
    ds = ds.shuffle(work["shuffle"], seed=1).map(lambda x: 2 * x + 1, vectorized=True)
    return ds.batch(work["batch"]).prefetch(ad.AUTOTUNE)


def records(work: dict[str, Any]) -> ad.Dataset:
    """TFRecord files."""
    ds = ad.Dataset.from_tensor_slices(sorted(glob.glob(work["pattern"])))
    ds = ds.interleave(ad.TFRecordDataset, cycle_length=work["cycle"], block_length=work["block"])
    return ds.shuffle(work["shuffle"], seed=1).batch(work["batch"]).prefetch(ad.AUTOTUNE)


def files(work: dict[str, Any]) -> ad.Dataset:
    """Whole files."""
    return ad.FileDataset(sorted(glob.glob(work["pattern"]))).batch(work["batch"]).prefetch(ad.AUTOTUNE)


KINDS: Final = {"range": counted, "records": records, "files": files}


def serve(work: dict[str, Any]) -> None:
    """Runs the pipeline once for each line on standard input."""
    with ad.Runtime(ad.Options(memory_limit_bytes=1024 * _MIB, num_workers=0), pipelines=1):
        ds = KINDS[work["kind"]](work)
        for _ in sys.stdin:
            began = time.process_time()
            seen = 0
            for batch in ds:
                seen += len(batch)
            spent = time.process_time() - began
            print(json.dumps({"cpu_s": spent, "elements": seen}), flush=True)


class Peer(NamedTuple):
    """What a table compares with.

    Attributes:
        name: As the table says it.
        package: That its interpreter must have.
        script: Its side, in ``benchmarks/peers``.
        module: The benchmark, of which this library's side is a part.
        rounds: Of which medians are taken.
    """

    name: str
    package: str
    script: str
    module: str
    rounds: int = ROUNDS


class Side:
    """One of the two, in a process that runs a round when it is asked for one."""

    def __init__(self, command: list[str], work: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [*command, json.dumps(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if "peers" in command[-1] else None,
            text=True,
            env=here(),
        )
        self._expected = work.get("batches", work["elements"])

    def round_s(self) -> tuple[float, float]:
        """CPU seconds of a pass: of the first one of a round, and of one in its second half."""
        began = time.perf_counter()
        first = last = self.pass_s()
        counted = []
        while (begun_s := time.perf_counter() - began) < _ROUND_S:
            last = self.pass_s()
            if begun_s >= _WARM_S:
                counted.append(last)
        return first, statistics.fmean(counted or [last])

    def pass_s(self) -> float:
        """CPU seconds of one pass."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if answer["elements"] != self._expected:
            raise RuntimeError(f"{answer['elements']} elements instead of {self._expected}")
        return float(answer["cpu_s"])

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_rows(text: str | None, serve: Callable[[dict[str, Any]], None], peer: Peer, works: Mapping[str, Any]) -> None:
    """The command line of a benchmark that is a table of such rows, or one side of a row.

    Args:
        text: Its docstring.
        serve: This library's side.
        peer: The other one.
        works: By the titles of the rows.
    """
    arguments = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(f"--{peer.package}", metavar="PYTHON", help="interpreter that has the peer")
    arguments.add_argument("--quick", action="store_true", help="few rounds")
    arguments.add_argument("--only", default="", help="rows with these words in them")
    arguments.add_argument("--serve", metavar="JSON", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        serve(json.loads(options.serve))
        return
    print(f"{conditions()}\n")
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    python = find_python((peer.package,), getattr(options, peer.package))
    print(
        f"CPU us per element, one core; x: part of {peer.name}'s, its range over the rounds, and of the first passes\n"
    )
    print(f"| elements | asyncdata | {peer.name} | x | range | first passes |\n|---|---:|---:|---:|---:|---:|")
    for title, work in works.items():
        if options.only in title:
            compare(title, work, python, 2 if options.quick else peer.rounds, peer.module, peer.script)


@contextmanager
def shards(size: int, count: int, files: int) -> Iterator[str]:
    """TFRecord files with records of about a size; gives their pattern."""
    source = random.Random(size)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            with ad.TFRecordWriter(str(Path(folder) / f"{number:03}.tfrecord")) as writer:
                writer.write_many(
                    [source.randbytes(source.randint(size * 4 // 5, size * 6 // 5)) for _ in range(count // files)]
                )
        yield str(Path(folder) / "*.tfrecord")


@contextmanager
def folder_of(size: int, count: int) -> Iterator[str]:
    """Files of about a size; gives their pattern."""
    source = random.Random(size)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            data = source.randbytes(source.randint(size * 4 // 5, size * 6 // 5))
            (Path(folder) / f"{number:05}.bin").write_bytes(data)
        yield str(Path(folder) / "*.bin")


def compare(
    title: str,
    work: dict[str, Any],
    python: str | None,
    rounds: int,
    module: str = "elements",
    peer: str = "tf_elements.py",
) -> None:
    """One row of the table: this module's side beside a peer's."""
    sides = {"asyncdata": Side([sys.executable, "-m", f"benchmarks.{module}", "--serve"], work)}
    if python is not None:
        sides["peer"] = Side([python, str(REPOSITORY / "benchmarks" / "peers" / peer)], work)
    each: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    try:
        # The first two touch memory that was never used before.
        for side in sides.values():
            if side.pass_s() < _ROUND_S:
                side.pass_s()
        for _ in range(rounds):
            for name, side in sides.items():
                each[name].append(side.round_s())
    finally:
        for side in sides.values():
            side.close()
    us = {name: statistics.median(spent for _, spent in times) / work["elements"] * 1e6 for name, times in each.items()}
    if "peer" not in us:
        print(f"| {title} | {us['asyncdata']:.2f} | | | | |", flush=True)
        return
    pairs = list(zip(each["asyncdata"], each["peer"], strict=True))
    ratios = [own[1] / other[1] for own, other in pairs]
    first = statistics.median(own[0] / other[0] for own, other in pairs)
    print(
        f"| {title} | {us['asyncdata']:.2f} | {us['peer']:.2f} | {us['asyncdata'] / us['peer']:.2f} "
        f"| {min(ratios):.2f}-{max(ratios):.2f} | {first:.2f} |",
        flush=True,
    )


def table(python: str | None, *, quick: bool, only: str) -> None:
    """All rows."""
    print("CPU us per element, one core; x: part of tf.data's, its range over the rounds, and of the first passes\n")
    print("| pipeline | asyncdata | tf.data | x | range | first passes |\n|---|---:|---:|---:|---:|---:|")
    rounds = 2 if quick else ROUNDS
    shape = {"cycle": 8, "block": 1, "shards": 64}
    for elements, shuffle, batch in ((1_000_000, 1024, 64), (1_000_000, 10_000, 256), (10_000_000, 10_000, 1024)):
        if only not in "range" or (quick and elements > 1_000_000):
            continue
        work = {**shape, "kind": "range", "elements": elements, "shuffle": shuffle, "batch": batch}
        title = f"range {elements // 1_000_000}M, interleave(8), shuffle({shuffle}), map, batch({batch}), prefetch"
        compare(title, work, python, rounds if elements <= 1_000_000 else 1)
    for size, count in ((100, 400_000), (1000, 200_000), (10_000, 32_000), (100_000, 3200)):
        if only not in "records":
            continue
        with shards(size, count, 32) as pattern:
            work = {**shape, "kind": "records", "elements": count, "shuffle": 1024, "batch": 128, "pattern": pattern}
            compare(f"TFRecords of {size} B, interleave(8), shuffle(1024), batch(128)", work, python, rounds)
    for size, count in ((4000, 10_000), (100_000, 2000)):
        if only not in "files":
            continue
        with folder_of(size, count) as pattern:
            work = {"kind": "files", "elements": count, "batch": 64, "pattern": pattern}
            compare(f"whole files of {size // 1000} KB, batch(64)", work, python, rounds)


def main() -> None:
    """The table, or one side of a row."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tensorflow", metavar="PYTHON", help="interpreter that has TensorFlow")
    arguments.add_argument("--quick", action="store_true", help="few rounds, and no ten millions")
    arguments.add_argument("--only", default="", help="range, records, files or parsing")
    arguments.add_argument("--serve", metavar="JSON", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        serve(json.loads(options.serve))
        return
    print(f"{conditions()}\n")
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    python = find_python(("tensorflow",), options.tensorflow)
    if options.only != "parsing":
        table(python, quick=options.quick, only=options.only)
    if options.only in "parsing":
        print()
        parsing(python, rounds=2 if options.quick else ROUNDS)


if __name__ == "__main__":
    main()
