"""Does the process tree stay inside the memory limit? ``python -m benchmarks.memory [--quick]``.

Every row is a process of its own that starts a Runtime, waits until its workers are ready and have done one small
batch, and then reads an epoch while the memory of the whole tree is sampled: what processes share counts once, code and
what files hold not at all. What is added to the memory with workers ready is to stay below the limit and a tenth of it
all.

The map functions take slices of what they are given: their own temporaries are negligible.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import asyncdata as ad
from benchmarks.conditions import conditions
from benchmarks.measure import Sampler, tree_own_bytes
from benchmarks.servers import REPOSITORY, here
from benchmarks.table import markdown

MIB: Final = 1 << 20
_INTERVAL_S: Final = 0.005
_SHARDS: Final = 8
_RECORD_BYTES: Final = 40_000


def take_slice(record: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A few kilobytes of the record as an array."""
    return np.frombuffer(record, np.uint8)[:4096]


def raw(files: str) -> ad.Dataset:
    """Records as they are."""
    return ad.Dataset.list_files(files, shuffle=False).interleave(ad.TFRecordDataset, cycle_length=4).batch(32)


def shuffled(files: str) -> ad.Dataset:
    """The usual training input."""
    return (
        ad.Dataset.list_files(files, shuffle=True, seed=1)
        .interleave(ad.TFRecordDataset, cycle_length=4, deterministic=False)
        .shuffle(100, seed=1)
        .map(take_slice, num_parallel_calls=ad.AUTOTUNE)
        .batch(32)
        .prefetch(4)
    )


def threads(files: str) -> ad.Dataset:
    """The same work in threads."""
    return raw(files).map(len, num_parallel_calls=4, executor="thread").prefetch(4)


CASES: Final[dict[str, Callable[[str], ad.Dataset]]] = {"raw": raw, "shuffled": shuffled, "threads": threads}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one process measured.

    Attributes:
        ready_bytes: Memory of the tree with workers ready.
        peak_bytes: The most memory of the tree while an epoch was read.
        limit_bytes: The memory limit.
        batches: What was read.
    """

    ready_bytes: int
    peak_bytes: int
    limit_bytes: int
    batches: int

    @property
    def allowed_bytes(self) -> float:
        """The peak that would just be inside the figure."""
        return 1.1 * (self.ready_bytes + self.limit_bytes)


def measure(case: str, files: str, limit_mib: int) -> Outcome:
    """Reads one epoch; to be called in a process that does nothing else."""
    dataset = CASES[case](files)
    with ad.Runtime(ad.Options(memory_limit_bytes=limit_mib * MIB, num_workers=2), pipelines=1) as runtime:

        async def ready() -> None:
            await runtime.start_pool()
            await runtime.pool.ready()

        runtime.submit(ready()).result()
        for _ in ad.Dataset.range(64).map(np.zeros, num_parallel_calls=2).batch(1):
            pass
        ready_bytes = tree_own_bytes(os.getpid())
        with Sampler(lambda: tree_own_bytes(os.getpid()), _INTERVAL_S) as sampler:
            batches = sum(1 for _ in dataset)
        return Outcome(
            ready_bytes=ready_bytes,
            peak_bytes=max(sampler.samples),
            limit_bytes=limit_mib * MIB,
            batches=batches,
        )


def measure_apart(case: str, files: str, limit_mib: int) -> Outcome:
    """`measure` in a new process."""
    order = json.dumps([case, files, limit_mib])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--measure", order],
        env=here(),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return Outcome(**json.loads(done.stdout))


def write_shards(folder: Path, records: int) -> str:
    """Shards of equal size; the pattern that matches them."""
    rng = np.random.default_rng(1)
    for shard in range(_SHARDS):
        with ad.TFRecordWriter(folder / f"shard-{shard}.tfrecord") as writer:
            writer.write_many(rng.bytes(_RECORD_BYTES) for _ in range(records))
    return str(folder / "*.tfrecord")


def row(case: str, outcome: Outcome) -> list[str]:
    """One line of the table."""
    added = outcome.peak_bytes - outcome.ready_bytes
    figures = (outcome.limit_bytes, outcome.ready_bytes, outcome.peak_bytes, added)
    return [
        case,
        *(f"{figure / MIB:.0f}" for figure in figures),
        f"{outcome.peak_bytes / outcome.allowed_bytes:.2f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 when a row is outside the figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small case each")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(asdict(measure(*json.loads(options.measure)))))
        return 0
    limits = (32,) if options.quick else (32, 128, 512)
    print(conditions(), end="\n\n")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="asyncdata-memory-") as folder:
        files = write_shards(Path(folder), 200 if options.quick else 2500)
        for limit_mib in limits:
            rows.extend(row(case, measure_apart(case, files, limit_mib)) for case in CASES)
    print(markdown(("MiB", "limit", "workers ready", "peak", "added", "peak / allowed"), rows))
    print("\nallowed: 1.1 x (workers ready + limit).")
    return int(any(float(cells[-1]) > 1 for cells in rows))


if __name__ == "__main__":
    sys.exit(main())
