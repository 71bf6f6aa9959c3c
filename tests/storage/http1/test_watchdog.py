from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import StorageError
from asyncdata.options import TimeoutOptions
from asyncdata.storage.attempt import ReadLimits
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.http1.client import RangeClient, build_frame
from asyncdata.storage.http1.connection import Answer
from asyncdata.storage.http1.head import ResponseHead
from asyncdata.storage.http1.watchdog import Watchdog, overdue
from asyncdata.storage.urls import Origin
from asyncdata.testing import run_virtual
from tests.patience import LIMIT_S
from tests.storage.raw_server import DATA, Peer, RawServer, Request, Script, ranged

LIMITS = TimeoutOptions(connect_s=5, first_byte_s=0.2, idle_s=0.2)


def accept_all(head: ResponseHead) -> None:
    """Refuses nothing."""


@given(quiet=st.floats(0, 100), first=st.floats(0.1, 50), idle=st.floats(0.1, 50), in_body=st.booleans())
def test_which_limit_a_silence_breaks(quiet: float, first: float, idle: float, in_body: bool) -> None:
    """Before the answer the first limit counts, inside a body the other."""
    cause = overdue(in_body=in_body, quiet_s=quiet, limits=ReadLimits(connect_s=1, first_byte_s=first, idle_s=idle))
    if in_body:
        assert (cause is FailureCause.IDLE_TIMEOUT) == (quiet >= idle)
    else:
        assert (cause is FailureCause.FIRST_BYTE_TIMEOUT) == (quiet >= first)


async def get(script: Script, buffer: bytearray, limits: TimeoutOptions = LIMITS) -> Answer:
    """One GET from the beginning."""
    async with RawServer(script) as server:
        client = RangeClient(limits=limits, max_connections=1, tls_context=None)
        try:
            return await client.get(
                Origin("127.0.0.1", server.port, False),
                build_frame(Origin("127.0.0.1", server.port, False), "/o", ()),
                start=0,
                buffer=memoryview(buffer),
                accept=accept_all,
            )
        finally:
            await client.aclose()


@pytest.mark.parametrize("sent", [0, 10])
def test_a_server_that_does_not_answer_is_given_up(sent: int) -> None:
    """No head, or half of one, within the limit of the first byte, and at most a look later."""

    async def silent(request: Request, peer: Peer) -> None:
        await peer.send(ranged(request)[0][:sent])
        await peer.stall()

    async def scenario() -> float:
        with pytest.raises(ReadFailedError) as caught:
            await get(silent, bytearray(100))
        assert caught.value.cause is FailureCause.FIRST_BYTE_TIMEOUT
        return asyncio.get_running_loop().time()

    assert LIMITS.first_byte_s <= run_virtual(scenario()) <= 1.25 * LIMITS.first_byte_s + 0.001


@pytest.mark.sampled
@pytest.mark.parametrize("at", [0, 1, 100_000, 262_143, 1_500_000, len(DATA) - 1])
async def test_a_body_that_falls_silent_is_given_up_and_all_that_came_is_kept(at: int) -> None:
    """Also what the kernel held back below a low-water mark is delivered before the attempt is abandoned."""

    async def stalling(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(head + body[:at])
        await peer.stall()

    buffer = bytearray(len(DATA))
    with pytest.raises(ReadFailedError) as caught:
        await get(stalling, buffer)
    assert caught.value.cause is FailureCause.IDLE_TIMEOUT
    assert caught.value.filled == at
    assert buffer[:at] == DATA[:at]
    assert not any(buffer[at:])


@pytest.mark.sampled
async def test_slow_is_not_silent() -> None:
    """A body that takes many times the limit, but never pauses that long, is read to its end."""

    async def slow(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(head)
        for at in range(0, len(body), 200_000):
            await peer.send(body[at : at + 200_000])
            await peer.pause(0.12)

    buffer = bytearray(len(DATA))
    assert (await get(slow, buffer, TimeoutOptions(first_byte_s=1.0, idle_s=1.0))).filled == len(DATA)
    assert buffer == DATA


@pytest.mark.sampled
async def test_a_starved_loop_does_not_blame_the_server() -> None:
    """Whoever blocks the loop for many limits still gets what has arrived meanwhile."""

    async def prompt(request: Request, peer: Peer) -> None:
        head, body = ranged(request)
        await peer.send(head + body[:1000])
        asyncio.get_running_loop().call_soon(time.sleep, 0.7)  # the client's loop is this one
        await peer.send(body[1000:])

    buffer = bytearray(300_000)
    assert (await get(prompt, buffer)).filled == 300_000
    assert buffer == DATA[:300_000]


class Flooded:
    """An exchange of which the kernel always holds bytes; these add to its progress, or do not."""

    def __init__(self, *, awaits_head: bool, per_look: int) -> None:
        now = asyncio.get_running_loop().time()
        self.quiet_since, self.seen = now, -1
        self.paced_since, self.paced_from, self.spared = now, 0, 0
        self.limits: ReadLimits | None = None
        self.awaits_head = awaits_head
        self.in_body = not awaits_head
        self.ended: asyncio.Future[StorageError] = asyncio.get_running_loop().create_future()
        self._came, self._per_look = 0, per_look

    @property
    def progress(self) -> int:
        """Looked at once or twice per look."""
        self._came += self._per_look
        return self._came

    def release_low_water(self) -> bool:
        """There is no mark."""
        return False

    def has_input(self) -> bool:
        """More of it."""
        return True

    def fail(self, error: StorageError) -> None:
        """The end."""
        if not self.ended.done():
            self.ended.set_result(error)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("awaits_head", "per_look", "cause"),
    [
        (True, 0, FailureCause.FIRST_BYTE_TIMEOUT),
        (False, 0, FailureCause.IDLE_TIMEOUT),
        (False, 1, FailureCause.SLOW),
    ],
)
async def test_a_flood_of_what_is_no_answer_ends(awaits_head: bool, per_look: int, cause: FailureCause) -> None:
    """Bytes in the kernel excuse a late process; they do not excuse a server whose bytes come to nothing, for ever."""
    flooded = Flooded(awaits_head=awaits_head, per_look=per_look)
    limits = TimeoutOptions(first_byte_s=0.05, idle_s=0.05, floor_s=0.05, least_bytes_per_s=10_000)
    watchdog = Watchdog(limits, lambda: [flooded])
    watchdog.wake()
    try:
        async with asyncio.timeout(LIMIT_S):
            error = await flooded.ended
    finally:
        watchdog.close()
    assert isinstance(error, ReadFailedError)
    assert error.cause is cause
