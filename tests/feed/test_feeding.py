"""Feeds: epochs, states at every step, and ranks that take the same number of steps whatever they have."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.errors import PipelineClosedError, PipelineError, StateError
from asyncdata.feed.even import WINDOW
from asyncdata.feed.own_batches import END, EpochPlace, OwnBatches
from asyncdata.feed.ranks import Even
from asyncdata.feed.run import Conversion, Run
from tests.feed.plain import Meeting, PlainFeed, on_all_ranks, plain
from tests.samples import samples

BATCH = 3


def numbers(count: int, *, known: bool) -> ad.Dataset:
    """Batches of the numbers below `count`, in another order in each epoch."""
    ds = ad.Dataset.range(count).shuffle(50, seed=1)
    return (ds if known else ds.filter(lambda _: True)).batch(BATCH)


def values(element: Any) -> list[int]:
    """The numbers in a batch that count."""
    if isinstance(element, tuple):
        batch, mask = element
        assert mask.shape == batch.shape[:1]
        return batch[mask].tolist()  # type: ignore[no-any-return]  # numpy says so
    return element.tolist()  # type: ignore[no-any-return]  # numpy says so


KINDS: dict[str, Callable[[], ad.Dataset]] = {
    "known": lambda: numbers(10, known=True),
    "unknown": lambda: numbers(10, known=False),
    "endless": lambda: ad.Dataset.range(7).repeat().batch(3).take(9),
    "as ready": lambda: ad.Dataset.range(9).map(abs, 2, deterministic=False, executor="thread").batch(2),
    "elements": lambda: ad.Dataset.range(5).filter(lambda _: True),
    "empty": lambda: ad.Dataset.range(0).batch(2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_gives_the_batches_of_each_epoch(kind: str) -> None:
    """The same batches as the dataset's own iterator, in epoch 0, 1, 2; and states between them begin the next."""
    ds, feed = KINDS[kind](), plain(KINDS[kind]())
    for epoch in range(3):
        assert feed.epoch == epoch
        assert feed.state_dict()["epoch"] == epoch
        found = [np.asarray(batch).tolist() for batch in feed]
        expected = [np.asarray(batch).tolist() for batch in ds.iterator(epoch=epoch)]
        if kind == "as ready":
            assert sorted(itertools.chain(*found)) == sorted(itertools.chain(*expected))
        else:
            assert found == expected


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_goes_on_at_every_step(kind: str) -> None:
    """From the state behind each batch, another feed gives the rest of the epoch and the whole next one."""
    feed = plain(KINDS[kind]())
    whole = [np.asarray(batch).tolist() for batch in feed]
    following = [np.asarray(batch).tolist() for batch in feed]
    states = [plain(KINDS[kind]()).state_dict()]
    feed = plain(KINDS[kind]())
    used: list[Any] = []
    for batch in feed:
        used.append(np.asarray(batch).tolist())
        states.append(json.loads(json.dumps(feed.state_dict())))
    for step, state in enumerate(states):
        again = plain(KINDS[kind]())
        again.load_state_dict(state)
        assert again.state_dict() == state
        rest = [np.asarray(batch).tolist() for batch in again]
        if kind == "as ready":
            assert sorted(itertools.chain(*used[:step], *rest)) == list(range(9))
        else:
            assert rest == whole[step:]
            assert [np.asarray(batch).tolist() for batch in again] == following


def test_the_end_of_an_epoch_is_the_beginning_of_the_next() -> None:
    """Behind the last batch there is nothing left of the epoch; behind the loop the next epoch begins."""
    feed = plain(numbers(10, known=True))
    inside = [feed.state_dict() for _ in feed][-1]
    outside = feed.state_dict()
    assert (inside["epoch"], inside["steps"]) == (0, 4)
    assert (outside["epoch"], outside["steps"], outside["pipeline"]) == (1, 0, None)
    feed.load_state_dict(inside)
    assert (list(feed), feed.epoch) == ([], 1)


def test_iterators_that_are_never_used_take_no_epoch() -> None:
    """Trainers make them; neither a pipeline nor a number is spent on them, and the state stays."""
    feed = plain(numbers(10, known=True))
    batches = iter(feed)
    next(batches)
    state = feed.state_dict()
    for _ in range(3):
        iter(feed)
    assert feed.state_dict() == state
    assert sum(1 for _ in batches) == 3
    assert feed.epoch == 1


@pytest.mark.parametrize("end", ["break", "error", "del"])
def test_a_loop_that_is_left_keeps_its_state_and_nothing_else(end: str) -> None:
    """The pipeline ends with the loop, though the feed lives; its state goes on behind the last batch."""
    feed = plain(numbers(100, known=True))

    def leave() -> None:
        batches = iter(feed)
        for _ in range(2):
            next(batches)
        if end == "error":
            raise KeyError
        if end == "del":
            del batches

    with contextlib.suppress(KeyError):
        leave()
    gc.collect()
    assert feed.state_dict()["steps"] == 2
    iterator = feed._run._own._passes[-1].iterator  # type: ignore[union-attr]  # it ran
    assert "closed" in repr(iterator)
    iterator.close()
    again = plain(numbers(100, known=True))
    again.load_state_dict(feed.state_dict())
    assert len(list(again)) == 32


def test_an_error_ends_the_iteration_and_keeps_the_state() -> None:
    """Of a function, or an interrupt between steps: the state counts what was handed out, and nothing more comes."""

    def stop(number: int) -> int:
        if number == 7:
            raise ValueError("number seven")
        return number

    feed = plain(ad.Dataset.range(20).map(stop).batch(2))
    batches = iter(feed)
    assert [next(batches).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="number seven"):
        next(batches)
    assert feed.state_dict()["steps"] == 3
    with pytest.raises(PipelineClosedError, match="number seven"):
        next(batches)
    interrupted = plain(numbers(30, known=True))
    batches = iter(interrupted)
    first = next(batches).tolist()
    interrupted._run._hand._convert = _interrupt  # type: ignore[union-attr]  # it ran
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(PipelineClosedError):
        next(batches)
    again = plain(numbers(30, known=True))
    again.load_state_dict(interrupted.state_dict())
    whole = [batch.tolist() for batch in numbers(30, known=True).iterator(epoch=0)]
    assert [first, *(batch.tolist() for batch in again)] == whole


def _interrupt(batch: Any) -> Any:
    raise KeyboardInterrupt


def test_a_commit_says_what_was_used() -> None:
    """A trainer that asks ahead commits; the state is that of the batches it has used, in each epoch anew."""
    feed = plain(numbers(30, known=True))
    for epoch in range(2):
        batches = iter(feed)
        ahead = [next(batches) for _ in range(3)]
        assert feed.state_dict()["steps"] == 3
        feed.commit()
        assert (feed.state_dict()["epoch"], feed.state_dict()["steps"]) == (epoch, 1)
        for _ in range(5):
            ahead.append(next(batches))
            feed.commit()
        assert feed.state_dict()["steps"] == 6
        again = plain(numbers(30, known=True))
        again.load_state_dict(feed.state_dict())
        rest = [batch.tolist() for batch in again]
        assert rest[:2] == [batch.tolist() for batch in ahead[6:]]
        list(batches)
        assert feed.state_dict()["steps"] == 6
        feed.commit(10)
        assert feed.state_dict()["epoch"] == epoch + 1
    for step, message in ((11, "10 batches of the epoch were handed out"), (9, "committed after 10")):
        with pytest.raises(ValueError, match=message):
            feed.commit(step)
    with pytest.raises(ValueError, match="no batch was handed out"):
        plain(numbers(3, known=True)).commit()
    # Nor can steps of before a resume, whose states nobody has any more.
    again = plain(numbers(30, known=True))
    next(iter(again))
    state = again.state_dict()
    again.load_state_dict(state)
    steps = iter(again)
    next(steps)
    with pytest.raises(ValueError, match="step 0 was committed after 1"):
        again.commit(0)
    again.commit(1)
    assert again.state_dict() == state


def test_epochs_can_be_numbered_by_the_trainer() -> None:
    """set_epoch chooses the next epoch, and keeps a state of this epoch that was loaded."""
    feed = plain(numbers(10, known=True))
    feed.set_epoch(5)
    batches = iter(feed)
    first, state = next(batches), feed.state_dict()
    assert first.tolist() == next(numbers(10, known=True).iterator(epoch=5)).tolist()
    feed.load_state_dict(state)
    feed.set_epoch(5)
    assert len(list(feed)) == 3
    feed.load_state_dict(state)
    feed.set_epoch(6)
    batches = iter(feed)
    next(batches)
    feed.set_epoch(6)  # the one that runs
    assert (len(list(batches)), feed.epoch) == (3, 7)
    feed.set_epoch(6)  # once more
    assert (len(list(feed)), feed.epoch) == (4, 7)


@pytest.mark.parametrize("begun", ["never", "left", "ended"])
def test_a_chosen_epoch_is_part_of_the_state(begun: str) -> None:
    """State and copies of a feed know the epoch that set_epoch chose, before its first batch, too."""
    feed = plain(numbers(10, known=True))
    if begun == "left":
        next(iter(feed))
    elif begun == "ended":
        list(feed)
    feed.set_epoch(5)
    expected = [batch.tolist() for batch in numbers(10, known=True).iterator(epoch=5)]
    state = feed.state_dict()
    again = plain(numbers(10, known=True))
    again.load_state_dict(state)
    for each in (copy.deepcopy(feed), again, feed):
        assert each.epoch == 5
        assert [batch.tolist() for batch in each] == expected


def test_a_chosen_epoch_follows_the_one_that_runs() -> None:
    """While another epoch runs, the state is a place in that one; behind its end it is the beginning of the next."""
    feed = plain(numbers(10, known=True))
    batches = iter(feed)
    next(batches)
    feed.set_epoch(5)
    next(batches)
    assert (feed.state_dict()["epoch"], feed.state_dict()["steps"]) == (0, 2)
    assert len(list(batches)) == 2
    assert (feed.state_dict()["epoch"], feed.state_dict()["steps"]) == (5, 0)


def test_numbers_of_numpy_do_not_get_into_states() -> None:
    """JSON holds a state whatever type of integer the caller counts with."""
    feed = plain(numbers(20, known=True), np.int64(0), world=np.int64(2))  # type: ignore[arg-type]  # what is tried
    feed.set_epoch(np.int64(3))  # type: ignore[arg-type]  # as above
    batches = iter(feed)
    next(batches)
    feed.commit(np.int64(1))  # type: ignore[arg-type]  # as above
    state = feed.state_dict()
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"rank": 1, "world": 2}, "rank 1 of 2, and this is rank 0 of 1"),
        ({"steps": None}, "not the state of a feed"),
        ({"rank": 5}, "not the state of a feed"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    """With what is wrong with it; a state of another pipeline when the iteration begins."""
    feed = plain(numbers(10, known=True))
    next(iter(feed))
    state = feed.state_dict()
    with pytest.raises(StateError, match=message):
        feed.load_state_dict({**state, **change})
    with pytest.raises(StateError, match="not the state of a feed"):
        feed.load_state_dict(ad.Dataset.range(3).iterator().state_dict())
    other = plain(ad.Dataset.range(3))
    other.load_state_dict(state)
    with pytest.raises(StateError, match="another pipeline"):
        list(other)


def test_a_feed_has_a_length_where_it_is_known() -> None:
    """Steps of an epoch on every rank; TypeError says what is not known."""
    assert len(plain(numbers(10, known=True))) == 4
    assert len(plain(numbers(10, known=True), even=None)) == 4
    assert [len(plain(numbers(10, known=True), rank, world=4, even="drop")) for rank in range(4)] == [1] * 4
    assert [len(plain(numbers(13, known=True), rank, world=4, even="pad")) for rank in range(4)] == [2] * 4
    assert [len(plain(numbers(13, known=True), rank, world=4, even=None)) for rank in range(4)] == [2, 1, 1, 1]
    for settings in ({"even": "drop"}, {"even": None}, {"even": "agree", "world": 2}, {"world": 2, "shard": False}):
        with pytest.raises(TypeError, match="known"):
            len(plain(numbers(10, known="shard" in settings), **settings))
        assert plain(numbers(10, known="shard" in settings), **settings)  # ``if batches:`` asks nothing
    with pytest.raises(TypeError, match="infinite"):
        len(plain(ad.Dataset.range(3).repeat()))


# --- even steps --------------------------------------------------------------------------------------------------


def uneven(counts: list[int], rank: int, *, known: bool) -> ad.Dataset:
    """A rank's own numbers: so many, all different from the other ranks'."""
    mine = ad.Dataset.range(1000 * rank, 1000 * rank + counts[rank])
    return (mine.shuffle(50, seed=1) if known else mine.shuffle(50, seed=1).filter(lambda _: True)).batch(BATCH)


def steps_of(counts: list[int], even: str) -> int:
    """How many steps every rank must take."""
    batches = [-(-count // BATCH) for count in counts]
    return max(batches) if even in ("repeat", "pad") else min(batches)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(12, 200)))
@pytest.mark.parametrize("even", ["drop", "repeat", "pad", "agree"])
def test_all_ranks_take_the_same_number_of_steps(even: str, seed: int) -> None:
    """No rank waits for another; nothing is given twice but by "repeat"; "pad" marks what is no data."""
    chance = random.Random(f"{even}{seed}")
    world = chance.randrange(1, 4)
    counts = [chance.randrange(1 if even == "repeat" else 0, 40) for _ in range(world)]
    if even == "pad" and not all(counts):
        counts[counts.index(0)] = 0  # the shape of padding comes from the others: see below
    sharded = chance.random() < 0.3
    total, known = sum(counts), chance.random() < 0.5
    meeting = Meeting(world)
    if sharded:
        counts = [len(range(rank, total, world)) for rank in range(world)]

    def run(rank: int) -> list[list[list[int]]]:
        ds = numbers(total, known=known) if sharded else uneven(counts, rank, known=known)
        feed = plain(ds, rank, meeting, world=world, even=even, shard=sharded)
        return [[values(batch) for batch in feed] for _ in range(2)]

    if even in ("pad", "repeat") and not all(counts):
        return
    for epochs in zip(*on_all_ranks(world, run), strict=True):
        assert {len(steps) for steps in epochs} == {steps_of(counts, even)}
        given = [value for steps in epochs for batch in steps for value in batch]
        assert even == "repeat" or len(set(given)) == len(given)
        if even in ("repeat", "pad"):
            assert len(set(given)) == sum(counts)
        if even == "drop" and world == 1:
            assert len(given) == sum(counts)
    if known and sharded and even != "agree":
        assert meeting.votes == 0


@pytest.mark.sampled
@pytest.mark.parametrize("even", ["drop", "repeat", "pad"])
@pytest.mark.parametrize("known", [False, True])
def test_ranks_go_on_at_every_step(even: str, *, known: bool) -> None:
    """All ranks load the states behind one step, and give exactly what was left of the epoch, and the next one."""
    world, counts = 2, [7, 20]

    def feed_of(rank: int, meeting: Meeting) -> Any:
        return plain(uneven(counts, rank, known=known), rank, meeting, world=world, even=even, shard=False)

    meeting = Meeting(world)

    def run(rank: int) -> tuple[list[Any], list[Any], list[Any]]:
        feed = feed_of(rank, meeting)
        given, states = [], [feed.state_dict()]
        for batch in feed:
            given.append(values(batch))
            states.append(json.loads(json.dumps(feed.state_dict())))
        return given, [values(batch) for batch in feed], states

    whole = on_all_ranks(world, run)
    assert len({len(given) for given, _, _ in whole}) == 1
    for step in range(len(whole[0][2])):
        later = Meeting(world)

        def go_on(rank: int, step: int = step, later: Meeting = later) -> tuple[list[Any], list[Any]]:
            feed = feed_of(rank, later)
            feed.load_state_dict(whole[rank][2][step])
            return [values(batch) for batch in feed], [values(batch) for batch in feed]

        assert on_all_ranks(world, go_on) == [(given[step:], following) for given, following, _ in whole]


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("kept", [False, True])
def test_a_short_part_has_a_state_behind_every_step(depth: int, *, kept: bool) -> None:
    """However often the part was read again for batches that are not used yet."""
    ds, count = ad.Dataset.range(2).batch(1), 12

    def run(place: EpochPlace) -> Run:
        hand = Conversion(lambda batch: int(batch[0]), depth)
        own = OwnBatches(ds, ds, place, "repeat")
        return Run(own, place, steps=count, even="repeat", least=None, hand=hand, kept=kept)

    whole, begun = [0, 1] * (count // 2), run(EpochPlace(0))
    if kept:
        assert [begun.next() for _ in range(count)] == whole
    for step in range(1, count + 1):
        if kept:
            begun.commit(None)
        else:
            begun.next()
        again = run(begun.place())
        assert [*iter(again.next, END)] == whole[step:]
    begun.close()


def test_a_first_commit_may_lie_before_the_pass_that_is_read() -> None:
    """The part was begun again meanwhile; what cannot be committed changes nothing."""
    ds = ad.Dataset.range(3).batch(1)

    def run(place: EpochPlace) -> Run:
        hand = Conversion(lambda batch: int(batch[0]))
        return Run(OwnBatches(ds, ds, place, "repeat"), place, steps=20, even="repeat", least=None, hand=hand)

    for handed in (5, 8, 16):
        begun = run(EpochPlace(0))
        assert [begun.next() for _ in range(handed)] == [step % 3 for step in range(handed)]
        begun.commit(2)
        again = run(begun.place())
        assert [*iter(again.next, END)] == [step % 3 for step in range(2, 20)]
        begun.close()


def test_a_pass_begun_after_a_commit_keeps_its_states() -> None:
    """The trainer is far ahead of what it has used when the part is begun again."""
    ds, count = ad.Dataset.range(30).batch(1), 60
    place = EpochPlace(0)
    hand = Conversion(lambda batch: int(batch[0]))
    own = OwnBatches(ds, ds, place, "repeat")
    begun = Run(own, place, steps=count, even="repeat", least=None, hand=hand, kept=True)
    for _ in range(count):
        begun.next()
    for step in range(1, count):
        begun.commit(None)
        assert begun.place().steps == step
    begun.close()


def test_a_rank_without_data_is_padded() -> None:
    """With a batch of the whole dataset, none of whose rows counts."""
    world, meeting = 3, Meeting(3)

    def run(rank: int) -> list[Any]:
        ds = numbers(2, known=False)
        return list(plain(ds, rank, meeting, world=world, even="pad"))

    ranks = on_all_ranks(world, run)
    assert [len(batches) for batches in ranks] == [1, 1, 1]
    assert sorted(value for batches in ranks for batch in batches for value in values(batch)) == [0, 1]
    assert not ranks[2][0][1].any()


def test_a_rank_without_data_cannot_repeat() -> None:
    """All ranks raise the error: none is left waiting."""
    for known in (False, True):
        meeting = Meeting(2)

        def run(rank: int, meeting: Meeting = meeting, *, known: bool = known) -> str:
            with pytest.raises(PipelineError, match="no batch that it could repeat") as raised:
                list(plain(numbers(1, known=known), rank, meeting, world=2, even="repeat"))
            return str(raised.value)

        on_all_ranks(2, run)


def test_a_rank_that_fails_takes_the_others_along() -> None:
    """Its own error there, and an error that points to it elsewhere; no rank waits for it."""
    meeting = Meeting(2)

    def damaged(number: int) -> int:
        if number == 20:
            raise ZeroDivisionError("this element is damaged")
        return number

    def run(rank: int) -> None:
        mine = ad.Dataset.range(60).map(damaged if rank else abs).filter(lambda _: True)
        feed = plain(mine.batch(2), rank, meeting, world=2, shard=False)
        with pytest.raises(
            ZeroDivisionError if rank else PipelineError, match="damaged" if rank else "another rank failed"
        ):
            list(feed)

    on_all_ranks(2, run)


def test_a_ranks_own_error_is_raised_though_the_others_cannot_be_told() -> None:
    """It says why this rank has failed; that the others were not reached is a note on it."""

    class Broken(Meeting):
        def least(self, numbers: list[int]) -> list[int]:
            raise PipelineError(f"no rank took {len(numbers)} numbers")

    ds = ad.Dataset.range(3).map(lambda number: 1 // int(number)).filter(lambda _: True).batch(1)
    with pytest.raises(ZeroDivisionError) as raised:
        list(plain(ds, 0, Broken(2), world=2, shard=False))
    assert any("no rank took 7 numbers" in note for note in raised.value.__notes__)


def test_ranks_at_different_steps_are_told() -> None:
    """States of different steps would make a run that no uninterrupted run equals."""
    meeting = Meeting(2)

    def run(rank: int) -> None:
        feed = plain(uneven([40, 40], rank, known=False), rank, meeting, world=2, shard=False)
        batches = iter(feed)
        states = [(next(batches), feed.state_dict())[1] for _ in range(2)]
        feed.load_state_dict(states[rank])
        with pytest.raises(PipelineError, match="different steps, from 1 to 2"):
            list(feed)

    on_all_ranks(2, run)


@pytest.mark.parametrize("cause", ["set_epoch", "state"])
def test_ranks_in_different_epochs_are_told(cause: str) -> None:
    """One that did not load its state, or not set its epoch, would read what another one does, in another order."""
    meeting, far = Meeting(2), (1 << 31) + 5  # which ranks could not compare as it is

    def run(rank: int) -> None:
        feed = plain(numbers(40, known=False), rank, meeting, world=2)
        if cause == "set_epoch":
            feed.set_epoch(far + 2 * rank)
        else:
            list(feed)
            state = feed.state_dict()
            feed = plain(numbers(40, known=False), rank, meeting, world=2)
            if rank:
                feed.load_state_dict(state)
        with pytest.raises(PipelineError, match=r"different epochs, from (5 to 7|0 to 1)"):
            list(feed)

    on_all_ranks(2, run)


def test_a_rank_that_has_fewer_than_it_said_is_an_error() -> None:
    """A dataset whose length was asserted wrongly never makes the others wait in silence."""
    ds = ad.Dataset.range(8).filter(lambda number: number < 4).assert_cardinality(8)
    with pytest.raises(PipelineError, match=r"assert_cardinality|this rank has"):
        list(plain(ds, 0, world=2))
    skipped = ad.Dataset.range(8).map(lambda number: 1 // number)
    feed = plain(skipped.with_options(ad.Options(errors=ad.ErrorPolicy())), 0, Meeting(1), world=2)
    with pytest.raises(TypeError, match="not known in advance"):
        len(feed)
    asserted = skipped.assert_cardinality(7).with_options(ad.Options(errors=ad.ErrorPolicy()))
    assert len(plain(asserted, 0)) == 7


def test_the_error_policy_of_a_runtime_counts() -> None:
    """It leaves out as many elements as one of the pipeline does: nobody expects the batches that they were in."""
    feed = plain(ad.Dataset.range(5).map(lambda number: 1 // int(number)).batch(2), 0, Meeting(1))
    assert len(feed) == 3
    with ad.Runtime(ad.Options(errors=ad.ErrorPolicy(), num_workers=0)):
        with pytest.raises(TypeError, match="not known without running it"):
            len(feed)
        assert [values(batch) for batch in feed] == [[1, 0], [0, 0]]


def test_a_vote_is_only_taken_every_few_steps() -> None:
    """So few that they cost nothing, and batches that are dropped were read ahead by one window at most."""
    world, meeting = 2, Meeting(2)

    def run(rank: int) -> int:
        return len(list(plain(uneven([60, 90], rank, known=False), rank, meeting, world=world, shard=False)))

    assert on_all_ranks(world, run) == [20, 20]
    assert meeting.votes == 20 // WINDOW + 1


@pytest.mark.sampled
@pytest.mark.parametrize("even", ["drop", "repeat", "pad", "agree"])
@pytest.mark.parametrize("counts", [[33, 21], [24, 48], [8, 47], [3, 40, 18]])
def test_a_state_knows_what_was_agreed_on(even: Even, counts: list[int]) -> None:
    """A run that goes on from any step votes where the whole one does, and all ranks' states know the same."""
    world = len(counts)

    def batches(rank: int, meeting: Meeting) -> Any:
        return plain(uneven(counts, rank, known=False), rank, meeting, world=world, even=even, shard=False)

    def states(rank: int) -> tuple[int, list[Any]]:
        feed = batches(rank, whole)
        found = [(json.loads(json.dumps(feed.state_dict())), values(batch)) for batch in feed]
        return len(found), found

    whole = Meeting(world)
    ranks = on_all_ranks(world, states)
    ((steps, _), *_) = ranks
    votes = [*range(0, steps + 1, WINDOW)]
    assert whole.steps == votes
    for step in range(1, steps + 1):
        told = [found[step - 1][0]["agreed"] for _, found in ranks]
        # Where a vote comes next, there is nothing to know of the votes before.
        due = None if step % WINDOW == 0 else [even, min(step + WINDOW - step % WINDOW, steps)]
        assert told == [due] * world
        again = Meeting(world)

        def rest(rank: int, step: int = step, again: Meeting = again) -> list[Any]:
            feed = batches(rank, again)
            feed.load_state_dict(ranks[rank][1][step - 1][0])
            return [values(batch) for batch in feed]

        assert on_all_ranks(world, rest) == [[batch for _, batch in found[step:]] for _, found in ranks]
        assert again.steps[0] == step  # the ranks compare what they know
        assert again.steps[1:] == [vote for vote in votes if vote >= step]


@pytest.mark.parametrize("recall", [["repeat", 6], None])
def test_a_state_in_front_of_the_first_vote_is_the_loaded_one(recall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is interrupted before it has asked the others knows what its state does, and nothing more."""

    def loaded(state: Any = None) -> PlainFeed:
        ds = ad.Dataset.range(18).filter(lambda _: True).batch(BATCH)
        feed = plain(ds, 0, Meeting(1), world=2, even="repeat", shard=False)
        if state is not None:
            feed.load_state_dict(state)
        return feed

    feed = loaded()
    for _ in itertools.islice(feed, 5):
        pass
    state = {**feed.state_dict(), "agreed": recall}
    again = loaded(state)
    with monkeypatch.context() as patched:
        patched.setattr(OwnBatches, "own", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(iter(again))
    assert again.state_dict()["agreed"] == recall
    assert [values(batch) for batch in loaded(again.state_dict())] == [[15, 16, 17]]


def test_ranks_that_know_different_things_vote() -> None:
    """As from states that another version wrote, or if ``even`` is another than before; nobody waits for ever."""
    meeting = Meeting(2)

    def rest(rank: int, state: Any, even: Even) -> int:
        feed = plain(uneven([30, 18], rank, known=False), rank, meeting, world=2, even=even, shard=False)
        feed.load_state_dict(state)
        return len(list(feed))

    def run(rank: int) -> list[int]:
        feed = plain(uneven([30, 18], rank, known=False), rank, meeting, world=2, shard=False)
        steps = iter(feed)
        next(steps)
        state = feed.state_dict()
        return [rest(rank, state if rank else {**state, "agreed": None}, "drop"), rest(rank, state, "pad")]

    assert on_all_ranks(2, run) == [[5, 9]] * 2
    feed = plain(uneven([30, 18], 0, known=False), 0, meeting, world=2, shard=False)
    with pytest.raises(StateError, match="have agreed on 'seven'"):
        feed.load_state_dict({**feed.state_dict(), "agreed": "seven"})
