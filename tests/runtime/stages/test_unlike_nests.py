"""Elements that nest differently: what is made of them does not depend on which of them came in one block."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.memory.structure import TupleOf, has_structure
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.batch import BatchStage
from asyncdata.runtime.stages.group.materialized import Materialized
from asyncdata.runtime.stages.group.padding import Padding
from asyncdata.runtime.stages.group.raggedness import Ragging
from asyncdata.runtime.stages.group.uneven import Lay, UnevenBatchStage
from asyncdata.runtime.stages.group.windows import WindowStage
from asyncdata.runtime.stages.order.zip import ZipStage
from asyncdata.runtime.stages.rows.inline import InlineMapStage
from asyncdata.runtime.stages.rows.numbering import EnumerateStage
from asyncdata.runtime.stages.rows.scan import RejectionStage
from asyncdata.runtime.stages.rows.selection import FilterStage
from tests.runtime.stages.laws import Bench, Scripted, check_any_blocking, script
from tests.samples import samples


@ad.register_dataclass
@dataclasses.dataclass
class Point:
    """A nest of two numbers."""

    x: int
    y: int


NESTS: dict[str, Callable[[int], Any]] = {
    "tuple": lambda n: (n, str(n)),
    "dict": lambda n: {"n": n, "text": str(n)},
    "dataclass": lambda n: Point(n, -n),
    "ragged": lambda n: ad.RaggedArray.from_rows([[n] * (n % 4), [1]]),
}


def unlike(bench: Bench, nest: Callable[[int], Any]) -> Stage:
    """A nest now and then, and numbers."""
    numbers = Scripted(bench, script(40, drops=False), "objects")
    return InlineMapStage(bench.context("map"), numbers, lambda n: nest(n) if n % 3 else n)


def nests_only(bench: Bench, upstream: Stage) -> Stage:
    """Without the numbers; the last part of an element, which functions are given its parts of, tells."""

    def is_nest(*parts: Any) -> bool:
        return has_structure(type(parts[-1])) or isinstance(parts[-1], str)

    return FilterStage(bench.context("filter"), upstream, is_nest)


INSIDE: dict[str, Callable[[Bench, Stage], Stage]] = {
    "alone": lambda _, stage: stage,
    "enumerate": lambda bench, stage: EnumerateStage(bench.context("enumerate"), stage, 0),
    "zip": lambda bench, stage: ZipStage(
        bench.context("zip"), [Scripted(bench, script(60, drops=False), "array"), stage], TupleOf((None, None))
    ),
    "resampled": lambda bench, stage: RejectionStage(
        bench.context("reject"), stage, lambda *_: 0, (1.0,), None, (1, 2), every=True
    ),
}


def _uneven(bench: Bench, stage: Stage, lay: Lay) -> Stage:
    return UnevenBatchStage(bench.context("batch"), stage, 3, lay, drop_remainder=False)


def _window(bench: Bench, stage: Stage) -> Stage:
    def shown(contents: Materialized) -> Sequence[Any]:
        return list(map(repr, contents))

    return WindowStage(bench.context("window"), stage, size=3, shift=2, stride=1, drop_remainder=False, wrap=shown)


BEHIND: dict[str, Callable[[Bench, Stage], Stage]] = {
    "batch": lambda bench, stage: BatchStage(bench.context("batch"), stage, (3,), drop_remainder=False),
    "padded_batch": lambda bench, stage: _uneven(bench, stage, Padding(None, None, None)),
    "ragged_batch": lambda bench, stage: _uneven(bench, stage, Ragging("<i8", None)),
    "window": _window,
}


@pytest.mark.sampled
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("behind", BEHIND)
def test_groups_of_those_that_are_alike(nest: str, inside: str, behind: str) -> None:
    """Any blocking, for groups of elements that were among others: batches, errors and windows are the same."""

    def make(bench: Bench) -> Stage:
        bench.tracked = False
        return BEHIND[behind](bench, nests_only(bench, INSIDE[inside](bench, unlike(bench, NESTS[nest]))))

    trace = check_any_blocking(make, seeds=range(samples(4, 100)))
    refused = nest == "ragged" and behind in {"batch", "padded_batch"}
    assert (trace.error is None) == (not refused)
    assert trace.elements or refused
