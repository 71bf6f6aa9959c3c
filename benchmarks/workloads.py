"""One pipeline of this library in a process of its own, as the peers have theirs.

It reads a set of shards, checks that every number came, and prints what it cost as one line of JSON::

    python -m benchmarks.workloads '{"kind": "raw", "pattern": "gs://bucket/*", "endpoint": "http://…", …}'
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import asyncdata as ad
from asyncdata.options import MIB
from benchmarks.datasets import SCALAR_COLUMNS, Shards
from benchmarks.measure import Sampler, cpu_s, tree_cpu_s, tree_pss_bytes
from benchmarks.preadv import Preadv
from benchmarks.runtime_stats import read_stats

Numbers = npt.NDArray[np.int64]

PICTURE_SIZE: Final = (224, 224)
_PSS_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What to read, and how.

    Attributes:
        kind: See ``datasets``.
        shards: Number of files.
        records: Records in each.
        pattern: Where they are.
        endpoint: URL of the GCS server; empty for local files.
        ca_file: The server's certificate; empty without TLS.
        deterministic: Whether the order is kept.
        parse: Whether Examples are parsed, or handed over as bytes.
        executor: Where they are parsed; empty for the library's choice.
        strings: Whether byte strings of parsed records are made ``bytes``, as other readers deliver them.
        batch: Elements of a batch.
        cycle: Shards read in turn.
        shuffle: Size of the shuffle buffer; 0 for none.
        epochs: Passes on one Runtime; the first one also starts it, and is the one whose records are checked.
        memory: Whether memory is sampled.
        bare: Whether a bare ``preadv`` of the same local files is measured after every epoch.
        memory_limit_bytes: See ``Options``.
        hedge: Whether silent reads get a second attempt.
        requests: ``max_requests_in_flight``, see ``Options``.
        workers: ``num_workers``, see ``Options``.
        chunk_bytes: See ``Options``.
    """

    kind: str
    shards: int
    records: int
    pattern: str
    endpoint: str = ""
    ca_file: str = ""
    deterministic: bool = True
    parse: bool = True
    executor: str = ""
    strings: bool = True
    batch: int = 64
    cycle: int = 16
    shuffle: int = 0
    epochs: int = 1
    memory: bool = False
    bare: bool = False
    memory_limit_bytes: int = 1024 * MIB
    hedge: bool = True
    requests: int = ad.AUTOTUNE
    workers: int = ad.AUTOTUNE
    chunk_bytes: int = ad.AUTOTUNE


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What one pass cost.

    Attributes:
        first_s: From making the iterator to the first batch.
        wall_s: To the last batch.
        first_records: Records in the first batch.
        records: Records in all of them.
        nbytes: Received from storage.
        cpu_s: Of the process and its workers.
        parent_cpu_s: Of the process without its workers.
        tasks: Tasks that workers did.
        server_cpu_s: Of the server on the same machine; 0 unless asked for.
        peak_bytes: Memory of all processes; 0 unless asked for.
        preadv_s: CPU time of reading the same files and nothing else; 0 unless asked for.
        busy_preadv_s: The same while another processor forms checksums.
    """

    first_s: float
    wall_s: float
    first_records: int
    records: int
    nbytes: int
    cpu_s: float
    parent_cpu_s: float
    tasks: int
    server_cpu_s: float = 0.0
    peak_bytes: int = 0
    preadv_s: float = 0.0
    busy_preadv_s: float = 0.0

    @property
    def steady_records_per_s(self) -> float:
        """Rate behind the first batch."""
        return (self.records - self.first_records) / max(self.wall_s - self.first_s, 1e-9)


def parser(kind: str) -> Any:
    """The map function that parses records of a kind."""
    if kind in SCALAR_COLUMNS:
        columns = range(SCALAR_COLUMNS[kind])
        integers = {f"i{number}": ad.FixedLenFeature((), np.int64) for number in columns}
        return ad.parse_example(integers | {f"f{number}": ad.FixedLenFeature((), np.float32) for number in columns})
    label = {"label": ad.FixedLenFeature((), np.int64)}
    if kind == "tokens":
        return ad.parse_example({"tokens": ad.FixedLenSequenceFeature((), np.int64, allow_missing=True), **label})
    return ad.parse_example({"image": ad.FixedLenFeature((), bytes), **label})


def pipeline(work: Work) -> ad.Dataset:
    """The dataset that does the work."""
    ds = ad.Dataset.list_files(work.pattern, shuffle=False).interleave(
        ad.TFRecordDataset, cycle_length=work.cycle, deterministic=work.deterministic
    )
    if work.shuffle:
        ds = ds.shuffle(work.shuffle, seed=1)
    if work.kind == "jpeg":
        ds = ds.map(parser(work.kind), ad.AUTOTUNE)
        ds = ds.map(ad.decode_image(size=PICTURE_SIZE, feature="image"), ad.AUTOTUNE).batch(work.batch)
    elif work.kind != "raw" and work.parse:
        ds = ds.batch(work.batch).map(parser(work.kind), ad.AUTOTUNE, executor=work.executor or None)
    else:
        ds = ds.batch(work.batch)
    return ds.prefetch(ad.AUTOTUNE)


def numbers_of(batch: Any, kind: str) -> Numbers:
    """The numbers of a batch's records."""
    if kind == "raw":
        return np.array([int.from_bytes(view[:8], "little") for view in batch.views()], np.int64)
    found: Numbers = batch["i0" if kind in SCALAR_COLUMNS else "label"]
    return found


def run(work: Work) -> list[Epoch]:
    """Does the work.

    Raises:
        RuntimeError: A record is missing, or came more often than it should.
    """
    if work.endpoint:
        # The clock starts behind the imports, as it does for the peers; without this the first use would import it.
        importlib.import_module("asyncdata.storage.gcs.reader")
    trusted = {"ca_file": work.ca_file} if work.ca_file else {}
    storage = {"gs": {"endpoint_url": work.endpoint, "token": "anon", **trusted}} if work.endpoint else {}
    options = ad.Options(
        deterministic=work.deterministic,
        storage=storage,
        memory_limit_bytes=work.memory_limit_bytes,
        hedge=ad.HedgeOptions(enabled=work.hedge),
        max_requests_in_flight=work.requests,
        num_workers=work.workers,
        chunk_bytes=work.chunk_bytes,
    )
    ds = pipeline(work)
    epochs = []
    place = Path(work.pattern)
    files = sorted(place.parent.glob(place.name)) if work.bare else []
    preadv = Preadv() if work.bare else None
    with ad.Runtime(options, pipelines=1) as runtime:
        for index in range(work.epochs):
            check = index == 0 and (work.kind in ("raw", "jpeg") or work.parse)
            watch = Sampler(lambda: tree_pss_bytes(os.getpid()), _PSS_INTERVAL_S) if work.memory else None
            with watch or contextlib.nullcontext():
                epoch = _run_epoch(work, ds, runtime, check=check)
            peak = max(watch.samples) if watch is not None else 0
            epoch = dataclasses.replace(epoch, peak_bytes=peak)
            if preadv is not None:
                bare, busy = preadv.cpu_s(files), preadv.busy_cpu_s(files)
                epoch = dataclasses.replace(epoch, preadv_s=bare, busy_preadv_s=busy)
            epochs.append(epoch)
    return epochs


def _run_epoch(work: Work, ds: ad.Dataset, runtime: ad.Runtime, *, check: bool) -> Epoch:
    shards = Shards(kind=work.kind, shards=work.shards, records=work.records)
    seen: Numbers = np.zeros(shards.numbers, np.int64)
    before = read_stats(runtime)
    parent, cpu = cpu_s(os.getpid()), tree_cpu_s(os.getpid())
    first_s, first_records, records = 0.0, 0, 0
    # Kept until the next ones are there, as peers and training loops do: glibc gives memory that is freed at the end of
    # the heap back to the system, and takes it again for the next batch, page by page.
    strings: list[bytes] = []
    began = time.perf_counter()
    with ds.iterator() as batches:
        for batch in batches:
            if not records:
                first_s = time.perf_counter() - began
            if check:
                np.add.at(seen, numbers_of(batch, work.kind), 1)
            if work.strings and isinstance(batch, dict) and isinstance(batch.get("image"), ad.BytesArray):
                strings = batch["image"].tolist()
            count = len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
            records += count
            first_records = first_records or count
        wall_s = time.perf_counter() - began
        del strings
        after = read_stats(runtime)
        cpu_after, parent_after = tree_cpu_s(os.getpid()), cpu_s(os.getpid())
    wrong = int((seen != shards.repeats).sum()) if check else int(records != shards.shards * shards.records)
    if wrong:
        raise RuntimeError(f"{wrong} records are missing or came too often")
    return Epoch(
        first_s=first_s,
        wall_s=wall_s,
        first_records=first_records,
        records=records,
        nbytes=after.fetch.bytes - before.fetch.bytes,
        cpu_s=cpu_after - cpu,
        parent_cpu_s=parent_after - parent,
        tasks=after.tasks - before.tasks,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: one argument, the work as JSON."""
    (text,) = sys.argv[1:] if arguments is None else arguments
    print(json.dumps([asdict(epoch) for epoch in run(Work(**json.loads(text)))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
