"""tf.data's side of ``benchmarks.steps``. Run by an interpreter that has TensorFlow: ``python tf_steps.py JSON``.

For each line on standard input the pipeline runs once; CPU seconds of the whole process and batches are printed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from step_data import FLAT, STOPS, TABLE  # type: ignore[import-not-found]  # beside this file


def uneven(count: int) -> Any:
    """Rows of 1 to 99 numbers."""
    rows = tf.RaggedTensor.from_row_splits(FLAT[: STOPS[count]], STOPS[: count + 1])
    return tf.data.Dataset.from_tensor_slices(rows).map(lambda row: row)


NAMES = {
    "D": tf.data.Dataset,
    "TABLE": TABLE,
    "uneven": uneven,
    "length": lambda row: tf.shape(row)[0],
    "zero": np.int64(0),
    "parity": lambda x: tf.cast(x % 2, tf.int32),
}


def main() -> None:
    """Answers line by line."""
    ds = eval(json.loads(sys.argv[1])["expression"], dict(NAMES))  # noqa: S307 -- one of those of the other side
    for _ in sys.stdin:
        began = time.process_time()
        batches = ds.as_numpy_iterator()
        seen = sum(1 for _ in batches)
        spent = time.process_time() - began
        del batches
        print(json.dumps({"cpu_s": spent, "elements": seen}), flush=True)


if __name__ == "__main__":
    main()
