"""Quotas of error policies go on where they were: interruptions let no more elements fail, and no fewer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.formats.tfrecord import encode_many
from asyncdata.runtime.state.document import with_checksum
from tests.samples import samples

D = ad.Dataset
SHARDS, RECORDS = 4, 30


def write(folder: Path, draw: random.Random) -> list[str]:
    """Shards with damaged records, one of which ends early, and one that is missing."""
    urls = []
    for shard in range(SHARDS):
        records = [b"%d-%d" % (shard, number) for number in range(RECORDS)]
        data = bytearray(encode_many(records))
        starts = [0]
        for record in records:
            starts.append(starts[-1] + 16 + len(record))
        for number in draw.sample(range(RECORDS), 3):
            data[starts[number] + 12] ^= 32
        if shard == 2:
            data[starts[25]] ^= 1
        path = folder / f"{shard}.tfrecord"
        path.write_bytes(data)
        urls.append(str(path))
    return [*urls[:1], str(folder / "missing.tfrecord"), *urls[1:]]


def picky(record: bytes) -> bytes:
    """Fails for some records."""
    if record.endswith(b"7"):
        raise ValueError(record)
    return record


def unlucky(record: bytes) -> bool:
    """Fails for others."""
    if record.endswith(b"-13"):
        raise KeyError(record)
    return not record.endswith(b"5")


def pipelines(urls: list[str]) -> list[ad.Dataset]:
    """Several steps that leave elements out, alone and together, in epochs and in branches.

    Behind steps that leave elements out none works ahead: which of two comes first would be a matter of time.
    """
    several = [b"%d" % number for number in range(60)]
    records = D.from_tensor_slices(urls).interleave(ad.TFRecordDataset, cycle_length=2)
    return [
        records,
        records.map(picky).filter(unlucky).batch(5),
        D.from_tensor_slices(several).shuffle(9).map(picky, num_parallel_calls=2).batch(3).repeat(2),
        ad.TFRecordDataset(urls).repeat(2).filter(unlucky).shuffle(20, seed=1),
        D.zip((records.map(picky), records.filter(unlucky))),
        D.range(3).flat_map(lambda _: D.from_tensor_slices([b"1", b"7", b"2"]).map(picky)),
        records.map(picky).ignore_errors().batch(4),
    ]


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """One for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=1)):
        yield


def run(it: ad.PipelineIterator) -> tuple[list[str], list[str], str, Any]:
    """Elements, states, the error that ended it, and what was skipped."""
    elements: list[str] = []
    states = [json.dumps(it.state_dict())]
    error = ""
    try:
        for element in it:
            elements.append(repr(element))
            states.append(json.dumps(it.state_dict()))
    except ad.TooManyErrorsError as caught:
        error = f"{caught.skipped} {caught.last}"
    skipped = it.stats().skipped
    return elements, states, error, (skipped.elements, skipped.shards, skipped.unread_bytes, dict(skipped.steps))


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("quota", [1, 4, 9, 30, None])
def test_the_quota_is_used_up_at_the_same_element(number: int, quota: int | None, tmp_path: Path) -> None:
    """Wherever it is interrupted, once or twice: elements, the error and the counts are those of the whole run."""
    places = random.Random(number)
    urls = write(tmp_path, places)
    options = ad.Options(seed=1, errors=ad.ErrorPolicy(max_skipped=quota))
    with pipelines(urls)[number].with_options(options).iterator(epoch=0) as it:
        elements, states, error, skipped = run(it)
    if number < 6:
        assert error or quota is None or sum(skipped[:2]) <= quota
    for position in sorted(places.sample(range(len(states)), min(len(states), samples(5, 40)))):
        again = pipelines(urls)[number].with_options(options)
        with again.iterator(state=json.loads(states[position])) as it:
            rest, later, ending, counted = run(it)
        assert (rest, ending, counted) == (elements[position:], error, skipped), f"after {position}"
        middle = places.randrange(len(later))
        with again.iterator(state=json.loads(later[middle])) as it:
            assert run(it)[0::2] == (rest[middle:], error), f"after {position}, then {middle}"


def test_an_isolated_loader(tmp_path: Path) -> None:
    """The counts come from there with the elements."""
    urls = write(tmp_path, random.Random(3))
    dataset = pipelines(urls)[1].with_options(ad.Options(seed=1, errors=ad.ErrorPolicy(max_skipped=13)))
    with ad.Runtime(ad.Options(isolate=True, num_workers=0)):
        with dataset.iterator(epoch=0) as it:
            elements, states, error, skipped = run(it)
        assert error
        for position in (1, len(states) - 1):
            with dataset.iterator(state=json.loads(states[position])) as it:
                rest, _, *ending = run(it)
            assert (rest, ending) == (elements[position:], [error, skipped])


def test_what_a_dataset_that_has_ended_left_out_stays_counted() -> None:
    """A resume does not begin it again."""
    first = D.from_tensor_slices([b"1-7", b"1-8", b"2-7", b"2-8"]).map(picky).ignore_errors()
    dataset = first.concatenate(D.from_tensor_slices([b"a", b"b", b"c"]))
    with dataset.iterator() as it:
        assert [next(it) for _ in range(3)] == [b"1-8", b"2-8", b"a"]
        state = state_later = json.loads(json.dumps(it.state_dict()))
    for _ in range(2):
        with dataset.iterator(state=state) as it:
            assert next(it) == b"b"
            state_later = json.loads(json.dumps(it.state_dict()))
            assert list(it) == [b"c"]
            skipped = it.stats().skipped
        assert (skipped.elements, list(skipped.steps.values())) == (2, [2])
    with dataset.iterator(state=state_later) as it:
        assert list(it) == [b"c"]
        assert it.stats().skipped.elements == 2


def test_a_state_behind_elements_left_out_needs_a_policy() -> None:
    """Its position does not count them; without a policy they would be counted, and others given again."""

    def inverse(number: int) -> int:
        if number in {3, 5}:
            raise ValueError(number)
        return number

    ds = ad.Dataset.range(40).map(inverse)
    lenient = ds.with_options(ad.Options(errors=ad.ErrorPolicy(max_skipped=10)))
    with lenient.iterator(epoch=0) as it:
        before = [int(next(it)) for _ in range(3)]
        early = it.state_dict()
        seen = before + [int(next(it)) for _ in range(7)]
        late = it.state_dict()
    with pytest.raises(ad.StateError, match="an error policy has left elements out"):
        ds.iterator(state=late)
    with lenient.iterator(state=late) as it:
        assert seen + [int(x) for x in it] == [x for x in range(40) if x not in {3, 5}]
    with pytest.raises(ValueError, match="3"), ds.iterator(state=early) as it:
        list(it)


def test_the_next_epoch_begins_with_a_whole_quota() -> None:
    """The quota is one of each iteration, also behind a state."""
    dataset = D.from_tensor_slices([b"1", b"7", b"2", b"7", b"3"]).map(picky)
    dataset = dataset.with_options(ad.Options(errors=ad.ErrorPolicy(max_skipped=2)))
    with dataset.iterator() as it:
        next(it)
        next(it)
        state = it.state_dict()
    assert list(dataset.iterator(state=state)) == [b"3"]
    with dataset.iterator() as it:
        assert list(it) == [b"1", b"2", b"3"]
    assert it.stats().skipped.elements == 2


def test_failures_in_a_row_and_fractions() -> None:
    """What was seen before the interruption counts."""
    bad = [b"1"] * 1500 + [b"7"] * 6 + [b"1"] * 1500 + [b"7"] * 3
    dataset = D.from_tensor_slices(bad).map(picky)
    fraction = ad.ErrorPolicy(max_skipped=None, max_fraction=0.0028, min_elements=10)
    with dataset.with_options(ad.Options(errors=fraction)).iterator() as it, pytest.raises(ad.TooManyErrorsError):
        list(it)
    fraction = ad.ErrorPolicy(max_skipped=None, max_fraction=0.0032, min_elements=10)
    for places in (1, 1400, 2990):
        fitting = D.from_tensor_slices(bad[1500:] + bad[:1500]).map(picky)
        fitting = fitting.skip(0).with_options(ad.Options(errors=ad.ErrorPolicy(max_skipped=9, max_in_a_row=6)))
        with fitting.iterator() as it:
            for _ in range(places):
                next(it)
            state = it.state_dict()
        with fitting.iterator(state=state) as it:
            assert len(list(it)) == 3000 - places
    late = D.from_tensor_slices([b"1"] * 3000 + [b"7"] * 9).map(picky)
    late = late.with_options(ad.Options(errors=fraction))
    with late.iterator() as it:
        for _ in range(2999):
            next(it)
        state = it.state_dict()
    with late.iterator(state=state) as it:
        # Of those that were seen after the interruption alone it would be too many.
        assert len(list(it)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        3,
        {"": 3},
        {"": {"elements": 1}},
        {"": {"elements": -1, "shards": 0, "unread_bytes": 0, "seen": 0, "steps": {}, "failures": [], "in_a_row": []}},
        {"": {"elements": 1, "shards": 0, "unread_bytes": 0, "seen": 0, "steps": 3, "failures": [], "in_a_row": []}},
    ],
)
def test_damaged_counts_are_refused(wrong: Any) -> None:
    """With an error of one kind."""
    dataset = D.range(3)
    state = dataset.iterator().state_dict()
    with pytest.raises(ad.StateError, match="damaged"):
        dataset.iterator(state=with_checksum({**state, "skipped": wrong}))
