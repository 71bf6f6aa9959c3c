"""tf.data on local TFRecord files. Run by an interpreter that has TensorFlow: ``python tf_data.py JSON``."""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks.measure import cpu_s

_PIXELS = 224


def dataset(work: dict[str, Any]) -> Any:
    """The same steps as ``benchmarks.workloads.pipeline``."""
    files = tf.data.Dataset.from_tensor_slices(sorted(glob.glob(work["pattern"])))
    ds = files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=work["cycle"],
        num_parallel_calls=work["cycle"],
        deterministic=work["deterministic"],
    )
    if work["shuffle"]:
        ds = ds.shuffle(work["shuffle"], seed=1)
    if work["kind"] == "jpeg":
        ds = ds.map(_decode, tf.data.AUTOTUNE).batch(work["batch"])
    else:
        parse = _parse_small if work["kind"] == "small" else _parse_blobs
        ds = ds.batch(work["batch"]).map(parse, tf.data.AUTOTUNE)
    return ds.prefetch(tf.data.AUTOTUNE)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # it leaves files behind
def _decode(record: Any) -> tuple[Any, Any]:
    spec = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}
    parsed = tf.io.parse_single_example(record, spec)
    pixels = tf.io.decode_jpeg(parsed["image"], 3, dct_method="INTEGER_FAST")
    return tf.cast(tf.image.resize(pixels, (_PIXELS, _PIXELS)), tf.uint8), parsed["label"]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # as above
def _parse_small(records: Any) -> Any:
    spec = {f"i{number}": tf.io.FixedLenFeature((), tf.int64) for number in range(5)}
    spec |= {f"f{number}": tf.io.FixedLenFeature((), tf.float32) for number in range(5)}
    return tf.io.parse_example(records, spec)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # as above
def _parse_blobs(records: Any) -> Any:
    spec = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}
    return tf.io.parse_example(records, spec)


def _delivered(batch: Any, kind: str) -> Any:
    """The numbers of a batch; its byte strings are made ``bytes``, as by other readers."""
    if kind == "jpeg":
        return batch[1]
    if kind == "small":
        return batch["i0"]
    batch["image"].numpy().tolist()
    return batch["label"]


def main() -> None:
    """Reads everything once and prints what it cost."""
    work = json.loads(sys.argv[1])
    ds = dataset(work)
    cpu = cpu_s(os.getpid())
    began = time.perf_counter()
    first_s, first_records, records, checksum = 0.0, 0, 0, 0
    # The clock stops while the iterator is alive: dropping it takes time that no training loop waits for.
    batches = iter(ds)
    for batch in batches:
        first_s = first_s or time.perf_counter() - began
        numbers = _delivered(batch, work["kind"])
        count = int(numbers.shape[0])
        checksum += int(numbers.numpy().sum())
        records += count
        first_records = first_records or count
    wall_s = time.perf_counter() - began
    spent = cpu_s(os.getpid()) - cpu
    print(
        json.dumps(
            {
                "first_s": first_s,
                "wall_s": wall_s,
                "first_records": first_records,
                "records": records,
                "nbytes": sum(os.path.getsize(path) for path in glob.glob(work["pattern"])),
                "cpu_s": spent,
                "parent_cpu_s": spent,
                "tasks": 0,
                "checksum": checksum,
            }
        ),
        flush=True,
    )
    # Threads of the runtime are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
