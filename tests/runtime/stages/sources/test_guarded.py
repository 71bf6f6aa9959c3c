"""Sources that end early: what may end one, what may not, and that nothing is lost before the end."""

from __future__ import annotations

from typing import Any

import pytest

from asyncdata.errors import (
    AccessDeniedError,
    BrokenFrameError,
    CompressionError,
    MemoryLimitError,
    ObjectChangedError,
    ObjectNotFoundError,
    TransientStorageError,
)
from asyncdata.memory.block import Block
from asyncdata.runtime.stages.sources.file import GuardedStage
from tests.runtime.stages.laws import Bench, Make, Scripted, check_any_blocking, check_closing, guard, script, whole


class Breaking(Scripted):
    """A source that raises at its end."""

    error: Exception

    async def _pull(self, limit: int) -> Block | None:
        block = await super()._pull(limit)
        if block is None:
            raise self.error
        return block


def breaking(error: Exception, **policy: Any) -> Make:
    def make(bench: Bench) -> GuardedStage:
        source = Breaking(bench, script(9))
        source.error = error
        return GuardedStage(bench.context("file"), source, guard(bench, **policy), lambda: 100)

    return make


@pytest.mark.parametrize("kind", [BrokenFrameError, CompressionError, ObjectNotFoundError, ObjectChangedError])
def test_damage_ends_the_shard_alone(kind: type[Exception]) -> None:
    """What was read before is delivered, then the source is at its end."""
    trace = check_any_blocking(breaking(kind("bad")), seeds=range(3))
    assert len(trace.elements) == 9
    assert trace.error is None
    check_closing(breaking(kind("bad")), seed=1)


@pytest.mark.parametrize("kind", [AccessDeniedError, MemoryLimitError, TransientStorageError, ValueError])
def test_other_errors_are_raised(kind: type[Exception]) -> None:
    """A wrong password, a limit that is too small or a broken program concern more than one shard."""
    assert str(kind.__name__) in str(whole(breaking(kind("no"))).error)


def test_an_unreachable_shard_ends_if_so_chosen() -> None:
    """All attempts used up: by choice the shard ends, else it is an error."""
    assert whole(breaking(TransientStorageError("gone"), skip_unreachable=True)).error is None


def test_the_quota_counts_shards() -> None:
    """A shard that ends early is one failure."""
    error = whole(breaking(BrokenFrameError("bad", url="x"), max_skipped=0)).error
    assert str(error).startswith("TooManyErrorsError: 1 failed, and max_skipped is 0")
