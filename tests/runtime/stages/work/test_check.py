"""`check` on the stage loop: records that hold go on, those that do not are an error, or are left out."""

from __future__ import annotations

from typing import Any

import pytest

from asyncdata.memory.columns import RefColumn
from asyncdata.memory.leaf import UNCHECKED_BYTES
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.work import check
from asyncdata.runtime.stages.work.check import CheckStage
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
from tests.samples import samples

COUNT = 41
KINDS: tuple[Kinds, ...] = ("array", "objects", "refs", "records", "twice", "nests", "mixed")


def checked(
    kind: Kinds = "records", *, damaged: frozenset[int] = frozenset(), policy: dict[str, Any] | None = None
) -> Make:
    """A check of some records, whose errors may be left out where there is a policy."""

    def make(bench: Bench) -> Stage:
        source = Scripted(bench, script(COUNT), kind, damaged=damaged)
        allowed = None if policy is None else guard(bench, **policy)
        return CheckStage(bench.context("check", guard=allowed), source)

    return make


MAKES: dict[str, Make] = {
    **{kind: checked(kind) for kind in KINDS},
    "damaged": checked(damaged=frozenset({19, 21})),
    "first damaged": checked(damaged=frozenset({0})),
    "left out": checked(damaged=frozenset({0, 1, 7, 20, 21, 22, 40}), policy={}),
    "all left out": checked(damaged=frozenset(range(COUNT)), policy={}),
    "one too many": checked(damaged=frozenset({3, 7, 20}), policy={"max_skipped": 2}),
}


@pytest.mark.parametrize("name", MAKES)
def test_cutting_the_input_changes_nothing(name: str) -> None:
    """Any blocking."""
    check_any_blocking(MAKES[name], seeds=range(samples(5, 300)))


@pytest.mark.parametrize("name", MAKES)
def test_everything_is_given_back(name: str) -> None:
    """Leases: after the end, after closing and after a cancellation at any step."""
    check_closing(MAKES[name], seed=1)
    check_cancelling(MAKES[name], seed=2, steps=range(0, 40, samples(8, 1)))


@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
def test_the_size_of_a_piece_changes_nothing(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large payloads are checked a few at a time; the outcome is the same."""
    expected = {name: whole(make) for name, make in MAKES.items()}
    monkeypatch.setattr(check, "_PIECE_BYTES", piece_bytes)
    for name, make in MAKES.items():
        expected[name].check_same(whole(make))


def test_what_is_left_out_is_used_up() -> None:
    """The same source rows as without damage, whichever records remain."""
    assert whole(MAKES["left out"]).used_up == whole(MAKES["records"]).used_up
    assert whole(MAKES["all left out"]).elements == []
    assert whole(MAKES["all left out"]).used_up == whole(MAKES["records"]).used_up


def test_the_error_comes_after_the_records_in_front_of_it() -> None:
    """It names the place; nothing damaged is delivered, nothing before it is lost."""
    trace = whole(MAKES["damaged"])
    assert trace.elements == whole(MAKES["records"]).elements[: len(trace.elements)]
    assert len(trace.elements) == 19
    assert trace.error is not None
    assert trace.error.startswith("CorruptRecordError")
    assert "record 19" in trace.error
    assert "stage check" in trace.error
    assert whole(MAKES["first damaged"]).elements == []


def test_what_was_checked_is_not_checked_again() -> None:
    """Records leave as plain bytes."""
    leaves: list[Any] = []

    def make(bench: Bench) -> Stage:
        stage = MAKES["records"](bench)
        pull = stage.pull

        async def look(limit: int) -> Any:
            block = await pull(limit)
            leaves.extend(column.leaf for column in (block.columns if block else ()) if isinstance(column, RefColumn))
            return block

        stage.pull = look  # type: ignore[method-assign]  # looks at what passes
        return stage

    whole(make)
    assert leaves
    assert UNCHECKED_BYTES not in leaves
