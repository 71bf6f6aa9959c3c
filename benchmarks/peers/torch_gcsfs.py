"""PyTorch's DataLoader over gcsfs. Run by an interpreter that has both: ``python torch_gcsfs.py JSON``.

Each worker reads whole shards, eight at a time, which was the fastest of the ways tried (one file object per shard is
eight times slower), finds the records and decodes them with OpenCV.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

# gcsfs otherwise asks a gRPC service for the kind of bucket and waits for it for a minute.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

import cv2
import gcsfs
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.peers.reading import element_of, frames, numbers_of, parse, report

_WORKERS = 2
_AT_A_TIME = 8
_PIXELS = 224


class Shards(IterableDataset):  # type: ignore[misc]  # torch is not installed where types are checked
    """Every worker reads its share of the shards."""

    def __init__(self, work: dict[str, Any]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        storage = gcsfs.GCSFileSystem(endpoint_url=self._work["endpoint"], token="anon")  # noqa: S106 -- no secret
        cv2.setNumThreads(1)
        names = sorted(storage.glob(self._work["pattern"].removeprefix("gs://")))[worker.id :: worker.num_workers]
        for data in _read_ahead(storage, names):
            for record in frames(data):
                yield self._element(record)

    def _element(self, record: memoryview) -> Any:
        if self._work["kind"] != "jpeg":
            return element_of(record, self._work["kind"])
        image, label = parse(record)
        pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)
        assert pixels is not None
        small = cv2.resize(pixels, (_PIXELS, _PIXELS), interpolation=cv2.INTER_LINEAR)
        return torch.from_numpy(small), label


def _read_ahead(storage: Any, names: list[str]) -> Iterator[bytes]:
    """Whole objects in order, a few on their way at a time."""
    pending: list[Any] = []
    left = iter(names)
    while True:
        while len(pending) < _AT_A_TIME and (name := next(left, None)) is not None:
            pending.append(asyncio.run_coroutine_threadsafe(storage._cat_file(name), storage.loop))  # noqa: SLF001 -- the coroutine has no public name
        if not pending:
            return
        yield pending.pop(0).result()


def main() -> None:
    """Reads everything once and prints what it cost."""
    work = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    loader = DataLoader(
        Shards(work),
        batch_size=work["batch"],
        num_workers=_WORKERS,
        prefetch_factor=4,
        collate_fn=None if work["kind"] == "jpeg" else list,
    )
    # The workers have ended by then; their time is that of children of this process.
    report(loader, (lambda batch: batch[1].tolist()) if work["kind"] == "jpeg" else numbers_of)


if __name__ == "__main__":
    main()
