"""The counting behind error policies: quotas, fractions, rows of failures, and what stats() shows."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import numpy as np
import pytest

from asyncdata.errors import (
    AccessDeniedError,
    BrokenFrameError,
    MemoryLimitError,
    ObjectChangedError,
    ObjectNotFoundError,
    StateError,
    TooManyErrorsError,
    TransientStorageError,
)
from asyncdata.options import ErrorPolicy
from asyncdata.runtime.error_policy import Skips, sum_up
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.state.skipped import Counted, Skipped, from_json, to_json

ORIGIN = np.array([0, 7, 0, 21])


def skips(**policy: Any) -> Skips:
    return Skips(ErrorPolicy(**policy), SourceTable(), None)


def test_a_quota_of_n_lets_n_fail() -> None:
    """The one after the last that is allowed is too many, and the error tells how many, which and why."""
    guard = skips(max_skipped=2).guard("p", "map(f)")
    assert guard.skip(ValueError("first"), ORIGIN) is None
    assert guard.skip(ValueError("second"), ORIGIN) is None
    last = ValueError("third")
    error = guard.skip(last, ORIGIN)
    assert isinstance(error, TooManyErrorsError)
    assert (error.skipped, error.first, error.last) == (3, "ValueError: first", "ValueError: third")
    assert error.__cause__ is last
    assert (error.stage, error.record) == ("map(f)", 7)
    assert "max_skipped is 2" in str(error)


def test_the_quota_is_one_for_all_steps() -> None:
    """Failures of different steps add up."""
    policy = skips(max_skipped=3)
    guards = [policy.guard(place, place) for place in "abab"]
    assert [guard.skip(ValueError(), ORIGIN) is None for guard in guards] == [True, True, True, False]
    assert policy.stats().steps == {"a": 2, "b": 2}


def test_a_fraction_is_judged_once_enough_was_seen() -> None:
    """A first bad element is not 100 percent; after `min_elements` the fraction counts."""
    guard = skips(max_skipped=None, max_fraction=0.1, min_elements=50).guard("p", "map")
    for _ in range(30):
        assert guard.skip(ValueError(), ORIGIN) is None
    guard.passed(10)
    assert guard.skip(ValueError(), ORIGIN) is None
    guard.passed(1000)
    assert guard.skip(ValueError(), ORIGIN) is None
    for _ in range(100):
        guard.skip(ValueError(), ORIGIN)
    error = guard.skip(ValueError(), ORIGIN)
    assert isinstance(error, TooManyErrorsError)
    assert "max_fraction is 0.1" in str(error)


def test_a_fraction_does_not_depend_on_how_far_other_steps_are() -> None:
    """Neither what they have seen nor what failed in them counts."""
    for ahead in (0, 1000):
        policy = skips(max_skipped=None, max_fraction=0.1, min_elements=10)
        first, second = policy.guard("p", "first"), policy.guard("q", "second")
        first.passed(ahead)
        assert first.skip(ValueError(), ORIGIN) is None
        second.passed(18)
        assert [second.skip(ValueError(), ORIGIN) is None for _ in range(3)] == [True, True, False]


def test_a_fraction_is_that_of_each_step_behind_a_state() -> None:
    """Also where several steps run one function: none has what another one has seen, or its failures."""
    policy: dict[str, Any] = {"max_skipped": None, "max_fraction": 0.1, "min_elements": 10}
    first = skips(**policy)
    first.guard("p", "map(f)").passed(90)
    assert [first.guard("p", "map(f)").skip(ValueError(number), ORIGIN + number) for number in range(9)] == [None] * 9
    first.guard("q", "map(f)").passed(30)
    assert [first.guard("q", "map(f)").skip(ValueError(number), ORIGIN - number) for number in range(2)] == [None] * 2
    before = Skipped()
    for _ in range(2):  # also behind a state that is taken behind a state
        news = first.news()
        assert news is not None
        before = from_json(json.loads(json.dumps(to_json({"": news}))))[""]
        first = Skips(ErrorPolicy(**policy), SourceTable(), None, before)
    for place in ("p", "q"):
        again = Skips(ErrorPolicy(**policy), SourceTable(), None, before).guard(place, "map(f)")
        found = [again.skip(ValueError(number), ORIGIN + 100 + number) for number in range(2)]
        assert [error is None for error in found] == [True, False]
    # Of a release that wrote no counts of steps: by the failures of all with this name, and the most seen.
    again = Skips(ErrorPolicy(**policy), SourceTable(), None, dataclasses.replace(before, places=None)).guard(
        "q", "map(f)"
    )
    again.passed(20)
    assert [again.skip(ValueError(), ORIGIN + 200 + number) is None for number in range(2)] == [True, False]


@pytest.mark.parametrize("counted", [[1], [1, -1], [1, 2, 3], ["1", 2], 3])
def test_damaged_counts_of_steps_are_refused(counted: Any) -> None:
    """As damage of the state."""
    document = to_json({"": Skipped(places={"p": Counted(1, 1)})})
    assert from_json(document)[""].places == {"p": (1, 1)}
    document[""]["places"]["p"] = counted
    with pytest.raises(StateError, match="damaged"):
        from_json(document)


@pytest.mark.parametrize("passed", [0, 10, 10_000])
def test_the_ends_of_a_fraction(passed: int) -> None:
    """Of 0 the first failure is one too many, from the first element on; of 1 none is."""
    nothing = skips(max_skipped=None, max_fraction=0.0).guard("p", "map")
    nothing.passed(passed)
    assert isinstance(nothing.skip(ValueError(), ORIGIN), TooManyErrorsError)
    everything = skips(max_skipped=None, max_fraction=1.0).guard("p", "map")
    everything.passed(passed)
    assert all(everything.skip(ValueError(), ORIGIN) is None for _ in range(2000))


def test_failures_in_a_row_are_counted_by_step() -> None:
    """Good elements of another step do not make up for a step in which everything fails."""
    policy = skips(max_skipped=None, max_in_a_row=3)
    bad, good = policy.guard("b", "bad"), policy.guard("g", "good")
    for _ in range(3):
        good.passed(100)
        assert bad.skip(ValueError(), ORIGIN) is None
    bad.passed(1)
    for _ in range(3):
        assert bad.skip(ValueError(), ORIGIN) is None
    bad.passed(0)
    assert bad.skip(ValueError(), ORIGIN) is not None


def test_a_shard_counts_with_the_bytes_left_in_it() -> None:
    """What lies behind the damage is known when the object's size is."""
    policy = skips()
    guard = policy.guard("p", "TFRecordDataset")
    assert guard.end_shard(BrokenFrameError("bad", url="gs://b/o", offset=60), lambda: 100) is None
    assert guard.end_shard(BrokenFrameError("bad", url="gs://b/p"), lambda: None) is None
    stats = policy.stats()
    assert (stats.elements, stats.shards, stats.unread_bytes) == (0, 2, 40)
    both = sum_up([stats, stats])
    assert (both.shards, both.unread_bytes, both.steps) == (4, 80, {"TFRecordDataset": 4})


@pytest.mark.parametrize(
    ("error", "ends", "unreachable_too"),
    [
        (BrokenFrameError("bad"), True, True),
        (ObjectNotFoundError("gone"), True, True),
        (ObjectChangedError("another one"), True, True),
        (TransientStorageError("an outage"), False, True),
        (AccessDeniedError("no"), False, False),
        (MemoryLimitError("too large"), False, False),
        (RuntimeError("a bug"), False, False),
    ],
)
def test_what_ends_only_its_shard(error: Exception, ends: bool, unreachable_too: bool) -> None:
    """Damage, and objects that are gone or others by now; an outage only if so chosen, for it would empty the epoch."""
    assert skips().ends_shard(error) is ends
    assert skips(skip_unreachable=True).ends_shard(error) is unreachable_too


def test_every_failure_is_logged_if_so_chosen(caplog: pytest.LogCaptureFixture) -> None:
    """The log names the element, not what was in it."""
    guard = skips(log_warning=True).guard("p", "map(f)")
    with caplog.at_level(logging.WARNING):
        guard.skip(ValueError("what was in it"), ORIGIN)
    assert "skipped in map(f): element 7: ValueError" in caplog.text
    assert "what was in it" not in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_skipped": -1},
        {"max_fraction": 1.5},
        {"max_in_a_row": 0},
        {"min_elements": 0},
        {"quarantine": "gs://bucket/list.jsonl"},
    ],
)
def test_impossible_policies_are_refused(wrong: dict[str, Any]) -> None:
    """Wrong numbers, and lists where nothing can be appended."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ErrorPolicy(**wrong)
