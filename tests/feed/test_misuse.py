"""Feeds as their worst user treats them: kept batches, threads, several iterators, signals, and use after the close."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.errors import PipelineClosedError, StateError
from asyncdata.feed.run import Conversion, Hand
from tests.feed.plain import Meeting, PlainFeed, on_all_ranks, plain


def same(batch: Any) -> Any:
    """A feed of any framework converts; this one does not."""
    return batch


class AheadFeed(PlainFeed):
    """Has batches on their way while one is used, as feeds of devices do."""

    def _hand(self) -> Hand:
        return Conversion(same, 2)


def ahead(dataset: ad.Dataset, **settings: Any) -> AheadFeed:
    """The feed of one rank."""
    feed = plain(dataset, **settings)
    return AheadFeed(dataset, feed._division, feed._meeting)


def numbers(count: int, executor: str = "inline") -> ad.Dataset:
    """Batches of three, in another order in each epoch."""
    return ad.Dataset.range(count).shuffle(9, seed=1).map(abs, 2, executor=executor).batch(3)


def leaves(number: Any) -> dict[str, Any]:
    """An element with leaves of every kind."""
    i = int(number)
    return {
        "array": np.full(1000, i),
        "strided": np.arange(40).reshape(5, 8)[::2, ::-3] + i,
        "text": f"number {i}",
        "bytes": bytes([i]) * i,
        "flag": np.bool_(i % 2),
        "small": np.uint16(i),
        "wave": np.complex64(i * 1j),
        "rows": np.arange(i % 4),
    }


def plainly(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch in Python's own types."""
    return {name: leaf.tolist() for name, leaf in batch.items()}


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
def test_a_hundred_batches_can_be_kept(executor: str) -> None:
    """On ranks that vote, of leaves of every kind, in less memory than they need: none of them changes."""
    ds = ad.Dataset.range(200).map(leaves, 2, executor=executor).filter(lambda _: True).ragged_batch(1)
    ds = ds.with_options(ad.Options(memory_limit_bytes=4 << 20, num_workers=1))
    meeting = Meeting(2)
    for rank, kept in enumerate(on_all_ranks(2, lambda rank: list(plain(ds, rank, meeting, world=2)))):
        gc.collect()
        found = [plainly(batch) for batch in kept]
        expected = [leaves(number) for number in range(rank, 200, 2)]
        assert [batch["text"] for batch in found] == [[one["text"]] for one in expected]
        for batch, one in zip(found, expected, strict=True):
            assert batch == {
                name: [leaf if isinstance(leaf, str | bytes) else leaf.tolist()] for name, leaf in one.items()
            }


@pytest.mark.parametrize("begin", [0, 1, 2])
def test_padding_is_memory_of_its_own(begin: int) -> None:
    """A trainer that writes to every batch, as normalization in place does, changes no batch that it has kept."""
    ds = ad.Dataset.range(3).map(leaves).ragged_batch(1)
    settings: dict[str, Any] = {"rank": 1, "world": 2, "even": "pad"}
    feed = plain(ds, **settings)
    steps = iter(feed)
    for _ in range(begin):
        next(steps)
    again = plain(ds, **settings)
    again.load_state_dict(feed.state_dict())
    kept = list(again)
    assert [bool(mask.any()) for _, mask in kept] == [True, False][begin:]
    before = [plainly(batch) for batch, _ in kept]
    for batch, _ in kept[::-1][:1]:
        for leaf in batch.values():
            if isinstance(leaf, np.ndarray):
                leaf[...] = 77
    assert [plainly(batch) for batch, _ in kept][:-1] == before[:-1]


@pytest.mark.sampled
@pytest.mark.parametrize("make", [plain, ahead])
def test_a_feed_that_was_closed_never_looks_complete(make: Callable[..., PlainFeed]) -> None:
    """At any step, with batches on their way: an error, the state stays, and the next iteration is the next epoch."""
    whole = [batch.tolist() for batch in numbers(20).iterator(epoch=0)]
    for used in range(len(whole) + 1):
        feed = make(numbers(20))
        steps = iter(feed)
        found = [next(steps).tolist() for _ in range(used)]
        for _ in range(2):
            feed.close()
        if used:
            for _ in range(2):
                with pytest.raises(PipelineClosedError, match=r"ended in epoch 0, before the epoch did: it was closed"):
                    next(steps)
        again = make(numbers(20))
        again.load_state_dict(json.loads(json.dumps(feed.state_dict())))
        assert found + [batch.tolist() for batch in again] == whole
        epoch = int(used > 0)
        assert [batch.tolist() for batch in feed] == [batch.tolist() for batch in numbers(20).iterator(epoch=epoch)]


def test_a_loop_that_is_left_is_followed_by_the_next_epoch() -> None:
    """Whether it was left, closed or failed: ``while feed.epoch < n`` trains on parts of n epochs."""
    feed = plain(numbers(20))
    begun = []
    while feed.epoch < 3:
        begun.append(feed.epoch)
        steps = iter(feed)
        found = next(steps).tolist()
        assert feed.epoch == begun[-1]
        assert found == next(numbers(20).iterator(epoch=begun[-1])).tolist()
        if feed.epoch == 1:
            feed.close()
        del steps
    assert begun == [0, 1, 2]


@pytest.mark.parametrize("make", [plain, ahead])
@pytest.mark.parametrize("executor", ["inline", "thread"])
def test_threads_may_share_an_iterator(executor: str, make: Callable[..., PlainFeed]) -> None:
    """Each batch goes to one of them, and all of them are counted."""
    feed = make(numbers(300, executor))
    steps = iter(feed)
    begin = threading.Barrier(4)

    def drain(_: int) -> list[int]:
        begin.wait()
        return [value for batch in steps for value in batch.tolist()]

    with ThreadPoolExecutor(4) as threads:
        found = list(itertools.chain(*threads.map(drain, range(4))))
    assert sorted(found) == list(range(300))
    assert (feed.epoch, feed.state_dict()["steps"]) == (1, 0)


def test_several_iterators_at_once_are_epochs_of_their_own() -> None:
    """The state is that of the one that began last, also while the others go on."""
    feed = plain(numbers(20))
    one, other = iter(feed), iter(feed)
    pairs = []
    for first in one:
        pairs.append((first.tolist(), next(other).tolist()))
        assert (feed.state_dict()["epoch"], feed.state_dict()["steps"]) == (1, len(pairs))
    for epoch, found in enumerate(zip(*pairs, strict=True)):
        assert list(found) == [batch.tolist() for batch in numbers(20).iterator(epoch=epoch)]
    assert next(other, None) is None
    assert feed.epoch == 2


def test_threads_that_begin_together_take_epochs_of_their_own() -> None:
    """Each iterator that a thread makes of one feed is another epoch, and of a copy of a feed, too."""
    for feed in (plain(numbers(20)), copy.deepcopy(plain(numbers(20)))):
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _, feed=feed: [batch.tolist() for batch in feed], range(8)))
        assert feed.epoch == 8
        epochs = [[batch.tolist() for batch in numbers(20).iterator(epoch=epoch)] for epoch in range(8)]
        assert sorted(found) == sorted(epochs)


@pytest.mark.parametrize("make", [plain, ahead])
def test_an_interrupt_keeps_the_state(make: Callable[..., PlainFeed], monkeypatch: pytest.MonkeyPatch) -> None:
    """A real signal while the trainer waits: the state counts what was handed out, and a resume gives the rest."""
    armed = [True]
    # Python reports an interrupt that comes inside a finalizer and drops it; pytest would make that a failure.
    monkeypatch.setattr(sys, "unraisablehook", lambda _report: None)

    def interrupted(number: int) -> int:
        if number == 13 and armed:
            armed.clear()
            signal.raise_signal(signal.SIGINT)
        return number

    def made() -> PlainFeed:
        return make(ad.Dataset.range(30).map(interrupted, executor="inline").batch(2))

    whole = [[number, number + 1] for number in range(0, 30, 2)]
    feed = made()
    found: list[list[int]] = []
    try:
        for batch in feed:
            found.append(batch.tolist())  # noqa: PERF401 -- what is found before the interrupt counts
    except KeyboardInterrupt:
        pass
    else:
        assert found == whole  # the interrupt came in the middle of a finalizer, where Python drops it
    state = feed.state_dict()
    again = made()
    again.load_state_dict(json.loads(json.dumps(state)))
    used = state["steps"] if state["epoch"] == 0 else len(whole)
    assert found in (whole[:used], whole[: used - 1])  # the last one may not have reached the list
    assert [batch.tolist() for batch in again] == (whole[used:] or whole)


def test_an_interrupt_while_a_batch_is_counted_leaves_it_to_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was given it."""
    feed = plain(ad.Dataset.range(30).batch(2))
    batches = iter(feed)
    found = [next(batches).tolist()]
    run = batches._run  # type: ignore[attr-defined]  # an interrupt at one step of it

    def interrupted(_count: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run._own, "forget", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    monkeypatch.undo()
    again = plain(ad.Dataset.range(30).batch(2))
    again.load_state_dict(feed.state_dict())
    found += [batch.tolist() for batch in again]
    assert found == [[number, number + 1] for number in range(0, 30, 2)]


@pytest.mark.sampled
@pytest.mark.parametrize("even", ["drop", "repeat", "pad", "agree", None])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_hardly_any_data_is_no_reason_to_hang(count: int, even: Any) -> None:
    """No batch, or one: a single process ends, epoch after epoch."""
    for make in (plain, ahead):
        feed = make(numbers(count), even=even)
        for epoch in range(3):
            assert feed.epoch == epoch
            assert len(list(feed)) == (count > 0)


@pytest.mark.parametrize("make", [plain, ahead])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda feed: pickle.loads(pickle.dumps(feed))])
def test_a_copy_goes_on_where_the_feed_is(copied: Callable[[Any], Any], make: Callable[..., PlainFeed]) -> None:
    """At each step of an epoch, and behind a commit; the feed itself goes on, too."""
    for steps in range(5):
        feed = make(numbers(10))
        batches = iter(feed)
        for _ in range(steps):
            next(batches)
        again = copied(feed)
        assert again.state_dict() == feed.state_dict()
        assert [batch.tolist() for batch in again] == [batch.tolist() for batch in batches]
        if steps:
            feed.commit(steps - 1)
            assert copied(feed).state_dict()["steps"] == steps - 1


@pytest.mark.parametrize("make", [plain, ahead])
def test_an_error_comes_behind_the_batches_before_it(make: Callable[..., PlainFeed]) -> None:
    """However many are on their way when it is met; once, and then the iteration is closed."""
    feed = make(ad.Dataset.range(10).map(lambda number: {"number": 1 // (int(number) - 6)}).batch(2))
    batches = iter(feed)
    for _ in range(3):
        next(batches)
    for kind in (ZeroDivisionError, PipelineClosedError, PipelineClosedError):
        with pytest.raises(kind):
            next(batches)
    assert feed.state_dict()["steps"] == 3


@pytest.mark.parametrize("state", [None, [], "state", 1, {}, {**plain(ad.Dataset.range(1)).state_dict(), "epoch": -1}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    """As any other state that does not fit."""
    feed = plain(numbers(10))
    for target in (feed, feed.all_ranks()):
        with pytest.raises(StateError, match="state"):
            target.load_state_dict(state)
