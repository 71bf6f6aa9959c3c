"""Laws of the consumer's edge: bounded, nothing lost, everybody woken, from whatever thread or loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.advance import Advance
from asyncdata.runtime.consumer.delivery import Delivery
from asyncdata.runtime.consumer.edge import Edge, OwnLoopError


def delivery(*items: int) -> Delivery:
    """One delivery of some numbers."""
    origin = np.zeros((len(items), 4), np.int64)
    return Delivery(None, (np.array(items),), None, origin, Advance(len(items)))


def _nothing() -> None:
    """The pump does not care that the consumer has left."""


def items(answer: tuple[bool, Delivery | None]) -> list[int]:
    """What `pop` gave."""
    found, taken = answer
    assert found
    assert taken is not None
    return [int(taken.element(row)) for row in range(len(taken))]


def attached(capacity: int) -> tuple[Edge, list[bool]]:
    """An edge whose pump runs on the current loop, and what the pump was told about starving."""
    told: list[bool] = []
    edge = Edge(capacity)
    edge.attach(asyncio.get_running_loop(), told.append, _nothing)
    return edge, told


async def put(edge: Edge, offered: Delivery) -> bool:
    """Puts as the pump does; False when the consumer is gone."""
    if await edge.wait_for_room():
        edge.put(offered)
        return True
    return False


async def test_deliveries_come_out_in_order() -> None:
    """First in, first out."""
    edge, _ = attached(10)
    for number in range(5):
        assert await put(edge, delivery(number))
    assert [items(edge.pop()) for _ in range(5)] == [[number] for number in range(5)]
    assert edge.pop() == (False, None)


async def test_the_pump_waits_while_the_buffer_is_full() -> None:
    """Capacity counts elements; one delivery of any size always fits into an empty buffer."""
    edge, _ = attached(2)
    edge.put(delivery(1, 2, 3))
    waiting = asyncio.ensure_future(put(edge, delivery(4)))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert items(edge.pop()) == [1, 2, 3]
    assert await waiting
    assert items(edge.pop()) == [4]


async def test_wait_for_room_keeps_the_pump_from_working_ahead() -> None:
    """It returns when one more delivery would not wait."""
    edge, _ = attached(1)
    assert await edge.wait_for_room()
    edge.put(delivery(1))
    waiting = asyncio.ensure_future(edge.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    edge.pop()
    assert await waiting


async def test_more_may_wait_where_the_pump_says_so() -> None:
    """Beyond the capacity, as long as it does."""
    edge, _ = attached(1)
    for number in range(3):
        assert await edge.wait_for_room(2)
        edge.put(delivery(number))
    waiting = asyncio.ensure_future(edge.wait_for_room(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert items(edge.pop()) == [0]
    assert await waiting
    usual = asyncio.ensure_future(edge.wait_for_room())
    for number in (1, 2):
        await asyncio.sleep(0)
        assert not usual.done()
        assert items(edge.pop()) == [number]
    assert await usual


async def test_what_is_buffered_comes_before_the_error_and_the_error_once() -> None:
    """Elements made before a failure are delivered; afterwards the edge is at its end."""
    edge, _ = attached(10)
    edge.put(delivery(1))
    edge.finish(ValueError("user code"))
    assert items(edge.pop()) == [1]
    with pytest.raises(ValueError, match="user code"):
        edge.pop()
    assert edge.pop() == (True, None)
    assert edge.finish(ValueError("another")) is False
    assert edge.pop() == (True, None)


async def test_closing_drops_the_buffer_and_lets_the_pump_go() -> None:
    """Whoever waits at either side is woken; an error that nobody asked for is dropped."""
    edge, _ = attached(1)
    edge.put(delivery(1))
    putting = asyncio.ensure_future(put(edge, delivery(2)))
    waiting = asyncio.ensure_future(edge.wait_for_room())
    await asyncio.sleep(0)
    edge.close()
    edge.close()
    assert await putting is False
    assert await waiting is False
    assert await put(edge, delivery(3)) is False
    edge.finish(ValueError("too late"))
    assert edge.pop() == (True, None)


async def test_every_waiting_task_is_woken_and_each_delivery_goes_to_one() -> None:
    """Several consumers; those who come too late wait again."""
    edge, _ = attached(1)
    taken: list[int] = []

    async def consume() -> None:
        while True:
            await edge.wait_async()
            found, got = edge.pop()
            if got is not None:
                taken.extend(items((found, got)))
            elif found:
                return

    consumers = [asyncio.ensure_future(consume()) for _ in range(5)]
    for number in range(20):
        await put(edge, delivery(number))
    edge.finish(None)
    await asyncio.gather(*consumers)
    assert taken == list(range(20))


async def test_a_cancelled_wait_takes_nothing_and_leaves_no_trace() -> None:
    """Neither the element nor memory is lost, whether it is cancelled before, while or after it is woken."""
    edge, _ = attached(1)
    for steps in range(6):
        waiting = asyncio.ensure_future(edge.wait_async())
        for _ in range(steps):
            await asyncio.sleep(0)
        if steps % 2:
            edge.put(delivery(steps))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if steps % 2:
            assert items(edge.pop()) == [steps]
    assert not edge._waiters
    assert not edge._waiting


def test_a_thread_waits_for_a_pump_on_another_loop() -> None:
    """The blocking side: woken by a delivery, by the end, by closing."""
    for end in ("finish", "close"):
        edge = Edge(1)
        taken: list[int] = []

        def consume(edge: Edge = edge, taken: list[int] = taken) -> None:
            while True:
                edge.wait()
                found, got = edge.pop()
                if got is None:
                    return
                taken.extend(items((found, got)))

        async def pump(edge: Edge = edge, end: str = end) -> None:
            edge.attach(asyncio.get_running_loop(), lambda _: None, _nothing)
            for number in range(50):
                await put(edge, delivery(number))
            if end == "finish":
                edge.finish(None)
            else:
                await edge.wait_for_room()
                edge.close()

        thread = threading.Thread(target=consume)
        thread.start()
        asyncio.run(pump())
        thread.join()
        assert taken == list(range(50))


async def test_the_pump_is_told_who_starves() -> None:
    """True while somebody waits for an empty buffer; False as soon as there is something, or nobody waits any more."""
    edge, told = attached(1)
    waiting = asyncio.ensure_future(edge.wait_async())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told[-1] is True
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0)
    assert told[-1] is False
    waiting = asyncio.ensure_future(edge.wait_async())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told[-1] is True
    edge.put(delivery(1))
    assert told[-1] is False
    await waiting


async def test_a_consumer_who_comes_away_empty_is_known_to_starve() -> None:
    """Two wait, one takes what there is."""
    edge, told = attached(1)
    waiting = [asyncio.ensure_future(edge.wait_async()) for _ in range(2)]
    await asyncio.sleep(0)
    edge.put(delivery(1))
    assert items(edge.pop()) == [1]
    for _ in range(3):
        await asyncio.sleep(0)
    assert told[-1] is True
    edge.finish(None)
    await asyncio.gather(*waiting)


class Lent(Delivery):
    """A delivery whose copy waits until the test lets it go on."""

    def __init__(self, plain: Delivery) -> None:
        super().__init__(plain.structure, plain.columns, None, plain.origin, plain.advance, to_copy=True)
        self.begun, self.done = threading.Event(), threading.Event()

    def taken(self) -> Delivery:
        self.begun.set()
        self.done.wait()
        return delivery(*(int(self.element(row)) for row in range(len(self))))


async def test_what_is_being_copied_still_counts() -> None:
    """Neither is there room for more meanwhile, nor does anybody starve; and the pump does not wait for the copy."""
    edge, told = attached(1)
    lent = Lent(delivery(1, 2))
    edge.put(lent)
    taking = asyncio.create_task(asyncio.to_thread(edge.pop))
    await asyncio.to_thread(lent.begun.wait)
    room = asyncio.ensure_future(edge.wait_for_room())
    waiting = asyncio.ensure_future(edge.wait_async())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not room.done()
    assert told[-1] is False
    lent.done.set()
    assert items(await taking) == [1, 2]
    assert await room
    assert told[-1] is True
    edge.close()
    await waiting


async def test_a_consumer_who_came_before_the_pump_is_known_to_starve() -> None:
    """The order of the two does not matter."""
    edge = Edge(1)
    waiting = asyncio.ensure_future(edge.wait_async())
    await asyncio.sleep(0)
    told: list[bool] = []
    edge.attach(asyncio.get_running_loop(), told.append, _nothing)
    assert told == [True]
    edge.finish(None)
    await waiting


def test_loops_that_are_gone_do_no_harm() -> None:
    """A consumer's loop may be closed while it waits, and the pump's before the consumer has taken everything."""
    edge = Edge(5)
    dead = asyncio.new_event_loop()
    waiting = dead.create_task(edge.wait_async())
    dead.run_until_complete(asyncio.sleep(0))
    dead.run_until_complete(_pump_two(edge))
    waiting.cancel()
    dead.close()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # as intended here
    edge.finish(None)
    assert items(edge.pop()) == [1]
    assert items(edge.pop()) == [2]
    assert edge.pop() == (True, None)
    edge.close()


async def _pump_two(edge: Edge) -> None:
    edge.attach(asyncio.get_running_loop(), lambda _: None, _nothing)
    edge.put(delivery(1))
    edge.put(delivery(2))


async def test_a_finished_edge_lets_go_of_its_pipeline() -> None:
    """What the consumer keeps does not keep the pipeline."""

    class Pipeline:
        def told(self, waiting: bool) -> None:
            pass

    pipeline = Pipeline()
    gone = weakref.ref(pipeline)
    edge = Edge(1)
    edge.attach(asyncio.get_running_loop(), pipeline.told, _nothing)
    edge.finish(None)
    del pipeline
    gc.collect()
    assert gone() is None


def test_an_error_that_was_raised_is_no_cycle() -> None:
    """Its traceback goes, and all it holds, when the caller lets go of it."""
    edge = Edge(1)

    class HeldError(Exception):
        pass

    error = HeldError()
    gone = weakref.ref(error)
    edge.finish(error)
    del error
    gc.disable()
    try:
        with pytest.raises(HeldError):
            edge.pop()
        assert _is_gone(gone)
    finally:
        gc.enable()


def _is_gone(reference: Callable[[], Any]) -> bool:
    return reference() is None


async def test_the_loop_that_fills_it_does_not_wait_for_itself() -> None:
    """It would stop for good; what is there already can be taken."""
    edge, _ = attached(2)
    with pytest.raises(OwnLoopError, match="outside of the function"):
        edge.wait()
    assert edge.waits == 0
    edge.put(delivery(1))
    edge.wait()
    assert items(edge.pop()) == [1]
