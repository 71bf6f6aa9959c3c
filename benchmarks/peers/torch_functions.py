"""PyTorch's side of ``benchmarks.functions``: a DataLoader in this process. ``python torch_functions.py JSON``.

For each line on standard input the loader runs once; CPU seconds of the process and elements are printed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from python_elements import FUNCTIONS, rows  # type: ignore[import-not-found]  # beside this file
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Mapped(Dataset[Any]):  # type: ignore[misc]  # torch is not installed where types are checked
    """A function of the position."""

    def __init__(self, work: dict[str, Any]) -> None:
        self._function = FUNCTIONS[work["function"]]
        self._count = work["elements"]

    def __len__(self) -> int:
        return int(self._count)

    def __getitem__(self, number: int) -> Any:
        return self._function(number)


class Generated(IterableDataset[Any]):  # type: ignore[misc]  # see above
    """A generator."""

    def __init__(self, work: dict[str, Any]) -> None:
        self._count = work["elements"]

    def __iter__(self) -> Iterator[Any]:
        yield from rows(self._count)


def padded(elements: list[dict[str, Any]]) -> dict[str, Any]:
    """Token sequences of one length."""
    sequences = [torch.from_numpy(element["tokens"]) for element in elements]
    labels = torch.tensor([element["label"] for element in elements])
    return {"tokens": pad_sequence(sequences, batch_first=True), "label": labels}


def main() -> None:
    """Answers line by line."""
    work = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dataset = Generated(work) if work["kind"] == "generator" else Mapped(work)
    collate = padded if work["kind"] == "padded" else None
    loader: Any = DataLoader(dataset, batch_size=work["batch"], collate_fn=collate)
    for _ in sys.stdin:
        began = time.process_time()
        seen = 0
        for batch in loader:
            seen += len(batch[1] if isinstance(batch, list) else batch["label"])
        print(json.dumps({"cpu_s": time.process_time() - began, "elements": seen}), flush=True)


if __name__ == "__main__":
    main()
