from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import StorageError
from asyncdata.storage.attempt import Attempt, ReadLimits
from asyncdata.storage.failures import FailureCause, ReadFailedError, read_failed
from asyncdata.storage.hdfs.pieces import LEAST_BYTES, MOST_BYTES, PieceLength, PiecewiseRead

PATIENT = ReadLimits(connect_s=600, first_byte_s=600, idle_s=600)
DATA = bytes(range(256)) * (6 * MOST_BYTES // 256)


class Store:
    """Serves a piece after another; ``before`` is told how many it served, and may take its time.

    Args:
        before: Called and awaited before each piece.
    """

    def __init__(self, before: Callable[[int], asyncio.Future[None] | None] = lambda served: None) -> None:  # noqa: ARG005 -- nothing to do
        self._before = before
        self.lengths: list[int] = []

    async def read(self, start: int, length: int) -> bytes:
        """The bytes of DATA."""
        waiting = self._before(len(self.lengths))
        self.lengths.append(length)
        if waiting is not None:
            await waiting
        return DATA[start : start + length]


@given(
    events=st.lists(
        st.tuples(st.booleans(), st.integers(1, MOST_BYTES), st.floats(0, 100), st.floats(0.01, 10)), max_size=60
    )
)
def test_pieces_are_never_shorter_nor_longer_than_allowed(events: list[tuple[bool, int, float, float]]) -> None:
    """Whatever came or failed."""
    length = PieceLength()
    for came, size, seconds, limit_s in events:
        if came:
            length.came(size, seconds, limit_s)
        else:
            length.failed(size)
        assert LEAST_BYTES <= length.bytes <= MOST_BYTES


@given(pace=st.floats(1e3, 1e10), limit_s=st.floats(0.5, 10))
def test_a_piece_takes_a_small_part_of_its_limit_on_any_link(pace: float, limit_s: float) -> None:
    """After some pieces each takes at most an eighth, or is as short as they become; a fast link has the longest."""
    length = PieceLength()
    for _ in range(8):
        length.came(length.bytes, length.bytes / pace, limit_s)
    assert length.bytes == LEAST_BYTES or length.bytes / pace <= limit_s / 8
    if MOST_BYTES / pace < limit_s / 32:
        assert length.bytes == MOST_BYTES


async def test_every_piece_shows() -> None:
    """The wire's count grows with each, the first one is the first byte; afterwards there is no wire."""
    seen: list[int] = []
    attempt = Attempt()

    def look(served: int) -> None:
        assert attempt.wire is not None
        seen.append(attempt.wire.filled)
        assert (attempt.first_byte_at >= 0) == (served > 0)
        assert attempt.asked_at >= 0

    store = Store(look)
    buffer = bytearray(len(DATA))
    await PiecewiseRead(attempt, PATIENT, PieceLength()).run(store, 0, memoryview(buffer))
    assert buffer == DATA
    assert len(store.lengths) > 5
    assert seen == [sum(store.lengths[:served]) for served in range(len(store.lengths))]
    assert attempt.wire is None
    assert attempt.asked_at <= attempt.first_byte_at
    assert attempt.received == len(DATA)


@pytest.mark.parametrize("served", [0, 2])
async def test_silence_ends_at_the_limit(served: int) -> None:
    """The error says how far it came and what was waited for; the next pieces are shorter."""
    never = asyncio.get_running_loop().create_future()
    store = Store(lambda number: never if number == served else None)
    length, attempt = PieceLength(), Attempt()
    limits = ReadLimits(connect_s=600, first_byte_s=0.05, idle_s=0.05)
    buffer = bytearray(len(DATA))
    with pytest.raises(ReadFailedError) as caught:
        await PiecewiseRead(attempt, limits, length).run(store, 0, memoryview(buffer))
    filled = sum(store.lengths[:served])
    assert caught.value.cause is (FailureCause.IDLE_TIMEOUT if served else FailureCause.FIRST_BYTE_TIMEOUT)
    assert caught.value.filled == attempt.received == filled
    assert length.bytes < store.lengths[-1]
    assert buffer == DATA[:filled] + bytes(len(DATA) - filled)


@pytest.mark.parametrize("arrives", [False, True])
async def test_who_is_overtaken_writes_nothing_more(arrives: bool) -> None:
    """Told to end, it raises what it was told, and how far it was then; even if its piece comes in the same moment."""
    coming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asked = asyncio.Event()

    def wait_at_the_second(served: int) -> asyncio.Future[None] | None:
        if served < 1:
            return None
        asked.set()
        return coming

    store, attempt = Store(wait_at_the_second), Attempt()
    buffer = bytearray(len(DATA))
    reading = asyncio.create_task(
        PiecewiseRead(attempt, PATIENT, PieceLength()).run(store, 0, memoryview(buffer)), name="reading"
    )
    await asked.wait()
    wire = attempt.wire
    assert wire is not None
    assert not wire.has_input()
    wire.nudge()
    if arrives:
        coming.set_result(None)
    error = read_failed("ahead", FailureCause.OVERTAKEN)
    wire.fail(error)
    wire.fail(StorageError("too late"))
    with pytest.raises(ReadFailedError) as caught:
        await reading
    assert caught.value is error
    assert error.filled == store.lengths[0]
    assert buffer == DATA[: error.filled] + bytes(len(DATA) - error.filled)
    wire.fail(StorageError("too late"))


@pytest.mark.parametrize("told_first", [False, True])
async def test_a_cancelled_read_is_cancelled(told_first: bool) -> None:
    """Also if it was told to end in the same moment."""
    asked = asyncio.Event()
    never = asyncio.get_running_loop().create_future()

    def wait(served: int) -> asyncio.Future[None]:
        assert served == 0
        asked.set()
        return never

    attempt, buffer = Attempt(), bytearray(1000)
    reading = asyncio.create_task(
        PiecewiseRead(attempt, PATIENT, PieceLength()).run(Store(wait), 0, memoryview(buffer)), name="reading"
    )
    await asked.wait()
    if told_first and attempt.wire is not None:
        attempt.wire.fail(read_failed("ahead", FailureCause.OVERTAKEN))
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert attempt.wire is None
    assert not any(buffer)


async def test_a_piece_of_another_length_is_a_failure() -> None:
    """Never a hole in the buffer, never a byte in a wrong place."""

    class Short:
        """Serves half of it."""

        async def read(self, start: int, length: int) -> bytes:
            """Less than asked for."""
            return DATA[start : start + length // 2]

    with pytest.raises(ReadFailedError) as caught:
        await PiecewiseRead(Attempt(), PATIENT, PieceLength()).run(Short(), 0, memoryview(bytearray(1000)))
    assert (caught.value.cause, caught.value.filled) == (FailureCause.SHORT_BODY, 0)
