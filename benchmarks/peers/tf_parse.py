"""tf.io.parse_example, one round for every line on standard input. Run by an interpreter that has TensorFlow.

``python tf_parse.py FOLDER``: for each line ``NAME BLOCK`` the records of ``FOLDER/NAME.npz`` are parsed once in blocks
of that many, and the CPU seconds it took are printed. The first round of each is run twice: tracing is not counted.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

_DTYPES = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string}


def feature(kind: str, dtype: str, shape: list[int], default: Any) -> Any:
    """tf.io's feature of that description."""
    if kind == "FixedLenFeature":
        return tf.io.FixedLenFeature(shape, _DTYPES[dtype], default)
    if kind == "FixedLenSequenceFeature":
        return tf.io.FixedLenSequenceFeature(shape, _DTYPES[dtype], allow_missing=True)
    if kind == "RaggedFeature":
        return tf.io.RaggedFeature(_DTYPES[dtype])
    return tf.io.VarLenFeature(_DTYPES[dtype])


def prepared(folder: str, name: str, block: int) -> Callable[[], float]:
    """A function that parses all records of a workload once and returns the CPU seconds."""
    with np.load(os.path.join(folder, f"{name}.npz")) as stored:
        data, splits = stored["data"].tobytes(), stored["splits"].tolist()
        spec = {key: feature(*parts) for key, parts in json.loads(str(stored["spec"])).items()}
    records = [data[begin:end] for begin, end in itertools.pairwise(splits)]
    blocks = [tf.constant(records[begin : begin + block]) for begin in range(0, len(records), block)]

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def parse(serialized: Any) -> Any:
        return tf.io.parse_example(serialized, spec)

    for serialized in blocks:
        parse(serialized)

    def once() -> float:
        began = time.process_time()
        for serialized in blocks:
            parse(serialized)
        return time.process_time() - began

    return once


def main() -> None:
    """Answers line by line."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    ready: dict[tuple[str, int], Callable[[], float]] = {}
    for line in sys.stdin:
        name, block = line.split()
        key = name, int(block)
        if key not in ready:
            ready.clear()
            ready[key] = prepared(sys.argv[1], *key)
        print(ready[key](), flush=True)


if __name__ == "__main__":
    main()
