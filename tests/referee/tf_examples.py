"""TensorFlow's side of ``test_parse_example``: parses Examples.

A question is::

    {"context": SPEC, "sequences": SPEC or null, "records": [hex …], "single": bool}
    SPEC = {name: {"kind": class, "dtype": …, further arguments}}

The answer is ``{"values": …}`` or ``{"error": text}``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

DTYPES = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string, "int32": tf.int32}


def feature(words: dict[str, Any]) -> Any:
    """tf.io's feature of a description."""
    arguments = dict(words)
    kind, dtype = arguments.pop("kind"), DTYPES[arguments.pop("dtype")]
    if kind == "RaggedFeature":
        cuts = [getattr(tf.io.RaggedFeature, name)(argument) for name, argument in arguments.pop("partitions")]
        splits = DTYPES[arguments.pop("row_splits_dtype")]
        return tf.io.RaggedFeature(dtype, partitions=cuts, row_splits_dtype=splits, **arguments)
    return getattr(tf.io, kind)(dtype=dtype, **arguments)


def plain(value: Any) -> Any:
    """A tensor of any kind as JSON."""
    if isinstance(value, tf.SparseTensor):
        return {"indices": plain(value.indices), "values": plain(value.values), "shape": plain(value.dense_shape)}
    if isinstance(value, tf.RaggedTensor):
        return {"flat": plain(value.flat_values), "splits": [plain(splits) for splits in value.nested_row_splits]}
    array = value.numpy()
    if isinstance(array, bytes):
        return {"dtype": "bytes", "shape": [], "items": [array.hex()]}
    array = np.asarray(array)
    if array.dtype == object:
        items = [item.hex() for item in array.ravel().tolist()]
        return {"dtype": "bytes", "shape": list(array.shape), "items": items}
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": array.tobytes().hex()}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What TensorFlow makes of it."""
    try:
        return {"values": values(question)}
    except (tf.errors.OpError, ValueError) as error:
        return {"error": str(error)[:1000]}


def values(question: dict[str, Any]) -> Any:
    """The context and, where they are asked for, the sequences."""
    records = [bytes.fromhex(record) for record in question["records"]]
    context = {name: feature(words) for name, words in question["context"].items()}
    if question["sequences"] is None:
        found = (
            (tf.io.parse_single_example(records[0], context),)
            if question["single"]
            else (tf.io.parse_example(tf.constant(records, tf.string), context),)
        )
    else:
        sequences = {name: feature(words) for name, words in question["sequences"].items()}
        if question["single"]:
            found = tf.io.parse_single_sequence_example(records[0], context or None, sequences or None)
        else:
            found = tf.io.parse_sequence_example(tf.constant(records, tf.string), context or None, sequences or None)
    return [{name: plain(value) for name, value in part.items()} for part in found]
