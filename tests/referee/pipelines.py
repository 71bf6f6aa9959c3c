"""Pipelines as data: how they are drawn, and how asyncdata runs them.

A description is a nest of dicts that JSON can hold: ``op``, its arguments, and ``input`` or ``inputs``. What elements
of a pipeline are (a *kind*) is known while it is drawn, so that steps fit: a leaf is ``("int" | "bytes", shape)``,
nests are ``["tuple", …]`` and ``["dict", …]``. Byte strings that are Examples are a kind of their own, ``"example"``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

import asyncdata as ad

D = ad.Dataset
MOST = 300

Plan: TypeAlias = dict[str, Any]
Kind: TypeAlias = Any
Draw: TypeAlias = Callable[..., Any]

INT: Kind = ("int", ())
BYTES: Kind = ("bytes", ())
EXAMPLE: Kind = ("example", ())


# --- running with asyncdata ------------------------------------------------------------------------------------------


def leaves(element: Any) -> list[Any]:
    """The parts of an element; of a dict in the order of its keys."""
    if isinstance(element, tuple):
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
    if isinstance(leaf, bytes | str | ad.RaggedArray):
        return np.int64(len(leaf))
    if isinstance(leaf, ad.BytesArray) or np.asarray(leaf).dtype == object:
        return np.int64(np.asarray(leaf).size)
    return np.asarray(leaf).sum(dtype=np.int64)


def whole(arguments: tuple[Any, ...]) -> Any:
    """The element that was unpacked into arguments."""
    return arguments[0] if len(arguments) == 1 else arguments


MAPS: dict[str, Callable[[Any], Any]] = {
    "affine": lambda x: x * 3 + 1,
    "pair": lambda x: (x, x + 1),
    "dict": lambda x: {"b": x, "a": -x},
    "vector": lambda x: np.stack([x, x * 2, x * 3]),
    "varying": lambda x: np.arange(x % 4),
    "text": lambda x: str(int(x)).encode(),
    "first": first,
    "tag": lambda x: (x, np.int64(7)),
    "measure": measure,
}


PARSERS: dict[str, Callable[[Any], Any]] = {
    "parse": ad.parse_example(
        {
            "n": ad.FixedLenFeature((), np.int64, -1),
            "t": ad.FixedLenFeature((), bytes, b"?"),
            "p": ad.FixedLenFeature((2,), np.int64),
            "s": ad.FixedLenSequenceFeature((), np.int64, allow_missing=True),
        }
    ),
    "parse ragged": ad.parse_example({"r": ad.RaggedFeature(np.int64, "s"), "w": ad.RaggedFeature(bytes)}),
}
"""Called for one Example, or for a batch of them."""


def example(n: int) -> bytes:
    """A record for the parsers; some features are missing now and then."""
    features: dict[str, Any] = {"n": n, "t": b"t" * (n % 5), "p": [n, -n], "s": [n] * (n % 3), "w": [b"w"] * (n % 4)}
    for name in ("n", "t", "s", "w")[n % 4 : n % 4 + n % 2]:
        del features[name]
    return ad.serialize_example({name: value for name, value in features.items() if value != []})


def write_files(folder: Path, counts: Sequence[int]) -> dict[str, list[str]]:
    """Files for the sources of drawn pipelines, of each format one per count of records."""
    written: dict[str, list[str]] = {"records": [], "lines": [], "fixed": [], "examples": []}
    for i, count in enumerate(counts):
        records = [b"%d" % (10 * i + j) * (j % 3) for j in range(count)]
        path = folder / f"{i}.tfrecord"
        with ad.TFRecordWriter(path) as writer:
            writer.write_many(records)
        written["records"].append(str(path))
        path = folder / f"{i}.examples"
        with ad.TFRecordWriter(path) as writer:
            writer.write_many([example(10 * i + j) for j in range(4 * count)])
        written["examples"].append(str(path))
        path = folder / f"{i}.txt"
        path.write_bytes(b"\r\n".join(records) + (b"\n" if i % 2 else b""))
        written["lines"].append(str(path))
        path = folder / f"{i}.bin"
        path.write_bytes(b"h" + bytes(range(97, 97 + 3 * count)) + b"ff")
        written["fixed"].append(str(path))
    return written


def inner(name: str, element: Any) -> ad.Dataset:
    """The dataset that interleave makes of an element."""
    count = int(measure(element) % 4)
    if name == "range":
        return D.range(count)
    if name == "repeat":
        return D.from_tensors(element).repeat(count)
    if name == "slices":
        return D.from_tensor_slices(first(element))
    return D.range(count).map(lambda x: x * 10).concatenate(D.range(1))


def nested(values: Any) -> Any:
    """Arrays in the nest that a description gives."""
    if isinstance(values, dict):
        if "tuple" in values:
            return tuple(nested(value) for value in values["tuple"])
        if "dict" in values:
            return {key: nested(value) for key, value in values["dict"].items()}
        return [value.encode("latin-1") for value in values["bytes"]]
    return np.array(values, np.int64)


SOURCES: dict[str, Callable[[Plan], ad.Dataset]] = {
    "range": lambda p: D.range(p["start"], p["stop"], p["step"]),
    "slices": lambda p: D.from_tensor_slices(nested(p["values"])),
    "tensors": lambda p: D.from_tensors(np.array(p["value"], np.int64)[()]),
    "counter": lambda p: D.counter(p["start"], p["step"]).take(p["count"]),
    "records": lambda p: ad.TFRecordDataset(p["files"], num_parallel_reads=p["reads"]),
    "lines": lambda p: ad.TextLineDataset(p["files"], num_parallel_reads=p["reads"]),
    "fixed": lambda p: ad.FixedLengthRecordDataset(p["files"], p["size"], p["header"], p["footer"]),
}

STEPS: dict[str, Callable[[ad.Dataset, Plan], ad.Dataset]] = {
    "map": lambda ds, p: ds.map(
        PARSERS.get(p["function"], lambda *x: MAPS[p["function"]](whole(x))),
        num_parallel_calls=p["parallel"],
        executor=p.get("executor"),
    ),
    "filter": lambda ds, p: ds.filter(lambda *x: measure(whole(x)) % 3 != p["rest"]),
    "take_while": lambda ds, p: ds.take_while(lambda *x: measure(whole(x)) < p["limit"]),
    "scan": lambda ds, p: ds.scan(np.int64(p["start"]), lambda state, x: (state + measure(x), (state, measure(x)))),
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
    "bucket": lambda ds, p: ds.bucket_by_sequence_length(len, [2, 3], [2, 1, 2], drop_remainder=p["drop"]),
    "shuffle": lambda ds, p: ds.shuffle(p["size"], reshuffle_each_iteration=p.get("reshuffle")),
}


def build(plan: Plan) -> ad.Dataset:
    """The dataset of a description."""
    op = plan["op"]
    if op in SOURCES:
        return SOURCES[op](plan)
    if "inputs" in plan:
        return joined(plan, [build(child) for child in plan["inputs"]])
    return stepped(build(plan["input"]), plan)


def stepped(ds: ad.Dataset, plan: Plan) -> ad.Dataset:
    """The dataset with the last step of a description."""
    if plan["op"] in STEPS:
        return STEPS[plan["op"]](ds, plan)
    arguments = {key: value for key, value in plan.items() if key not in ("op", "input")}
    result: ad.Dataset = getattr(ds, plan["op"])(**arguments)
    return result


def joined(plan: Plan, datasets: list[ad.Dataset]) -> ad.Dataset:
    """The dataset of several."""
    op = plan["op"]
    if op == "zip":
        return D.zip(dict(zip("ba", datasets, strict=False)) if plan["as_dict"] else tuple(datasets))
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
    if isinstance(value, ad.RaggedArray):
        return {"ragged": readable(value.to_list())}
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, str):
        return {"text": value}
    array = np.asarray(value)
    if array.dtype == object:
        return {"texts": readable(array.ravel().tolist()), "shape": list(array.shape)}
    return {"array": array.ravel().tolist(), "shape": list(array.shape), "dtype": array.dtype.str}


def answer(plan: Plan) -> dict[str, Any]:
    """What the pipeline gives in the Runtime of the test: elements, and the error that ended it."""
    elements: list[Any] = []
    count = None
    try:
        ds = build(plan)
        count = ds.cardinality()
        with ds.take(MOST).iterator() as it:
            elements.extend(map(plain, it))
    except Exception as error:  # noqa: BLE001 -- part of the answer
        return {"elements": elements, "cardinality": count, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"elements": elements, "cardinality": count, "error": None}


def laws(plan: Plan, split: int) -> dict[str, Any]:
    """What holds of an order that was drawn without a seed."""
    ds = build(plan)

    def run(part: ad.Dataset) -> list[Any]:
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


# --- drawing ---------------------------------------------------------------------------------------------------------


def is_leaf(kind: Kind) -> bool:
    """Whether elements are no nests."""
    return isinstance(kind, tuple)


def kinds_of(kind: Kind) -> list[Kind]:
    """The leaves, in the order of `leaves`."""
    if is_leaf(kind):
        return [kind]
    parts = kind[1] if kind[0] == "tuple" else [kind[1][key] for key in sorted(kind[1])]
    return [leaf for part in parts for leaf in kinds_of(part)]


def changed(kind: Kind, change: Callable[[Kind], Kind]) -> Kind:
    """The same nest of changed leaves."""
    if is_leaf(kind):
        return change(kind)
    if kind[0] == "tuple":
        return ["tuple", [changed(part, change) for part in kind[1]]]
    return ["dict", {key: changed(part, change) for key, part in kind[1].items()}]


def stacked(kind: Kind) -> Kind:
    """What a batch of it is."""
    return changed(kind, lambda leaf: (leaf[0], (None, *leaf[1])))


def sources(draw: Draw, files: dict[str, list[str]], *, only: Kind | None = None) -> tuple[Plan, Kind]:
    """A source, of elements of one kind if it must be."""
    names = ["range", "slices", "tensors", "counter", "records", "lines", "fixed", "nest", "examples", "some examples"]
    if only is not None:
        names = ["range", "slices", "counter"] if only == INT else ["records", "lines"]
    op = draw(st.sampled_from(names))
    small = st.integers(-3, 9)
    if op == "range":
        start, length = draw(small), draw(st.sampled_from([7, 12, 5, 3, 1, 0]))
        step = draw(st.sampled_from([1, 2, -1, 3]))
        return {"op": op, "start": start, "stop": start + step * length, "step": step}, INT
    if op == "counter":
        return {"op": op, "start": draw(small), "step": draw(small), "count": draw(st.sampled_from([6, 9, 3, 0]))}, INT
    if op == "slices":
        return {"op": op, "values": draw(st.lists(small, min_size=draw(st.sampled_from([5, 3, 1])), max_size=9))}, INT
    if op == "tensors":
        shape = draw(st.sampled_from([(), (3,), (0,), (2, 2)]))
        return {"op": op, "value": np.arange(int(np.prod(shape))).reshape(shape).tolist()}, ("int", shape)
    if op == "nest":
        count = draw(st.sampled_from([5, 3, 6, 1]))
        numbers = list(range(count))
        texts = {"bytes": [chr(97 + i) * (i % 3) for i in range(count)]}
        rows = [[i, i + 1] for i in range(count)]
        value = {"tuple": [numbers, {"dict": {"b": texts, "a": rows}}]}
        return {"op": "slices", "values": value}, ["tuple", [INT, ["dict", {"b": BYTES, "a": ("int", (2,))}]]]
    if op == "some examples":
        numbers = draw(st.lists(st.integers(0, 99), min_size=1, max_size=9))
        values = {"bytes": [example(number).decode("latin-1") for number in numbers]}
        return {"op": "slices", "values": values}, EXAMPLE
    chosen = draw(st.lists(st.sampled_from(files[op]), min_size=1, max_size=4))
    if op == "fixed":
        return {"op": op, "files": chosen, "size": 3, "header": 1, "footer": 2}, BYTES
    plan = {"op": op if op == "lines" else "records", "files": chosen, "reads": draw(st.sampled_from([None, 1, 2, 3]))}
    return plan, EXAMPLE if op == "examples" else BYTES


def steps_for(kind: Kind) -> list[str]:
    """The steps that fit elements of this kind."""
    if any(leaf[0] == "ragged" for leaf in kinds_of(kind)):
        return ["take", "skip", "repeat", "prefetch", "cache"]
    names = ["take", "skip", "repeat", "shard", "enumerate", "prefetch", "cache", "filter", "take_while", "scan"]
    names += ["map", "map", "interleave", "interleave", "flat_map", "zip", "concatenate", "choose", "group"]
    names += ["batch", "batch", "padded_batch", "windows"]
    parts = kinds_of(kind)
    if all(leaf[1] for leaf in parts):
        names += ["unbatch", "rebatch"] * 2 if len(parts) == 1 else ["unbatch"] * 2
    if is_leaf(kind) and not kind[1]:
        names.append("unique")
    if kind in (EXAMPLE, stacked(EXAMPLE)):
        names += ["map"] * 20
    if kind == ("int", (None,)):
        names += ["bucket", "padded_batch", "batch"] * 2
    return names


COUNT = st.integers(-1, 7)
SIZE = st.integers(1, 4)

SIMPLE: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "take": {"count": st.sampled_from([7, 4, 20, 2, -1, 1, 0])},
    "skip": {"count": st.sampled_from([1, 2, 1, 3, 0, 5, -1])},
    "repeat": {"count": st.sampled_from([2, 3, 2, 1, 2, 0])},
    "prefetch": {"buffer_size": st.integers(0, 3)},
    "cache": {},
    "unique": {},
    "filter": {"rest": st.integers(0, 2)},
    "take_while": {"limit": st.sampled_from([30, 12, 100, 6, 2])},
    "enumerate": {"start": COUNT},
    "scan": {"start": COUNT},
    "batch": {"batch_size": SIZE, "drop_remainder": st.booleans()},
    "padded_batch": {"batch_size": SIZE, "drop_remainder": st.booleans()},
    "unbatch": {},
    "rebatch": {"batch_size": st.one_of(SIZE, st.lists(SIZE, min_size=1, max_size=3)), "drop_remainder": st.booleans()},
    "bucket": {"drop": st.booleans()},
    "windows": {"size": SIZE, "shift": SIZE, "stride": st.integers(1, 2), "drop": st.booleans()},
    "group": {"size": SIZE},
}
"""The arguments of steps that have one input."""

RESULTS: dict[str, Callable[[Kind], Kind]] = {
    "enumerate": lambda kind: ["tuple", [INT, kind]],
    "scan": lambda kind: ["tuple", [INT, INT]] if kind else kind,
    "batch": stacked,
    "padded_batch": lambda kind: changed(kind, lambda leaf: (leaf[0], (None,) * (1 + len(leaf[1])))),
    "unbatch": lambda kind: changed(kind, lambda leaf: (leaf[0], leaf[1][1:])),
    "rebatch": lambda kind: changed(kind, lambda leaf: (leaf[0], (None, *leaf[1][1:]))),
    "bucket": lambda kind: ("int", (None, None)) if kind else kind,
}
"""What they make of the elements, where those change."""


def step(draw: Draw, plan: Plan, kind: Kind, files: dict[str, list[str]]) -> tuple[Plan, Kind]:
    """One step more."""
    op = draw(st.sampled_from(steps_for(kind)))
    out: Plan = {"op": op, "input": plan}
    if op == "map":
        return mapped(draw, out, kind)
    if op in ("interleave", "flat_map"):
        return inner_datasets(draw, out, kind)
    if op == "shard":
        shards = draw(SIZE)
        return {**out, "num_shards": shards, "index": draw(st.integers(0, shards - 1))}, kind
    if op not in SIMPLE:
        return with_others(draw, op, plan, kind, files)
    out |= {name: draw(values) for name, values in SIMPLE[op].items()}
    if op in ("windows", "group"):
        batch = draw(st.integers(0, 3))
        return {**out, "batch": batch}, stacked(kind) if batch else kind
    return out, RESULTS[op](kind) if op in RESULTS else kind


def mapped(draw: Draw, out: Plan, kind: Kind) -> tuple[Plan, Kind]:
    """A map with a function that takes such elements."""
    results: dict[str, Kind] = {"first": kinds_of(kind)[0], "tag": ["tuple", [kind, INT]], "measure": INT}
    if kind == INT:
        results |= {
            "affine": INT,
            "pair": ["tuple", [INT, INT]],
            "dict": ["dict", {"a": INT, "b": INT}],
            "vector": ("int", (3,)),
            "varying": ("int", (None,)),
            "text": BYTES,
        }
    if kind in (EXAMPLE, stacked(EXAMPLE)):
        many = kind[1]
        parsed = {"n": ("int", many), "t": ("bytes", many), "p": ("int", (*many, 2)), "s": ("int", (*many, None))}
        results |= {"parse": ["dict", parsed], "parse ragged": ["dict", {"r": ("ragged", many), "w": ("ragged", many)}]}
    function = draw(st.sampled_from(sorted(results)))
    parallel = draw(st.sampled_from([None, 2, 2]))
    executor = draw(st.sampled_from(["thread", "process"])) if parallel else None
    return {**out, "function": function, "parallel": parallel, "executor": executor}, results[function]


def inner_datasets(draw: Draw, out: Plan, kind: Kind) -> tuple[Plan, Kind]:
    """interleave or flat_map with a function that takes such elements."""
    results: dict[str, Kind] = {"range": INT, "repeat": kind, "joined": INT}
    leaf = kinds_of(kind)[0]
    if leaf[1]:
        results["slices"] = (leaf[0], leaf[1][1:])
    function = draw(st.sampled_from(sorted(results)))
    cycle = {} if out["op"] == "flat_map" else {"cycle": draw(st.integers(1, 4)), "block": draw(st.integers(1, 3))}
    return {**out, "function": function, **cycle}, results[function]


def with_others(draw: Draw, op: str, plan: Plan, kind: Kind, files: dict[str, list[str]]) -> tuple[Plan, Kind]:
    """The pipeline joined with others, of its own kind where it must be."""
    others = []
    for _ in range(draw(st.integers(1, 2)) if op == "choose" else 1):
        if op == "zip":
            others.append(sources(draw, files))
        elif kind in (INT, BYTES) and draw(st.booleans()):
            others.append(sources(draw, files, only=kind))
        else:
            others.append(({"op": "skip", "input": plan, "count": draw(st.integers(0, 3))}, kind))
    inputs = [plan, *(other for other, _ in others)]
    if op == "zip":
        if draw(st.booleans()):
            return {"op": op, "inputs": inputs, "as_dict": True}, ["dict", {"b": kind, "a": others[0][1]}]
        return {"op": op, "inputs": inputs, "as_dict": False}, ["tuple", [kind, others[0][1]]]
    if op == "concatenate":
        return {"op": op, "inputs": inputs}, kind
    choices = draw(st.lists(st.integers(0, len(inputs) - 1), min_size=1, max_size=12))
    return {"op": op, "inputs": inputs, "choices": choices, "stop": draw(st.booleans())}, kind


@st.composite
def plans(draw: Draw, files: dict[str, list[str]], depth: int = 6) -> tuple[Plan, bool]:
    """A pipeline of up to so many steps, and whether its order is drawn by a generator that is TensorFlow's own."""
    plan, kind = sources(draw, files)
    for _ in range(draw(st.sampled_from(range(depth, 0, -1)))):
        plan, kind = step(draw, plan, kind, files)
    last = draw(st.sampled_from(["", "", "", "shuffle", "sample"]))
    if last == "shuffle":
        return {"op": "shuffle", "input": plan, "size": draw(st.integers(1, 20))}, True
    if last == "sample":
        other = {"op": "take", "input": plan, "count": 3}
        return {"op": "sample", "inputs": [plan, other], "weights": [0.3, 0.7]}, True
    return plan, False
