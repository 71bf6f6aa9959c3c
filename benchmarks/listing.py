"""``python -m benchmarks.listing [--quick]``: what does a pipeline of many shards cost before its first byte?

Three tables. The first lists names of several shapes from a ``fake_gcs`` that takes 200 ms to begin a page, with one
lister and with sixteen. The second starts pipelines from manifests of growing length: time and memory until the first
URL and until the first record, and processor time per shard over an epoch of one-record shards, cut into ten parts:
median and extremes. The third compares a pipeline that lists with one that has a manifest. Every row is a process of
its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import asyncdata as ad
from asyncdata.options import Environment, Options
from asyncdata.storage.backends import spec_for
from asyncdata.storage.gcs import listing as gcs_listing
from benchmarks.conditions import SEED, conditions
from benchmarks.servers import REPOSITORY, here
from benchmarks.table import markdown, median_cell
from fake_gcs import FakeGCS, Latency, Profile

_BUCKET: Final = "data"
_LATENCY_S: Final = 0.2
"""Until a page of a thousand names begins to come."""

_PARTS: Final = 10


def numbered(count: int) -> Iterator[str]:
    """``train-00000-of-100000``."""
    return (f"numbered/train-{i:06d}-of-{count}.tfrecord" for i in range(count))


def hashes(count: int) -> Iterator[str]:
    """Sixteen hexadecimal digits."""
    draw = random.Random(SEED)
    return (f"hashes/{draw.getrandbits(64):016x}.tfrecord" for _ in range(count))


def days(count: int) -> Iterator[str]:
    """A folder per day."""
    return (f"days/month={i % 12 + 1:02d}/day={i // 12 % 28 + 1:02d}/part-{i:06d}.tfrecord" for i in range(count))


SHAPES: Final[dict[str, Callable[[int], Iterator[str]]]] = {"numbered": numbered, "hashes": hashes, "days": days}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.listing")
    parser.add_argument("--quick", action="store_true", help="a tenth of the names")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        print(json.dumps(_CHILDREN[json.loads(given.child).pop("do")](**_without_do(json.loads(given.child)))))
        return 0
    largest = 10_000 if given.quick else 100_000
    print(f"{conditions()}\n")
    with tempfile.TemporaryDirectory(prefix="benchmark-listing-") as name:
        root = Path(name)
        with _server(largest) as url:
            print(_listings(url, largest))
            print()
            print(_starts(url, root, largest))
        print()
        _fill(root / _BUCKET, numbered(largest), _one_record())
        print(_plans(root, largest))
    return 0


@contextlib.contextmanager
def _server(count: int) -> Iterator[str]:
    """A server in a process of its own, with all names in memory."""
    command = [sys.executable, "-m", "benchmarks.listing", "--child", json.dumps({"do": "serve", "count": count})]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=here(), cwd=REPOSITORY) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.stdin.close()
            process.wait()


def serve(count: int) -> dict[str, Any]:
    """Serves until standard input ends."""
    record = _one_record()
    with FakeGCS(buckets=[_BUCKET], profile=Profile(latency=Latency(median_s=_LATENCY_S))) as server:
        for names in SHAPES.values():
            for name in names(count):
                server.put(_BUCKET, name, record)
        print(json.dumps({"url": server.url}), flush=True)
        sys.stdin.read()
    return {}


def _without_do(task: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name != "do"}


def _one_record() -> bytes:
    file = io.BytesIO()
    with ad.TFRecordWriter(file) as writer:
        writer.write(b"record")
    return file.getvalue()


def _fill(bucket: Path, names: Iterator[str], data: bytes) -> None:
    for name in names:
        path = bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _in_process(do: str, **task: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.listing", "--child", json.dumps({"do": do, **task})]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=here(), cwd=REPOSITORY)
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


# --- listings ----------------------------------------------------------------------------------------------------


def _listings(endpoint: str, count: int) -> str:
    rows = []
    for shape in SHAPES:
        alone = _in_process("list", endpoint=endpoint, pattern=f"gs://{_BUCKET}/{shape}/**", listers=1)
        many = _in_process("list", endpoint=endpoint, pattern=f"gs://{_BUCKET}/{shape}/**", listers=gcs_listing.LISTERS)
        assert alone["found"] == many["found"] == count
        rows.append(
            [
                shape,
                f"{-(-count // 1000)}",
                f"{alone['wall_s']:.2f}",
                f"{many['wall_s']:.2f}",
                f"{alone['requests']}",
                f"{many['requests']}",
                f"{many['cpu_s']:.2f}",
            ]
        )
    head = ["names", "pages", "one lister, s", "16, s", "requests, one", "16", "client CPU, s"]
    return f"{count:,} objects, {1000 * _LATENCY_S:g} ms until a page begins:\n\n{markdown(head, rows)}"


def list_names(endpoint: str, pattern: str, listers: int) -> dict[str, Any]:
    """One glob."""
    gcs_listing.LISTERS = listers  # type: ignore[misc]  # what the measurement varies

    async def run() -> dict[str, Any]:
        storage = {"gs": {"endpoint_url": endpoint, "token": "anon"}}
        reader = spec_for(pattern, Options(storage=storage), Environment()).open()
        began, cpu = time.perf_counter(), time.process_time()
        found = await reader.glob(pattern)
        outcome = {
            "found": len(found),
            "wall_s": time.perf_counter() - began,
            "cpu_s": time.process_time() - cpu,
            "requests": reader.list_requests,  # type: ignore[attr-defined]  # of the reader for gs
        }
        await reader.aclose()
        return outcome

    return asyncio.run(run())


# --- plans -------------------------------------------------------------------------------------------------------


def _plans(root: Path, largest: int) -> str:
    rows, outcomes = [], []
    bare = _in_process("plan", manifest="", count=0, cycle=16)
    for count in (1_000, 10_000, 100_000):
        if count > largest:
            break
        manifest = root / f"{count}.jsonl"
        paths = [str(root / _BUCKET / name) for name in _first(numbered(largest), count)]
        with manifest.open("w") as file:
            for path in paths:
                status = os.stat(path)
                version = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
                file.write(json.dumps({"url": path, "size": status.st_size, "version": version}) + "\n")
        outcome = _in_process("plan", manifest=str(manifest), count=count, cycle=16)
        assert outcome["records"] == count
        outcomes.append(outcome)
        rows.append(
            [
                f"{count:,}",
                f"{outcome['first_url_s']:.2f}",
                f"{outcome['first_url_cpu_s']:.2f}",
                f"{outcome['first_record_s']:.2f}",
                f"{(outcome['planned_peak'] - bare['planned_peak']) / 1e6:.0f}",
                f"{(outcome['peak'] - bare['peak']) / 1e6:.0f}",
                median_cell([1e6 * cost for cost in outcome["cpu_per_shard_s"]], 0),
            ]
        )
    head = [
        "shards",
        "first URL, s",
        "CPU until then, s",
        "first record, s",
        "memory then, MB",
        "after an epoch, MB",
        "CPU per shard, us",
    ]
    text = "A manifest of local shards of one record, sixteen read in turn; memory beyond that of an idle pipeline:"
    return f"{text}\n\n{markdown(head, rows)}\n\n{_verdict(outcomes, bare)}"


def _verdict(outcomes: Sequence[dict[str, Any]], bare: dict[str, Any]) -> str:
    """What must hold, and whether it does."""
    most, least = outcomes[-1], outcomes[0]
    per_shard = [statistics.median(outcome["cpu_per_shard_s"]) for outcome in (least, most)]
    found = (
        ("processor time until the first URL", most["first_url_cpu_s"], 2.0, "s"),
        ("memory then", (most["planned_peak"] - bare["planned_peak"]) / 1e6, 200.0, "MB"),
        (f"CPU per shard, of that among {least['records']:,}", per_shard[1] / per_shard[0], 1.25, "x"),
    )
    said = [
        f"{what} {value:.2f} {unit} (at most {limit:g}: {'holds' if value <= limit else 'DOES NOT HOLD'})"
        for what, value, limit, unit in found
    ]
    return f"With {most['records']:,} shards: {'; '.join(said)}."


def _first(names: Iterator[str], count: int) -> list[str]:
    return [name for _, name in zip(range(count), names, strict=False)]


def plan(manifest: str, count: int, cycle: int) -> dict[str, Any]:
    """A pipeline's beginning, and an epoch of it; without a manifest only its surroundings."""
    options = Options(num_workers=0)
    list(ad.Dataset.range(10).with_options(options))  # imports, threads, memory: what every program pays once
    if not manifest:
        return {"planned_peak": _peak(), "peak": _peak()}
    began, cpu = time.perf_counter(), time.process_time()
    with ad.Dataset.from_manifest(manifest, seed=1).with_options(options).iterator() as urls:
        next(urls)
        first_url_s, first_url_cpu_s = time.perf_counter() - began, time.process_time() - cpu
    planned_peak = _peak()
    began, cpu = time.perf_counter(), time.process_time()
    ds = ad.Dataset.from_manifest(manifest, seed=1).interleave(ad.TFRecordDataset, cycle_length=cycle)
    records, first_record_s, part = 0, 0.0, max(1, count // _PARTS)
    parts: list[float] = []
    with ds.with_options(options).iterator() as iterator:
        for _ in iterator:
            if not records:
                first_record_s = time.perf_counter() - began
                planned_peak = _peak()
                cpu = time.process_time()
            records += 1
            if records % part == 0:
                now = time.process_time()
                parts.append((now - cpu) / part)
                cpu = now
    return {
        "records": records,
        "first_url_s": first_url_s,
        "first_url_cpu_s": first_url_cpu_s,
        "first_record_s": first_record_s,
        "planned_peak": planned_peak,
        "peak": _peak(),
        "cpu_per_shard_s": parts,
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- starts ------------------------------------------------------------------------------------------------------


def _starts(endpoint: str, root: Path, count: int) -> str:
    manifest = root / "gs.jsonl"
    pattern = f"gs://{_BUCKET}/numbered/*.tfrecord"
    options = ad.Options(storage={"gs": {"endpoint_url": endpoint, "token": "anon"}})
    assert ad.write_manifest(pattern, manifest, options) == count
    rows = [
        [name, f"{outcome['first_record_s']:.2f}"]
        for name, outcome in (
            ("list_files", _in_process("start", endpoint=endpoint, pattern=pattern, manifest="")),
            ("from_manifest", _in_process("start", endpoint=endpoint, pattern="", manifest=str(manifest))),
        )
    ]
    return f"{count:,} shards over gs://, first record:\n\n{markdown(['source', 's'], rows)}"


def start(endpoint: str, pattern: str, manifest: str) -> dict[str, Any]:
    """Until the first record."""
    options = Options(num_workers=0, storage={"gs": {"endpoint_url": endpoint, "token": "anon"}})
    list(ad.Dataset.range(10).with_options(options))
    began = time.perf_counter()
    urls = ad.Dataset.list_files(pattern, seed=1) if pattern else ad.Dataset.from_manifest(manifest, seed=1)
    with urls.interleave(ad.TFRecordDataset, cycle_length=16).with_options(options).iterator() as iterator:
        next(iterator)
        return {"first_record_s": time.perf_counter() - began}


_CHILDREN: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "list": list_names,
    "plan": plan,
    "start": start,
    "serve": serve,
}


if __name__ == "__main__":
    sys.exit(main())
