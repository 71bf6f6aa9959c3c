"""TensorFlow's side of ``test_sources``: reads files with tf.data's datasets of files.

Byte strings are written in base 16, floats as Python writes them exactly.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

KINDS = {
    "lines": tf.data.TextLineDataset,
    "fixed": tf.data.FixedLengthRecordDataset,
    "csv": tf.data.experimental.CsvDataset,
    "tfrecord": tf.data.TFRecordDataset,
}


def written(value: Any) -> Any:
    """An element as JSON can hold it."""
    if isinstance(value, tuple):
        return [written(part) for part in value]
    value = value.numpy() if hasattr(value, "numpy") else value
    if isinstance(value, bytes):
        return value.hex()
    return [value.dtype.name, value.item().hex() if value.dtype.kind == "f" else value.item()]


def column(wish: Any) -> Any:
    """A column of CSV: a dtype by name, or a default in a list."""
    return (
        [bytes.fromhex(wish[0][2:])]
        if isinstance(wish, list) and str(wish[0]).startswith("x:")
        else (wish if isinstance(wish, list) else getattr(tf, wish))
    )


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The elements in front of an error, and whether there was one."""
    arguments = dict(case["arguments"])
    if case["kind"] == "csv":
        arguments["record_defaults"] = [column(wish) for wish in arguments["record_defaults"]]
    elements: list[Any] = []
    try:
        for element in KINDS[case["kind"]](case["path"], **arguments):
            elements.append(written(element))  # noqa: PERF401 -- those in front of an error count
    except tf.errors.OpError as error:
        return {"elements": elements, "error": type(error).__name__}
    return {"elements": elements, "error": None}
