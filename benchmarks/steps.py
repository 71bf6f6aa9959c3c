"""What an element costs in each step, beside tf.data in one run; a Markdown table.

    python -m benchmarks.steps [--tensorflow PYTHON] [--quick] [--only WORDS]

Both run the same expression. Functions are Python here, and compiled to a graph there. CPU time of all threads on one
core, measured as by `benchmarks.elements`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final, NamedTuple

import numpy as np

import asyncdata as ad
from benchmarks.elements import Peer, run_rows
from benchmarks.peers.step_data import FLAT, STOPS, TABLE

_ROUNDS: Final = 3


class Step(NamedTuple):
    """An expression that both understand.

    Attributes:
        expression: The dataset.
        elements: Of its source, by which the time is divided.
        batches: That are delivered.
    """

    expression: str
    elements: int
    batches: int


STEPS: Final = {
    "elements one by one": Step("D.range(20_000)", 20_000, 20000),
    "from_tensor_slices of a dict, one by one": Step("D.from_tensor_slices(TABLE)", 20_000, 20000),
    "batch": Step("D.range(200_000).batch(64)", 200_000, 3125),
    "from_tensor_slices of a dict, batch": Step("D.from_tensor_slices(TABLE).batch(64)", 20_000, 313),
    "map, batch": Step("D.range(20_000).map(lambda x: 2 * x).batch(64)", 20_000, 313),
    "filter, batch": Step("D.range(20_000).filter(lambda x: x % 2 == 0).batch(64)", 20_000, 157),
    "scan, batch": Step("D.range(20_000).scan(zero, lambda state, x: (state + x, state + x)).batch(64)", 20_000, 313),
    "take_while, batch": Step("D.range(20_000).take_while(lambda x: x < 20_000).batch(64)", 20_000, 313),
    "enumerate, batch": Step("D.range(200_000).enumerate().batch(64)", 200_000, 3125),
    "skip, take, batch": Step("D.range(200_010).skip(10).take(200_000).batch(64)", 200_000, 3125),
    "shard, batch": Step("D.range(800_000).shard(4, 1).batch(64)", 200_000, 3125),
    "shuffle, batch": Step("D.range(200_000).shuffle(1000).batch(64)", 200_000, 3125),
    "unique, batch": Step("D.range(20_000).unique().batch(64)", 20_000, 313),
    "cache, batch": Step("D.range(200_000).cache().batch(64)", 200_000, 3125),
    "prefetch, one by one": Step("D.range(20_000).prefetch(8)", 20_000, 20000),
    "repeat of 10 elements, batch": Step("D.range(10).repeat(2_000).batch(64)", 20_000, 313),
    "zip, batch": Step("D.zip((D.range(200_000), D.range(200_000))).batch(64)", 200_000, 3125),
    "concatenate, batch": Step("D.range(100_000).concatenate(D.range(100_000)).batch(64)", 200_000, 3125),
    "sample_from_datasets, batch": Step(
        "D.sample_from_datasets([D.range(100_000)] * 2, [0.5, 0.5], seed=1).batch(64)", 200_000, 3125
    ),
    "choose_from_datasets, batch": Step(
        "D.choose_from_datasets([D.range(100_000)] * 2, D.range(2).repeat(100_000)).batch(64)", 200_000, 3125
    ),
    "unbatch, batch": Step("D.range(200_000).batch(50).unbatch().batch(64)", 200_000, 3125),
    "rebatch": Step("D.range(200_000).batch(50).rebatch(64)", 200_000, 3125),
    "padded_batch": Step("uneven(20_000).padded_batch(32)", 20_000, 625),
    "ragged_batch": Step("uneven(20_000).ragged_batch(32)", 20_000, 625),
    "bucket_by_sequence_length": Step(
        "uneven(20_000).bucket_by_sequence_length(length, [20, 40, 60, 80], [32] * 5)", 20_000, 627
    ),
    "group_by_window": Step(
        "D.range(20_000).group_by_window(lambda x: x % 5, lambda key, window: window.batch(32), window_size=32)",
        20_000,
        625,
    ),
    "rejection_resample, batch": Step(
        "D.range(20_000).rejection_resample(parity, [0.5, 0.5], [0.5, 0.5], seed=1).take(18_000).batch(64)", 18_000, 282
    ),
    "interleave of 10 elements each, batch": Step(
        "D.range(2_000).interleave(lambda x: D.range(10), cycle_length=4).batch(64)", 20_000, 313
    ),
    "flat_map of 10 elements each, batch": Step(
        "D.range(2_000).flat_map(lambda x: D.range(10)).batch(64)", 20_000, 313
    ),
    "window(8), flat_map": Step("D.range(20_000).window(8).flat_map(lambda window: window.batch(8))", 20_000, 2500),
}


def uneven(count: int) -> ad.Dataset:
    """Rows of 1 to 99 numbers."""
    return ad.Dataset.range(count).map(lambda row: FLAT[STOPS[row] : STOPS[row + 1]])


NAMES: Final[dict[str, Any]] = {
    "D": ad.Dataset,
    "TABLE": TABLE,
    "uneven": uneven,
    "length": len,
    "zero": np.int64(0),
    "parity": lambda x: x % 2,
}


def serve(work: dict[str, Any]) -> None:
    """Runs the pipeline once for each line on standard input."""
    with ad.Runtime(ad.Options(num_workers=0), pipelines=1):
        ds = eval(work["expression"], dict(NAMES))  # noqa: S307 -- one of those above
        for _ in sys.stdin:
            began = time.process_time()
            seen = 0
            for _batch in ds:
                seen += 1
            print(json.dumps({"cpu_s": time.process_time() - began, "elements": seen}), flush=True)


def main() -> None:
    """The table, or one side of a row."""
    run_rows(
        __doc__,
        serve,
        Peer("tf.data", "tensorflow", "tf_steps.py", "steps", _ROUNDS),
        {title: step._asdict() for title, step in STEPS.items()},
    )


if __name__ == "__main__":
    main()
