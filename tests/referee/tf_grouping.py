"""TensorFlow's side of ``grouping``: runs grouping pipelines that are described in JSON."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

D = tf.data.Dataset


def source(plan: dict[str, Any]) -> Any:
    """The elements that are grouped."""
    kind, lengths = plan["source"], plan["lengths"]
    numbered = D.from_tensor_slices((tf.range(len(lengths), dtype=tf.int64), tf.constant(lengths, tf.int64)))
    if kind == "numbers":
        return D.range(len(lengths))
    if kind == "rows":
        return numbered.map(lambda i, n: tf.fill([n], i))
    if kind in ("texts", "objects", "strings"):
        return numbered.map(lambda i, n: tf.fill([n], tf.strings.as_string(i)))
    if kind == "matrices":
        return numbered.map(lambda i, n: tf.fill([n, (i % 3) + 1], i))
    return numbered.map(lambda i, n: {"a": i, "b": (tf.fill([n], tf.cast(i, tf.float32)), tf.strings.as_string(i))})


def row(element: Any) -> Any:
    """The leaf whose length counts."""
    return element["b"][0] if isinstance(element, dict) else element


def number(element: Any) -> Any:
    """The number of an element."""
    leaf = row(element)
    return tf.cast(tf.size(leaf), tf.int64) if leaf.shape.rank != 0 else tf.cast(leaf, tf.int64)


def nested(plan: dict[str, Any], value: Any) -> Any:
    """An argument for every leaf of a nest, or of the only leaf."""
    if plan["source"] != "nests" or value is None:
        return value
    return {"a": value["a"], "b": tuple(value["b"])}


def padding(plan: dict[str, Any], value: Any) -> Any:
    """Padding values as constants of the leaves' types."""
    if value is None:
        return None
    if plan["source"] == "nests":
        return {"a": tf.constant(value["a"], tf.int64), "b": (float(value["b"][0]), value["b"][1])}
    return value if isinstance(value, str) else tf.constant(value, tf.int64)


REDUCE = {
    "batch": lambda _key, window: window.batch(2),
    "same": lambda _key, window: window,
    "take": lambda key, window: window.take(key),
    "padded": lambda _key, window: window.padded_batch(3),
}


def step(ds: Any, plan: dict[str, Any], op: str, args: dict[str, Any]) -> Any:
    """One transformation."""
    if op == "window":
        return ds.window(**args).flat_map(
            lambda w: D.zip({"a": w["a"], "b": D.zip(tuple(w["b"]))}) if plan["source"] == "nests" else w
        )
    if op == "window_batch":
        return ds.window(**args).flat_map(lambda w: w.batch(args["size"]))
    if op == "group_by_window":
        return ds.group_by_window(
            lambda x: number(x) % args["modulus"], REDUCE[args["reduce"]], window_size=args["window_size"]
        )
    if op == "group_by_window_func":
        return ds.group_by_window(
            lambda x: number(x) % args["modulus"], REDUCE[args["reduce"]], window_size_func=lambda key: key + 1
        )
    if op in ("padded_batch", "bucket_by_sequence_length"):
        args = dict(args, padding_values=padding(plan, args.get("padding_values")))
        args["padded_shapes"] = nested(plan, args.get("padded_shapes"))
        if op == "bucket_by_sequence_length":
            args["element_length_func"] = lambda x: tf.cast(tf.shape(row(x))[0], tf.int32)
    if op == "cache_file":
        return ds.cache(os.path.join(tempfile.mkdtemp(), "c")).repeat(2)
    return getattr(ds, op)(**args)


def plain(value: Any) -> Any:
    """Plain data that both sides can compare."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, tf.RaggedTensor):
        return ["ragged", value.ragged_rank, text(value.to_list())]
    array = value.numpy()
    if isinstance(array, bytes) or array.dtype == object:
        array = np.asarray(array, object)
        return ["bytes", list(array.shape), text(array.tolist())]
    return [array.dtype.str, list(array.shape), array.tolist()]


def text(value: Any) -> Any:
    """Byte strings as texts."""
    return (
        [text(part) for part in value]
        if isinstance(value, list)
        else value.decode()
        if isinstance(value, bytes)
        else value
    )


def answer(question: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of the plans gives; their files are put into a folder."""
    tempfile.tempdir = question["folder"]
    return [elements(plan) for plan in question["plans"]]


def elements(plan: dict[str, Any]) -> dict[str, Any]:
    """The elements, up to the error that ended them."""
    out: list[Any] = []
    try:
        ds = source(plan)
        for op, args in plan["steps"]:
            ds = step(ds, plan, op, args)
        for element in ds:
            out.append(plain(element))  # noqa: PERF401 -- what came before an error counts
    except Exception as error:  # noqa: BLE001 -- part of the answer
        return {"elements": out, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"elements": out, "error": None}
