"""Laws of the two ends of a pipeline's socket, here in one process: order, demand, and loans that come back.

The consumer's end runs in this thread, the loader's on the test's loop, as they do in two processes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from asyncdata.errors import CloseTimeoutError, ObjectNotFoundError, WorkerDiedError
from asyncdata.memory.advance import Advance
from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import DictOf
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.runtime.consumer.delivery import Delivery
from asyncdata.runtime.isolate import protocol
from asyncdata.runtime.isolate.intake import Intake
from asyncdata.runtime.isolate.outbox import Outbox
from asyncdata.runtime.isolate.outlet import Loans, Outlet
from asyncdata.runtime.memory.packing import RefLeaf
from asyncdata.testing import check, snapshot
from asyncdata.workers.channel import Channel
from tests.patience import LIMIT_S, until


class Crossing:
    """An outlet, the arena it lends from, and the intake at the other side; plays the loader process for both."""

    def __init__(self) -> None:
        self.name = "the loader process"
        self.arena = Arena(4 * GRANULE)
        self.mapped: Arena | None = None
        control, theirs = Channel.pair(stream=False, message_bytes=protocol.MESSAGE_BYTES)
        theirs.setblocking(False)
        self.control = Channel(theirs, stream=False, message_bytes=protocol.MESSAGE_BYTES)
        self.outbox = Outbox(control)
        self.loans = Loans()
        self.told: list[bool] = []
        self.events: list[str] = []
        ours, sock = Channel.pair(stream=False, message_bytes=protocol.MESSAGE_BYTES)
        sock.setblocking(False)
        self.sock: socket.socket = sock
        self.intake = Intake(1, ours, self, close_timeout_s=5)
        loop = asyncio.get_running_loop()
        self.outlet = Outlet(
            Channel(sock, stream=False, message_bytes=protocol.MESSAGE_BYTES),
            loop,
            (self.arena.fd, self.arena.nbytes),
            self.loans,
            left=lambda: self.events.append("left"),
        )
        self.outlet.attach(loop, self.told.append, left=lambda: self.events.append("pump left"))
        self.released: list[int] = []

    def memory(self, fd: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Maps the arena a second time, as another process does."""
        self.mapped = Arena.attach(fd, nbytes)
        return self.mapped.array

    def await_end(self) -> BaseException:
        """The process is gone."""
        return WorkerDiedError("the loader process is gone")

    def left(self, intake: Intake) -> None:
        """The intake is closed."""
        self.events.append(f"closed {intake.number}")

    def listen(self) -> None:
        """Hands the consumer's notes on, as the loader's loop does."""
        while True:
            try:
                messages = self.control.receive()
            except BlockingIOError:
                return
            for message in messages:
                for note in protocol.unpack_notes(message.body):
                    if note.kind == protocol.RELEASED:
                        self.released.append(note.concerns)
                        self.loans.end(note.concerns)
                    elif note.kind == protocol.TAKEN:
                        self.outlet.taken(note.value)
                    elif note.kind == protocol.WAITING:
                        self.outlet.waiting(note.value)
                    else:
                        self.outlet.leave(note.value)

    def lent(self, number: int, *, to_copy: bool = False) -> Delivery:
        """One array in the arena, filled with a number."""
        array = self.arena.array[64 * number : 64 * number + 64].view(np.int64)
        array[:] = number
        origin = np.zeros((1, 4), np.int64)
        leaf = RefLeaf(np.array([[64 * number, 64]]), Leaf("array", "<i8", (8,)), None)
        base = self.arena.array.view()
        return Delivery(DictOf(("x",), (None,)), (leaf,), base, origin, Advance(1), to_copy=to_copy)

    def take(self) -> Any:
        """The element of the next delivery."""
        found, delivery = self.intake.pop()
        assert found
        assert delivery is not None
        return delivery.element(0)["x"]

    async def put(self, delivery: Delivery) -> asyncio.Task[bool]:
        """Begins to put."""
        task = asyncio.ensure_future(self.put_when_there_is_room(delivery))
        await asyncio.sleep(0)
        return task

    async def put_when_there_is_room(self, delivery: Delivery) -> bool:
        """Puts as the pump does; False when the consumer is gone."""
        if await self.outlet.wait_for_room():
            self.outlet.put(delivery)
            return True
        return False


@pytest.fixture
async def crossing() -> AsyncIterator[Crossing]:
    """Both ends, put back afterwards."""
    crossing = Crossing()
    yield crossing
    crossing.intake.close()
    crossing.outlet.put_back(None)
    crossing.intake.dispose()
    crossing.outbox.close()
    crossing.control.close()
    crossing.loans._bases.clear()
    crossing.arena.close()
    if crossing.mapped is not None:
        crossing.mapped.close()


async def test_one_delivery_at_a_time_is_under_way(crossing: Crossing) -> None:
    """The next one is sent when that is taken; each views what the loader has written."""
    assert crossing.intake.pop() == (False, None)
    first, second = await crossing.put(crossing.lent(1)), await crossing.put(crossing.lent(2))
    assert first.done()
    assert not second.done()
    one = crossing.take()
    assert one.tolist() == [1] * 8
    crossing.listen()
    assert await second
    assert crossing.take().tolist() == [2] * 8
    one[0] = 99
    assert crossing.arena.array[64:72].view(np.int64)[0] == 99


async def test_a_loan_ends_with_the_last_view(crossing: Crossing) -> None:
    """Of slices of slices, whoever holds them; not before."""
    await crossing.put(crossing.lent(3))
    part = crossing.take()[2:][::2]
    crossing.listen()
    assert crossing.released == []
    assert part.tolist() == [3, 3, 3]
    del part
    crossing.listen()
    assert crossing.released == [1]
    assert not crossing.loans._bases


async def test_what_is_to_be_copied_comes_back_at_once(crossing: Crossing) -> None:
    """The consumer's copy is its own."""
    await crossing.put(crossing.lent(4, to_copy=True))
    copy = crossing.take()
    crossing.listen()
    assert crossing.released == [1]
    crossing.arena.array[:] = 0
    assert copy.tolist() == [4] * 8


async def test_the_loader_knows_when_the_consumer_waits(crossing: Crossing) -> None:
    """Only for what is not under way: neither while something is buffered, nor after it gave up."""
    assert crossing.told[-1] is False
    waiting = asyncio.ensure_future(crossing.intake.wait_async())
    await asyncio.sleep(0)
    crossing.listen()
    assert crossing.told[-1] is True
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    crossing.listen()
    assert crossing.told[-1] is False
    waiting = asyncio.ensure_future(crossing.intake.wait_async())
    await asyncio.sleep(0)
    crossing.listen()
    await crossing.put(crossing.lent(1))
    assert crossing.told[-1] is False
    await waiting
    crossing.take()


async def test_what_the_consumer_has_never_seen_comes_back_when_it_leaves(crossing: Crossing) -> None:
    """What it has taken stays its own until it lets go."""
    await crossing.put(crossing.lent(1))
    kept = crossing.take()
    crossing.listen()
    await crossing.put(crossing.lent(2))
    crossing.intake.close()
    late = await crossing.put(crossing.lent(3))
    crossing.listen()
    await asyncio.sleep(0)
    assert await late is False
    assert list(crossing.loans._bases) == [1]
    assert "left" in crossing.events
    assert "pump left" in crossing.events
    del kept
    crossing.listen()
    assert not crossing.loans._bases


async def test_a_consumer_that_vanishes_lets_the_pump_end(crossing: Crossing) -> None:
    """Without a word on the control channel."""
    crossing.intake._channel.cut()
    await crossing.put(crossing.lent(1))  # nobody receives it
    assert await asyncio.wait_for(crossing.outlet.wait_for_room(), LIMIT_S) is False
    assert await crossing.put_when_there_is_room(crossing.lent(2)) is False
    crossing.intake.close()
    crossing.listen()
    assert not crossing.loans._bases


async def test_what_is_buffered_comes_before_the_end_and_errors(crossing: Crossing) -> None:
    """Each once; the error with its fields and a word on where it was raised."""
    await crossing.put(crossing.lent(1))
    assert crossing.outlet.finish(ObjectNotFoundError("no such object", url="memory://x", offset=7))
    assert not crossing.outlet.finish(None)
    crossing.take()
    with pytest.raises(ObjectNotFoundError) as caught:
        crossing.intake.pop()
    assert (caught.value.url, caught.value.offset) == ("memory://x", 7)
    assert any("belongs to one process" in note for note in caught.value.__notes__)
    assert crossing.intake.pop() == (True, None)


async def test_a_socket_that_ends_without_a_word_is_the_end_of_the_process(crossing: Crossing) -> None:
    """For threads and tasks alike, after what had arrived."""
    await crossing.put(crossing.lent(1))
    crossing.outlet.put_back(None)
    crossing.take()
    assert crossing.intake.pop() == (False, None)
    await crossing.intake.wait_async()
    with pytest.raises(WorkerDiedError):
        crossing.intake.pop()
    assert crossing.intake.pop() == (True, None)


async def test_the_last_snapshot_comes_with_the_end(crossing: Crossing) -> None:
    """Whoever waits until all is put back, knows what it was."""
    crossing.outlet.finish(None)
    assert crossing.intake.pop() == (True, None)
    crossing.intake.close()
    crossing.outlet.put_back(PipelineStats(bytes=5))
    crossing.intake.wait_until_put_back()
    assert crossing.intake.stats == PipelineStats(bytes=5)


async def test_what_cannot_be_loaded_comes_back(crossing: Crossing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although somebody keeps the error."""

    def fail(_body: bytes) -> None:
        raise ImportError("no such module here")

    await crossing.put(crossing.lent(1))
    monkeypatch.setattr("asyncdata.runtime.isolate.out_of_band.load", fail)
    with pytest.raises(ImportError) as caught:
        crossing.intake.pop()
    crossing.listen()
    assert not crossing.loans._bases
    assert caught.value.__traceback__ is not None


async def test_whoever_waits_hears_that_the_consumer_is_gone(crossing: Crossing) -> None:
    """Tasks and threads; the last one closes the socket."""
    task = asyncio.ensure_future(crossing.intake.wait_async())
    await asyncio.sleep(0)
    thread = threading.Thread(target=crossing.intake.wait)
    thread.start()
    await until(lambda: crossing.intake.waits == 2)
    crossing.intake.signal()
    await asyncio.wait_for(task, LIMIT_S)
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert "closed 1" in crossing.events
    assert crossing.intake.descriptor() == -1
    assert crossing.intake.pop() == (True, None)


async def test_what_is_taken_while_the_consumer_leaves(crossing: Crossing) -> None:
    """Said too late, it changes nothing."""
    await crossing.put(crossing.lent(1))
    crossing.outlet.leave(0)
    crossing.outlet.taken(1)
    assert not crossing.loans._bases


async def test_a_loader_that_does_not_read_is_reported(crossing: Crossing, monkeypatch: pytest.MonkeyPatch) -> None:
    """User code keeps its loop: closing does not wait longer than its time limit until all is said."""
    monkeypatch.setattr("asyncdata.runtime.isolate.intake._REPORT_S", 0)
    crossing.intake._limit_s = 0
    while not crossing.outbox.has_backlog:
        crossing.outbox.note(protocol.RELEASED, 1, 0)
    crossing.intake.close()
    with pytest.raises(CloseTimeoutError, match="user code is still running there"):
        crossing.intake.wait_until_put_back()
    while crossing.outbox.has_backlog:
        crossing.listen()
        crossing.outbox.flush()


async def test_objects_cross_in_messages_and_in_files(crossing: Crossing) -> None:
    """Short and long ones; descriptors are closed."""
    before = snapshot()
    for size in (3, 1 << 20):
        items: list[Any] = [np.arange(size), b"x" * size, "é", None]
        origin = np.zeros((4, 4), np.int64)
        await crossing.put(Delivery(None, (items,), None, origin, Advance(4)))
        found, delivery = crossing.intake.pop()
        assert found
        assert delivery is not None
        assert np.array_equal(delivery.element(0), items[0])
        assert [delivery.element(row) for row in (1, 2, 3)] == items[1:]
        crossing.listen()
    assert len(check(before, only=("descriptor",))) <= 2  # the mapped arena
