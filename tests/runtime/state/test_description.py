"""`describe` and `diff`: what they say of states is what is in them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.state.document import with_checksum
from tests.samples import samples

D = ad.Dataset


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """One for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=0)):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 2000 records."""
    for number in range(3):
        with ad.TFRecordWriter(str(tmp_path / f"{number}.tfrecord")) as writer:
            writer.write_many([b"%0*d" % (10 + number, record) for record in range(2000)])
    return tmp_path


def reader(folder: Path, count: int = 2, index: int = 0) -> ad.Dataset:
    """Some of the usual steps."""
    names = D.list_files(f"{folder}/*.tfrecord", shuffle=False).shard(count, index)
    return names.interleave(ad.TFRecordDataset, 2).filter(len).shuffle(100, seed=1).batch(10)


def state_of(dataset: ad.Dataset, count: int, epoch: int = 3) -> dict[str, Any]:
    """The state behind so many elements."""
    with dataset.iterator(epoch=epoch) as it:
        for _ in range(count):
            next(it)
        state: dict[str, Any] = json.loads(json.dumps(it.state_dict()))
        return state


def test_what_a_state_says(folder: Path) -> None:
    """Position, steps, open files with their cursors, what was delivered, what is repeated, and the size of parts."""
    state = state_of(reader(folder), 250)
    found = ad.state.describe(state)
    assert (found.version, found.epochs, found.position, found.reader) == (7, (3,), 250, "shard(2, 0)")
    assert found.seeds == (state["seed"],)
    assert [line.partition("(")[0] for line in found.steps] == [
        *("list_files", "interleave", "filter", "shuffle", "batch"),
    ]
    assert [Path(file.url or "").name for file in found.files] == ["0.tfrecord", "2.tfrecord"]
    assert all(0 < file.record + file.skipped <= 1300 for file in found.files)
    assert all(26 * file.record <= file.offset <= 28 * file.record for file in found.files)
    assert sum(found.sizes.values()) <= len(json.dumps(state))
    text = str(found)
    for part in (
        "state of version 7, of shard(2, 0): epoch 3, behind 250 elements",
        "filter: its function is called again",
        "the 100 elements in its buffer are read from where they lie in files",
        "later ones",
        f"tracks: {len(json.dumps(state['tracks'])):,} bytes",
    ):
        assert part in text, text


def test_the_counts_are_those_of_the_state(folder: Path) -> None:
    """What was delivered of all files is what the consumer was given."""
    found = ad.state.describe(state_of(reader(folder), 250))
    files = [line for line in found.inputs if "made of element" in line]
    words = [line.replace(",", "").split() for line in files]
    first = sum(int(line[line.index("first") + 1].rstrip(";")) for line in words)
    later = sum(int(line[line.index("later") - 1]) for line in words if "later" in line)
    assert first + later == 2500


def test_repetitions_are_part_of_the_epoch() -> None:
    """The outermost number is the iterator's."""
    assert ad.state.describe(state_of(D.range(40).repeat(4), 95)).epochs == (3, 2)
    assert ad.state.describe(state_of(D.range(5).concatenate(D.range(4)), 7)).epochs == (3,)


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (D.from_generator(lambda: iter(range(9))), "the generator yields everything again"),
        (D.range(9).cache(), "is filled again, under epoch 3"),
        (D.range(9).unique(), "everything in front of it"),
        (D.range(9).flat_map(lambda x: D.range(x + 1)), "datasets are of unknown lengths"),
    ],
)
def test_what_cannot_be_entered_is_named(dataset: ad.Dataset, why: str) -> None:
    """With the reason."""
    assert any(why in line for line in ad.state.describe(state_of(dataset, 3)).repeats)


def test_a_cache_of_an_element_that_came_again_says_so() -> None:
    """And not the digest that tells it apart."""
    again = D.from_tensors(1).repeat(3).flat_map(lambda _: D.range(9).cache())
    lines = ad.state.describe(state_of(again.concatenate(D.range(3).cache()), 12)).repeats
    assert [line for line in lines if "filled again" in line and line.endswith("epoch 3, an element that came again")]


def test_no_credentials_are_shown() -> None:
    """Neither user names nor signatures, which no state contains, nor those that somebody wrote into one."""
    state = state_of(D.from_tensors("x").map(str), 1)
    state["plan"] = ["from_tensors(items=['https://me:secret@host/x?Signature=secret'])", *state["plan"][1:]]
    state = with_checksum(state)
    shown = str(ad.state.describe(state)) + "".join(ad.state.diff(state, state_of(D.range(9), 1)))
    assert "host/x" in shown
    assert "secret" not in shown


def test_differences_are_named(folder: Path) -> None:
    """By the step, the part of its mark and both values; none between equal states."""
    one, other = state_of(reader(folder), 10), state_of(reader(folder), 250)
    found = ad.state.diff(one, with_checksum({**other, "seed": one["seed"]}))
    assert found[0] == "position: 10 and 250"
    assert any(line.startswith("batch > input > shuffle > drawn: 0 and ") for line in found), found
    assert any("delivered of input" in line for line in found)
    assert len(found) <= 20
    assert ad.state.diff(one, json.loads(json.dumps(one))) == []
    unlike = ad.state.diff(state_of(D.range(9).take(4), 1), state_of(D.range(9).take(5), 1))
    assert any("take(count=4) and take(count=5)" in line for line in unlike)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (np.zeros(()), np.ones(()), "1 of 1 numbers"),
        (np.array(np.nan), np.zeros(()), "1 of 1 numbers"),
        (np.nan, 1.0, "nan and 1.0"),
        (np.array([1, np.nan]), np.array([1, 2, 3]), "2 of 3 numbers"),
        (np.zeros((2, 3)), np.eye(3), "5 of 9 numbers"),
        (np.zeros((2, 3)), np.zeros((3, 2)), "something and something"),
        (np.zeros(()), np.zeros(1), "something and something"),
    ],
)
def test_what_a_scan_carries_is_compared(one: Any, other: Any, difference: str) -> None:
    """Also arrays without a dimension, and NaN, which is the same as NaN."""

    def carrying(value: Any) -> dict[str, Any]:
        numbers = D.range(2000).with_options(ad.Options(seed=1))
        return state_of(numbers.scan(value, lambda state, number: (state, number)), 1100)

    for value in (one, other):
        assert ad.state.diff(carrying(value), carrying(value)) == []
    found = ad.state.diff(carrying(one), carrying(other))
    assert [line.partition(": ")[2] for line in found if " > " in line] == [difference]


def test_before_the_first_element_and_of_a_split(folder: Path) -> None:
    """There is little to say."""
    states = [state_of(reader(folder, 2, index), 30 * index) for index in range(2)]
    assert not ad.state.describe(states[0]).files
    for index, state in enumerate(ad.state.split(states, 3)):
        assert ad.state.describe(state).reader == f"shard(3, {index})"


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(100, 5000)))
def test_damaged_states_are_described_or_refused(seed: int) -> None:
    """Whatever one byte of them becomes."""
    draw = random.Random(seed)
    text = json.dumps(state_of(D.range(90).shard(2, 0).shuffle(5, seed=1).repeat(2).batch(2), 7))
    place = draw.randrange(len(text))
    try:
        state = json.loads(text[:place] + draw.choice('0123456789-"[]{},~abn') + text[place + 1 :])
    except ValueError:
        return
    try:
        if seed % 2:
            state = with_checksum(state)  # changed on purpose
        str(ad.state.describe(state))
        ad.state.diff(state, json.loads(text))
    except ad.StateError:
        return
