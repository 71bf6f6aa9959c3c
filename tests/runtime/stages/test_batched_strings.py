"""Batches of byte strings, and arrays of them, are batched like other arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.errors import UnbatchableError

WORDS = [b"a", b"bb", b"", b"d" * 300, b"e\0", b"ff", b"g"]


def pairs(number: Any) -> dict[str, Any]:
    """Two byte strings, two texts and a number."""
    index = int(number)
    return {"s": np.array([WORDS[index], b"x"], object), "t": ["é" * index, "y"], "i": index}


def plain(batch: Any) -> Any:
    """Comparable."""
    return {key: value.tolist() for key, value in batch.items()} if isinstance(batch, dict) else batch.tolist()


def test_batches_of_batches_have_an_axis_more() -> None:
    """Each batch of batches of byte strings, or of texts, is an array of objects; nothing is truncated."""
    ds = ad.Dataset.from_tensor_slices(WORDS).batch(2, drop_remainder=True).batch(2)
    first, last = list(ds)
    assert first.dtype == object
    assert (first.tolist(), last.tolist()) == ([WORDS[:2], WORDS[2:4]], [WORDS[4:6]])
    (third,) = ds.batch(1, drop_remainder=True).take(1)
    assert third.shape == (1, 2, 2)
    texts = ad.Dataset.from_tensor_slices(["a", "é"]).batch(1).batch(2)
    assert [batch.tolist() for batch in texts] == [[["a"], ["é"]]]
    assert [row.tolist() for row in ds.unbatch()] == [WORDS[:2], WORDS[2:4], WORDS[4:6]]


@pytest.mark.parametrize("executor", [None, "thread", "process"])
def test_results_with_several_strings_are_stacked_wherever_they_come_from(executor: str | None) -> None:
    """Arrays of byte strings that a function returns are batched inline, by threads and by worker processes alike."""
    options = ad.Options(num_workers=2)
    ds = ad.Dataset.range(7)
    parallel: dict[str, Any] = {} if executor is None else {"num_parallel_calls": 2, "executor": executor}
    found = [plain(batch) for batch in ds.map(pairs, **parallel).batch(3).with_options(options)]
    rows = [pairs(index) for index in range(7)]
    expected = [
        {"s": [row["s"].tolist() for row in part], "t": [row["t"] for row in part], "i": [row["i"] for row in part]}
        for part in (rows[:3], rows[3:6], rows[6:])
    ]
    assert found == expected


@pytest.mark.parametrize("parallel", [{}, {"num_parallel_calls": 2, "executor": "process"}])
def test_arrays_of_strings_in_one_batch_have_one_shape(parallel: dict[str, Any]) -> None:
    """Lengths that differ are an error that says so; padded_batch pads them, whatever their rank."""
    lists = ad.Dataset.range(1, 4).map(lambda i: np.array([b"x"] * int(i), object), **parallel)
    with pytest.raises(UnbatchableError, match=r"bytes\[1\].* but bytes\[2\]"):
        list(lists.batch(3).with_options(ad.Options(num_workers=2)))
    grids = ad.Dataset.range(1, 3).map(lambda i: np.array([[b"x"] * int(i)] * 2, object), **parallel)
    (batch,) = grids.padded_batch(2, padding_values=b"-").with_options(ad.Options(num_workers=2))
    assert batch.tolist() == [[[b"x", b"-"]] * 2, [[b"x", b"x"]] * 2]


def test_lists_of_lists_of_strings_are_padded_as_they_are() -> None:
    """Zeros at the end of a byte string or a text stay; numbers among texts do not become texts."""
    items: list[Any] = [[[b"a\0", b"b"]], [[b"c", np.bytes_(b"d")], [b"\0\0", b""]]]
    (batch,) = ad.Dataset.from_generator(lambda: items).padded_batch(2)
    assert batch.tolist() == [[[b"a\0", b"b"], [b"", b""]], items[1]]
    assert {type(item) for item in batch.flat} == {bytes}
    (texts,) = ad.Dataset.from_generator(lambda: [[["a\0", np.str_("b")]]]).padded_batch(1)
    assert texts.tolist() == [[["a\0", "b"]]]
    for odd in ([["x", 1]], [["x"], [b"y"]], [["x", True]]):
        with pytest.raises(UnbatchableError, match="type list cannot be batched"):
            list(ad.Dataset.from_generator(lambda odd=odd: [odd]).padded_batch(1))


def test_parsed_strings_of_a_shape_are_batched() -> None:
    """Records parsed one by one give what a parsed batch gives."""
    spec = {"s": ad.FixedLenFeature([2], bytes)}
    records = [ad.serialize_example({"s": [word, b"x"]}) for word in WORDS]
    ds = ad.Dataset.from_tensor_slices(records)
    single = [batch["s"].tolist() for batch in ds.map(ad.parse_example(spec)).batch(3)]
    assert single == [batch["s"].tolist() for batch in ds.batch(3).map(ad.parse_example(spec))]


def test_flat_dicts_are_taken_apart_by_column_and_by_row_alike() -> None:
    """Elements that come as Python objects are batched the same, whatever their leaves are; odd ones are an error."""
    rows = [{"a": i, "b": "é" * i, "c": [i, i], "d": b"x" * (i * 700)} for i in range(90)]
    nested = [{**row, "e": (row["a"], row["b"])} for row in rows]
    batches: list[Any] = []
    for items in (rows, nested):
        batches = list(ad.Dataset.from_generator(lambda items=items: iter(items)).batch(32))
        assert [a for batch in batches for a in batch["a"].tolist()] == list(range(90))
        assert [b for batch in batches for b in batch["b"]] == [row["b"] for row in rows]
        assert [c for batch in batches for c in batch["c"].tolist()] == [row["c"] for row in rows]
        assert [d for batch in batches for d in batch["d"]] == [row["d"] for row in rows]
    assert [e for batch in batches for e in batch["e"][1]] == [row["b"] for row in rows]
    for odd in ({"a": 1}, {**rows[0], "a": (1, 2)}, (1, 2), 5):
        with pytest.raises(UnbatchableError, match="structure"):
            list(ad.Dataset.from_generator(lambda odd=odd: iter([*rows[:3], odd])).batch(4))
