"""`Places`: what is read for the rows of a buffer, and what a state says of them."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import StateError
from asyncdata.memory.used import Used
from asyncdata.runtime.state.json_codec import from_json, to_json
from asyncdata.runtime.state.places import REQUEST_BYTES, Places, by_place, joinable
from tests.samples import samples

VERSIONS = {3: "7", 5: None, 1 << 62: "x"}


def drawn(seed: int, count: int, *, same_size: bool = False) -> Places:
    """Rows of some files, in any order, which use up nothing, an element each, or several."""
    draw = random.Random(seed)
    rows: list[tuple[int, int, int, int, int]] = []
    for file in VERSIONS:
        at = draw.choice([0, 1 << 33])
        for record in range(draw.randint(1, 3 * count)):
            size = 100 if same_size else draw.randint(0, draw.choice([10, 3000, 1 << 18]))
            rows.append((file, record, 0, at, size))
            at += size + 16
    chosen = np.array(draw.sample(rows, min(count, len(rows))), np.int64).reshape(-1, 5)
    pairs = np.array([(draw.randint(5, 300), draw.randrange(1 << 20)) for _ in range(3 * len(chosen))], np.int64)
    ends = np.cumsum([draw.randint(1, 3) for _ in range(len(chosen))])
    used = draw.choice([None, Used(pairs[: len(chosen)]), Used(pairs[: ends[-1]], ends)])
    numbers = draw.choice([None, np.array([draw.randrange(1 << 40) for _ in chosen], np.int64)])
    return Places(chosen[:, :4].copy(), chosen[:, 4].copy(), VERSIONS.get, used, numbers=numbers)


def by_row(places: Places) -> list[list[list[int]]] | None:
    """What each row uses up."""
    return None if places.used is None else [row.tolist() for row in places.used.by_row()[0]]


def fewest(gaps: list[int], same: list[bool], most: int) -> int:
    """Requests, if everything that may be joined is tried."""
    near = [i for i, gap in enumerate(gaps) if same[i] and gap <= REQUEST_BYTES]
    parts = (part for count in range(len(near) + 1) for part in itertools.combinations(near, count))
    return len(gaps) + 1 - max(len(part) for part in parts if sum(gaps[i] for i in part) <= most)


@given(
    st.lists(st.tuples(st.integers(0, 2 * REQUEST_BYTES), st.booleans()), max_size=8),
    st.integers(0, 6 * REQUEST_BYTES),
)
def test_no_fewer_requests_read_as_few_bytes(rows: list[tuple[int, bool]], most: int) -> None:
    """Of all ways to join neighbours; and no gap is read that is longer than a request is worth."""
    gaps, same = [gap for gap, _ in rows], [is_same for _, is_same in rows]
    joined = joinable(np.array(gaps, np.int64), np.array(same, bool), most)
    assert sum(gap for gap, is_joined in zip(gaps, joined, strict=True) if is_joined) <= most
    assert all(same[i] and gaps[i] <= REQUEST_BYTES for i in np.flatnonzero(joined))
    assert len(gaps) + 1 - joined.sum() == fewest(gaps, same, most)


@pytest.mark.parametrize("seed", range(samples(50, 2000)))
def test_spans_contain_each_row_once(seed: int) -> None:
    """In order, within the bytes of a span; all spans together read no more than three times the rows."""
    places = drawn(seed, 1 + seed % 60)
    if not places.sizes.any():
        return  # which means that nobody knows them
    most = random.Random(seed).choice([1, 5000, 1 << 20])
    spans = places.spans(most)
    ordered, sizes = places.origin[by_place(places.origin)], places.sizes[by_place(places.origin)]
    assert [[span.file, record] for span in spans for record in span.records.tolist()] == ordered[:, :2].tolist()
    assert np.array_equal(np.concatenate([span.rows for span in spans]), by_place(places.origin))
    row = 0
    for span in spans:
        last = row + len(span.records) - 1
        assert [span.first, span.offset] == ordered[row, [1, 3]].tolist()
        assert span.offset + span.nbytes == ordered[last, 3] + sizes[last] + 16
        assert span.nbytes <= most or len(span.records) == 1
        row = last + 1
    assert sum(span.nbytes for span in spans) <= 3 * (sizes.sum() + 16 * len(sizes))


@pytest.mark.parametrize("seed", range(samples(50, 2000)))
def test_rows_that_are_needed_first_are_in_short_spans(seed: int) -> None:
    """Those 64 are with few others; each row is in one span, and what is needed sooner comes first."""
    places = drawn(seed, 1 + seed % 200)
    count = len(places)
    turns = np.array(random.Random(seed).sample(range(1000), count), np.int64)
    spans = places.chosen(np.arange(count), turns).spans(1 << 20)
    assert sorted(np.concatenate([span.rows for span in spans]).tolist()) == list(range(count))
    begins = [int(turns[span.rows].min()) for span in spans]
    assert begins == sorted(begins)
    first = set(np.argsort(turns)[:64].tolist())
    for span in spans:
        if first & set(span.rows.tolist()):
            assert span.nbytes <= 1 << 15 or len(span.rows) == 1


@pytest.mark.parametrize("seed", range(samples(20, 500)))
def test_sizes_are_guessed_from_offsets(seed: int) -> None:
    """Of records of one size the guess is right, where two rows of a file tell."""
    places = drawn(seed, 41 + seed % 60, same_size=True)
    known = places.spans(5000)
    places.sizes[:] = 0
    guessed = places.spans(5000)
    assert [span[:3] for span in guessed] == [span[:3] for span in known]
    # The last row of a span may be longer than others.
    more = [guess.nbytes - span.nbytes for guess, span in zip(guessed, known, strict=True)]
    assert set(more) == {4 * 116}


@pytest.mark.parametrize("count", [0, 1, 30, 5000])
def test_what_is_saved_comes_back(count: int) -> None:
    """As JSON, also as that of earlier versions, and to another process."""
    places = drawn(count, count) if count else Places(np.empty((0, 4), np.int64), np.empty(0, np.int64), VERSIONS.get)
    earlier = {"~": "places", **to_json(places.__reduce__()[1][0])}
    saved = [from_json(json.loads(json.dumps(text))) for text in (to_json(places), earlier)]
    for again in (*saved, pickle.loads(pickle.dumps(places))):
        assert np.array_equal(again.origin, places.origin)
        assert np.array_equal(again.sizes, places.sizes)
        assert by_row(again) == by_row(places)
        assert (again.numbers is None) is (places.numbers is None)
        assert places.numbers is None or np.array_equal(again.numbers, places.numbers)
        assert [again.version(file) for file in again.files] == [VERSIONS[file] for file in places.files]


@pytest.mark.parametrize("seed", range(samples(20, 500)))
def test_rows_are_found_by_their_places(seed: int) -> None:
    """In any order, some of them several times."""
    places = drawn(seed, 1 + seed)
    rows = np.array(random.Random(seed).choices(range(len(places)), k=2 * len(places)), np.int64)
    found = places.find(places.origin[rows])
    assert places.origin[found].tolist() == places.origin[rows].tolist()


def test_files_whose_numbers_look_alike_are_told_apart() -> None:
    """Their lowest bits tell most files apart, and need not."""
    origin = np.zeros((5000, 4), np.int64)
    origin[:, 0] = np.arange(5000) % 3 << 20
    places = Places(origin, np.zeros(5000, np.int64), lambda _: None)
    assert places.files == [0, 1 << 20, 2 << 20]
    assert np.array_equal(from_json(to_json(places)).origin, origin)


def test_a_row_takes_few_bytes() -> None:
    """At most 24 of a state, for 64 files of some GB."""
    draw = np.random.default_rng(1)
    count = 10_000
    origin = np.zeros((count, 4), np.int64)
    origin[:, 0] = draw.integers(0, 1 << 62, 64)[draw.integers(0, 64, count)]
    origin[:, 1] = draw.integers(0, 1 << 20, count)
    origin[:, 3] = draw.integers(0, 1 << 32, count)
    used = Used(np.column_stack((draw.integers(1000, 1064, count), origin[:, 1])))
    places = Places(origin, draw.integers(0, 1 << 20, count), lambda _: "1700000000000000", used)
    assert len(json.dumps(to_json(places))) <= 24 * count + 64 * 64 + 2000


def test_a_row_in_order_takes_fewer_bytes() -> None:
    """At most 4 of a state, where a part of the records of each file is left."""
    draw = np.random.default_rng(1)
    count, sizes = 10_000, draw.integers(120, 200, 1000)
    origin = np.zeros((count, 4), np.int64)
    origin[:, 0] = np.arange(count) // 200
    origin[:, 1] = np.concatenate([np.sort(draw.choice(1000, 200, replace=False)) for _ in range(50)])
    origin[:, 3] = np.cumsum(sizes)[origin[:, 1]]
    places = Places(origin, sizes[origin[:, 1]], lambda _: "1700000000000000")
    assert len(json.dumps(to_json(places))) <= 4 * count + 64 * 64 + 2000


@pytest.mark.sampled
@pytest.mark.parametrize(
    "change",
    [
        {"rows": -1},
        {"rows": "3"},
        {"rows": 7},
        {"files": [1 << 63]},
        {"files": ["x"]},
        {"files": []},
        {"versions": []},
        {"versions": [1, 2, 3]},
        {"record": [0]},
        {"record": to_json(np.arange(9))},
        {"record": to_json(np.arange(-5, 5))},
        {"record": to_json(np.zeros(10, np.float64))},
        {"record": [-1, {"~": "bytes", "data": ""}]},
        {"offset": [1 << 70, {"~": "bytes", "data": ""}]},
        {"offset": 3},
        {"bytes": [0, "text"]},
        {"track": [0]},
        {"track": [0, {"~": "bytes", "data": "AA=="}], "position": [-1, {"~": "bytes", "data": ""}]},
        {"track": [0, {"~": "bytes", "data": ""}]},
        {"pairs": [1 << 60, {"~": "bytes", "data": ""}]},
    ],
)
def test_damage_is_refused(change: dict[str, Any]) -> None:
    """With a StateError, whatever was changed."""
    values = [to_json(drawn(seed, 10)) for seed in range(100)]
    is_tracked = "pairs" in change
    value = next(value for value in values if ("pairs" in value if is_tracked else "track" not in value))
    with pytest.raises(StateError, match="damaged"):
        from_json({**value, **change})
