from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncdata.storage.schedule import RequestQueue, Ticket

priorities = st.integers(0, 5) | st.tuples(st.integers(0, 5), st.integers(0, 5))


class QueueMachine(RuleBasedStateMachine):
    """Random entering, leaving, withdrawing and resizing, against a sorted list as model."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = RequestQueue(2)
        self.held: list[Ticket] = []
        self.waiting: list[Ticket] = []

    def expect(self, granted: list[Ticket]) -> None:
        """The tickets granted are the most urgent that waited, in order."""
        room = max(0, self.queue.limit - len(self.held))
        wanted = sorted(self.waiting, key=lambda ticket: ticket.key)[:room]
        assert granted == wanted
        self.held += granted
        self.waiting = [ticket for ticket in self.waiting if ticket not in granted]

    @rule(priority=priorities)
    def enter(self, priority: int | tuple[int, ...]) -> None:
        """Granted at once exactly when there is room and nobody waits."""
        room = len(self.held) < self.queue.limit and not self.waiting
        ticket = self.queue.enter(priority)
        assert ticket.granted == room
        (self.held if room else self.waiting).append(ticket)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """The slot goes to the most urgent."""
        ticket = data.draw(st.sampled_from(self.held))
        self.held.remove(ticket)
        self.expect(self.queue.leave(ticket))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """A withdrawn ticket is never granted."""
        ticket = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        self.queue.withdraw(ticket)

    @rule(limit=st.integers(1, 4))
    def resize(self, limit: int) -> None:
        """A larger limit grants at once; a smaller one takes nothing away."""
        self.expect(self.queue.resize(limit))

    @invariant()
    def counts_agree(self) -> None:
        """The queue's numbers are the model's, and nobody waits while there is room."""
        assert self.queue.held == len(self.held)
        assert self.queue.waiting == len(self.waiting)
        assert not self.waiting or len(self.held) >= self.queue.limit


TestQueue = QueueMachine.TestCase


@given(st.lists(priorities, min_size=1, max_size=30))
def test_grants_follow_priority_then_arrival(wanted: list[int | tuple[int, ...]]) -> None:
    """With one slot the order of grants is the stable sort by priority."""
    queue = RequestQueue(1)
    first = queue.enter(0)
    tickets = [queue.enter(priority) for priority in wanted]
    order = []
    granted = queue.leave(first)
    while granted:
        (ticket,) = granted
        order.append(tickets.index(ticket))
        granted = queue.leave(ticket)
    keys = [priority if isinstance(priority, tuple) else (priority,) for priority in wanted]
    assert order == sorted(range(len(wanted)), key=lambda index: (keys[index], index))


def test_misuse_is_refused() -> None:
    """A ticket leaves only while it is granted, withdraws only while it waits; the limit is positive."""
    queue = RequestQueue(1)
    first, second = queue.enter(0), queue.enter(0)
    with pytest.raises(ValueError, match="granted"):
        queue.leave(second)
    with pytest.raises(ValueError, match="waiting"):
        queue.withdraw(first)
    queue.withdraw(second)
    with pytest.raises(ValueError, match="waiting"):
        queue.withdraw(second)
    with pytest.raises(ValueError, match="limit"):
        queue.resize(0)
    assert queue.leave(first) == []


def test_bytes_in_flight_are_limited_and_nobody_smaller_passes() -> None:
    """The most urgent waits until its bytes fit; one request alone always goes."""
    queue = RequestQueue(limit=10, most_bytes=100)
    large = queue.enter(0, 500)
    assert large.granted
    first, second = queue.enter(1, 90), queue.enter(2, 5)
    assert not first.granted
    assert not second.granted
    assert queue.leave(large) == [first, second]
    assert (queue.held, queue.held_bytes) == (2, 95)
    third, fourth = queue.enter(1, 50), queue.enter(2, 1)
    assert not fourth.granted
    assert queue.withdraw(third) == [fourth]
    for ticket in (first, second, fourth):
        queue.leave(ticket)
    assert (queue.held, queue.held_bytes) == (0, 0)


def test_a_slot_without_a_place_in_the_queue_passes_nobody() -> None:
    """It is given where `enter` would give it at once, and nowhere else."""
    queue = RequestQueue(limit=2, most_bytes=100)
    first = queue.enter_at_once(80)
    assert first is not None
    assert first.granted
    assert queue.enter_at_once(21) is None
    waiting = queue.enter(1, 21)
    assert queue.enter_at_once(1) is None  # it would fit, but somebody waits
    assert queue.leave(first) == [waiting]
    second = queue.enter_at_once(79)
    assert second is not None
    assert queue.enter_at_once(0) is None
    assert (queue.held, queue.held_bytes) == (2, 100)
    queue.leave(second)
    queue.leave(waiting)
    huge = queue.enter_at_once(1000)  # one alone always goes
    assert huge is not None
    with pytest.raises(ValueError, match="granted"):
        queue.leave(second)
