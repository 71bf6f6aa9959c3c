"""Pacing, on a clock that the test moves."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from asyncdata.testing import VirtualClockLoop
from fake_gcs.pacing import CATCH_UP_S, DebtClock, Pacer, slice_bytes
from tests.patience import virtual_time


@given(sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=50), rate=st.floats(1e3, 1e9))
def test_debt_is_exact(sizes: list[int], rate: float) -> None:
    """Whoever sends whenever the clock allows it sends at the rate, whatever the sizes."""
    clock = DebtClock(rate, due=0.0)
    now = 0.0
    for size in sizes:
        now = max(now, clock.due)
        clock.charge(size, now)
    assert abs(clock.due - sum(sizes) / rate) <= 1e-6 * clock.due + 1e-9


def test_a_late_clock_catches_up_a_little_only() -> None:
    """Time that was not used is lost but for a few milliseconds."""
    clock = DebtClock(1000.0, due=0.0)
    clock.charge(1000, now=100.0)
    assert clock.due == 100.0 - CATCH_UP_S + 1.0


@given(st.one_of(st.none(), st.floats(1, 1e12)), st.one_of(st.none(), st.floats(1, 1e12)))
def test_slices_are_never_empty(rate: float | None, total: float | None) -> None:
    """Any rate sends at least a byte a turn, and never more than the unpaced slice."""
    assert 1 <= slice_bytes(rate, total) <= 2 << 20


class Reader:
    """Takes a slice whenever it is its turn."""

    def __init__(self, pacer: Pacer, clock: DebtClock | None, size: int) -> None:
        self.pacer, self.clock, self.size = pacer, clock, size
        self.taken = 0

    def go(self) -> None:
        while self.pacer.ask(self, self.clock):
            self.granted_once()

    def granted_once(self) -> None:
        size = self.pacer.turn_bytes(self.size, self.clock)
        self.taken += size
        self.pacer.charge(size, self.clock)

    def granted(self) -> None:
        self.granted_once()
        self.go()


def test_the_total_is_shared_evenly_and_own_rates_hold() -> None:
    """A hundred streams share the total within two slices; one with a lower rate of its own gets that."""

    async def main() -> tuple[list[int], int]:
        loop = asyncio.get_running_loop()
        pacer = Pacer(loop, 100e6)
        readers = [Reader(pacer, None, 65536) for _ in range(100)]
        slow = Reader(pacer, DebtClock(100e3, loop.time()), 2000)
        for reader in (*readers, slow):
            reader.go()
        await virtual_time(10)
        pacer.close()
        return [reader.taken for reader in readers], slow.taken

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        shares, slow = runner.run(main())
    assert max(shares) - min(shares) <= 2 * 65536
    assert abs(sum(shares) + slow - 1e9) < 1e7
    assert abs(slow - 1e6) < 2e4
