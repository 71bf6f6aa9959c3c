"""TensorFlow's side of ``pipelines``: runs pipelines that are described in JSON, and what else is asked about them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

D = tf.data.Dataset
MOST = 300
# Fused into one step, map and batch refuse shapes that differ even within a last batch that is dropped; batch alone
# does not, and it is what the pipeline says.
UNFUSED = tf.data.Options()
UNFUSED.experimental_optimization.map_and_batch_fusion = False


def leaves(element: Any) -> list[Any]:
    """The parts of an element, in the order they are written."""
    if isinstance(element, tuple | list):
        return [leaf for part in element for leaf in leaves(part)]
    if isinstance(element, dict):
        return [leaf for key in sorted(element) for leaf in leaves(element[key])]
    return [element]


def first(element: Any) -> Any:
    """The first part."""
    return leaves(element)[0]


def measure(element: Any) -> Any:
    """A number that follows from the element."""
    leaf = first(element)
    if leaf.dtype == tf.string:
        if leaf.shape.rank == 0:
            return tf.cast(tf.strings.length(leaf), tf.int64)
        return tf.size(leaf, out_type=tf.int64)
    return tf.cast(tf.reduce_sum(leaf), tf.int64)


def whole(arguments: tuple[Any, ...]) -> Any:
    """The element that was unpacked into arguments."""
    return arguments[0] if len(arguments) == 1 else arguments


MAPS: dict[str, Callable[[Any], Any]] = {
    "affine": lambda x: x * 3 + 1,
    "pair": lambda x: (x, x + 1),
    "dict": lambda x: {"b": x, "a": -x},
    "vector": lambda x: tf.stack([x, x * 2, x * 3]),
    "varying": lambda x: tf.range(x % 4),
    "text": tf.strings.as_string,
    "first": first,
    "tag": lambda x: (x, tf.constant(7, tf.int64)),
    "measure": measure,
    "parse": lambda x: parsed(
        x,
        {
            "n": tf.io.FixedLenFeature((), tf.int64, -1),
            "t": tf.io.FixedLenFeature((), tf.string, b"?"),
            "p": tf.io.FixedLenFeature((2,), tf.int64),
            "s": tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True),
        },
    ),
    "parse ragged": lambda x: parsed(
        x,
        {
            "r": tf.io.RaggedFeature(tf.int64, "s", row_splits_dtype=tf.int64),
            "w": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64),
        },
    ),
}


def parsed(records: Any, spec: dict[str, Any]) -> Any:
    """One Example, or a batch of them."""
    return (tf.io.parse_example if records.shape.rank else tf.io.parse_single_example)(records, spec)


def inner(name: str, element: Any) -> Any:
    """The dataset that interleave makes of an element."""
    count = measure(element) % 4
    if name == "range":
        return D.range(count)
    if name == "repeat":
        return D.from_tensors(element).repeat(count)
    if name == "slices":
        return D.from_tensor_slices(first(element))
    return D.range(count).map(lambda x: x * 10).concatenate(D.range(1))


def build(plan: dict[str, Any]) -> Any:
    """The dataset of a description."""
    op = plan["op"]
    arguments = {key: value for key, value in plan.items() if key not in ("op", "input", "inputs", "function")}
    if op in SOURCES:
        return SOURCES[op](plan)
    if "inputs" in plan:
        return joined(plan, [build(child) for child in plan["inputs"]])
    ds = build(plan["input"])
    if op in STEPS:
        return STEPS[op](ds, plan)
    return getattr(ds, op)(**arguments)


def slices(plan: dict[str, Any]) -> Any:
    """Rows of numbers or byte strings, alone or nested."""
    return D.from_tensor_slices(nested(plan["values"]))


def nested(values: Any) -> Any:
    """Arrays in the nest that a description gives."""
    if isinstance(values, dict):
        if "tuple" in values:
            return tuple(nested(value) for value in values["tuple"])
        if "dict" in values:
            return {key: nested(value) for key, value in values["dict"].items()}
        return np.array([value.encode("latin-1") for value in values["bytes"]], object)
    return np.array(values, np.int64)


SOURCES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "range": lambda p: D.range(p["start"], p["stop"], p["step"]),
    "slices": slices,
    "tensors": lambda p: D.from_tensors(tf.constant(p["value"], tf.int64)),
    "counter": lambda p: D.counter(p["start"], p["step"]).take(p["count"]),
    "records": lambda p: tf.data.TFRecordDataset(p["files"], num_parallel_reads=p["reads"]),
    "lines": lambda p: tf.data.TextLineDataset(p["files"], num_parallel_reads=p["reads"]),
    "fixed": lambda p: tf.data.FixedLengthRecordDataset(p["files"], p["size"], p["header"], p["footer"]),
}

STEPS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "map": lambda ds, p: ds.map(lambda *x: MAPS[p["function"]](whole(x)), num_parallel_calls=p["parallel"]),
    "filter": lambda ds, p: ds.filter(lambda *x: measure(whole(x)) % 3 != p["rest"]),
    "take_while": lambda ds, p: ds.take_while(lambda *x: measure(whole(x)) < p["limit"]),
    "scan": lambda ds, p: ds.scan(
        tf.constant(p["start"], tf.int64), lambda state, x: (state + measure(x), (state, measure(x)))
    ),
    "interleave": lambda ds, p: ds.interleave(
        lambda *x: inner(p["function"], whole(x)), cycle_length=p["cycle"], block_length=p["block"]
    ),
    "flat_map": lambda ds, p: ds.flat_map(lambda *x: inner(p["function"], whole(x))),
    "windows": lambda ds, p: ds.window(p["size"], p["shift"], p["stride"], p["drop"]).flat_map(
        lambda *x: D.zip(whole(x)).batch(p["batch"]) if p["batch"] else D.zip(whole(x))
    ),
    "group": lambda ds, p: ds.group_by_window(
        lambda *x: measure(whole(x)) % 3,
        lambda _, window: window.batch(p["batch"]) if p["batch"] else window,
        window_size=p["size"],
    ),
    "bucket": lambda ds, p: ds.bucket_by_sequence_length(tf.size, [2, 3], [2, 1, 2], drop_remainder=p["drop"]),
    "shuffle": lambda ds, p: ds.shuffle(p["size"], reshuffle_each_iteration=p.get("reshuffle")),
}


def joined(plan: dict[str, Any], datasets: list[Any]) -> Any:
    """The dataset of several."""
    op = plan["op"]
    if op == "zip":
        return D.zip(dict(zip("ba", datasets)) if plan["as_dict"] else tuple(datasets))  # noqa: B905 -- two of them
    if op == "concatenate":
        return datasets[0].concatenate(datasets[1])
    if op == "choose":
        choices = D.from_tensor_slices(np.array(plan["choices"], np.int64))
        return D.choose_from_datasets(datasets, choices, stop_on_empty_dataset=plan["stop"])
    again = plan.get("rerandomize")
    return D.sample_from_datasets(datasets, weights=plan["weights"], rerandomize_each_iteration=again)


def readable(rows: Any) -> Any:
    """Nested lists without bytes."""
    if isinstance(rows, list):
        return list(map(readable, rows))
    return rows.decode("latin-1") if isinstance(rows, bytes) else rows


def plain(value: Any) -> Any:
    """An element as JSON."""
    if isinstance(value, tuple):
        return {"tuple": [plain(part) for part in value]}
    if isinstance(value, dict):
        return {"dict": {key: plain(part) for key, part in value.items()}}
    if isinstance(value, tf.RaggedTensor):
        return {"ragged": readable(value.to_list())}
    array = value.numpy()
    if isinstance(array, bytes):
        return {"bytes": array.decode("latin-1")}
    if array.dtype == object:
        return {"texts": [item.decode("latin-1") for item in array.ravel().tolist()], "shape": list(array.shape)}
    return {"array": array.ravel().tolist(), "shape": list(array.shape), "dtype": array.dtype.str}


def laws(plan: dict[str, Any], split: int) -> dict[str, Any]:
    """What holds of an order that was drawn without a seed."""
    ds = build(plan)

    def run(part: Any) -> list[Any]:
        return [plain(element) for element in part]

    once = run(ds)
    splits = [run(ds.take(split)) + run(ds.skip(split)), run(ds.take(split).concatenate(ds.skip(split)))]
    return {
        "elements": sorted(once, key=repr),
        "same again": run(ds) == once,
        "same in repetitions": run(ds.repeat(2)) == once * 2,
        "same beside itself": run(D.zip((ds, ds))) == [{"tuple": [x, x]} for x in once],
        "disjoint splits": [sorted(part, key=repr) == sorted(once, key=repr) for part in splits],
        "same elsewhere": run(build(plan)) == once,
    }


def interleaved(lengths: Any, cycle: Any, block: Any) -> Any:
    """The order in which interleave reads datasets of these lengths; traced once for all of them."""
    ds = (
        D.from_tensor_slices(lengths)
        .enumerate()
        .interleave(
            lambda number, length: D.range(10 * number, 10 * number + length), cycle_length=cycle, block_length=block
        )
    )
    return ds.reduce(tf.zeros((0,), tf.int64), lambda seen, x: tf.concat([seen, [x]], 0))


def legacy_orders(cases: list[Any]) -> list[list[int]]:
    """The orders of the old parallel_interleave, traced once for each pair of arguments."""

    def orders(cycle: int, block: int) -> Any:
        def order(lengths: Any) -> Any:
            step = tf.data.experimental.parallel_interleave(
                lambda number, length: D.range(10 * number, 10 * number + length), cycle, block, sloppy=False
            )
            ds = D.from_tensor_slices(lengths).enumerate().apply(step)
            return ds.reduce(tf.zeros((0,), tf.int64), lambda seen, x: tf.concat([seen, [x]], 0))

        return tf.function(order, input_signature=SIGNATURE[:1])

    known: dict[tuple[int, int], Any] = {}
    found = []
    for lengths, cycle, block in cases:
        if (cycle, block) not in known:
            known[cycle, block] = orders(cycle, block)
        found.append(known[cycle, block](np.array(lengths, np.int64)).numpy().tolist())
    return found


def resampled(case: dict[str, Any]) -> list[list[int]]:
    """Classes of resampled numbers, epoch for epoch: one in ten is of class 1, three in ten of class 2."""

    def number(x: Any) -> Any:
        return tf.gather(tf.constant([1, 2, 2, 2, 0, 0, 0, 0, 0, 0]), x % 10)

    ds = D.range(case["count"]).rejection_resample(number, case["target"], case["initial"], seed=case["seed"])
    return [[int(kind) for kind, _ in ds] for _ in range(case["epochs"])]


def arguments(of: Any) -> list[str]:
    """The names of a function's arguments."""
    return [name for name in inspect.signature(of).parameters if name not in ("self", "args", "kwargs")]


def signatures() -> dict[str, list[str] | None]:
    """The arguments of everything a Dataset has; None for properties."""
    found: dict[str, list[str] | None] = {}
    for name in dir(D):
        if not name.startswith("_"):
            found[name] = None if isinstance(inspect.getattr_static(D, name), property) else arguments(getattr(D, name))
    for name in ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset"):
        found[name] = arguments(getattr(tf.data, name).__init__)
    found["CsvDataset"] = arguments(tf.data.experimental.CsvDataset.__init__)
    return found


SIGNATURE = [tf.TensorSpec((None,), tf.int64), tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.int64)]


def answer(plan: dict[str, Any]) -> dict[str, Any]:
    """What the pipeline gives: elements, and the error that ended it."""
    if plan["op"] == "orders":
        cases = plan["cases"]
        order = tf.function(interleaved, input_signature=SIGNATURE)
        return {"orders": [order(np.array(c[0], np.int64), c[1], c[2]).numpy().tolist() for c in cases]}
    if plan["op"] == "laws":
        return laws(plan["plan"], plan["split"])
    if plan["op"] == "signatures":
        return {"signatures": signatures()}
    if plan["op"] == "legacy orders":
        return {"orders": legacy_orders(plan["cases"])}
    if plan["op"] == "resampled":
        return {"classes": resampled(plan)}
    elements: list[Any] = []
    count = None
    try:
        ds = build(plan)
        count = int(ds.cardinality())
        elements.extend(map(plain, ds.take(MOST).with_options(UNFUSED)))
    except Exception as error:  # noqa: BLE001 -- part of the answer
        return {"elements": elements, "cardinality": count, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"elements": elements, "cardinality": count, "error": None}
