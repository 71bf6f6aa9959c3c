"""Memory lent to a consumer comes back when its last view goes, from any thread, also after the end."""

from __future__ import annotations

import _thread
import asyncio
import functools
import gc
import operator
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
import uvloop

from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.lease import Lease, Returns


class Loop:
    """Takes the place of the owning loop: runs what was scheduled when it is told to."""

    def __init__(self) -> None:
        self.scheduled: list[Callable[[], None]] = []
        self.call = self.scheduled.append

    def run(self) -> None:
        while self.scheduled:
            self.scheduled.pop()()


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


def test_every_lease_is_released_once() -> None:
    """Between two turns of the loop any number of leases may end."""
    arena, loop = Arena(GRANULE), Loop()
    released: list[int] = []
    returns = Returns(loop.call)
    views = [Lease(arena.array, returns, functools.partial(released.append, i)).bytes() for i in range(50)]
    views.clear()
    loop.run()
    assert sorted(released) == list(range(50))
    Lease(arena.array, returns, lambda: released.append(50)).bytes()
    loop.run()
    assert released[-1] == 50
    arena.close()


def test_an_interrupt_while_leases_end_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that is heard while views go is raised behind that, and every lease has ended."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    arena = Arena(GRANULE)
    released: list[int] = []
    loop = uvloop.new_event_loop()
    returns = Returns(loop.call_soon_threadsafe)
    views = [Lease(arena.array, returns, functools.partial(released.append, i)).bytes() for i in range(50)]
    with pytest.raises(KeyboardInterrupt):
        # Both are one step for the interpreter: the interrupt is there already when the first view goes.
        list(map(operator.call, (_thread.interrupt_main, views.clear)))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert (sorted(released), ignored) == (list(range(50)), [])
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
    """A view that outlives the pipeline, and its loop, ends without a word; its memory stays readable until then."""
    arena, released = Arena(GRANULE), []
    loop = uvloop.new_event_loop()
    returns = Returns(loop.call_soon_threadsafe)
    view = Lease(arena.array, returns, lambda: released.append(1)).bytes()
    returns.close()
    loop.close()
    arena.close()
    del arena
    view[5] = 9
    assert view[5] == 9
    del view
    assert released == []
