"""PyTorch's DataLoader on local files, with this library's decoder. Run by an interpreter that has torch and OpenCV.

``python torch_files.py JSON``: each worker decodes whole batches of its share of the files, which costs less than
handing over single records. The workers stay for later epochs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.peers.reading import cost, end
from benchmarks.peers.same_decoder import blocks, decoder, files
from benchmarks.workloads import numbers_of


class Files(IterableDataset):  # type: ignore[misc]  # torch is not installed where types are checked
    """Every worker reads its share of the files."""

    def __init__(self, work: dict[str, Any]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        decode = decoder(self._work["kind"])
        for records in blocks(files(self._work)[worker.id :: worker.num_workers], self._work["batch"]):
            yield {name: torch.from_numpy(array) for name, array in decode(records).items()}


def main() -> None:
    """Reads everything the given number of times, and prints what each time cost."""
    work = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    loader = DataLoader(
        Files(work), batch_size=None, num_workers=work["workers"], prefetch_factor=4, persistent_workers=True
    )
    kind = work["kind"]
    epochs = [cost(loader, lambda batch: numbers_of(batch, kind).tolist()) for _ in range(work["epochs"])]
    # The workers end with the loader.
    del loader
    end(epochs)


if __name__ == "__main__":
    main()
