"""What an element that a Python function makes costs, beside PyTorch's DataLoader in one run; a Markdown table.

    python -m benchmarks.functions [--torch PYTHON] [--quick] [--only WORDS]

Both call the same functions in the process that takes the batches, element by element, and stack the results. CPU time
of all threads on one core, measured as by `benchmarks.elements`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

import asyncdata as ad
from benchmarks.elements import Peer, run_rows
from benchmarks.peers.python_elements import FUNCTIONS, rows

WORKS: Final[dict[str, dict[str, Any]]] = {
    "map to a dict of 8 floats and a number, batch(64)": {"kind": "map", "function": "row", "elements": 40_000},
    "generator of such dicts, batch(64)": {"kind": "generator", "elements": 40_000},
    "map to a picture of 12 KB and a number, batch(64)": {"kind": "map", "function": "picture", "elements": 10_000},
    "map to 1 to 50 numbers, padded batches of 64": {"kind": "padded", "function": "tokens", "elements": 40_000},
}


def dataset(work: dict[str, Any]) -> ad.Dataset:
    """The pipeline of a row."""
    if work["kind"] == "generator":
        return ad.Dataset.from_generator(rows, args=(work["elements"],)).batch(work["batch"])
    ds = ad.Dataset.range(work["elements"]).map(FUNCTIONS[work["function"]])
    return ds.padded_batch(work["batch"]) if work["kind"] == "padded" else ds.batch(work["batch"])


def serve(work: dict[str, Any]) -> None:
    """Runs the pipeline once for each line on standard input."""
    with ad.Runtime(ad.Options(num_workers=0), pipelines=1):
        ds = dataset(work)
        for _ in sys.stdin:
            began = time.process_time()
            seen = 0
            for batch in ds:
                seen += len(batch[1] if isinstance(batch, tuple) else batch["label"])
            print(json.dumps({"cpu_s": time.process_time() - began, "elements": seen}), flush=True)


def main() -> None:
    """The table, or one side of a row."""
    run_rows(
        __doc__,
        serve,
        Peer("DataLoader", "torch", "torch_functions.py", "functions"),
        {title: {**work, "batch": 64} for title, work in WORKS.items()},
    )


if __name__ == "__main__":
    main()
