"""Laws of the dispatcher, tried on random histories; its workers here only write down what they are sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.workers import messages
from asyncdata.workers.call import DIED, STOPPED, Call, Death
from asyncdata.workers.dispatch import Dispatcher
from asyncdata.workers.known_programs import Registered
from asyncdata.workers.worker import Worker


class Recorder(Worker):
    """A worker without a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.flight = {}
        self.load = -1
        self.head = 0
        self.seen = 0
        self.slow = False
        self.takes_more = True
        self.closing = False
        self.sent: list[Call] = []
        self.asked_back: list[int] = []
        self.is_full = False

    def send_task(self, call: Call) -> None:
        if self.is_full:
            raise OSError("no descriptor left")
        self.sent.append(call)

    def withdraw(self, ticket: int) -> None:
        self.asked_back.append(ticket)


def make_call() -> Call:
    return Call(Registered(1, b"", -1, limit_s=None, label=""), b"payload")


def event_of(call: Call) -> int | None:
    return None if call.event is None else call.event[0]


STEPS = st.lists(
    st.one_of(
        st.just(("submit", 0)),
        st.tuples(st.sampled_from(["reply", "withdraw", "die", "retry"]), st.integers(0, 50)),
    ),
    max_size=120,
)


@given(depth=st.integers(1, 3), num_workers=st.integers(1, 4), steps=STEPS)
def test_every_history_keeps_the_laws(depth: int, num_workers: int, steps: list[tuple[str, int]]) -> None:
    """Nobody waits while a worker has room, no worker has too much, loads are even, fresh calls go out in order."""
    dispatcher = Dispatcher(depth)
    workers = [Recorder(f"w{i}") for i in range(num_workers)]
    for worker in workers:
        dispatcher.supply(worker)
    calls: list[Call] = []
    for action, number in steps:
        under_way = [(worker, ticket) for worker in workers for ticket in worker.flight]
        if action == "submit":
            calls.append(make_call())
            dispatcher.submit(calls[-1])
        elif action == "reply" and under_way:
            worker, ticket = under_way[number % len(under_way)]
            call = dispatcher.finish(worker, ticket)
            assert call is not None
            call.post(messages.REPLY, b"")
        elif action == "withdraw" and calls:
            dispatcher.withdraw(calls[number % len(calls)])
        elif action == "die":
            victim = workers[number % num_workers]
            dispatcher.bury(victim, Death("died", blamed=True))
            fresh = Recorder(victim.name)
            workers[number % num_workers] = fresh
            dispatcher.supply(fresh)
        elif action == "retry":
            for call in calls:
                if event_of(call) == DIED and not call.withdrawn:
                    call.event = None
                    dispatcher.submit(call, again=True)
        loads = [len(worker.flight) for worker in workers]
        assert max(loads) <= depth
        if dispatcher.waiting:
            assert min(loads) == depth
        for call in calls:
            holders = [worker for worker in workers if call in worker.flight.values()]
            assert len(holders) <= 1
            assert (call.worker in holders) if holders else (call.worker is None)
            assert not (holders and call.event is not None)
    assert dispatcher.waiting == sum(call.worker is None and call.event is None for call in calls)


def test_what_waits_behind_a_slow_call_goes_to_others() -> None:
    """Seen twice in the same call, a worker gives back what waits in it and gets nothing until it is done with that."""
    dispatcher = Dispatcher(2)
    slow, other = Recorder("slow"), Recorder("other")
    for worker in (slow, other):
        dispatcher.supply(worker)
    calls = [make_call() for _ in range(4)]
    for call in calls:
        dispatcher.submit(call)
    assert (slow.sent, other.sent) == ([calls[0], calls[2]], [calls[1], calls[3]])
    assert dispatcher.relieve([slow, other])
    assert not slow.asked_back
    assert dispatcher.finish(other, calls[1].ticket) is calls[1]
    assert dispatcher.relieve([slow, other])
    assert slow.asked_back == [calls[2].ticket]
    assert not other.asked_back
    assert dispatcher.finish(slow, calls[2].ticket) is calls[2]  # as for WITHDRAWN
    dispatcher.submit(calls[2], again=True)
    assert calls[2].worker is other
    calls.append(make_call())
    dispatcher.submit(calls[4])
    assert calls[4].worker is None
    assert dispatcher.finish(slow, calls[0].ticket) is calls[0]
    assert calls[4].worker is slow


def test_when_all_are_slow_nothing_moves() -> None:
    """Calls are taken back only if somebody else may do them sooner."""
    dispatcher = Dispatcher(2)
    workers = [Recorder("one"), Recorder("two")]
    for worker in workers:
        dispatcher.supply(worker)
    for _ in range(4):
        dispatcher.submit(make_call())
    assert dispatcher.relieve(workers)
    assert dispatcher.relieve(workers)
    assert not any(worker.asked_back for worker in workers)


def test_calls_go_out_in_the_order_of_asking_and_those_of_the_dead_first() -> None:
    """A call whose worker died does not go to the end of the queue."""
    dispatcher = Dispatcher(1)
    worker = Recorder("w")
    calls = [make_call() for _ in range(4)]
    for call in calls:
        dispatcher.submit(call)
    assert dispatcher.waiting == 4
    dispatcher.supply(worker)
    dispatcher.bury(worker, Death("died", blamed=True))
    assert event_of(calls[0]) == DIED
    calls[0].event = None
    dispatcher.submit(calls[0], again=True)
    fresh = Recorder("x")
    dispatcher.supply(fresh)
    for _ in range(3):
        dispatcher.finish(fresh, next(iter(fresh.flight)))
    assert fresh.sent == calls


def test_the_oldest_call_of_a_dead_worker_is_the_one_to_blame() -> None:
    """Only what was running can have killed it."""
    dispatcher = Dispatcher(3)
    worker = Recorder("w")
    dispatcher.supply(worker)
    calls = [make_call() for _ in range(3)]
    for call in calls:
        dispatcher.submit(call)
    dispatcher.bury(worker, Death("died", blamed=True))
    assert [call.event and call.event[1].blamed for call in calls] == [True, False, False]


def test_a_call_is_withdrawn_once_and_not_after_its_end() -> None:
    """The worker is asked once; a call with an event needs nobody."""
    dispatcher = Dispatcher(1)
    worker = Recorder("w")
    dispatcher.supply(worker)
    sent, waiting = make_call(), make_call()
    dispatcher.submit(sent)
    dispatcher.submit(waiting)
    assert dispatcher.withdraw(sent)
    assert not dispatcher.withdraw(sent)
    assert worker.asked_back == [sent.ticket]
    assert not dispatcher.withdraw(waiting)
    assert event_of(waiting) == messages.WITHDRAWN
    assert dispatcher.finish(worker, sent.ticket) is sent
    assert dispatcher.finish(worker, sent.ticket) is None
    assert worker.sent == [sent]


def test_a_call_that_cannot_be_sent_hears_why_and_the_next_one_follows() -> None:
    """A lack of descriptors ends one call, not the pool."""
    dispatcher = Dispatcher(1)
    worker = Recorder("w")
    dispatcher.supply(worker)
    worker.is_full = True
    call = make_call()
    dispatcher.submit(call)
    assert event_of(call) == STOPPED
    assert call.event is not None
    assert isinstance(call.event[1], OSError)
    worker.is_full = False
    following = make_call()
    dispatcher.submit(following)
    assert worker.sent == [following]


def test_stopping_gives_every_waiting_call_an_exception_of_its_own() -> None:
    """Shared exceptions would collect the tracebacks of all who raise them."""
    dispatcher = Dispatcher(1)
    calls = [make_call() for _ in range(3)]
    for call in calls:
        dispatcher.submit(call)
    dispatcher.withdraw(calls[1])
    made: list[Any] = []

    def make_error() -> Exception:
        made.append(ValueError())
        return made[-1]  # type: ignore[no-any-return]  # just made

    dispatcher.stop(make_error)
    assert [event_of(call) for call in calls] == [STOPPED, messages.WITHDRAWN, STOPPED]
    assert len({id(error) for error in made}) == 2
    assert dispatcher.waiting == 0


@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize("why", ["closing", "takes no more"])
def test_a_worker_that_closes_or_retires_gets_nothing_more(why: str, finishes: bool) -> None:
    """What it holds stays until it ends."""
    dispatcher = Dispatcher(2)
    worker = Recorder("w")
    dispatcher.supply(worker)
    first = make_call()
    dispatcher.submit(first)
    worker.closing = why == "closing"
    worker.takes_more = why != "takes no more"
    dispatcher.retire(worker)
    second = make_call()
    dispatcher.submit(second)
    if finishes:
        dispatcher.finish(worker, first.ticket)
    assert worker.sent == [first]
    assert dispatcher.waiting == 1
