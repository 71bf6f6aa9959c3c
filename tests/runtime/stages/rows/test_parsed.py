"""A parser that is given records where they lie: the laws of stages, and the same elements as one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncdata.errors import CorruptRecordError
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.batch import BatchStage
from asyncdata.runtime.stages.rows import parsed
from asyncdata.runtime.stages.rows.inline import InlineMapStage
from asyncdata.runtime.stages.rows.parsed import ParserStage
from tests.runtime.stages.laws import (
    Bench,
    Make,
    Scripted,
    check_any_blocking,
    check_cancelling,
    check_closing,
    guard,
    script,
    whole,
)
from tests.samples import samples

COUNT = 40
SEEDS = range(samples(12, 200))


class Cutter:
    """A parser of byte strings: the first bytes of each, and its length.

    Args:
        most: How many bytes.
        dense: Whether a batch is nothing else than its records.
        bad: A record that cannot be parsed.
    """

    accepts_rows = True

    def __init__(self, most: int, *, dense: bool, bad: bytes | None = None) -> None:
        self.most = most
        self.dense = dense
        self.bad = bad

    def rows(self, array: Any, rows: Any) -> dict[str, Any]:
        places = np.stack((rows[:, 0], np.minimum(rows[:, 1], self.most)), axis=1)
        if any(array[at : at + size].tobytes() == self.bad for at, size in rows.tolist()):
            raise CorruptRecordError("a bad record")
        return {"part": BytesArray(array, places), "size": rows[:, 1].copy(), "again": BytesArray(array, places[:])}

    def __call__(self, record: Any) -> dict[str, Any]:
        if isinstance(record, BytesArray):
            parsed = self.rows(record.memory, record.places)
            if not self.dense:
                lengths = np.arange(len(record)) * 0
                lengths[-1] = len(record)
                parsed["again"] = RaggedArray.from_row_lengths(parsed["again"], lengths)
            return parsed
        if record == self.bad:
            raise CorruptRecordError("a bad record")
        return {"part": record[: self.most], "size": np.int64(len(record)), "again": record[: self.most]}


def source(bench: Bench, batch: int) -> Stage:
    records = Scripted(bench, script(COUNT), "refs")
    return BatchStage(bench.context("batch"), records, [batch], drop_remainder=False) if batch else records


def parsing(parser: Cutter, batch: int, *, skips: bool = False) -> Make:
    def make(bench: Bench) -> Stage:
        context = bench.context("map", guard=guard(bench) if skips else None)
        return ParserStage(context, source(bench, batch), parser, parser)

    return make


def one_by_one(parser: Cutter, batch: int, *, skips: bool = False) -> Make:
    def make(bench: Bench) -> Stage:
        context = bench.context("map", guard=guard(bench) if skips else None)
        return InlineMapStage(context, source(bench, batch), parser)

    return make


MAKERS: dict[str, Callable[[Callable[..., Make]], Make]] = {
    "records": lambda make: make(Cutter(9, dense=True), 0),
    "small parts": lambda make: make(Cutter(1, dense=True), 0),
    "batches": lambda make: make(Cutter(9, dense=True), 7),
    "small parts of batches": lambda make: make(Cutter(1, dense=True), 7),
    "ragged batches": lambda make: make(Cutter(9, dense=False), 7),
    "a bad record": lambda make: make(Cutter(9, dense=True, bad=b"13"), 0),
    "a bad record left out": lambda make: make(Cutter(9, dense=True, bad=b"13"), 0, skips=True),
    "a bad batch": lambda make: make(Cutter(9, dense=True, bad=b"13"), 7),
    "a bad batch left out": lambda make: make(Cutter(9, dense=False, bad=b"13"), 7, skips=True),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", MAKERS)
def test_elements_are_those_of_one_by_one(name: str) -> None:
    """However the input is cut: values, provenance, states and errors."""
    found = check_any_blocking(MAKERS[name](parsing), seeds=SEEDS)
    found.check_same(whole(MAKERS[name](one_by_one)))
    assert len(found.elements) > 0
    assert (found.error is not None) == ("bad" in name and "left out" not in name)


@pytest.mark.sampled
@pytest.mark.parametrize("name", MAKERS)
def test_slices_of_a_batch_are_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch takes long, it is parsed a few records at a time: the same values, states and errors."""
    monkeypatch.setattr(parsed, "LONG_STEP_S", 1e-9)
    monkeypatch.setattr(parsed, "_FIRST_ROWS", 3)
    found = check_any_blocking(MAKERS[name](parsing), seeds=range(samples(2, 50)))
    found.check_same(whole(MAKERS[name](one_by_one)))
    check_cancelling(MAKERS[name](parsing), steps=range(0, 60, samples(12, 3)))


@pytest.mark.sampled
@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_held_at_the_end(name: str) -> None:
    """Also where the stage is closed, or cancelled, in the middle."""
    check_closing(MAKERS[name](parsing))
    check_cancelling(MAKERS[name](parsing), steps=range(0, 60, 3))
