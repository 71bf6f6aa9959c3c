"""TensorFlow's side of ``expressions``: evaluates pipelines that are written as expressions."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

MOST = 100
Pair = namedtuple("Pair", "p q")  # noqa: PYI024 -- any types


class Result:
    """What a pipeline that is run at once gives."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _pairs() -> Any:
    for i in range(3):
        yield i, [i, i + 1.5]


def _dicts() -> Any:
    for i in range(3):
        yield {"a": i, "b": np.ones(i, np.float32)}


def _fails() -> Any:
    yield 1
    raise ValueError


NAMES: dict[str, Any] = {
    "AUTOTUNE": tf.data.AUTOTUNE,
    "D": tf.data.Dataset,
    "INFINITE": tf.data.INFINITE_CARDINALITY,
    "asserted": lambda ds, count: ds.apply(tf.data.experimental.assert_cardinality(count)),
    "cat": lambda a, b: a + b,
    "castf16": lambda x: tf.cast(x, tf.float16),
    "dt": SimpleNamespace(
        bytes=tf.string,
        float16=tf.float16,
        float32=tf.float32,
        int32=tf.int32,
        int64=tf.int64,
        uint8=tf.uint8,
        uint64=tf.uint64,
    ),
    "fill": lambda count, value: tf.fill([count], tf.cast(value, tf.int64)),
    "fill2": lambda rows, columns, value: tf.fill([rows, columns], value),
    "fills": lambda count, value: tf.fill([count], value),
    "gen0": lambda: iter(()),
    "gen3": lambda: iter((1, 2, 3)),
    "gend": _dicts,
    "genfail": _fails,
    "genf": lambda: iter((1.5, 2.0)),
    "genn": lambda count: iter(range(count)),
    "genp": _pairs,
    "genr": lambda: ([i] * i for i in range(4)),
    "gens": lambda: iter(("a", "bc")),
    "i32": lambda x: tf.cast(x, tf.int32),
    "i64": lambda x: tf.cast(x, tf.int64),
    "np": np,
    "nt": Pair,
    "result": Result,
    "rows32": lambda x: tf.shape(x)[0],
    "size32": tf.size,
    "spec": tf.TensorSpec,
    "sumof": tf.reduce_sum,
}
"""What expressions may name."""


def plain(value: Any) -> Any:
    """An element as JSON."""
    if isinstance(value, tuple | list):
        return {"tuple": [plain(part) for part in value]}
    if isinstance(value, dict):
        return {"dict": {key: plain(value[key]) for key in sorted(value)}}
    if isinstance(value, tf.RaggedTensor):
        return {"ragged": texts(value.to_list())}
    array = value.numpy()
    if isinstance(array, bytes):
        return {"bytes": texts(array)}
    if array.dtype == object:
        return {"texts": texts(array.ravel().tolist()), "shape": list(array.shape)}
    return {
        "array": [str(item) for item in array.ravel().tolist()],
        "shape": list(array.shape),
        "dtype": array.dtype.str,
    }


def texts(value: Any) -> Any:
    """Byte strings as texts."""
    if isinstance(value, list):
        return [texts(part) for part in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def spec_of(spec: Any) -> Any:
    """A spec as JSON; None for what has no counterpart."""
    if isinstance(spec, tuple | list):
        return {"tuple": [spec_of(part) for part in spec]}
    if isinstance(spec, dict):
        return {"dict": {key: spec_of(spec[key]) for key in sorted(spec)}}
    if not isinstance(spec, tf.TensorSpec):
        return None
    dtype = "bytes" if spec.dtype == tf.string else np.dtype(spec.dtype.as_numpy_dtype).str
    return [dtype, None if spec.shape.rank is None else list(spec.shape)]


def answer(expression: str) -> dict[str, Any]:
    """What the pipeline gives, and what is known of it beforehand."""
    found: dict[str, Any] = {"elements": [], "cardinality": None, "spec": None, "error": None}
    try:
        ds = eval(expression, dict(NAMES))
        if isinstance(ds, Result):
            found["elements"].append(plain(ds.value))
            return found
        found["cardinality"] = int(ds.cardinality())
        found["spec"] = spec_of(ds.element_spec)
        found["elements"].extend(map(plain, ds.take(MOST)))
    except Exception as error:  # noqa: BLE001 -- part of the answer
        found["error"] = f"{type(error).__name__}: {error}"[:300]
    return found
