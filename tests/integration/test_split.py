"""Readers whose number changes in the middle of an epoch deliver every element once together."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.runtime.state.document import with_checksum
from tests.integration.shards import write_numbers
from tests.integration.test_exactly_once import (
    fail_sometimes,
    few,
    few_unordered,
    keep,
    leaves,
    spin,
    spin_async,
)
from tests.runtime.stages.restoring import mark_often
from tests.samples import SOAK, samples

__all__ = ["mark_often"]

pytestmark = pytest.mark.usefixtures("two_workers", "mark_often")

D = ad.Dataset


def few_shuffled(x: Any) -> ad.Dataset:
    """None to three numbers, twice, in an order of their own."""
    return few(x).shuffle(3, seed=9).repeat(2)


def few_unordered_unique(x: Any) -> ad.Dataset:
    """None to three numbers as they are ready, of which each came twice."""
    return few(x).repeat(2).map(spin_async, 2, deterministic=False).unique()


MakeReader = Callable[[int, int], ad.Dataset]
"""``make(count, index)``: the pipeline of one of so many readers."""

FILES = (3, 0, 700, 1, 30, 5, 12)
"""Records of each file."""


def of_file(path: Any) -> ad.Dataset:
    """The numbers of one file."""
    return ad.TFRecordDataset(path if isinstance(path, str) else path.decode()).map(int)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Numbers in files of very different lengths."""
    return write_numbers(tmp_path_factory.mktemp("files"), FILES)


# --- the law ----------------------------------------------------------------------------------------------------------


class Draw:
    """Draws a pipeline of the kind whose states can be split.

    Attributes:
        steps: What each step does; batches are of another size in every life.
    """

    def __init__(self, seed: int, files: list[str]) -> None:
        self._draw = random.Random(seed)
        self._files = files
        self.batch = 0
        self.names: list[str] = []
        self.steps: list[Callable[[ad.Dataset], ad.Dataset]] = []
        self._source = self._a_source()
        while self._draw.random() < 0.75:
            self._add_step()
        if self._draw.random() < 0.7:
            self._add_batch()

    def __repr__(self) -> str:
        return " ".join(self.names)

    def reader(self, count: int, index: int) -> ad.Dataset:
        """The pipeline of one reader."""
        dataset = self._source().shard(count, index)
        for step in self.steps:
            dataset = step(dataset)
        return dataset

    def _a_source(self) -> Callable[[], ad.Dataset]:
        kind = self._draw.choice(["range", "shuffled", "slices", "generator", "records", "files", "listed", "lying"])
        count = self._draw.choice([0, 1, 7, 30, 80, *([1500] if kind in {"range", "shuffled"} else [])])
        self.names.append(f"{kind} {count}")
        if kind == "files":
            self._add("interleave", self._interleave(of_file))
            return lambda: D.from_tensor_slices(np.array([name.encode() for name in self._files], object))
        if kind == "listed":
            folder = self._files[0].rpartition("/")[0]
            self._add("interleave", self._interleave(of_file))
            return lambda: D.list_files(f"{folder}/*", shuffle=True, seed=4)
        if kind == "lying":
            # The buffer's elements are records of files.
            self._add("interleave", self._interleave(ad.TFRecordDataset))
            size = self._draw.choice([3, 20, 100])
            self._add(f"shuffle {size}", lambda ds: ds.shuffle(size, seed=6))
            self._add("map", lambda ds: ds.map(int))
            return lambda: D.from_tensor_slices(self._files)
        if kind == "records":
            return lambda: ad.TFRecordDataset(self._files).map(int)
        if kind == "shuffled":
            return lambda: D.range(count).shuffle(9, seed=3)
        if kind == "generator":
            return lambda: D.from_generator(lambda: iter(range(count)))
        if kind == "slices":
            return lambda: D.from_tensor_slices(np.arange(100, 100 + count))
        return lambda: D.range(count)

    def _add(self, name: str, step: Callable[[ad.Dataset], ad.Dataset]) -> None:
        self.names.append(name)
        self.steps.append(step)

    def _interleave(self, make: Callable[[Any], ad.Dataset]) -> Callable[[ad.Dataset], ad.Dataset]:
        cycle, block, parallel = (self._draw.randint(1, 4) for _ in range(3))
        ordered = self._draw.random() < 0.6
        return lambda ds: ds.interleave(make, cycle, block, num_parallel_calls=parallel, deterministic=ordered)

    def _add_step(self) -> None:
        kind = self._draw.choice(["filter", "map", "async", "few", "shuffle", "prefetch", "errors"])
        count, parallel = self._draw.randint(1, 40), self._draw.randint(1, 4)
        executor, ordered = self._draw.choice([None, "thread", "process"]), self._draw.random() < 0.7
        if kind == "filter":
            self._add("filter", lambda ds: ds.filter(keep))
        elif kind == "map" and executor is None:
            self._add("map", lambda ds: ds.map(spin))
        elif kind == "map":
            self._add(f"map {executor}", lambda ds: ds.map(spin, parallel, executor=executor, deterministic=ordered))
        elif kind == "async":
            self._add("async", lambda ds: ds.map(spin_async, parallel, deterministic=ordered))
        elif kind == "few" and "few" not in repr(self):
            make = self._draw.choice([few, few_shuffled, few_unordered, few_unordered_unique])
            self._add(make.__name__, self._interleave(make))
        elif kind == "shuffle":
            self._add(f"shuffle {count}", lambda ds: ds.shuffle(count, seed=5))
        elif kind == "prefetch":
            self._add("prefetch", lambda ds: ds.prefetch(2))
        elif kind == "errors":
            self._add("errors", lambda ds: ds.map(fail_sometimes, 2, executor="thread").ignore_errors())

    def _add_batch(self) -> None:
        executor = self._draw.choice([None, "thread", "process"])
        size = self._draw.randint(1, 9)
        if executor is None:
            self._add("batch", lambda ds: ds.batch(size + self.batch))
        else:
            self._add(f"map batch {executor}", lambda ds: ds.map(spin, 2, executor=executor).batch(size + self.batch))


def life(make: MakeReader, states: list[Any], draw: random.Random, *, most: int | None) -> tuple[list[Any], list[Any]]:
    """What is delivered up to the states that are then taken, by readers that stop at random moments.

    Args:
        make: Makes a reader's pipeline.
        states: Of the readers.
        draw: Draws the moments.
        most: Elements that each of them delivers at the most; None: all that are left.
    """
    delivered: list[Any] = []
    taken = []
    for index, state in enumerate(states):
        heard: list[Any] = []
        ended = False
        with make(len(states), index).iterator(epoch=None if state else 0, state=state) as it:
            first = it.position
            limit = None if most is None else draw.choice([0, 1, 2, 5, most])
            while not ended and (limit is None or len(heard) < limit):
                try:
                    heard.append(next(it))
                except StopIteration:
                    ended = True
            used = len(heard) if ended else draw.randint(max(0, len(heard) - 10), len(heard))
            taken.append(json.loads(json.dumps(it.state_dict(at=first + used))))
        delivered += heard[:used]
    return delivered, taken


@pytest.mark.slow
@pytest.mark.timeout(7200 if SOAK else 600)
@settings(max_examples=samples(6, 1000), suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32), counts=st.lists(st.integers(1, 5) | st.integers(1, 16), min_size=2, max_size=3))
def test_every_element_is_delivered_once(files: list[str], seed: int, counts: list[int]) -> None:
    """By any numbers of readers, one after the other, of random pipelines that stop at random moments."""
    draw = Draw(seed, files)
    moments = random.Random(seed)
    expected = leaves(list(draw.reader(1, 0)))
    states: list[Any] = [None] * counts[0]
    found: list[Any] = []
    for count in counts[1:]:
        for _ in range(moments.randint(1, 2)):
            delivered, states = life(draw.reader, states, moments, most=moments.choice([3, 30, 300]))
            found += delivered
        moments.shuffle(states)
        draw.batch = moments.randint(0, 3)
        states = ad.state.split(states, count)
    found += life(draw.reader, states, moments, most=None)[0]
    counted = leaves(found)
    assert counted == expected, f"{draw}: {counted - expected} too many, {expected - counted} missing"


@settings(max_examples=samples(10, 1000), suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_a_reader_by_itself_keeps_its_order(files: list[str], seed: int) -> None:
    """What is tracked for others changes nothing for a reader that goes on with its own states, however often."""
    draw, moments = Draw(seed, files[:2] + files[3:]), random.Random(seed)

    def reader() -> ad.Dataset:
        return draw.reader(2, 1)

    with reader().iterator(epoch=0) as it:
        if it.state_dict()["unordered"] or "unordered" in repr(draw):
            return
        whole = [np.asarray(element).tolist() for element in it]
    state, at = None, 0
    while at < len(whole):
        count = moments.randint(0, 40)
        with reader().iterator(epoch=None if state else 0, state=state) as it:
            part = [np.asarray(element).tolist() for element, _ in zip(it, range(count), strict=False)]
            state = json.loads(json.dumps(it.state_dict(at=at + len(part))))
        assert part == whole[at : at + count], repr(draw)
        at += len(part)


# --- which order ------------------------------------------------------------------------------------------------------


def in_turn(parts: list[list[int]], first: int) -> list[int]:
    """One element of each reader after the other, as long as there are any, beginning with one of them."""
    found = []
    rest = [iter(part) for part in parts[first:] + parts[:first]]
    while rest:
        for part in list(rest):
            try:
                found.append(next(part))
            except StopIteration:
                rest.remove(part)
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("counts", [(1, 3), (4, 2), (3, 5), (16, 7)])
@pytest.mark.parametrize("delivered", [0, 3])
def test_shard_behind_the_last_shuffle_leaves_one_order(counts: tuple[int, int], delivered: int) -> None:
    """Readers that are asked in turn deliver what one reader would, whatever their number, also when it changes."""

    def reader(count: int, index: int) -> ad.Dataset:
        return D.range(100).shuffle(30, seed=1).shard(count, index).map(abs)

    whole = [int(x) for x in reader(1, 0).iterator(epoch=0)]
    begun, states = [], []
    for index in range(counts[0]):
        with reader(counts[0], index).iterator(epoch=0) as it:
            begun.append([int(next(it)) for _ in range(delivered)])
            states.append(it.state_dict())
    parts = [
        [int(x) for x in reader(counts[1], index).iterator(state=state)]
        for index, state in enumerate(ad.state.split(states, counts[1]))
    ]
    used = delivered * counts[0]
    assert in_turn(begun, 0) + in_turn(parts, used % counts[1]) == whole


def test_a_shuffle_behind_shard_depends_on_the_number_of_readers() -> None:
    """Each reader shuffles what it has, so the elements are the same and the order is not."""

    def together(count: int) -> list[int]:
        readers = [D.range(100).shard(count, index).shuffle(30, seed=1) for index in range(count)]
        return in_turn([[int(x) for x in reader.iterator(epoch=0)] for reader in readers], 0)

    assert together(2) != together(3)
    assert sorted(together(2)) == sorted(together(3))


# --- special readers --------------------------------------------------------------------------------------------------


def numbers(count: int, index: int) -> ad.Dataset:
    """A reader of some numbers."""
    return D.range(50).shard(count, index).shuffle(8, seed=1).batch(3)


def states_of(make: MakeReader, taken: list[int | None]) -> tuple[list[Any], list[Any]]:
    """What readers delivered, and their states behind so many elements; None: behind all."""
    found, states = [], []
    for index, count in enumerate(taken):
        with make(len(taken), index).iterator(epoch=0) as it:
            heard = list(it) if count is None else [next(it) for _ in range(count)]
            found += heard
            states.append(it.state_dict())
    return found, states


def rest_of(make: MakeReader, states: list[Any]) -> list[Any]:
    """What is left."""
    return [element for index, state in enumerate(states) for element in make(len(states), index).iterator(state=state)]


@pytest.mark.parametrize("taken", [[None, 0, 2], [0, 0, 0], [None, None, None], [None, 1], [0, None, None, 3]])
def test_readers_that_have_finished_or_never_began(taken: list[int | None]) -> None:
    """They count like others."""
    found, states = states_of(numbers, taken)
    assert leaves(found + rest_of(numbers, ad.state.split(states, 2))) == Counter({(0, n): 1 for n in range(50)})


def test_states_of_a_split_can_be_split_again_at_once() -> None:
    """Also together with one of a reader that has gone on by then."""
    found, states = states_of(numbers, [2, 3])
    states = ad.state.split(states, 3)
    with numbers(3, 1).iterator(state=states[1]) as it:
        found.append(next(it))
        states[1] = it.state_dict()
    assert leaves(found + rest_of(numbers, ad.state.split(states, 5))) == Counter({(0, n): 1 for n in range(50)})


def repeated(count: int, index: int) -> ad.Dataset:
    """Three times the same."""
    return D.range(40).shard(count, index).shuffle(4, seed=1).repeat(3).batch(2)


@pytest.mark.parametrize("taken", [[3, 5], [11, 13], [21, 24]])
def test_repetitions_are_divided_one_by_one(taken: list[int | None]) -> None:
    """Where all readers are in the same one."""
    found, states = states_of(repeated, taken)
    found += rest_of(repeated, ad.state.split(states, 3))
    assert leaves(found) == Counter({(0, n): 3 for n in range(40)})


@pytest.mark.parametrize("taken", range(9))
def test_repetitions_without_end_have_none(taken: int) -> None:
    """Also for a reader of whose share nothing is left in those that had begun; a share that is empty ends."""

    def reader(count: int, index: int) -> ad.Dataset:
        return D.range(4).shard(count, index).repeat().shuffle(8, seed=1)

    _, states = states_of(reader, [taken])
    for index, state in enumerate(ad.state.split(states, 5)):
        with reader(5, index).iterator(state=state) as it:
            assert len(list(islice(it, 20))) == (20 if index < 4 else 0)


def test_readers_in_different_repetitions_are_refused() -> None:
    """By the numbers of two of them."""
    _, states = states_of(repeated, [3, 11])
    with pytest.raises(ad.StateError, match="reader 1 has finished a repetition of `repeat` that reader 0 has not"):
        ad.state.split(states, 3)


def test_a_state_stays_small() -> None:
    """However long it runs, and however often it is resumed: what is complete leaves nothing behind."""
    dataset = D.range(30).shard(1, 0).interleave(few, 4).shuffle(20, seed=1).repeat()
    sizes, state = [], None
    for _ in range(40):
        with dataset.iterator(state=state) as it:
            for _ in range(50):
                next(it)
            state = it.state_dict()
            sizes.append(len(json.dumps(state)))
    assert max(sizes[20:]) <= 1.5 * max(sizes[:20])


def test_what_unique_has_seen_goes_on_with_its_dataset() -> None:
    """An element that was delivered is not delivered again, and states of the new reader can be loaded."""

    def inner(_: Any) -> ad.Dataset:
        ready = D.from_tensor_slices(np.array([1, 1, 2, 3])).map(int, 2, executor="thread", deterministic=False)
        return ready.unique()

    def reader(count: int, index: int) -> ad.Dataset:
        return D.range(1).shard(count, index).interleave(inner)

    found, states = states_of(reader, [1])
    (state,) = ad.state.split(states, 1)
    assert leaves(found + rest_of(reader, [state])) == Counter({(0, n): 1 for n in (1, 2, 3)})
    with reader(1, 0).iterator(state=state) as it:
        found.append(next(it))
        state = it.state_dict()
    assert leaves(found + rest_of(reader, [state])) == Counter({(0, n): 1 for n in (1, 2, 3)})


def test_what_lies_before_is_not_read_again() -> None:
    """A new reader begins at the newest mark that any of the old ones had in front of what is left."""
    made: list[int] = []

    def make(x: Any) -> Any:
        made.append(int(x))
        return x

    def reader(count: int, index: int) -> ad.Dataset:
        return D.range(100_000).map(make).shard(count, index).batch(100)

    _, states = states_of(reader, [60, 61])
    states = ad.state.split(states, 3)
    assert len(json.dumps(states)) < 4000
    made.clear()
    with reader(3, 1).iterator(state=states[1]) as it:
        assert int(next(it)[0]) == 12_004
    assert min(made) > 10_000


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n, i: D.range(20).shard(n, i).enumerate(), r"enumerate behind shard\(2, 0\)"),
        (lambda n, i: D.range(20).shard(n, i).take(5), r"take\(5\) behind shard"),
        (lambda n, i: D.range(20).shard(n, i).unique(), r"unique behind shard"),
        (lambda n, i: D.range(20).shard(n, i).batch(2).unbatch(), r"unbatch behind shard"),
        (lambda n, i: D.zip((D.range(20).shard(n, i), D.range(20))), r"zip behind shard"),
        (lambda n, i: D.range(20).shard(n, i).batch(2).flat_map(D.from_tensor_slices), r"elements of batch"),
        (lambda n, i: D.range(20).shard(n, i).shard(1, 0), r"has 2 steps shard"),
        (lambda _n, _i: D.range(20), r"it has no shard"),
    ],
)
def test_other_plans_are_refused_by_name(make: MakeReader, message: str) -> None:
    """Their states go on as they are all the same."""
    with make(2, 0).iterator(epoch=0) as it:
        next(it)
        state = it.state_dict()
        rest = leaves(list(it))
    with pytest.raises(ad.StateError, match=f"cannot be split: .*{message}"):
        ad.state.split([state, state], 3)
    assert leaves(list(make(2, 0).iterator(state=state))) == rest


def shuffled_inside(x: Any) -> ad.Dataset:
    """In an order that depends on the pipeline's seed."""
    return D.range(int(x) * 100, int(x) * 100 + 20).shuffle(20)


def shuffled_for_good(x: Any) -> ad.Dataset:
    """Likewise, and the same in every epoch."""
    return D.range(int(x) * 100, int(x) * 100 + 20).shuffle(20, reshuffle_each_iteration=False)


def three(x: Any) -> ad.Dataset:
    """As many for every element, however it was drawn."""
    return D.range(int(x), int(x) + 3)


def draw_number(x: Any, rng: np.random.Generator) -> Any:
    """A number that depends on the pipeline's seed."""
    return x * 10 + rng.integers(5)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda ds: ds.interleave(shuffled_inside, 2), "shuffle.* of an inner dataset draws its order without a seed"),
        (lambda ds: ds.flat_map(shuffled_for_good), "shuffle.* of an inner dataset draws its order without a seed"),
        (lambda ds: ds.map(draw_number, rng=True).flat_map(three), r"drawn by map\(draw_number\) without a seed"),
    ],
)
def test_what_is_drawn_by_the_readers_seed_is_refused(step: Callable[[Any], Any], message: str) -> None:
    """Another reader would draw other datasets of the elements that were begun. A common seed allows it."""

    def reader(count: int, index: int) -> ad.Dataset:
        dataset: ad.Dataset = step(D.range(12).shard(count, index))
        return dataset

    def seeded(count: int, index: int) -> ad.Dataset:
        return reader(count, index).with_options(ad.Options(seed=7))

    _, states = states_of(reader, [5, 5])
    with reader(2, 1).iterator(state=states[1]) as it:
        states[1] = it.state_dict()
    for chosen in (states, states[::-1]):
        with pytest.raises(ad.StateError, match=message):
            ad.state.split(chosen, 3)
    found, states = states_of(seeded, [5, 6])
    found += rest_of(seeded, ad.state.split(states, 3))
    assert leaves(found) == leaves(list(seeded(1, 0).iterator(epoch=0)))


def test_states_must_be_of_all_readers() -> None:
    """Each once, of one epoch, one order and one pipeline."""
    _, states = states_of(numbers, [1, 2, 0])
    _, other = states_of(numbers, [1, 2])
    for chosen, message in (
        ([], "the states are of no readers"),
        (states[:2], r"the state of shard\(3, 2\) is missing"),
        ([states[0], states[0], states[2]], r"two of the states are of shard\(3, 0\)"),
        ([states[0], states[1], with_checksum({**other[1], "shards": [[2, 5]]})], "the states are of 2 and 3 readers"),
    ):
        with pytest.raises(ad.StateError, match=message):
            ad.state.split(chosen, 2)
    with numbers(3, 2).iterator(epoch=4) as it:
        later = it.state_dict()
    with D.range(50).shard(3, 2).shuffle(9, seed=1).batch(3).iterator(epoch=0) as it:
        unlike = it.state_dict()
    with numbers(3, 2).with_options(ad.Options(seed=5)).iterator(epoch=0) as it:
        seeded = it.state_dict()
    for wrong, message in (
        (later, r"epoch 0 in that of shard\(3, 0\), epoch 4 in that of shard\(3, 2\)"),
        (unlike, r"shuffle\(buffer_size=8.*shuffle\(buffer_size=9"),
        (seeded, "an order of"),
    ):
        with pytest.raises(ad.StateError, match=message):
            ad.state.split([*states[:2], wrong], 2)
    with pytest.raises(ValueError, match="new_count"):
        ad.state.split(states, 0)
    with pytest.raises(ad.StateError, match="this is not a state"):
        ad.state.split([{}], 1)


def test_a_state_is_of_one_reader() -> None:
    """Another one would give elements twice, or never."""
    _, states = states_of(numbers, [1, 2])
    for dataset in (numbers(2, 1), numbers(3, 0), D.range(50).shuffle(8, seed=1).batch(3)):
        with pytest.raises(ad.StateError, match=r"shard\(2, 0\) in the state.*asyncdata\.state\.split"):
            dataset.iterator(state=states[0])


def test_readers_of_different_lists_are_refused(files: list[str], tmp_path: Any) -> None:
    """A file that was added between their beginnings has changed what each of them is to read."""

    def reader(count: int, index: int) -> ad.Dataset:
        return D.list_files(f"{tmp_path}/*", shuffle=False).shard(count, index).interleave(of_file, 2)

    states = []
    for index in range(2):
        for number, name in enumerate([files[2], files[4]] + [files[5]] * index):
            with open(name, "rb") as source, open(tmp_path / str(number), "wb") as copy:
                copy.write(source.read())
        with reader(2, index).iterator(epoch=0) as it:
            next(it)
            states.append(it.state_dict())
    with pytest.raises(ad.StateError, match="another list of files"):
        ad.state.split(states, 3)


@pytest.mark.parametrize("seed", range(samples(30, 3000)))
def test_damaged_states_are_refused_or_work(seed: int) -> None:
    """An error of one kind, or states, which are then refused or iterated."""
    draw = random.Random(seed)
    _, states = states_of(numbers, [2, 3])
    text = json.dumps(states)
    place = draw.randrange(len(text))
    try:
        states = json.loads(text[:place] + draw.choice('0123456789-"[]{},~abn') + text[place + 1 :])
    except ValueError:
        return
    if seed % 2 and all(isinstance(state, dict) for state in states):
        states = [with_checksum(state) for state in states]  # changed on purpose
    try:
        rest_of(numbers, ad.state.split(states, 3))
    except ad.StateError:
        return


@pytest.mark.timeout(300)
def test_isolated(files: list[str]) -> None:
    """The loader process tells its consumer what a state needs."""
    with ad.Runtime(ad.Options(isolate=True, num_workers=1)):
        for seed in range(samples(2, 60)):
            draw, moments = Draw(seed, files[4:]), random.Random(seed)
            found, states = life(draw.reader, [None] * 3, moments, most=20)
            found += life(draw.reader, ad.state.split(states, 2), moments, most=None)[0]
            assert leaves(found) == leaves(list(draw.reader(1, 0))), repr(draw)
