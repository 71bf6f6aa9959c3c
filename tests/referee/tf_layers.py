"""TensorFlow's side of ``test_layers``: Keras' preprocessing layers, adapted to batches and called with others."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def given(value: Any) -> Any:
    """An array, a tensor of byte strings, or a ragged one, from JSON."""
    if "rows" in value:
        if value["dtype"] != "bytes":
            return tf.ragged.constant(value["rows"], dtype=value["dtype"], ragged_rank=1)
        rows = [[bytes.fromhex(item) for item in row] for row in value["rows"]]
        return tf.ragged.constant(rows, dtype=tf.string, ragged_rank=1)
    if value["dtype"] == "bytes":
        return tf.reshape(tf.constant([bytes.fromhex(item) for item in value["values"]], tf.string), value["shape"])
    return tf.constant(np.array(value["values"], value["dtype"]).reshape(value["shape"]))


def told(value: Any) -> Any:
    """A tensor as JSON can hold it."""
    if isinstance(value, tf.RaggedTensor):
        return {"dtype": value.dtype.name, "rows": value.to_list()}
    array = np.asarray(value)
    return {"dtype": array.dtype.name, "shape": list(array.shape), "values": array.ravel().tolist()}


def learned(layer: Any) -> Any:
    """What a layer has learned."""
    if hasattr(layer, "get_vocabulary"):
        words = layer.get_vocabulary()
        return [word.encode().hex() if isinstance(word, str) else int(word) for word in words]
    if hasattr(layer, "bin_boundaries"):
        return [float(boundary) for boundary in layer.bin_boundaries]
    if hasattr(layer, "adapt_mean"):
        return [told(layer.adapt_mean), told(layer.adapt_variance)]
    return None


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What the layer has learned of the batches, and what it makes of each input; an error for those it refuses."""
    said = question["arguments"]
    if isinstance(said.get("ngrams"), list):
        said["ngrams"] = tuple(said["ngrams"])  # JSON has no tuples
    layer = getattr(keras.layers, question["layer"])(**said)
    if question["adapt"]:
        try:
            layer.adapt(iter([given(batch) for batch in question["adapt"]]))
        except (TypeError, ValueError, tf.errors.OpError) as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}
    outputs = []
    for value in question["inputs"]:
        try:
            outputs.append(told(layer(given(value))))
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            outputs.append({"error": f"{type(error).__name__}: {error}"[:300]})
    return {"learned": learned(layer), "outputs": outputs}
