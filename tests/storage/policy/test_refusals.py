from __future__ import annotations

import itertools

from asyncdata.storage.policy.refusals import Refusal, Refusals, RefusalState


class Server:
    """Requests of one second each, one after another; how each ends is said."""

    def __init__(self, limit: int, most: int = 256) -> None:
        self.refusals = Refusals(most)
        self.limit = limit
        self.now = 0.0

    def answer(self, kind: Refusal | None = None) -> None:
        """One more request has come back."""
        self.now += 1 / self.limit
        began = self.now - (1 if kind is None else 0)
        if kind is None:
            self.refusals.ended_well(began, self.now, limited=True)
        else:
            self.refusals.refused(began, kind)
        target = self.refusals.look(self.limit, self.now)
        if target is not None:
            self.refusals.begin(self.now, max(0, self.limit - target))
            self.limit = target

    def answer_until(self, state: RefusalState, *kinds: Refusal | None) -> int:
        """So many answers, these in turn, until the state is reached."""
        for count, kind in enumerate(itertools.islice(itertools.cycle(kinds), 50_000)):
            if self.refusals.state is state:
                return count
            self.answer(kind)
        raise AssertionError(f"still {self.refusals.state}, {self.limit}")


def test_without_refusals_nothing_moves() -> None:
    """However long."""
    server = Server(40)
    for _ in range(5000):
        server.answer()
    assert (server.limit, server.refusals.state, server.refusals.backoffs) == (40, RefusalState.USUAL, 0)


def test_a_single_refusal_says_nothing() -> None:
    """Nor do two within a few requests."""
    server = Server(40)
    server.answer(Refusal.THROTTLED)
    for _ in range(100):
        server.answer()
    assert server.refusals.state is RefusalState.USUAL


def test_a_flood_halves_the_window_each_time() -> None:
    """Before anything is known of what is served, half is right enough; it never falls below one."""
    server = Server(64)
    limits = []
    for _ in range(20_000):
        server.answer(Refusal.THROTTLED)
        limits.append(server.limit)
    changes = [limit for limit, _ in itertools.groupby(limits)]
    assert changes == [64, 32, 16, 8, 4, 2, 1]


def test_a_server_that_was_out_and_answers_again_is_asked_as_before() -> None:
    """Nothing was served even one at a time: that was not the load."""
    server = Server(64)
    for _ in range(5000):
        server.answer(Refusal.FAILED)
    assert server.limit == 1
    for _ in range(100):
        server.answer()
    assert (server.limit, server.refusals.state) == (64, RefusalState.USUAL)


def test_refusals_that_end_with_fewer_requests_are_the_loads() -> None:
    """The window is then a little above what is granted in turn with a little below."""
    server = Server(64)
    server.answer_until(RefusalState.SUSPECTED, None, None, Refusal.THROTTLED)
    server.answer_until(RefusalState.GRANTED, None)
    fewer = server.limit
    assert fewer < 64
    for _ in range(10 * fewer):
        server.answer()
    assert server.limit > fewer
    again = server.limit
    for _ in range(60):
        server.answer(Refusal.THROTTLED)
    assert server.limit < again


def test_what_is_no_longer_refused_is_followed_no_longer() -> None:
    """A limit that was lifted is found out, also at the largest window."""
    for most in (256, 64):
        server = Server(64, most)
        server.answer_until(RefusalState.SUSPECTED, None, None, Refusal.THROTTLED)
        server.answer_until(RefusalState.GRANTED, None)
        server.answer_until(RefusalState.USUAL, None)
        assert not server.refusals.borne
        assert server.limit >= 64


def test_refusals_that_stay_as_frequent_are_usual_and_forgotten_in_time() -> None:
    """The window goes back to where it was; when they end and come again, they are suspected again."""
    pattern = (None,) * 4 + (Refusal.FAILED,)
    server = Server(40)
    server.answer_until(RefusalState.SUSPECTED, *pattern)
    server.answer_until(RefusalState.USUAL, *pattern)
    assert (server.limit, server.refusals.borne) == (40, True)
    for _ in range(2000):
        for kind in pattern:
            server.answer(kind)
    assert server.refusals.state is RefusalState.USUAL
    for _ in range(30_000):
        server.answer()
    assert server.answer_until(RefusalState.SUSPECTED, *pattern) < 500
