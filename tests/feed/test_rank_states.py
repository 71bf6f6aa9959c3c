"""States of all ranks: each loads its own, another number of ranks divides the rest; what a callback keeps."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.errors import PipelineClosedError, PipelineError, StateError
from asyncdata.feed.feeding import AllRanks, Feed, UsedBatches
from asyncdata.feed.own_batches import OwnBatches
from asyncdata.feed.ranks import Even
from tests.feed.plain import Meeting, on_all_ranks, plain
from tests.samples import samples

BATCH = 3


def numbers(count: int, *, known: bool) -> ad.Dataset:
    """Batches of the numbers below `count`, in another order in each epoch."""
    ds = ad.Dataset.range(count).shuffle(8, seed=1)
    return (ds if known else ds.filter(lambda _: True)).batch(BATCH)


def trained(
    world: int,
    count: int | Callable[[], ad.Dataset],
    states: Sequence[Mapping[str, Any]] | None,
    stop: int | None,
    *,
    known: bool = True,
    **settings: Any,
) -> tuple[list[list[int]], list[dict[str, Any]], list[int]]:
    """What each rank is given from states on until it stops, their states there, and their numbers of steps."""
    meeting = Meeting(world)

    def of(rank: int) -> tuple[list[int], dict[str, Any], int]:
        ds = count() if callable(count) else numbers(count, known=known)
        feed = plain(ds, rank, meeting, world=world, **settings)
        if states is not None:
            AllRanks(feed).load_state_dict({"ranks": states})
        given: list[int] = []
        steps = 0
        for element in itertools.islice(feed, stop):
            batch = element[0][element[1]] if settings["even"] == "pad" else element
            given += batch.tolist()
            steps += 1
        return given, json.loads(json.dumps(feed.state_dict())), steps

    given, after, steps = zip(*on_all_ranks(world, of), strict=True)
    return list(given), list(after), list(steps)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(5, 150)))
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("even", ["drop", "pad", "agree"])
def test_another_number_of_ranks_divides_the_rest(even: Even, seed: int, *, known: bool) -> None:
    """Twice in a row, at drawn steps: all ranks together give each element once, in as many steps each."""
    draw = random.Random(seed)
    count = draw.randint(20, 60)
    worlds = [draw.randint(1, 4) for _ in range(3)]
    states: list[dict[str, Any]] | None = None
    seen: list[int] = []
    for world, stop in zip(worlds, (draw.randint(0, 2), draw.randint(0, 2), None), strict=True):
        if states is not None and states[0]["epoch"]:
            break  # the ranks before had left nothing, and this was the end of the epoch
        given, states, steps = trained(world, count, states, stop, even=even, known=known)
        seen += list(itertools.chain(*given))
        assert len(set(steps)) == 1
    assert states is not None
    assert {(state["epoch"], state["begun_by"]) for state in states} == {(1, 0)}
    assert len(seen) == len(set(seen))
    if even == "pad":
        assert sorted(seen) == list(range(count))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three files of 8, 9 and 10 numbers."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(3):
        with ad.TFRecordWriter(f"{folder}/{number}.tfrecord") as writer:
            for record in range(8 + number):
                writer.write(f"{100 * number + record}".encode())
    return [f"{folder}/{number}.tfrecord" for number in range(3)]


SOURCES: dict[str, Callable[[list[str]], ad.Dataset]] = {
    "one file": lambda paths: ad.TFRecordDataset(paths[0]),
    "two files": lambda paths: ad.TFRecordDataset(paths[:2]),
    "three files": lambda paths: ad.TFRecordDataset(paths).shuffle(5, seed=1),
    "listed": lambda paths: ad.Dataset.list_files(f"{paths[0][:-10]}*", seed=1).interleave(ad.TFRecordDataset),
    "taken": lambda paths: ad.TFRecordDataset(paths).take(20),
    "slices": lambda _: ad.Dataset.from_tensor_slices(np.arange(20)).shuffle(5, seed=1),
    "generated": lambda _: ad.Dataset.from_generator(lambda: range(20), output_signature=ad.ArraySpec((), "i8")),
    "as ready": lambda paths: ad.TFRecordDataset(paths).map(int, 2, deterministic=False, executor="thread"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("source", SOURCES)
def test_a_source_is_divided_anew_or_refused(source: str, paths: list[str]) -> None:
    """From any number of ranks to any other: each element once, or an error that says how many ranks there can be."""

    def make() -> ad.Dataset:
        return SOURCES[source](paths).map(int, executor="inline").batch(2)

    whole = sorted(itertools.chain(*(batch.tolist() for batch in make().iterator(epoch=0))))
    for before, after in itertools.permutations(range(1, 5), 2):
        seen, states, _ = trained(before, make, None, 1, even="pad")
        files = {"two files": 2, "three files": 3, "as ready": 3}.get(source, after)
        if max(before, 2) <= files < after:
            message = f"begun by {before} ranks, .* {files} ranks at most, and there are {after}. set_epoch"
            with pytest.raises(StateError, match=message):
                trained(after, make, states, None, even="pad")
        else:
            rest, _, _ = trained(after, make, states, None, even="pad")
            assert sorted(itertools.chain(*seen, *rest)) == whole


def test_a_divided_epoch_goes_on_at_every_step() -> None:
    """Its states are those of the new ranks, and begin the next epoch as usual."""
    _, states, _ = trained(3, 40, None, 2, even="pad", known=True)
    whole, _, (steps, _) = trained(2, 40, states, None, even="pad", known=True)
    for stop in range(1, steps):
        first, after, _ = trained(2, 40, states, stop, even="pad", known=True)
        assert after[0]["begun_by"] == 3
        rest, last, _ = trained(2, 40, after, None, even="pad", known=True)
        assert [sorted(one + other) for one, other in zip(first, rest, strict=True)] == list(map(sorted, whole))
        following, _, _ = trained(2, 40, last, None, even="pad", known=True)
        assert sorted(itertools.chain(*following)) == list(range(40))


def test_a_rank_that_got_nothing_of_a_divided_epoch_cannot_repeat() -> None:
    """All ranks raise the error, in the middle of an epoch, too; where nobody has a batch left, the epoch ends."""

    def most() -> ad.Dataset:
        return ad.Dataset.range(12).filter(lambda number: number % 3 > 0).batch(1)  # none for the first of three ranks

    for stop in range(1, 5):
        _, states, _ = trained(2, most, None, stop, even="repeat")
        meeting = Meeting(3)

        def rest(rank: int, states: Any = states, meeting: Meeting = meeting) -> list[Any]:
            feed = plain(most(), rank, meeting, world=3, even="repeat")
            AllRanks(feed).load_state_dict({"ranks": states})
            return list(feed)

        if stop == 4:
            assert on_all_ranks(3, rest) == [[]] * 3
            continue

        def refused(rank: int, rest: Callable[[int], Any] = rest) -> None:
            with pytest.raises(PipelineError, match="no batch that it could repeat"):
                rest(rank)

        on_all_ranks(3, refused)


def test_states_that_cannot_be_divided_are_refused() -> None:
    """With the reason."""
    _, states, _ = trained(3, 40, None, 2, even="pad", known=True)
    _, later, _ = trained(3, 40, None, 3, even="pad", known=True)
    _, (single,), _ = trained(1, lambda: numbers(40, known=True).unbatch().batch(3), None, 2, even=None)
    for wrong, message in (
        (states[:2], "rank 0 of 3, rank 1 of 3, and this is rank 0 of 2"),
        ([], "no rank"),
        ([*states[:2], later[2]], "rank 2 was at step 3 of epoch 0"),
        ([*states[:2], {**states[2], "turn": 1}], "even='repeat'"),
        ([single], "no shard.*cannot be divided among 2 ranks: set_epoch"),
        ([{}], "not the state of a feed"),
    ):
        with pytest.raises(StateError, match=message):
            AllRanks(plain(numbers(40, known=True), 0, world=2)).load_state_dict({"ranks": wrong})
    with pytest.raises(StateError, match="all ranks"):
        AllRanks(plain(numbers(40, known=True))).load_state_dict(single)
    beginning = plain(numbers(40, known=True), 0, world=2)
    beginning.all_ranks().load_state_dict({"ranks": [plain(numbers(40, known=True)).state_dict()]})
    assert beginning.epoch == 0


# --- what a callback keeps ---------------------------------------------------------------------------------------


def place(feed: Feed) -> tuple[int, int]:
    """Epoch and step of its state."""
    state = feed.state_dict()
    return state["epoch"], state["steps"]


def test_only_whole_optimizer_steps_are_used() -> None:
    """Batches that were asked for ahead, or whose gradients wait, are not; nor are those of a forgotten step."""
    feed = plain(numbers(20, known=False))
    used = UsedBatches(feed)
    assert place(feed) == (0, 0)
    steps = iter(feed)
    for expected, stepped in ((0, False), (2, True), (3, True), (3, False), (3, False), (6, True)):
        next(steps)
        assert place(feed)[0] == 0
        used.trained(stepped=stepped)
        assert place(feed) == (0, expected)
    next(steps)
    assert place(feed) == (0, 6)
    assert next(steps, None) is None
    assert place(feed) == (0, 6)  # the last batch was not trained on
    used.begin_epoch()
    next(iter(feed))
    assert place(feed) == (1, 0)


def test_a_callback_takes_nothing_but_a_feed() -> None:
    """Neither the dataset nor a DataLoader around the feed, which would fail in the middle of the training only."""
    with pytest.raises(TypeError, match=r"batches must be a feed, such as .*, not a Dataset"):
        UsedBatches(numbers(20, known=True))  # type: ignore[arg-type]  # the mistake


def test_a_kept_position_is_loaded_by_its_keeper_alone() -> None:
    """A trainer that saves the feed beside the callback does not move it, not even with another rank's state."""
    feed = plain(numbers(20, known=True), 1, world=2)
    used = UsedBatches(feed)
    other = plain(numbers(20, known=True), 0, world=2)
    next(iter(other))
    feed.load_state_dict(other.state_dict())
    assert place(feed) == (0, 0)
    mine = plain(numbers(20, known=True), 1, world=2)
    next(iter(mine))
    used.load_state_dict({"ranks": [other.state_dict(), mine.state_dict()]})
    assert place(feed) == (0, 1)


@pytest.mark.parametrize("known", [False, True])
def test_an_epoch_that_the_trainer_ends_is_followed_by_the_next_one(*, known: bool) -> None:
    """Whatever it has left of it, and has asked for ahead."""
    feed = plain(numbers(20, known=known))
    used = UsedBatches(feed)
    used.end_epoch()
    assert place(feed) == (0, 0)
    steps = iter(feed)
    for _ in range(3):
        next(steps)
    for _ in range(2):
        used.trained(stepped=True)
    used.end_epoch()
    assert place(feed) == (1, 0)
    assert list(steps) == []
    assert next(iter(feed)).tolist() == next(iter(numbers(20, known=known).iterator(epoch=1))).tolist()


def test_an_iteration_that_was_not_used_is_begun_again() -> None:
    """A trainer that asks one iterator ahead may take another one; only whoever commits knows."""
    expected = [batch.tolist() for batch in numbers(20, known=False)]
    feed = plain(numbers(20, known=False))
    used = UsedBatches(feed)
    next(iter(feed))
    steps = iter(feed)
    assert [next(steps).tolist() for _ in range(2)] == expected[:2]
    used.trained(stepped=True)
    again = plain(numbers(20, known=False))
    UsedBatches(again).load_state_dict(used.state_dict())
    next(iter(again))
    assert [batch.tolist() for batch in again] == expected[1:]
    feed.set_epoch(3)
    assert next(iter(feed)).tolist() == next(iter(numbers(20, known=False).iterator(epoch=3))).tolist()


@pytest.mark.parametrize("known", [False, True])
def test_looking_ahead_ends_an_epoch_of_which_nothing_is_left(*, known: bool) -> None:
    """And changes nothing else: the same batches follow."""
    feed, expected = plain(numbers(7, known=known)), [batch.tolist() for batch in numbers(7, known=known)]
    feed.look_ahead()
    found, places = [], []
    for batch in feed:
        found.append(batch.tolist())
        feed.look_ahead()
        feed.look_ahead()
        places.append(place(feed))
    assert found == expected
    assert places == [(0, 1), (0, 2), (1, 0)]
    assert [batch.tolist() for batch in feed] == [batch.tolist() for batch in numbers(7, known=known).iterator(epoch=1)]


def test_an_error_ahead_is_raised_with_the_batch_that_it_belongs_to() -> None:
    """So that what was trained before can be saved."""
    feed = plain(ad.Dataset.range(6).map(lambda number: 1 // (int(number) - 4)).batch(2))
    steps = iter(feed)
    for _ in range(2):
        next(steps)
        feed.look_ahead()
    assert place(feed) == (0, 2)
    with pytest.raises(ZeroDivisionError):
        next(steps)
    assert place(feed) == (0, 2)


def test_an_interrupt_ahead_ends_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have taken a batch that nobody gets any more: none of those behind it comes, and the state gives all."""
    feed, expected = plain(numbers(20, known=True)), [batch.tolist() for batch in numbers(20, known=True)]
    steps = iter(feed)
    found = [next(steps).tolist()]
    own = OwnBatches.own

    def interrupted(batches: OwnBatches) -> Any:
        own(batches)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(OwnBatches, "own", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feed.look_ahead()
    with pytest.raises(PipelineClosedError, match="KeyboardInterrupt"):
        next(steps)
    again = plain(numbers(20, known=True))
    again.load_state_dict(feed.state_dict())
    assert found + [batch.tolist() for batch in again] == expected
