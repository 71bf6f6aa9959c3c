"""TensorFlow as the referee: Examples and SequenceExamples, bit for bit, and which of them are errors."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from tests.referee.process import Referee
from tests.samples import SOAK, samples

PARTITIONS = ("RowLengths", "RowSplits", "RowStarts", "RowLimits", "ValueRowIds", "UniformRowLength")


class Drawer:
    """Draws specs, as JSON, and values that fit them but for a few."""

    def __init__(self, seed: int, faults: float) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.numbered = 0

    def spec(self, *, steps: bool) -> dict[str, dict[str, Any]]:
        """Some features; those of sequences have steps."""
        return {f"k{i}": self.feature(steps=steps) for i in range(self.random.randint(0 if steps else 1, 4))}

    def feature(self, *, steps: bool) -> dict[str, Any]:
        """One feature of any class."""
        draw = self.random
        dtype = draw.choice(("int64", "float32", "bytes"))
        shape: list[int] = draw.choice([[], [], [1], [2], [2, 2]])
        kind = draw.choice(("FixedLenSequenceFeature", "VarLenFeature", "RaggedFeature"))
        if not steps and draw.random() < 0.4:
            kind = "FixedLenFeature"
        if kind == "VarLenFeature":
            return {"kind": kind, "dtype": dtype}
        if kind == "RaggedFeature":
            self.numbered += 1
            cuts = [] if steps else draw.sample(PARTITIONS, draw.choice((0, 0, 1, 1, 2)))
            return {
                "kind": kind,
                "dtype": dtype,
                "value_key": f"v{self.numbered}",
                "row_splits_dtype": draw.choice(("int32", "int64")),
                "partitions": [
                    [cut, draw.randint(1, 3) if cut == "UniformRowLength" else f"v{self.numbered}.{i}"]
                    for i, cut in enumerate(cuts)
                ],
            }
        if kind == "FixedLenSequenceFeature":
            allow = not steps or draw.random() < 0.5
            return {"kind": kind, "dtype": dtype, "shape": shape, "allow_missing": allow}
        value: Any = {"int64": -7, "float32": 0.5, "bytes": "d"}[dtype]
        default = np.full(shape, value, object).tolist() if draw.random() < 0.6 else None
        return {"kind": kind, "dtype": dtype, "shape": shape, "default_value": default}

    def record(self, spec: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Values by key."""
        found: dict[str, Any] = {}
        for name, words in spec.items():
            lacks = words.get("default_value") is not None or words["kind"] != "FixedLenFeature"
            # Of row splits that are not there at all TensorFlow makes a tensor that is none.
            stays = any(cut == "RowSplits" for cut, _ in words.get("partitions", ()))
            gone = (lacks and self.random.random() < 0.2) or self.random.random() < self.faults
            if gone and not stays:
                continue
            if words["kind"] == "RaggedFeature":
                self.cut(found, words)
                continue
            count = int(np.prod(words.get("shape", [])))
            if words["kind"] != "FixedLenFeature":
                count *= self.random.randint(0, 4)
            found[name] = self.values(words["dtype"], count + (self.random.random() < self.faults))
        items = list(found.items())
        self.random.shuffle(items)
        return dict(items)

    def values(self, dtype: str, count: int) -> Any:
        """So many values; now and then of another kind."""
        draw = self.random
        if draw.random() < self.faults:
            dtype = draw.choice(("int64", "float32", "bytes"))
        if dtype == "bytes":
            return [draw.randbytes(draw.choice((0, 1, 5, 200))) for _ in range(count)] or None
        if dtype == "float32":
            return np.array([draw.gauss(0, 1) for _ in range(count)], np.float32)
        return np.array([draw.getrandbits(draw.randint(1, 63)) - draw.getrandbits(9) for _ in range(count)], np.int64)

    def cut(self, found: dict[str, Any], words: dict[str, Any]) -> None:
        """Values of a ragged feature, and the lists that cut them into rows; innermost last."""
        count, lists = self.random.randint(0, 3), {}
        for cut, argument in words["partitions"]:
            if cut == "UniformRowLength":
                count *= argument
                continue
            lengths = [self.random.randint(0, 3) for _ in range(count)]
            if cut == "ValueRowIds" and lengths:
                lengths[-1] = max(lengths[-1], 1)  # ids cannot tell of empty rows behind the last value
            splits = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
            lists[argument] = {
                "RowLengths": np.array(lengths, np.int64),
                "RowSplits": splits,
                "RowStarts": splits[:-1],
                "RowLimits": splits[1:],
                "ValueRowIds": np.repeat(np.arange(len(lengths)), lengths),
            }[cut]
            count = int(splits[-1])
        found[words["value_key"]] = self.values(words["dtype"], count)
        found |= lists

    def sequences(self, spec: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Steps by key."""
        found: dict[str, Any] = {}
        for name, words in spec.items():
            lacks = words.get("allow_missing", True)
            if (lacks and self.random.random() < 0.2) or self.random.random() < self.faults:
                continue
            count = int(np.prod(words.get("shape", [])))
            found[words.get("value_key", name)] = [
                self.values(
                    words["dtype"],
                    count if words["kind"] == "FixedLenSequenceFeature" else self.random.randint(0, 3),
                )
                for _ in range(self.random.randint(0, 3))
            ]
        return found


def made(spec: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The features of a description."""
    found: dict[str, Any] = {}
    for name, words in spec.items():
        arguments = dict(words)
        kind = getattr(ad, arguments.pop("kind"))
        if "partitions" in arguments:
            arguments["partitions"] = [getattr(kind, cut)(argument) for cut, argument in arguments["partitions"]]
        found[name] = kind(**arguments)
    return found


def plain(value: Any) -> Any:
    """A value in the form in which TensorFlow's comes."""
    if isinstance(value, ad.RaggedArray):
        return {"flat": plain(value.flat_values), "splits": [plain(splits) for splits in value.nested_row_splits]}
    if isinstance(value, bytes):
        return {"dtype": "bytes", "shape": [], "items": [value.hex()]}
    array = np.asarray(value)
    if array.dtype == object:
        return {"dtype": "bytes", "shape": list(array.shape), "items": [item.hex() for item in array.ravel().tolist()]}
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": array.tobytes().hex()}


def same(found: Any, expected: dict[str, Any]) -> bool:
    """Whether a value is TensorFlow's; a sparse one lies dense here, in rows."""
    if "items" in expected and isinstance(found, ad.RaggedArray):
        # Rows of one length: byte strings have no second axis here.
        rows, *extents = expected["shape"]
        even = all(
            (np.diff(splits) == extent).all() for splits, extent in zip(found.nested_row_splits, extents, strict=True)
        )
        return bool(plain(found.flat_values)["items"] == expected["items"] and len(found) == rows and even)
    if "indices" not in expected:
        return bool(plain(found) == like(expected, found))
    if isinstance(found, ad.RaggedArray):
        parts = zip(("indices", "values", "shape"), found.to_sparse(), strict=True)
        return all(plain(part) == expected[name] for name, part in parts)
    return (
        bool(plain(found) == expected["values"]) and expected["shape"]["data"] == np.int64(len(found)).tobytes().hex()
    )


def like(expected: dict[str, Any], found: Any) -> dict[str, Any]:
    """TensorFlow's uniform rows of byte strings as ragged ones: here byte strings have one axis."""
    flat = expected.get("flat")
    if flat is None or flat["dtype"] != "bytes" or len(flat["shape"]) < 2 or not isinstance(found, ad.RaggedArray):
        return expected
    splits = list(expected["splits"])
    rows, *extents = flat["shape"]
    dtype = splits[0]["dtype"]
    for extent in extents:
        level = (np.arange(rows + 1) * extent).astype(dtype)
        splits.append(plain(level))
        rows *= extent
    return {"flat": {**flat, "shape": [rows]}, "splits": splits}


def ours(question: dict[str, Any]) -> tuple[Any, str | None]:
    """What asyncdata makes of a question: values, or an error's text."""
    records = [bytes.fromhex(record) for record in question["records"]]
    context = made(question["context"])
    parse: Any
    if question["sequences"] is None:
        parse = ad.parse_example(context)
    else:
        parse = ad.parse_sequence_example(context, made(question["sequences"]))
    try:
        found = parse(records[0] if question["single"] else records)
    except ad.CorruptRecordError as error:
        return None, str(error)
    return (found if isinstance(found, tuple) else (found,)), None


def check(question: dict[str, Any], referee: Referee) -> bool:
    """The same values, or an error of both that names the same record and feature; gives whether there were values."""
    expected = referee.ask("tf_examples", question)
    found, error = ours(question)
    if expected is None:
        assert error is not None, question
        return False
    assert ("error" in expected) == (error is not None), (question, expected, error)
    if error is not None:
        check_error(question, expected["error"], error, referee)
        return False
    for part, wanted in zip(found, expected["values"], strict=True):
        assert set(part) == set(wanted)
        for name, value in part.items():
            assert same(value, wanted[name]), (name, value, wanted[name], question)
    return True


def check_error(question: dict[str, Any], theirs: str, error: str, referee: Referee) -> None:
    """Our error names a feature and a record. Where several are wrong, TensorFlow may name another of them."""
    named = re.search(r"feature '([^']*)'", error)
    index = re.search(r"record (\d+) of the", error)
    assert named is not None, error
    assert question["single"] or index is not None, error
    key = re.search(r"Key: (\S+?)[.,]?\s", theirs)
    if key is not None and key[1] == named[1]:
        return
    alone = {
        part: {k: w for k, w in (question[part] or {}).items() if k == named[1]} for part in ("context", "sequences")
    }
    sequences = None if question["sequences"] is None else alone["sequences"]
    records = question["records"] if index is None else [question["records"][int(index[1])]]
    narrowed = {**question, "context": alone["context"], "sequences": sequences, "records": records}
    answer = referee.ask("tf_examples", narrowed)
    assert answer is None or "error" in answer, (narrowed, theirs, error)


@pytest.mark.slow
@pytest.mark.timeout(3600 if SOAK else 600)
def test_examples_give_what_tensorflow_gives(referee: Referee) -> None:
    """Random specs over random records, alone and in batches: dtypes, shapes, splits and bits; defaults and lacks."""
    valued = 0
    for seed in range(samples(150, 6000)):
        drawer = Drawer(seed, faults=0.02)
        spec = drawer.spec(steps=False)
        records = [ad.serialize_example(drawer.record(spec)).hex() for _ in range(drawer.random.choice((1, 9, 20)))]
        for single in (False, True):
            question = {"context": spec, "sequences": None, "records": records, "single": single}
            valued += check(question, referee)
    assert valued > seed


@pytest.mark.slow
@pytest.mark.timeout(3600 if SOAK else 600)
def test_sequence_examples_give_what_tensorflow_gives(referee: Referee) -> None:
    """The same for contexts and sequences."""
    valued = 0
    for seed in range(samples(150, 6000)):
        drawer = Drawer(seed, faults=0.01)
        context = {
            name: words
            for name, words in drawer.spec(steps=False).items()
            if words["kind"] != "FixedLenSequenceFeature"
        }
        sequences = {f"s{name}": words for name, words in drawer.spec(steps=True).items()}
        if not context and not sequences:
            continue
        records = [
            ad.serialize_sequence_example(drawer.record(context), drawer.sequences(sequences)).hex()
            for _ in range(drawer.random.choice((1, 3, 6)))
        ]
        for single in (False, True):
            question = {"context": context, "sequences": sequences, "records": records, "single": single}
            valued += check(question, referee)
    assert valued > seed // 2
