"""Laws of channels: messages arrive whole and in order, however the socket cuts them, and no descriptor is lost."""

from __future__ import annotations

import errno
import os
import random
import selectors
import socket
import threading
from collections import deque
from collections.abc import Iterator

import pytest

from asyncdata.testing import procfs
from asyncdata.workers.channel import Channel, has_seqpacket, load_body, open_nameless_file, store_body
from asyncdata.workers.messages import MAX_INLINE_BYTES, REPLY, TASK, Message
from tests.samples import samples

Pair = tuple[Channel, Channel]


@pytest.fixture(params=[False, True], ids=["seqpacket", "stream"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Our end, which never blocks, and theirs, which does."""
    ours, their_socket = Channel.pair(stream=request.param)
    theirs = Channel(their_socket, stream=request.param)
    yield ours, theirs
    ours.close()
    theirs.close()


def receive_all(channel: Channel, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        messages += channel.receive()
    return messages


def open_bodies() -> int:
    """Bodies of messages that this process holds open; all else may come and go by itself meanwhile."""
    return sum("asyncdata-body" in target for target in procfs.descriptors().values())


def test_this_system_keeps_messages_apart() -> None:
    """Linux has SOCK_SEQPACKET; the other way is forced in these tests."""
    assert has_seqpacket()


@pytest.mark.parametrize("size", [0, 1, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1, 1_000_000])
def test_a_message_arrives_as_it_was_sent(pair: Pair, size: int) -> None:
    """All four numbers and the body, in both directions; a long body costs no descriptor afterwards."""
    body = random.Random(size).randbytes(size)
    for sender, receiver in (pair, pair[::-1]):
        assert sender.send(TASK, 2**64 - 1, 7, body=body)
        assert receive_all(receiver, 1) == [Message(TASK, 2**64 - 1, 7, size, body)]
        assert sender.send(REPLY, 1, 2, 3)
        assert receive_all(receiver, 1) == [Message(REPLY, 1, 2, 3, b"")]
    assert not open_bodies()


def test_what_the_socket_does_not_take_is_kept_and_flushed_in_order(pair: Pair) -> None:
    """Random sizes against a reader in another thread: same messages, same order."""
    ours, theirs = pair
    rng = random.Random(1)
    count = samples(2_000, 50_000)
    sizes = [rng.choice([0, 5, 300, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 9, 20_000]) for _ in range(count)]
    received: list[Message] = []
    reader = threading.Thread(target=lambda: received.extend(receive_all(theirs, count)))
    selector = selectors.DefaultSelector()
    selector.register(ours.fileno(), selectors.EVENT_WRITE)
    was_full = False
    for i, size in enumerate(sizes):
        if not ours.send(TASK, i, size, body=bytes([i % 256]) * size):
            if not was_full:
                was_full = True
                reader.start()  # once: it may have read everything, and ended, before this loop has
            while not ours.flush():
                selector.select()
    assert was_full
    reader.join()
    selector.close()
    assert [(m.ticket, m.first, m.body) for m in received] == [
        (i, size, bytes([i % 256]) * size) for i, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_a_stream_may_be_cut_anywhere(cut: int) -> None:
    """The receiver puts messages together from pieces of any size."""
    ours, their_socket = Channel.pair(stream=True)
    recorded, recorder = Channel.pair(stream=True)
    receiver = Channel(their_socket, stream=True)
    recorded.send(TASK, 1, 2, body=b"first")
    recorded.send(TASK, 2, 3)
    recorded.send(TASK, 3, 4, body=b"third")
    data = recorder.recv(1 << 16)
    messages: list[Message] = []
    for start in range(0, len(data), cut):
        ours._sock.sendall(data[start : start + cut])
        messages += receiver.receive()
    assert [(m.ticket, m.body) for m in messages] == [(1, b"first"), (2, b""), (3, b"third")]
    for end in (ours, receiver, recorded):
        end.close()
    recorder.close()


def test_the_end_of_the_other_side_is_eof(pair: Pair) -> None:
    """Closing and finishing both say so; what was sent before arrives first."""
    ours, theirs = pair
    ours.send(TASK, 1)
    ours.finish()
    assert [message.ticket for message in receive_all(theirs, 1)] == [1]
    with pytest.raises(EOFError):
        theirs.receive()
    theirs.send(REPLY, 2)
    assert [message.ticket for message in receive_all(ours, 1)] == [2]
    ours.finish()
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()


def test_a_reset_is_eof_too(pair: Pair) -> None:
    """A peer that closed with unread messages is simply gone."""
    ours, theirs = pair
    ours.send(TASK, 1)
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()


def test_sending_to_somebody_who_is_gone_is_no_error(pair: Pair) -> None:
    """Whoever receives will see the end; the sender needs no second way to learn of it."""
    ours, theirs = pair
    theirs.close()
    assert ours.send(TASK, 1, body=bytes(100_000))


def test_nothing_to_read_does_not_block(pair: Pair) -> None:
    """Our end is watched by a loop."""
    with pytest.raises(BlockingIOError):
        pair[0].receive()


def test_closing_closes_descriptors_under_way(pair: Pair) -> None:
    """Bodies that were kept, or came without being fetched, leave no descriptor open."""
    ours, theirs = pair
    while ours.send(TASK, 1, body=bytes(5000)):
        pass
    assert not ours.send(TASK, 1, body=bytes(5000))
    assert open_bodies()
    ours.close()
    theirs.close()
    assert not open_bodies()
    assert (ours.fileno(), theirs.fileno()) == (-1, -1)


def test_a_message_that_lost_its_descriptor_is_an_error(pair: Pair) -> None:
    """Where the receiver had no descriptor left, the body is not guessed."""
    ours, theirs = pair
    fd = store_body(b"body")
    ours.send_attached(TASK, 1, 2, fd=fd, size=4)
    os.close(fd)
    theirs._descriptors = _Sieve()  # type: ignore[assignment]  # drops what arrives, as a full table does
    with pytest.raises(OSError, match="without its descriptor"):
        theirs.receive()
    theirs._descriptors = deque()


def test_a_receiver_can_do_without_what_was_lost(pair: Pair) -> None:
    """It gets the head of the message, and those before and behind it as they were sent."""
    ours, theirs = pair
    ours.send(REPLY, 1, body=b"before")
    fd = store_body(b"body")
    ours.send_attached(REPLY, 2, 3, fd=fd, size=4)
    os.close(fd)
    ours.send(REPLY, 4, body=b"behind")
    theirs._descriptors = _Sieve()  # type: ignore[assignment]  # drops what arrives, as a full table does
    received: list[Message] = []
    while len(received) < 3:
        received += theirs.receive(lossy=True)
    assert [(message.ticket, message.body) for message in received] == [(1, b"before"), (2, b""), (4, b"behind")]
    assert [message.lost is None for message in received] == [True, False, True]
    assert isinstance(received[1].lost, OSError)
    assert received[1].lost.errno == errno.EMFILE
    theirs._descriptors = deque()


class _Sieve:
    def extend(self, descriptors: list[int]) -> None:
        for fd in descriptors:
            os.close(fd)

    def __bool__(self) -> bool:
        return False


def test_a_body_shorter_than_announced_is_an_error() -> None:
    """Lengths are checked; the descriptor is closed all the same."""
    with pytest.raises(OSError, match="ends after 4"):
        load_body(store_body(b"body"), 5)
    assert not open_bodies()


def test_nameless_files_work_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memfd is missing a deleted file serves."""
    monkeypatch.delattr(os, "memfd_create")
    fd = open_nameless_file("name")
    os.close(fd)
    assert load_body(store_body(b"x" * 10_000), 10_000) == b"x" * 10_000


def test_without_seqpacket_the_answer_is_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems without it are recognised."""
    monkeypatch.delattr(socket, "SOCK_SEQPACKET")
    assert not has_seqpacket()
