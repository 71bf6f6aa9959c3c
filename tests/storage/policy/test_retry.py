from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata import errors
from asyncdata.errors import AsyncdataError, TransientStorageError
from asyncdata.options import Environment, Options, RetryOptions
from asyncdata.storage import FailureCause, Fetcher, RangeReader, ReaderSpec, backends, failures
from asyncdata.storage.backends import BackendSpec, register_backend
from asyncdata.storage.failures import read_failed
from asyncdata.storage.policy.retry import is_retryable, next_delay_s
from asyncdata.testing import run_virtual
from asyncdata.types import ObjectInfo
from tests.patience import virtual_time

options = st.builds(
    RetryOptions,
    max_attempts=st.integers(1, 12),
    initial_delay_s=st.floats(0, 5),
    max_delay_s=st.floats(0, 30),
    deadline_s=st.floats(0, 200),
)


def transient(retry_after_s: float | None = None) -> TransientStorageError:
    """A transient error, with or without the server's wish."""
    error = TransientStorageError("try again")
    error.retry_after_s = retry_after_s
    return error


@given(
    options=options,
    attempt=st.integers(1, 2000),
    elapsed=st.floats(0, 300),
    wish=st.none() | st.floats(0, 300),
    seed=st.integers(0, 99),
)
def test_the_law_of_delays(options: RetryOptions, attempt: int, elapsed: float, wish: float | None, seed: int) -> None:
    """A delay lies within jitter or the server's wish, never beyond the deadline, never after the last attempt."""
    draw = random.Random(seed).random
    delay = next_delay_s(transient(wish), attempt=attempt, elapsed_s=elapsed, options=options, draw=draw)
    ceiling = min(options.max_delay_s, options.initial_delay_s * 2 ** min(attempt - 1, 60))
    if delay is None:
        assert attempt >= options.max_attempts or elapsed + max(ceiling, wish or 0) > options.deadline_s
        return
    assert attempt < options.max_attempts
    assert elapsed + delay <= options.deadline_s
    assert delay >= (wish or 0)
    assert delay <= max(ceiling, wish or 0)


def test_jitter_covers_the_whole_interval() -> None:
    """Full jitter: delays are spread from zero to the ceiling, so that clients do not come back together."""
    draw = random.Random(1).random
    delays = [
        next_delay_s(transient(), attempt=3, elapsed_s=0, options=RetryOptions(initial_delay_s=1.0), draw=draw)
        for _ in range(1000)
    ]
    known = [delay for delay in delays if delay is not None]
    assert len(known) == 1000
    assert min(known) < 0.1
    assert max(known) > 3.9
    assert 1.8 < sum(known) / 1000 < 2.2


def test_only_transient_errors_are_retried() -> None:
    """Of the whole tree only TransientStorageError and what derives from it is tried again."""
    kinds = [
        kind
        for module in (errors, failures)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, AsyncdataError)
    ]
    assert len(kinds) > 15
    for kind in kinds:
        assert is_retryable(kind("x")) == issubclass(kind, TransientStorageError)
        delay = next_delay_s(kind("x"), attempt=1, elapsed_s=0, options=RetryOptions(), draw=lambda: 0.5)
        assert (delay is not None) == issubclass(kind, TransientStorageError)
    assert not is_retryable(ConnectionError())


class Busy(RangeReader):
    """Every read takes 1.5 s, and those of ``busy://second`` fail once, at once."""

    def __init__(self, spec: ReaderSpec) -> None:
        del spec
        self._failed = False

    async def stat(self, url: str) -> ObjectInfo:
        return ObjectInfo(url=url, size=10, version="1")

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        return [await self.stat(pattern)]

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: object = None) -> int:
        del start, attempt
        if info.url.endswith("second") and not self._failed:
            self._failed = True
            raise read_failed("busy", FailureCause.SERVER_ERROR)
        await virtual_time(1.5)
        return len(buffer)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("opening", [False, True])
def test_waiting_for_a_turn_is_no_part_of_the_first_attempt(opening: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that waited for longer than the deadline is tried again all the same."""
    monkeypatch.setattr(backends, "_REGISTERED", {})
    register_backend("busy", BackendSpec(Busy))

    async def scenario() -> int:
        retry = RetryOptions(initial_delay_s=0.01, deadline_s=1)
        fetcher = Fetcher(Options(max_requests_in_flight=1, retry=retry), Environment())

        async def read(name: str) -> None:
            buffer, url = memoryview(bytearray(10)), f"busy://{name}"
            if opening:
                await fetcher.open_read(url, buffer)
            else:
                await fetcher.read(await fetcher.stat(url), 0, buffer)

        try:
            await asyncio.gather(read("first"), read("second"))
            return fetcher.stats().retries
        finally:
            await fetcher.aclose()

    assert run_virtual(scenario()) == 1
