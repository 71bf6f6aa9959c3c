"""The laws for work done by workers, here by threads that run what a worker process runs."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncdata.formats.tfrecord import check_payloads
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.collecting import Collector
from asyncdata.runtime.stages.work.executors import ThreadExecutor
from asyncdata.runtime.stages.work.worker_map import Outcome, WorkerStage
from asyncdata.workers.program import Program
from tests.patience import LIMIT_S
from tests.runtime.stages.laws import (
    Bench,
    Kinds,
    Make,
    Scripted,
    check_any_blocking,
    check_cancelling,
    check_closing,
    guard,
    script,
    whole,
)
from tests.runtime.stages.test_laws import number
from tests.samples import samples


def described(*parts: Any) -> Any:
    """Numbers and byte strings: what becomes columns and tables."""
    return {"n": 2 * number(parts), "text": repr(parts).encode()}


def ragged(*parts: Any) -> Any:
    """Leaves that differ from element to element."""
    value = number(parts)
    return (b"x" * value if value % 2 else value), [value] * (value % 3)


def failing(*parts: Any) -> Any:
    if number(parts) % 29 == 23:
        raise ValueError("twenty-three")
    return number(parts)


def ragged_failing(*parts: Any) -> Any:
    return failing(*parts), ragged(*parts)


def unlike(*parts: Any) -> Any:
    """Elements of which some nest and some do not."""
    value = number(parts)
    return (value, str(value)) if value % 7 > 3 else value


def heavy(*parts: Any) -> Any:
    """More than one of them is more than the results of a task may take."""
    return np.full(40_000, number(parts) % 251, np.uint8)


def heavy_ragged(*parts: Any) -> Any:
    """The same of elements that differ, some of which fail."""
    value = number(parts)
    fussy(*parts)
    return b"x" * (value * 4000) if value % 2 else np.full(value * 4000, value % 251, np.uint8)


def pooled(
    function: Callable[..., Any],
    kind: Kinds,
    outcome: Outcome,
    *,
    ordered: bool = True,
    size: int = 4,
    drop: bool = False,
    count: int = 24,
    first_rows: int = 3,
    damaged: frozenset[int] = frozenset(),
    policy: dict[str, Any] | None = None,
) -> Make:
    """A stage of `count` elements whose tasks run in threads."""

    def make(bench: Bench) -> Stage:
        source = Scripted(bench, script(count), kind, damaged=damaged)
        program = Program(
            functions=(function,),
            rng=(False,),
            check=check_payloads,
            stack=outcome == "batch",
            skip=policy is not None,
        )
        context = bench.context("map", ordered=ordered, guard=None if policy is None else guard(bench, **policy))
        return WorkerStage(
            context,
            source,
            executor=ThreadExecutor(bench, bench.arena, program),
            outcome=outcome,
            parallelism=3,
            collector=Collector(context, source, (size,), drop_remainder=drop) if outcome == "batch" else None,
            first_rows=first_rows,
        )

    return make


def fussy(*parts: Any) -> Any:
    """Refuses some elements, the first and the last among them."""
    value = number(parts)
    if value in (0, 3, 4, 11, 23):
        raise ValueError(f"no {value}")
    return described(*parts)


DAMAGED = frozenset({0, 5, 6, 7, 23})
FUSSY: tuple[Kinds, ...] = ("array", "refs", "nests")

KINDS: tuple[Kinds, ...] = ("array", "objects", "refs", "records", "twice", "nests", "mixed")

MAKES = {
    **{f"rows {kind}": pooled(described, kind, "rows") for kind in KINDS},
    **{f"ragged rows {kind}": pooled(ragged, kind, "rows") for kind in KINDS},
    **{f"batch {kind}": pooled(described, kind, "batch") for kind in KINDS},
    **{f"batch drop {kind}": pooled(described, kind, "batch", size=7, drop=True) for kind in KINDS},
    **{f"rows heavy {kind}": pooled(heavy, kind, "rows", first_rows=8) for kind in ("array", "refs", "nests")},
    "rows heavy ragged": pooled(heavy_ragged, "refs", "rows", first_rows=8, policy={}),
    "rows heavy failing": pooled(lambda *parts: (heavy(*parts), failing(*parts)), "refs", "rows", first_rows=8),
    "rows heavy damaged": pooled(heavy, "records", "rows", first_rows=8, damaged=frozenset({19, 21})),
    "rows unlike": pooled(unlike, "array", "rows"),
    "rows failing": pooled(failing, "refs", "rows"),
    "ragged rows failing": pooled(ragged_failing, "nests", "rows"),
    "batch failing": pooled(failing, "refs", "batch"),
    **{f"rows left out {kind}": pooled(fussy, kind, "rows", policy={}) for kind in FUSSY},
    "rows and damaged left out": pooled(fussy, "records", "rows", damaged=DAMAGED, policy={}),
    "damaged left out": pooled(described, "records", "rows", damaged=DAMAGED, policy={}),
    "rows one too many": pooled(fussy, "array", "rows", policy={"max_skipped": 3}),
    "none may fail": pooled(fussy, "array", "rows", policy={"max_skipped": 0}),
    "damaged one too many": pooled(described, "records", "rows", damaged=DAMAGED, policy={"max_skipped": 2}),
    "too many in a row": pooled(described, "records", "rows", damaged=DAMAGED, policy={"max_in_a_row": 2}),
    "rows damaged": pooled(described, "records", "rows", damaged=frozenset({19, 21})),
    "batch damaged": pooled(described, "records", "batch", damaged=frozenset({19, 21})),
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "make",
    [pytest.param(make, id=name) for name, make in MAKES.items()],
)
def test_cutting_the_input_changes_nothing(make: Make) -> None:
    """Any blocking: what workers make does not depend on how blocks, jobs and tasks are cut."""
    check_any_blocking(make, seeds=range(samples(3, 100)))


@pytest.mark.sampled
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
def test_closing_gives_everything_back(make: Make) -> None:
    """Leases: after closing half-way, inputs, scratch, results and payloads are given back."""
    check_closing(make, seed=1)


@pytest.mark.parametrize("name", ["rows twice", "ragged rows nests", "batch nests", "rows records", "batch failing"])
def test_cancelling_gives_everything_back(name: str) -> None:
    """Leases: after a cancellation at any step of the loop."""
    check_cancelling(MAKES[name], seed=2, steps=range(0, samples(60, 400), samples(4, 1)))


@pytest.mark.parametrize("outcome", ["rows", "batch"])
def test_in_any_order_nothing_is_lost_or_doubled(outcome: Outcome) -> None:
    """Sloppy: the same elements as in order, whatever comes first."""
    expected = whole(pooled(described, "records", outcome, size=3))
    for seed in range(samples(3, 50)):
        make = pooled(described, "records", outcome, size=3, ordered=False)
        found = asyncio.run(Bench(random.Random(seed)).observe(make))
        assert sorted(map(repr, found.elements)) == sorted(map(repr, expected.elements))
        assert found.used_up == expected.used_up


def test_what_is_left_out_and_what_is_one_too_many() -> None:
    """The elements that remain, and where the quota ends them: exactly before the one that was too many."""
    good = [value for value in range(24) if value not in (0, 3, 4, 11, 23)]
    assert [e["n"] for e in whole(MAKES["rows left out array"]).elements] == [2 * value for value in good]
    trace = whole(MAKES["rows one too many"])
    assert [e["n"] for e in trace.elements] == [2 * value for value in good if value < 11]
    assert trace.error is not None
    assert trace.error.startswith("TooManyErrorsError: 4 failed, and max_skipped is 3. The first: ValueError: no 0;")
    assert whole(MAKES["none may fail"]).elements == []
    trace = whole(MAKES["too many in a row"])
    assert len(trace.elements) == 4
    assert "3 of them in a row" in str(trace.error)
    assert whole(MAKES["damaged left out"]).used_up == whole(MAKES["rows records"]).used_up


def refusing_exit(value: Any) -> int:
    if value == 5:
        raise SystemExit(1)
    return int(value)


def test_what_ends_a_program_is_never_left_out() -> None:
    """sys.exit in a user's function ends the pipeline under any policy, at its element."""
    trace = whole(pooled(refusing_exit, "array", "rows", policy={}))
    assert len(trace.elements) == 5
    assert "SystemExit" in str(trace.error)


@pytest.mark.sampled
@pytest.mark.parametrize("outcome", ["rows", "batch"])
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 7, 16, 23])
def test_all_that_comes_before_a_failure_is_delivered(outcome: Outcome, bad: int, damaged: bool) -> None:
    """Exact place: however blocks, jobs and tasks are cut, what precedes the first bad element arrives, no more."""

    def fail(*parts: Any) -> int:
        if number(parts) == bad:
            raise ValueError("bad")
        return number(parts)

    for first_rows in (1, 3, 50):
        if damaged:
            make = pooled(described, "records", outcome, damaged=frozenset({bad}), first_rows=first_rows)
        else:
            make = pooled(fail, "array", outcome, first_rows=first_rows)
        for seed in range(samples(2, 30)):
            trace = asyncio.run(Bench(random.Random(seed)).observe(make))
            assert len(trace.elements) == (bad // 4 if outcome == "batch" else bad)
            assert trace.error is not None
            assert ("CorruptRecordError" if damaged else "ValueError: bad") in trace.error


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_waits_for_nothing_behind_it(ordered: bool) -> None:
    """A task that is stuck keeps neither the batches before it nor an error before it from being told."""
    released = threading.Event()

    def work(value: Any) -> int:
        if value == 9:
            raise ValueError("nine")
        if value in (11, 12, 13, 14, 15):
            released.wait(LIMIT_S)
        return int(value)

    async def run() -> None:
        bench = Bench()
        stage: Stage | None = None
        try:
            async with asyncio.TaskGroup() as group:
                bench._group = group  # as `observe` does
                stage = pooled(work, "array", "batch", ordered=ordered, first_rows=1)(bench)
                found: list[list[int]] = []
                error: Exception | None = None
                while error is None:
                    try:
                        block = await stage.pull(1)
                    except ValueError as caught:
                        error = caught
                    else:
                        assert block is not None
                        found += [item.tolist() for item in block.elements()]
                        block.release()
                assert str(error) == "nine"
                assert found == [[0, 1, 2, 3], [4, 5, 6, 7]] or not ordered
                assert not released.is_set()
                released.set()
                await stage.aclose()
        finally:
            released.set()
            await bench.put_back(stage)

    asyncio.run(run())


def test_out_of_order_a_stuck_task_holds_only_itself() -> None:
    """Sloppy: while one element takes for ever, all others are delivered."""
    released = threading.Event()

    def work(value: Any) -> Any:
        if value == 2:
            released.wait(LIMIT_S)
        return np.full(1 << 18, value, np.uint8)  # so much that each is a task of its own

    async def run() -> None:
        bench = Bench()
        stage: Stage | None = None
        try:
            async with asyncio.TaskGroup() as group:
                bench._group = group  # as `observe` does
                stage = pooled(work, "array", "rows", ordered=False, first_rows=1)(bench)
                found: list[int] = []
                while len(found) < 23:
                    block = await stage.pull(1)
                    assert block is not None
                    found += [int(item[0]) for item in block.elements()]
                    block.release()
                released.set()
                assert sorted(found) == [value for value in range(24) if value != 2]
                block = await stage.pull(1)
                assert block is not None
                assert [int(item[0]) for item in block.elements()] == [2]
                block.release()
                while (block := await stage.pull(1)) is not None:
                    block.release()
        finally:
            released.set()
            await bench.put_back(stage)

    asyncio.run(run())


def to_the_brim(value: Any) -> Any:
    """Four results whose payloads fill a slab to its last byte; the last one is empty."""
    return b"x" * (0 if number(value) % 4 == 3 else (1 << 16) // 4 * (2 if number(value) % 4 == 0 else 1))


@pytest.mark.parametrize("outcome", ["rows", "batch"])
def test_an_empty_payload_at_the_end_of_a_full_slab(outcome: Outcome) -> None:
    """A byte string of no bytes lies in the slab of its neighbours, also where that slab ends with them."""
    trace = whole(pooled(to_the_brim, "objects", outcome, count=8, first_rows=4))
    flat = [len(item) for element in trace.elements for item in (element if outcome == "batch" else [element])]
    assert flat == [1 << 15, 1 << 14, 1 << 14, 0] * 2
