"""The types a user sees: checked by mypy in ``make check``, never run."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

from asyncdata import (
    Dataset,
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
    feed,
    parse_example,
    parse_sequence_example,
)
from asyncdata.errors import AsyncdataError, ObjectNotFoundError
from asyncdata.options import AUTOTUNE, Options, RetryOptions
from asyncdata.testing import Leak, ProcessSnapshot, Sequencer, assert_no_leaks, check, run_virtual, snapshot

options = Options(memory_limit_bytes=1 << 28, num_workers=AUTOTUNE, retry=RetryOptions(max_attempts=3))
assert_type(options.deterministic, bool)
assert_type(options.retry, RetryOptions)

error: AsyncdataError = ObjectNotFoundError("no such object", url="gs://bucket/name", attempts=1)
also_builtin: FileNotFoundError = ObjectNotFoundError("no such object")
assert_type(error.offset, int | None)
assert_type(error.place(), dict[str, Any])


async def use_the_test_kit() -> int:
    """The kit's types, in the shapes it is used in."""
    before = assert_type(snapshot(), ProcessSnapshot)
    assert_type(check(before), list[Leak])
    with assert_no_leaks(settle_s=1.0):
        pass
    async with assert_no_leaks(), asyncio.TaskGroup(), Sequencer()(0):
        pass
    return 1


assert_type(iter(Dataset.range(3)).state_dict(), dict[str, Any])
assert_type(aiter(Dataset.range(3)).position, int)

features = {"x": FixedLenFeature((), int), "words": VarLenFeature(bytes)}
parse_example(features)
parse_sequence_example(features, {"x": FixedLenSequenceFeature((), int), "words": VarLenFeature(bytes)})

assert_type(run_virtual(use_the_test_kit()), int)

assert_type(feed.torch(Dataset.range(3), even="pad").epoch, int)
assert_type(feed.jax(Dataset.range(3), dtypes="jax").state_dict(), dict[str, Any])
assert_type(feed.keras(Dataset.range(3), steps=2).position, int)
