"""Laws of the outbox: everything arrives, in order, whoever says it and wherever that interrupts whom."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from asyncdata.runtime.isolate.outbox import Outbox
from asyncdata.runtime.isolate.protocol import MESSAGE_BYTES, NOTES, OPEN, Note, unpack_notes
from asyncdata.workers.channel import Channel


class Ends(NamedTuple):
    """An outbox and what it speaks to."""

    outbox: Outbox
    channel: Channel
    other: Channel

    def arrived(self) -> list[Note | int]:
        """Notes, and the tickets of other messages."""
        found: list[Note | int] = []
        while True:
            try:
                messages = self.other.receive()
            except BlockingIOError:
                return found
            for message in messages:
                found.extend(unpack_notes(message.body) if message.kind == NOTES else [message.ticket])


@pytest.fixture(params=[False, True], ids=["seqpacket", "stream"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Over a real socket."""
    channel, theirs = Channel.pair(stream=request.param, message_bytes=MESSAGE_BYTES)
    theirs.setblocking(False)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    other = Channel(theirs, stream=request.param, message_bytes=MESSAGE_BYTES)
    outbox = Outbox(channel)
    yield Ends(outbox, channel, other)
    outbox.close()
    other.close()


def test_notes_and_messages_arrive_in_order(ends: Ends) -> None:
    """What is posted does not overtake what was noted before."""
    ends.outbox.note(1, 2, 3)
    ends.outbox.post(lambda: ends.channel.send(OPEN, 77))
    ends.outbox.note(4, 5, -6)
    assert ends.arrived() == [Note(1, 2, 3), 77, Note(4, 5, -6)]


def test_a_full_socket_loses_nothing(ends: Ends) -> None:
    """What it does not take goes with what comes later, or when somebody asks for it."""
    for number in range(3000):
        ends.outbox.note(1, number, 0)
    assert ends.outbox.has_backlog
    arrived = ends.arrived()
    flushing = threading.Thread(target=ends.outbox.flush_all)
    flushing.start()
    while flushing.is_alive() or len(arrived) < 3000:
        arrived += ends.arrived()
    flushing.join()
    assert arrived == [Note(1, number, 0) for number in range(3000)]
    assert not ends.outbox.has_backlog


def test_waiting_for_a_full_socket_has_an_end(ends: Ends) -> None:
    """What nobody reads is still to be sent then."""
    for number in range(3000):
        ends.outbox.note(1, number, 0)
    ends.outbox.flush_all(until_s=time.monotonic())
    assert ends.outbox.has_backlog


def test_a_note_from_inside_another(ends: Ends) -> None:
    """A finalizer that runs while its own thread is sending does not wait for it, and is heard."""

    class Last:
        def __del__(self) -> None:
            ends.outbox.note(2, 2, 2)

    def send() -> bool:
        cycle: list[object] = [Last()]
        cycle.append(cycle)
        del cycle
        gc.collect()
        return ends.channel.send(OPEN, 1)

    ends.outbox.post(send)
    assert ends.arrived() == [1, Note(2, 2, 2)]


def test_whoever_interrupted_the_sending_does_not_wait_for_it(ends: Ends) -> None:
    """A handler of signals that would wait for the message in the middle of which it runs hears of it."""

    def send() -> bool:
        ends.outbox.note(3, 3, 3)
        with pytest.raises(RuntimeError, match="a handler of signals has interrupted"):
            ends.outbox.flush_all()
        return ends.channel.send(OPEN, 78)

    ends.outbox.post(send)
    ends.outbox.flush_all()
    assert ends.arrived() == [78, Note(3, 3, 3)]


def test_what_is_withdrawn_is_not_sent(ends: Ends) -> None:
    """Whoever was interrupted takes back what hands over a descriptor that will soon be another's."""
    for number in range(3000):
        ends.outbox.note(1, number, 0)
    called: list[int] = []

    def send() -> bool:
        called.append(1)
        return True

    ends.outbox.post(send)
    ends.outbox.withdraw(send)
    ends.outbox.withdraw(send)
    while ends.arrived():
        ends.outbox.flush()
    assert not ends.outbox.has_backlog
    assert not called


def test_many_threads(ends: Ends) -> None:
    """Each one's notes arrive, in its own order."""

    def say(who: int) -> None:
        for number in range(500):
            ends.outbox.note(1, who, number)

    threads = [threading.Thread(target=say, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    arrived: list[Note | int] = []
    while len(arrived) < 2000:
        arrived += ends.arrived()
        ends.outbox.flush()
    for thread in threads:
        thread.join()
    for who in range(4):
        assert [note for note in arrived if isinstance(note, Note) and note.concerns == who] == [
            Note(1, who, number) for number in range(500)
        ]


def test_after_closing_nothing_happens(ends: Ends) -> None:
    """Leases end at any time."""
    ends.outbox.close()
    ends.outbox.note(1, 1, 1)
    ends.outbox.flush_all()
    assert not ends.outbox.has_backlog


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_in_a_forked_child_nothing_is_said(ends: Ends) -> None:
    """Its copies of the batches end there, too."""
    pid = os.fork()
    if pid == 0:
        ends.outbox.note(9, 9, 9)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert ends.arrived() == []
