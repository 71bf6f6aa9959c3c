"""Parsed batches leave worker processes as flat bytes, whatever is in them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.workers import results

SPEC: Any = {
    "id": ad.FixedLenFeature((), int),
    "image": ad.FixedLenFeature((), bytes),
    "words": ad.VarLenFeature(bytes),
    "cut": ad.RaggedFeature(int, "ids", [ad.RaggedFeature.RowLengths("lengths")]),
}
COUNT = 100


def record(n: int) -> bytes:
    ids = list(range(n % 5))
    return ad.serialize_example(
        {"id": n, "image": b"x" * (n % 7), "words": ["w"] * (n % 4), "ids": np.array(ids, np.int64), "lengths": [n % 5]}
    )


@pytest.mark.sampled
@pytest.mark.parametrize("parallel", [None, 2])
def test_batches_of_records_are_parsed_inline_and_in_workers(parallel: int | None) -> None:
    """Byte strings, ragged arrays and arrays are those that were written, in order."""
    records = [record(n) for n in range(COUNT)]
    ds = ad.Dataset.from_tensor_slices(records).batch(16).map(ad.parse_example(SPEC), num_parallel_calls=parallel)
    batches = list(ds)
    assert [n for batch in batches for n in batch["id"].tolist()] == list(range(COUNT))
    assert [item for batch in batches for item in batch["image"]] == [b"x" * (n % 7) for n in range(COUNT)]
    assert [row for batch in batches for row in batch["words"].to_list()] == [[b"w"] * (n % 4) for n in range(COUNT)]
    assert [row for batch in batches for row in batch["cut"].to_list()] == [[list(range(n % 5))] for n in range(COUNT)]
    assert isinstance(batches[0]["words"].values, ad.BytesArray)


def test_no_byte_string_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The item that a worker writes for a BytesArray, or a part of a RaggedArray, is no pickle."""
    monkeypatch.setattr(pickle, "dumps", None)
    strings = ad.BytesArray.from_items([b"a", b"", b"ccc"])
    leaf, data = results._item(strings)
    assert leaf.kind == "table"
    assert data == strings


@pytest.mark.sampled
@pytest.mark.parametrize("parallel", [None, 2])
def test_single_records_are_parsed_and_batched(parallel: int | None) -> None:
    """In front of batch, fixed features are stacked; lists of unequal lengths say what to do."""
    records = [record(n) for n in range(COUNT)]
    parse = ad.parse_example({name: SPEC[name] for name in ("id", "image")})
    batches = list(ad.Dataset.from_tensor_slices(records).map(parse, num_parallel_calls=parallel).batch(16))
    assert [item for batch in batches for item in batch["image"]] == [b"x" * (n % 7) for n in range(COUNT)]
    ragged = ad.parse_example({"ids": ad.VarLenFeature(int)})
    with pytest.raises(ad.UnbatchableError, match="ragged_batch"):
        list(ad.Dataset.from_tensor_slices(records).map(ragged, num_parallel_calls=parallel).batch(16))
