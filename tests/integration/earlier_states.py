"""Pipelines whose states were written by every release, and how to write them.

In a checkout of that release, with this file copied to its place:

    python -c "from tests.integration.earlier_states import write; write('0.2.3.json')"
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import asyncdata as ad

BATCHES: Final = 5
"""In front of the state."""


def write_files() -> list[str]:
    """Shards in the current directory, the same at every time, and their paths."""
    Path("shards").mkdir(exist_ok=True)
    paths = []
    for shard in range(4):
        path = f"shards/{shard}.tfrecord"
        with ad.TFRecordWriter(path) as writer:
            writer.write_many([b"%d/%d" % (shard, row) for row in range(20 + 5 * shard)])
        Path(f"{path}.gz").write_bytes(gzip.compress(Path(path).read_bytes(), mtime=0))
        for each in (path, f"{path}.gz"):
            os.utime(each, (1_700_000_000 + shard, 1_700_000_000 + shard))
        paths.append(path)
    return paths


def is_third(number: Any) -> bool:
    """Whether it is a multiple of three."""
    return int(number) % 3 == 0


def halved(number: Any) -> Any:
    """Two numbers become one."""
    return number // 2


def batched(window: ad.Dataset) -> ad.Dataset:
    """A window as one element."""
    return window.batch(6)


def compressed(path: str) -> ad.Dataset:
    """The records of a compressed shard."""
    return ad.TFRecordDataset(f"{path}.gz", "GZIP")


def pipelines(paths: Sequence[str]) -> dict[str, tuple[ad.Dataset, bool]]:
    """By name, each with whether its order is the same in every run."""
    number, names = ad.Dataset.range, ad.Dataset.from_tensor_slices(list(paths))
    listed = ad.Dataset.list_files("shards/*.tfrecord", shuffle=False)
    return {
        "shuffle": (number(100).shuffle(10, seed=1).batch(4), True),
        "shuffle without a seed, repeat": (number(30).shuffle(30).repeat(2).batch(4), False),
        "records, shuffle": (ad.TFRecordDataset(list(paths)).shuffle(16, seed=3).batch(4), True),
        "interleave, shuffle": (names.interleave(ad.TFRecordDataset, 2).shuffle(16, seed=3).batch(4), True),
        "compressed, shuffle": (names.interleave(compressed, 2).shuffle(16, seed=3).batch(4), True),
        "list_files, any order": (listed.interleave(ad.TFRecordDataset, 3, deterministic=False).batch(4), False),
        "any order, shuffle": (
            names.interleave(ad.TFRecordDataset, 3, deterministic=False).shuffle(16, seed=3).batch(4),
            False,
        ),
        "compressed, any order, shuffle": (
            names.interleave(compressed, 3, deterministic=False).shuffle(16, seed=3).batch(4),
            False,
        ),
        "sharded, shuffle": (names.interleave(ad.TFRecordDataset, 2).shard(2, 1).shuffle(16, seed=3).batch(4), True),
        "zip, filter": (ad.Dataset.zip((number(100), number(100).filter(is_third))).batch(3), True),
        "cache, repeat": (number(20).cache().shuffle(8, seed=2).repeat(3).batch(4), True),
        "unique": (number(60).map(halved).unique().batch(4), True),
        "sample": (ad.Dataset.sample_from_datasets([number(40), number(100, 140)], [0.5, 0.5], seed=5).batch(4), True),
        "window": (number(60).window(6, shift=3).flat_map(batched).padded_batch(2), True),
    }


def plain(batch: Any) -> Any:
    """What JSON can hold of a batch."""
    if isinstance(batch, tuple):
        return [plain(each) for each in batch]
    return [each.decode() if isinstance(each, bytes) else np.asarray(each).tolist() for each in batch]


def write(path: str) -> None:
    """Writes what was delivered, and the state behind it, of each pipeline to a file."""
    found = {}
    for name, (dataset, _) in pipelines(write_files()).items():
        with ad.Runtime(ad.Options(num_workers=0)), dataset.iterator() as it:
            delivered = [plain(next(it)) for _ in range(BATCHES)]
            found[name] = {"delivered": delivered, "state": it.state_dict()}
    Path(path).write_text(json.dumps(found) + "\n")
