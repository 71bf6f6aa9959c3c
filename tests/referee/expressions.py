"""Pipelines as expressions: what their names mean for asyncdata, and how answers are written.

``expressions.txt`` holds them, `tf_expressions` is the other side.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import asyncdata as ad

MOST = 100
Pair = namedtuple("Pair", "p q")  # noqa: PYI024 -- any types
WIDER = "wider: "


def lines() -> list[tuple[str, bool]]:
    """The expressions, and whether TensorFlow refuses them."""
    text = Path(__file__).with_name("expressions.txt").read_text(encoding="utf-8")
    found = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.removeprefix(WIDER), line.startswith(WIDER)) for line in found]


class Result:
    """What a pipeline that is run at once gives."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _pairs() -> Iterator[Any]:
    for i in range(3):
        yield i, [i, i + 1.5]


def _dicts() -> Iterator[Any]:
    for i in range(3):
        yield {"a": i, "b": np.ones(i, np.float32)}


def _fails() -> Iterator[Any]:
    yield 1
    raise ValueError


NAMES: dict[str, Any] = {
    "AUTOTUNE": ad.AUTOTUNE,
    "D": ad.Dataset,
    "INFINITE": ad.INFINITE_CARDINALITY,
    "asserted": lambda ds, count: ds.assert_cardinality(count),
    "cat": lambda a, b: a + b,
    "castf16": lambda x: x.astype(np.float16),
    "dt": SimpleNamespace(
        bytes=bytes,
        float16=np.float16,
        float32=np.float32,
        int32=np.int32,
        int64=np.int64,
        uint8=np.uint8,
        uint64=np.uint64,
    ),
    "fill": lambda count, value: np.full(count, np.int64(value)),
    "fill2": lambda rows, columns, value: np.full((rows, columns), value),
    "fills": lambda count, value: ad.BytesArray.from_items([value] * int(count)),
    "gen0": lambda: iter(()),
    "gen3": lambda: iter((1, 2, 3)),
    "gend": _dicts,
    "genfail": _fails,
    "genf": lambda: iter((1.5, 2.0)),
    "genn": lambda count: iter(range(count)),
    "genp": _pairs,
    "genr": lambda: ([i] * i for i in range(4)),
    "gens": lambda: iter(("a", "bc")),
    "i32": np.int32,
    "i64": np.int64,
    "np": np,
    "nt": Pair,
    "result": Result,
    "rows32": len,
    "size32": len,
    "spec": ad.ArraySpec,
    "sumof": lambda x: x.sum(),
}
"""What expressions may name."""


def plain(value: Any) -> Any:
    """An element as JSON; texts and byte strings are alike."""
    if isinstance(value, tuple | list):
        return {"tuple": [plain(part) for part in value]}
    if isinstance(value, dict):
        return {"dict": {key: plain(value[key]) for key in sorted(value)}}
    if isinstance(value, ad.RaggedArray):
        return {"ragged": _texts(value.to_list())}
    if isinstance(value, bytes | str) or value is None:
        return {"bytes": _texts(value)}
    array = np.asarray(value)
    if array.dtype == object:
        return {"texts": _texts(array.ravel().tolist()), "shape": list(array.shape)}
    return {
        "array": [str(item) for item in array.ravel().tolist()],
        "shape": list(array.shape),
        "dtype": array.dtype.str,
    }


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(part) for part in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def spec_of(spec: Any) -> Any:
    """A spec as JSON; None where it is not known."""
    if isinstance(spec, tuple):
        return {"tuple": [spec_of(part) for part in spec]}
    if isinstance(spec, dict):
        return {"dict": {key: spec_of(spec[key]) for key in sorted(spec)}}
    if isinstance(spec, ad.ArraySpec):
        return [np.dtype(spec.dtype).str, None if spec.shape is None else list(spec.shape)]
    if isinstance(spec, ad.BytesSpec | ad.StrSpec):
        return ["bytes", None if spec.shape is None else list(spec.shape)]
    return None


def answer(expression: str) -> dict[str, Any]:
    """What the pipeline gives, and what is known of it beforehand."""
    found: dict[str, Any] = {"elements": [], "cardinality": None, "spec": None, "error": None}
    try:
        ds = eval(expression, dict(NAMES))
        if isinstance(ds, Result):
            found["elements"].append(plain(ds.value))
            return found
        found["cardinality"] = ds.cardinality()
        found["spec"] = spec_of(ds.element_spec)
        with ds.take(MOST).iterator() as elements:
            found["elements"].extend(map(plain, elements))
    except Exception as error:  # noqa: BLE001 -- part of the answer
        found["error"] = f"{type(error).__name__}: {error}"[:300]
    return found
