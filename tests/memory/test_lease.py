"""Memory lent to a consumer comes back when its last view goes, from any thread, also after the end."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import Callable

import numpy as np

from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.lease import Lease, Returns


class Loop:
    """Takes the place of the owning loop: runs what was scheduled when it is told to."""

    def __init__(self) -> None:
        self.scheduled: list[Callable[[], None]] = []
        self.closed = False

    def call(self, fn: Callable[[], None]) -> None:
        if self.closed:
            raise RuntimeError("the loop is closed")
        self.scheduled.append(fn)

    def run(self) -> None:
        scheduled, self.scheduled = self.scheduled, []
        for fn in scheduled:
            fn()


def test_the_lease_ends_with_the_last_view() -> None:
    """Slices and views of views keep it; the arena itself and the returns do not."""
    arena, loop, released = Arena(GRANULE), Loop(), []
    returns = Returns(loop.call)
    whole = Lease(arena.array, returns, lambda: released.append(1)).bytes()
    part = whole[10:20].view(np.int16)[1:]
    foreign = part.data
    del whole, part
    gc.collect()
    assert not loop.scheduled
    foreign[0] = 7
    assert arena.array[12] == 7
    del foreign
    assert len(loop.scheduled) == 1
    assert not released
    loop.run()
    assert released == [1]
    arena.close()


def test_many_ends_wake_the_loop_once() -> None:
    """Between two wake-ups any number of leases may end; all are released, each once."""
    arena, loop = Arena(GRANULE), Loop()
    released: list[int] = []
    returns = Returns(loop.call)
    views = [Lease(arena.array, returns, functools.partial(released.append, i)).bytes() for i in range(50)]
    views.clear()
    assert len(loop.scheduled) == 1
    loop.run()
    assert sorted(released) == list(range(50))
    Lease(arena.array, returns, lambda: released.append(50)).bytes()
    assert len(loop.scheduled) == 1
    loop.run()
    assert released[-1] == 50
    arena.close()


def test_ends_in_other_threads_and_in_cycles() -> None:
    """A lease may end in any thread, and inside the garbage collector; release runs on the loop all the same."""
    arena, released = Arena(GRANULE), []
    main = threading.get_ident()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        all_back = asyncio.Event()
        returns = Returns(loop.call_soon_threadsafe)

        def release() -> None:
            released.append(threading.get_ident())
            if len(released) == 80:
                all_back.set()

        def drop(count: int) -> None:
            for _ in range(count):
                cycle: list[object] = [Lease(arena.array, returns, release).bytes()]
                cycle.append(cycle)
            gc.collect()

        threads = [threading.Thread(target=drop, args=(20,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        await all_back.wait()

    asyncio.run(run())
    assert released == [main] * 80
    arena.close()


def test_after_close_nothing_is_touched() -> None:
    """A view that outlives the pipeline ends without a word; its memory stays readable until then."""
    arena, loop, released = Arena(GRANULE), Loop(), []
    returns = Returns(loop.call)
    early = Lease(arena.array, returns, lambda: released.append(1)).bytes()
    late = Lease(arena.array, returns, lambda: released.append(2)).bytes()
    del early
    arena.close()
    returns.close()
    del arena
    late[5] = 9
    assert late[5] == 9
    loop.run()
    del late
    loop.run()
    assert released == []
    assert not loop.scheduled


def test_a_loop_that_is_closed_is_left_alone() -> None:
    """When the loop is gone before the returns were told, the end of a lease raises nothing."""
    arena, loop, released = Arena(GRANULE), Loop(), []
    returns = Returns(loop.call)
    views = [Lease(arena.array, returns, lambda: released.append(1)).bytes() for _ in range(2)]
    loop.closed = True
    views.clear()
    loop.closed = False
    Lease(arena.array, returns, lambda: released.append(1)).bytes()
    assert not loop.scheduled
    assert released == []
    arena.close()
