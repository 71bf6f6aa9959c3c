"""Grouping pipelines as data: how they are drawn, and how asyncdata runs them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import asyncdata as ad

Plan: TypeAlias = dict[str, Any]

SOURCES = ("numbers", "rows", "texts", "objects", "strings", "matrices", "nests")
STRINGS = ("texts", "objects", "strings")


def source(plan: Plan) -> ad.Dataset:
    """The elements that are grouped."""
    kind, lengths = plan["source"], plan["lengths"]
    numbered = ad.Dataset.from_tensor_slices((np.arange(len(lengths)), np.array(lengths, np.int64)))
    if kind == "numbers":
        return ad.Dataset.range(len(lengths))
    if kind == "rows":
        return numbered.map(lambda i, n: np.full(n, i))
    if kind == "texts":
        return numbered.map(lambda i, n: ad.BytesArray.from_items([b"%d" % i] * n))
    if kind == "objects":
        return numbered.map(lambda i, n: np.full(n, b"%d" % i, object))
    if kind == "strings":
        return numbered.map(lambda i, n: np.full(n, b"%d" % i))
    if kind == "matrices":
        return numbered.map(lambda i, n: np.full((n, i % 3 + 1), i))
    return numbered.map(lambda i, n: {"a": i, "b": (np.full(n, i, np.float32), b"%d" % i)})


def row(element: Any) -> Any:
    """The leaf whose length counts."""
    return element["b"][0] if isinstance(element, dict) else element


def number(element: Any) -> int:
    """The number of an element."""
    leaf = row(element)
    if isinstance(leaf, ad.BytesArray):
        return len(leaf)
    return int(np.size(leaf)) if np.ndim(leaf) else int(leaf)


def nested(plan: Plan, value: Any) -> Any:
    """An argument for every leaf of a nest, or of the only leaf."""
    if plan["source"] != "nests" or value is None:
        return value
    return {"a": value["a"], "b": tuple(value["b"])}


def padding(plan: Plan, value: Any) -> Any:
    """Padding values; texts are byte strings here."""
    if value is None:
        return None
    if plan["source"] == "nests":
        return {"a": value["a"], "b": (float(value["b"][0]), value["b"][1].encode())}
    return value.encode() if isinstance(value, str) else value


REDUCE: dict[str, Callable[[int, ad.Dataset], ad.Dataset]] = {
    "batch": lambda _key, window: window.batch(2),
    "same": lambda _key, window: window,
    "take": lambda key, window: window.take(key),
    "padded": lambda _key, window: window.padded_batch(3),
}


def step(ds: ad.Dataset, plan: Plan, op: str, args: dict[str, Any]) -> ad.Dataset:
    """One transformation."""
    if op == "window":
        return ds.window(**args).flat_map(_together)
    if op == "window_batch":
        return ds.window(**args).flat_map(lambda w: w.batch(args["size"]))
    if op in ("group_by_window", "group_by_window_func"):
        size: dict[str, Any] = {"window_size_func": lambda key: key + 1}
        if op == "group_by_window":
            size = {"window_size": args["window_size"]}
        return ds.group_by_window(lambda x: number(x) % args["modulus"], REDUCE[args["reduce"]], **size)
    if op in ("padded_batch", "bucket_by_sequence_length"):
        args = dict(args, padding_values=padding(plan, args.get("padding_values")))
        args["padded_shapes"] = nested(plan, args.get("padded_shapes"))
        if op == "bucket_by_sequence_length":
            args["element_length_func"] = lambda x: len(row(x))
    if op == "cache_file":
        return ds.cache(Path(tempfile.mkdtemp()) / "c").repeat(2)
    made: ad.Dataset = getattr(ds, op)(**args)
    return made


def _together(*window: Any) -> ad.Dataset:
    (found,) = window
    if isinstance(found, dict):
        return ad.Dataset.zip({"a": found["a"], "b": ad.Dataset.zip(found["b"])})
    dataset: ad.Dataset = found
    return dataset


def plain(value: Any) -> Any:
    """Plain data that both sides can compare."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, ad.RaggedArray):
        return ["ragged", value.ragged_rank, _text(value.to_list())]
    if isinstance(value, bytes | ad.BytesArray):
        value = np.asarray(value, object)
    array = np.asarray(value)
    if array.dtype.kind in "OS":
        return ["bytes", list(array.shape), _text(array.tolist())]
    return [array.dtype.str, list(array.shape), array.tolist()]


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def answer(plan: Plan) -> dict[str, Any]:
    """The elements, up to the error that ended them."""
    out: list[Any] = []
    try:
        ds = source(plan)
        for op, args in plan["steps"]:
            ds = step(ds, plan, op, args)
        for element in ds:
            out.append(plain(element))  # noqa: PERF401 -- what came before an error counts
    except Exception as error:  # noqa: BLE001 -- part of the answer
        return {"elements": out, "error": f"{type(error).__name__}: {error}"}
    return {"elements": out, "error": None}


def draw(seed: int) -> Plan:
    """One pipeline."""
    chance = random.Random(seed)
    kind = chance.choice(SOURCES)
    lengths = [chance.randint(0, 4) for _ in range(chance.randint(0, 14))]
    plan: Plan = {"source": kind, "lengths": lengths, "steps": []}
    plan["steps"] = _steps(chance, kind)
    return plan


def _steps(chance: random.Random, kind: str) -> list[Any]:
    size = chance.randint(1, 5)
    drop = {"drop_remainder": chance.random() < 0.3}
    window = {"size": size, "shift": chance.choice([None, 1, 2, 7]), "stride": chance.randint(1, 3), **drop}
    group = {"modulus": chance.randint(1, 4), "window_size": size, "reduce": chance.choice(["batch", "same", "take"])}
    rank = {"numbers": 0, "rows": 1, "texts": 1, "objects": 1, "strings": 1, "matrices": 2, "nests": 1}[kind]
    if rank:
        group["reduce"] = chance.choice(["same", "take", "padded"])
    ops: list[Any] = [["group_by_window", group], ["group_by_window_func", group]]
    if kind == "numbers":
        sizes = [chance.randint(1, 4) for _ in range(chance.randint(1, 3))]
        batch = ["batch", {"batch_size": chance.randint(1, 5)}]
        ops += [["window_batch", window], ["window", window]]
        return chance.choice(
            [
                [batch, ["unbatch", {}]],
                [batch, ["rebatch", {"batch_size": sizes, **drop}]],
                [batch, ["rebatch", {"batch_size": size, **drop}]],
                [["ragged_batch", {"batch_size": size, **drop}]],
                [["padded_batch", {"batch_size": size, **drop}]],
                [chance.choice(ops)],
                [chance.choice(ops), ["ragged_batch", {"batch_size": 2}]] if group["reduce"] != "batch" else [ops[3]],
                [batch, ["ragged_batch", {"batch_size": size}], ["unbatch", {}]],
                [batch, ["cache_file", {}]],
                [batch, ["unbatch", {}], chance.choice(ops), ["cache", {}]],
            ]
        )
    if kind in ("rows", "nests"):
        ops.append(["window", window])
    ragged = {"batch_size": size, "row_splits_dtype": "int64", **drop}
    ops += [
        ["ragged_batch", {key: value for key, value in ragged.items() if key != "row_splits_dtype"}],
        ["padded_batch", {"batch_size": size, **_padded(chance, kind), **drop}],
        ["padded_batch", {"batch_size": size, **_padded(chance, kind), **drop}],
    ]
    if kind in ("rows", "nests"):
        ops.append(["bucket_by_sequence_length", _buckets(chance, kind, drop)])
    if kind == "rows" and chance.random() < 0.2:
        return [["ragged_batch", {"batch_size": size}], ["unbatch", {}]]
    # Arrays of strings cannot be written to a file.
    kept = kind not in STRINGS and chance.random() < 0.2
    return [chance.choice(ops), *([["cache_file", {}]] if kept else [])]


def _padded(chance: random.Random, kind: str) -> dict[str, Any]:
    axis = chance.choice([None, None, 2, 4, 5])
    shapes: Any = {
        "rows": [axis],
        **{key: [axis] for key in STRINGS},
        "matrices": [axis, chance.choice([None, 3])],
        "nests": {"a": [], "b": [[axis], []]},
    }[kind]
    values: Any = {
        "rows": -1,
        **dict.fromkeys(STRINGS, "-"),
        "matrices": -2,
        "nests": {"a": 0, "b": [-1.5, "-"]},
    }[kind]
    return {
        "padded_shapes": chance.choice([None, shapes]),
        "padding_values": chance.choice([None, values]),
    }


def _buckets(chance: random.Random, kind: str, drop: dict[str, Any]) -> dict[str, Any]:
    boundaries = sorted(chance.sample([1, 2, 3, 4], chance.randint(1, 3)))
    bounded = chance.random() < 0.4
    if bounded and chance.random() < 0.8:
        boundaries = [*boundaries, 6]
    return {
        "bucket_boundaries": boundaries,
        "bucket_batch_sizes": [chance.randint(1, 3) for _ in range(len(boundaries) + 1)],
        "pad_to_bucket_boundary": bounded,
        "padding_values": _padded(chance, kind)["padding_values"],
        **drop,
    }
