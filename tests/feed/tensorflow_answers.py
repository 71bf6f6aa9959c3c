"""``python -m tests.feed.tensorflow_answers``: what TensorFlow makes of datasets, as a line of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"
import numpy as np
import tensorflow as tf

import asyncdata as ad
from asyncdata import feed
from asyncdata.errors import PipelineError
from asyncdata.feed.ranks import Division
from asyncdata.feed.tensorflow_dataset import TensorflowFeed

X = np.random.default_rng(0).normal(size=(22, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def elements(*, known: bool) -> ad.Dataset:
    """One leaf of each kind; behind a map the plan does not know their types."""
    rows = [[1], [], [2, 3], [4], [5, 6, 7]]
    texts, names = ["a", "ü", "", "d", "ee"], [b"a", b"", b"ccc", b"\xff\x00", b"e"]

    def made() -> Iterator[Any]:
        for number, row in enumerate(rows):
            floats = np.arange(3, dtype=np.float32) + number
            yield {
                "flag": np.bool_(number % 2),
                "floats": floats,
                "name": names[number],
                "rows": np.array(row, np.int32),
                "text": texts[number],
            }

    specs = {
        "flag": ad.ArraySpec((), bool),
        "floats": ad.ArraySpec((3,), np.float32),
        "name": ad.BytesSpec(),
        "rows": ad.ArraySpec((None,), np.int32),
        "text": ad.StrSpec(),
    }
    ds = ad.Dataset.from_generator(made, output_signature=specs)
    ds = ds.ragged_batch(2)
    return ds if known else ds.map(lambda batch: batch)


def plain(batch: Any) -> Any:
    """Lists, and texts for what JSON has not."""

    def listed(leaf: Any) -> Any:
        found = leaf.to_list() if isinstance(leaf, tf.RaggedTensor | ad.RaggedArray) else np.asarray(leaf).tolist()
        return [item.decode("latin-1") if isinstance(item, bytes) else item for item in found]

    return {name: listed(leaf) for name, leaf in batch.items()}


def expected(batch: Any) -> Any:
    """The same of a batch of the pipeline, whose texts TensorFlow has in UTF-8."""
    return plain({**batch, "text": [text.encode() for text in batch["text"]]})


def shared() -> list[bool]:
    """Whether the memory of a batch is that of TensorFlow's tensor."""
    addresses: list[int] = []
    ds = ad.Dataset.range(6).map(lambda number: np.full(1 << 10, number, np.float32), 2).batch(2)
    batches = TensorflowFeed(ds, Division(rank=0, world=1, shard=True, even=None))

    def noted() -> Iterator[Any]:
        for batch in batches:
            addresses.append(batch.__array_interface__["data"][0])
            yield batch

    tensors = list(tf.data.Dataset.from_generator(noted, output_signature=tf.TensorSpec((None, 1 << 10), tf.float32)))
    found = [np.from_dlpack(tensor).__array_interface__["data"][0] for tensor in tensors]
    return [one == other for one, other in zip(found, addresses, strict=True)]


def mirrored() -> list[list[list[int]]]:
    """What each replica was given in each step."""
    strategy = tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices("CPU")])
    batches = feed.tensorflow(ad.Dataset.range(16).batch(4))
    return [
        [replica.numpy().tolist() for replica in strategy.experimental_local_results(step)]
        for step in strategy.experimental_distribute_dataset(batches)
    ]


def padded() -> list[Any]:
    """Two ranks with ``even="pad"``, for batches of the plan, of a function, and elements without rows."""
    made = ad.Dataset.range(20).map(lambda number: {"x": np.int64(number), "y": f"{number}"})
    found = []
    for ds in (ad.Dataset.range(22).batch(4), made.batch(4, drop_remainder=True), ad.Dataset.range(5)):
        ranks = [feed.tensorflow(ds, even="pad", rank=rank, world=2) for rank in range(2)]
        steps = [[(tf.nest.flatten(batch)[0], mask) for batch, mask in rank] for rank in ranks]
        counted = [tf.boolean_mask(tf.reshape(x, [-1]), tf.reshape(mask, [-1])) for x, mask in chain(*steps)]
        spec = ranks[0].element_spec[1]
        found.append([str(spec.shape), [len(rank) for rank in steps], sorted(tf.concat(counted, 0).numpy().tolist())])
    return found


def losses(batches: Any) -> list[float]:
    """Of each epoch."""
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return [round(loss, 5) for loss in model.fit(batches, epochs=3, verbose=0).history["loss"]]


def error(ds: ad.Dataset, **settings: Any) -> str:
    """Of a dataset that cannot be fed, when it is made or read."""
    try:
        for _ in feed.tensorflow(ds, **settings):
            pass
    except (PipelineError, tf.errors.OpError) as error:
        return str(error)
    return ""


def changing() -> ad.Dataset:
    """Integers, and then other numbers."""
    return ad.Dataset.range(4).map(lambda number: {"x": number if number < 2 else number + 0.5}).batch(2)


def answers() -> dict[str, Any]:
    """See the module's docstring."""
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    fed = feed.tensorflow(elements(known=True))
    learned = feed.tensorflow(elements(known=False))
    shuffled = ad.Dataset.range(9).shuffle(9, seed=1).batch(4)
    epochs = feed.tensorflow(shuffled)
    rows = ad.Dataset.from_tensor_slices((X, Y)).batch(4)
    return {
        "known": {name: str(spec) for name, spec in fed.element_spec.items()},
        "learned": {name: str(spec) for name, spec in learned.element_spec.items()},
        "values": [plain(batch) for batch in fed],
        "expected": [expected(batch) for batch in elements(known=True)],
        "cardinality": [int(epochs.cardinality()), int(fed.cardinality())],
        "epochs": [[batch.numpy().tolist() for batch in epochs] for _ in range(2)],
        "expected epochs": [[batch.tolist() for batch in shuffled.iterator(epoch=epoch)] for epoch in range(2)],
        "shared": shared(),
        "policy": fed.options().experimental_distribute.auto_shard_policy.name,
        "mirrored": mirrored(),
        "padded": padded(),
        "losses": losses(feed.tensorflow(rows)),
        "expected losses": losses(tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)),
        "dates": error(ad.Dataset.from_tensor_slices(np.zeros(3, "M8[s]")).batch(2)),
        "empty": error(ad.Dataset.range(0).map(abs).batch(2)),
        "none": error(ad.Dataset.range(2).map(lambda _: None)),
        "masked": error(ad.Dataset.range(2).map(lambda _: np.ma.array([1, 2], mask=[True, False]))),
        "changing": error(changing()),
        "changing as told": error(changing(), output_signature={"x": tf.TensorSpec((None,), tf.float64)}),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answers()) + "\n")
