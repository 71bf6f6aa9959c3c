"""tf.data on local TFRecord files. Run by an interpreter that has TensorFlow: ``python tf_data.py JSON``."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks.peers.reading import cost, end

_PIXELS = 224
_SCALAR_COLUMNS = {"small": 5, "wide": 20}


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
        ds = ds.batch(work["batch"]).map(_parser(work["kind"]), tf.data.AUTOTUNE)
    return ds.prefetch(tf.data.AUTOTUNE)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # it leaves files behind
def _decode(record: Any) -> tuple[Any, Any]:
    spec = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}
    parsed = tf.io.parse_single_example(record, spec)
    pixels = tf.io.decode_jpeg(parsed["image"], 3, dct_method="INTEGER_FAST")
    return tf.cast(tf.image.resize(pixels, (_PIXELS, _PIXELS)), tf.uint8), parsed["label"]


def _parser(kind: str) -> Any:
    """Parses a batch of records."""
    if kind in _SCALAR_COLUMNS:
        columns = range(_SCALAR_COLUMNS[kind])
        spec = {f"i{number}": tf.io.FixedLenFeature((), tf.int64) for number in columns}
        spec |= {f"f{number}": tf.io.FixedLenFeature((), tf.float32) for number in columns}
    elif kind == "tokens":
        spec = {
            "tokens": tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True),
            "label": tf.io.FixedLenFeature((), tf.int64),
        }
    else:
        spec = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}
    return tf.autograph.experimental.do_not_convert(lambda records: tf.io.parse_example(records, spec))


def _delivered(batch: Any, kind: str) -> list[int]:
    """The numbers of a batch; its byte strings are made ``bytes``, as by other readers."""
    if kind == "jpeg":
        numbers = batch[1]
    elif kind in _SCALAR_COLUMNS:
        numbers = batch["i0"]
    else:
        if "image" in batch:
            batch["image"].numpy().tolist()
        numbers = batch["label"]
    found: list[int] = numbers.numpy().tolist()
    return found


def main() -> None:
    """Reads everything the given number of times, and prints what each time cost."""
    work = json.loads(sys.argv[1])
    ds = dataset(work)
    epochs = []
    kept: list[Any] = []
    for _ in range(work["epochs"]):
        # The clock stops while the iterator is alive: dropping it takes time that no training loop waits for.
        epochs.append(cost(_kept(ds, kept), lambda batch: _delivered(batch, work["kind"])))
        epochs[-1]["nbytes"] = sum(os.path.getsize(path) for path in glob.glob(work["pattern"]))
    end(epochs)


def _kept(ds: Any, kept: list[Any]) -> Iterator[Any]:
    """The batches of an iterator that stays alive."""
    kept.append(iter(ds))
    yield from kept[-1]


if __name__ == "__main__":
    main()
