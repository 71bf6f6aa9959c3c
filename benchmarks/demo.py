"""From JPEGs in a bucket to batches: what this library does, in half a minute on loopback.

    python -m benchmarks.demo

A GCS server with the network of a region (25 ms to the first byte, 75-100 MB/s a stream, now and then a stall or an
error) runs as a process of its own. TFRecord shards of pictures are written through its API, then read, shuffled,
decoded in worker processes and batched; once in deterministic order, once sloppy. Every label must come exactly once.
A page (``--report``) shows what limited both passes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import io
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

import asyncdata as ad
from asyncdata.observe.progress import open_display
from asyncdata.options import MIB
from benchmarks.conditions import SEED, conditions
from benchmarks.pictures import HEIGHT, WIDTH, make_example
from benchmarks.servers import Server, fake_gcs
from benchmarks.table import markdown
from benchmarks.uploads import Uploader
from benchmarks.watched_pass import Pass, watched_pass

BUCKET: Final = "demo"
SIZE: Final = 224
BATCH: Final = 64
MEMORY_LIMIT_BYTES: Final = 512 * MIB


class _Signals:
    """SIGTERM ends the program as Ctrl-C does: through every ``finally``.

    Where a signal strikes inside a finalizer, Python reports the exception and drops it. There is no report here, and
    `check` raises it again.
    """

    def __init__(self) -> None:
        self._came = False

    def _interrupt(self, _number: int, _frame: object) -> None:
        self._came = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt if one of the signals came."""
        if self._came:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Until the block ends."""
        report = sys.unraisablehook
        sys.unraisablehook = lambda dropped: None if dropped.exc_type is KeyboardInterrupt else report(dropped)
        previous = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            sys.unraisablehook = report


class _Shown:
    """How far the images are, as the library's own programs show it."""

    def __init__(self, title: str, images: int) -> None:
        self._display = open_display(images, title, sys.stdout)
        self._began = time.monotonic()
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._display.close(f"{self._done:,} {self._text()}")

    def advance(self, images: int) -> None:
        """So many more are done."""
        self._done += images
        self._display.show(self._done, self._text)

    def _text(self) -> str:
        return f"images, {self._done / max(time.monotonic() - self._began, 1e-9):,.0f}/s"


async def write_shards(server: Server, shards: int, images: int) -> int:
    """Makes the pictures in worker processes and uploads them; returns the bytes that were stored."""
    stored = 0
    make = functools.partial(make_example, seed=SEED)
    options = ad.Options(memory_limit_bytes=MEMORY_LIMIT_BYTES, storage=_storage(server))
    ds = ad.Dataset.range(shards * images).map(make, ad.AUTOTUNE).batch(images).with_options(options)
    with _Shown("Writing pictures", shards * images) as shown:
        async with Uploader(server.url, BUCKET) as uploader, asyncio.TaskGroup() as group, ds.iterator() as batches:
            number = 0
            async for batch in batches:
                shard = _as_tfrecord(batch)
                stored += len(shard)
                group.create_task(uploader.put(f"train-{number:05d}-of-{shards:05d}.tfrecord", shard))
                number += 1
                shown.advance(len(batch))
    return stored


def _as_tfrecord(records: ad.BytesArray) -> bytes:
    file = io.BytesIO()
    with ad.TFRecordWriter(file) as writer:
        writer.write_many(records.views())
    return file.getvalue()


def pipeline(*, deterministic: bool) -> ad.Dataset:
    """The shards as batches of pictures with labels."""
    spec = {"image": ad.FixedLenFeature((), bytes), "label": ad.FixedLenFeature((), np.int64)}
    return (
        ad.Dataset.list_files(f"gs://{BUCKET}/train-*.tfrecord", seed=SEED)
        .interleave(ad.TFRecordDataset, cycle_length=8, block_length=4, deterministic=deterministic)
        .shuffle(1024, seed=SEED)
        .map(ad.parse_example(spec), ad.AUTOTUNE)
        .map(ad.decode_image(size=(SIZE, SIZE), feature="image"), ad.AUTOTUNE)
        .batch(BATCH)
        .prefetch(ad.AUTOTUNE)
    )


def read_shards(server: Server, images: int, signals: _Signals, *, deterministic: bool) -> Pass:
    """One pass over the shards.

    Raises:
        RuntimeError: A label did not come exactly once.
    """
    order = "deterministic" if deterministic else "sloppy"
    options = ad.Options(memory_limit_bytes=MEMORY_LIMIT_BYTES, deterministic=deterministic, storage=_storage(server))
    seen: npt.NDArray[np.int64] = np.zeros(images, np.int64)
    with _Shown(f"Reading, {order}", images) as shown:

        def consume(batch: dict[str, npt.NDArray[Any]]) -> None:
            signals.check()
            _check(batch["image"])
            np.add.at(seen, batch["label"], 1)
            shown.advance(len(batch["label"]))

        result = watched_pass(pipeline(deterministic=deterministic), options, consume, (server.pid,))
    if not (seen == 1).all():
        raise RuntimeError(f"{order}: {int((seen != 1).sum())} labels did not come exactly once")
    return result


def _check(images: npt.NDArray[np.uint8]) -> None:
    if images.shape[1:] != (SIZE, SIZE, 3) or images.dtype != np.uint8:
        raise RuntimeError(f"a batch of images is {images.dtype} {images.shape}")


def _storage(server: Server) -> dict[str, dict[str, Any]]:
    return {"gs": {"endpoint_url": server.url, "token": "anon"}}


def report(readings: Mapping[str, Pass], images: int) -> str:
    """The table, and what the slower order says about itself."""
    rows = [
        [
            order,
            f"{reading.first_batch_s:.2f}",
            f"{images / reading.wall_s:,.0f}",
            f"{reading.stored_bytes / reading.wall_s / 1e6:.0f}",
            f"{reading.cpu_s / (reading.stored_bytes / 1e9):.1f}",
            f"{reading.peak_bytes / 1e6:.0f}",
        ]
        for order, reading in readings.items()
    ]
    head = ("order", "first batch s", "images/s", "MB/s", "CPU s/GB", "peak memory MB")
    slower = max(readings.values(), key=lambda reading: reading.wall_s)
    steps, _, verdict = str(slower.stats).rpartition("\n\n")
    return f"{markdown(head, rows)}\n\n{textwrap.indent(steps, '    ')}\n\n{verdict}"


def run(shards: int, images: int, page: Path, signals: _Signals) -> int:
    """The whole demonstration; returns the exit status."""
    page.parent.mkdir(parents=True, exist_ok=True)
    print(f"{shards} shards of {images} pictures, {WIDTH} x {HEIGHT}, decoded and resized to {SIZE} x {SIZE}")
    with (
        tempfile.TemporaryDirectory(prefix="asyncdata-demo-") as home,
        fake_gcs(Path(home, "buckets"), "regional", buckets=(BUCKET,)) as server,
    ):
        stored = asyncio.run(write_shards(server, shards, images))
        print(
            f"{stored / 1e6:.0f} MB are in gs://{BUCKET}, {stored / shards / images / 1e3:.0f} KB a record", flush=True
        )
        with ad.profile(page):
            readings = {
                "deterministic": read_shards(server, shards * images, signals, deterministic=True),
                "sloppy": read_shards(server, shards * images, signals, deterministic=False),
            }
    print(f"Every one of the {shards * images:,} labels came exactly once, in both orders.\n")
    print(f"{conditions()}\n\n{report(readings, shards * images)}")
    print(f"\nWhat limited both passes, as a page: {page.absolute()}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=24, help="TFRecord files (default: 24)")
    parser.add_argument("--images", type=int, default=256, help="pictures in each (default: 256)")
    parser.add_argument("--quick", action="store_true", help="4 shards of 64 pictures")
    page = Path(".cache/demo.html")
    parser.add_argument("--report", type=Path, default=page, help=f"the page about both passes (default: {page})")
    options = parser.parse_args(arguments)
    shards, images = (4, 64) if options.quick else (options.shards, options.images)
    if shards < 1 or images < 1:
        parser.error("there must be at least one shard and one picture")
    try:
        signals = _Signals()
        with signals.handled():
            return run(shards, images, options.report, signals)
    except KeyboardInterrupt:
        print("\ninterrupted; server, workers and files are gone", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
