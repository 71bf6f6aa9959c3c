"""Laws of starting workers that fail to start; no clock, no process."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import PipelineError, WorkerDiedError
from asyncdata.workers.starts import Starts

FAILURE = WorkerDiedError("was killed by SIGKILL")


@given(missing=st.integers(0, 64), starting=st.integers(0, 64))
def test_without_failures_all_that_are_missing_start_at_once(missing: int, starting: int) -> None:
    """A worker that died at work is replaced without delay."""
    assert Starts().plan(missing=missing, starting=starting) == (missing, 0.0)


@given(failures=st.integers(1, 5000), missing=st.integers(1, 64))
def test_while_starts_fail_one_is_tried_at_a_time_and_later_each_time(failures: int, missing: int) -> None:
    """Delays double up to a few seconds; whoever is starting is waited for."""
    starts = Starts()
    delays = []
    for _ in range(failures):
        starts.fail(FAILURE)
        assert starts.plan(missing=missing, starting=1) == (0, 0.0)
        count, delay_s = starts.plan(missing=missing, starting=0)
        assert count == 1
        delays.append(delay_s)
    assert delays[0] == 0.1
    assert all(later == min(5.0, 2 * earlier) for earlier, later in itertools.pairwise(delays))
    assert starts.plan(missing=0, starting=0) == (0, 0.0)
    assert starts.hopeless == (failures >= 3)
    starts.succeed()
    assert starts.plan(missing=missing, starting=0) == (missing, 0.0)
    assert not starts.hopeless


def test_the_error_names_how_the_last_ones_ended_and_is_of_the_last_ones_kind() -> None:
    """Each caller gets an exception of its own; the cause is the last one's."""
    starts = Starts()
    starts.fail(PipelineError("the first"))
    for reason in ("exited with code 1", "was killed by SIGKILL", "was killed by SIGKILL"):
        starts.fail(WorkerDiedError(reason))
    first, second = starts.error(), starts.error()
    assert first is not second
    assert type(first) is WorkerDiedError
    assert "4 in a row have failed: exited with code 1; was killed by SIGKILL. asyncdata tries again" in str(first)
    cause = ImportError("numpy")
    refused = PipelineError("cannot start")
    refused.__cause__ = cause
    starts.fail(refused)
    assert (type(starts.error()), starts.error().__cause__) == (PipelineError, cause)
