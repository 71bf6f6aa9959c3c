"""The memory limit is divided into minimums that fit it together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import MemoryLimitError
from asyncdata.options import Options
from asyncdata.planner.sizes import divide

UNIT = 1 << 16


@given(st.integers(64 << 20, 1 << 40), st.integers(1, 64), st.integers(1, 8))
def test_the_minimums_fit_the_limit(limit: int, shards: int, stages: int) -> None:
    """What is reserved for shards, tasks and the consumer leaves room for what is shared."""
    shares = divide(Options(memory_limit_bytes=limit), current_shards=shards, worker_stages=stages)
    reserved = shares.chunk_bytes * shards + shares.task_bytes * stages + shares.consumer_bytes
    assert reserved <= limit
    assert shares.chunk_bytes % UNIT == shares.task_bytes % UNIT == shares.consumer_bytes % UNIT == 0
    assert shares.chunk_bytes >= UNIT
    assert shares.far_chunk_bytes <= shares.chunk_bytes <= 8 << 20
    assert shares.far_chunk_bytes <= 4 << 20
    assert shares.consumer_bytes <= shares.lease_bytes <= limit


def test_too_many_shards_for_the_limit_say_what_would_do() -> None:
    """When not even the smallest chunks fit, the error names the limit that would."""
    with pytest.raises(MemoryLimitError, match="smaller cycle_length") as caught:
        divide(Options(memory_limit_bytes=16 << 20), current_shards=1000)
    needed = int(str(caught.value).split("at least ")[1].split()[0])
    divide(Options(memory_limit_bytes=needed), current_shards=1000)


def test_what_would_do_is_said_of_the_whole_limit() -> None:
    """Where several pipelines divide it, and each has but its part."""
    with pytest.raises(MemoryLimitError, match=r"memory_limit_bytes=50331648 \(16777216 for each of 3 ") as caught:
        divide(Options(memory_limit_bytes=16 << 20), current_shards=1000, parts=3)
    needed = int(str(caught.value).split("at least ")[1].split()[0])
    divide(Options(memory_limit_bytes=needed // 3), current_shards=1000, parts=3)


def test_chunks_are_no_larger_than_wished() -> None:
    """A large limit does not make reads larger than they should be."""
    options = Options(memory_limit_bytes=1 << 34, chunk_bytes=1 << 20)
    assert divide(options, current_shards=1).chunk_bytes == 1 << 20
