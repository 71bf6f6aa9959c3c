"""tf.data's side of ``benchmarks.elements``. Run by an interpreter that has TensorFlow: ``python tf_elements.py JSON``.

For each line on standard input the pipeline runs once; CPU seconds of the whole process and elements are printed. The
clock stops before the iterator is dropped: that waits for a timer of tf.data's autotuning.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf


def counted(work: dict[str, Any]) -> Any:
    """Numbers from several ranges."""
    each = work["elements"] // work["shards"]
    ds = tf.data.Dataset.range(work["shards"])
    ds = ds.interleave(
        lambda shard: tf.data.Dataset.range(shard * each, (shard + 1) * each),
        cycle_length=work["cycle"],
        block_length=work["block"],
    )
    ds = ds.shuffle(work["shuffle"], seed=1).map(lambda x: 2 * x + 1)
    return ds.batch(work["batch"]).prefetch(tf.data.AUTOTUNE)


def records(work: dict[str, Any]) -> Any:
    """TFRecord files."""
    ds = tf.data.Dataset.from_tensor_slices(sorted(glob.glob(work["pattern"])))
    ds = ds.interleave(tf.data.TFRecordDataset, cycle_length=work["cycle"], block_length=work["block"])
    return ds.shuffle(work["shuffle"], seed=1).batch(work["batch"]).prefetch(tf.data.AUTOTUNE)


def files(work: dict[str, Any]) -> Any:
    """Whole files."""
    ds = tf.data.Dataset.from_tensor_slices(sorted(glob.glob(work["pattern"])))
    ds = ds.map(tf.io.read_file, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.batch(work["batch"]).prefetch(tf.data.AUTOTUNE)


def main() -> None:
    """Answers line by line."""
    work = json.loads(sys.argv[1])
    ds = {"range": counted, "records": records, "files": files}[work["kind"]](work)
    for _ in sys.stdin:
        began = time.process_time()
        batches = iter(ds)
        seen = 0
        for batch in batches:
            seen += int(batch.shape[0])
        spent = time.process_time() - began
        del batches
        print(json.dumps({"cpu_s": spent, "elements": seen}), flush=True)


if __name__ == "__main__":
    main()
