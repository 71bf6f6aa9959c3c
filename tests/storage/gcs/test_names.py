"""Whatever the names and the order of answers, a divided listing finds each name once."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.storage.gcs.names import NameSpace, Question, find_cuts


class Bucket:
    """Lists as GCS does: in order, a page at a time, from ``start`` to before ``end``."""

    def __init__(self, names: Sequence[str], page: int) -> None:
        self.names = sorted(set(names))
        self.page = page
        self.asked = 0

    def answer(self, question: Question) -> tuple[list[str], str | None]:
        self.asked += 1
        at = int(question.token) if question.token is not None else bisect_left(self.names, question.start)
        stop = bisect_left(self.names, question.end) if question.end else len(self.names)
        found = self.names[at : min(stop, at + self.page)]
        following = at + len(found)
        return found, str(following) if following < stop else None


def list_all(bucket: Bucket, prefix: str, listers: int, draw: random.Random) -> tuple[list[str], int, NameSpace]:
    """(what was found, rounds if every answer took equally long, the books)."""
    space = NameSpace(prefix, listers)
    waiting = [space.begin()]
    late: list[tuple[Question, tuple[list[str], str | None]]] = []
    found: list[str] = []
    rounds = 0
    while waiting or late:
        assert len(waiting) + len(late) <= listers
        rounds += 1
        answers = late + [(question, bucket.answer(question)) for question in waiting]
        draw.shuffle(answers)
        count = draw.randrange(len(answers)) if draw.random() < 0.2 else 0
        answers, late, waiting = answers[count:], answers[:count], []
        for question, (names, token) in answers:
            kept, more = space.answered(question, names, token)
            found += names[:kept]
            waiting += more
    return found, rounds, space


_LETTERS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
_NAMES = st.lists(
    st.one_of(
        _LETTERS,
        st.builds("train-{:05d}".format, st.integers(0, 300)),
        st.builds("deep/{}/{}".format, st.sampled_from("abz"), st.integers(0, 99)),
        st.text("0123456789abcdef", min_size=4, max_size=4),
    ),
    max_size=120,
)


@given(names=_NAMES, page=st.integers(1, 9), listers=st.integers(1, 7), seed=st.integers(0, 999))
def test_no_name_is_lost_or_doubled(names: list[str], page: int, listers: int, seed: int) -> None:
    """For any names, size of pages, number of listers and order of answers."""
    bucket = Bucket(names, page)
    found, _, _ = list_all(bucket, "", listers, random.Random(seed))
    assert sorted(found) == bucket.names


@given(names=_NAMES, page=st.integers(1, 9), seed=st.integers(0, 999))
def test_empty_pages_with_a_token_end_nothing(names: list[str], page: int, seed: int) -> None:
    """GCS may answer with a token and no names."""
    draw = random.Random(seed)
    bucket = Bucket(names, page)
    space = NameSpace("", 4)
    waiting = [space.begin()]
    found: list[str] = []
    while waiting:
        question = waiting.pop(draw.randrange(len(waiting)))
        if question.token is not None and draw.random() < 0.3:
            kept, more = space.answered(question, [], question.token)
        else:
            names_of_page, token = bucket.answer(question)
            kept, more = space.answered(question, names_of_page, token)
            found += names_of_page[:kept]
        waiting += more
    assert sorted(found) == bucket.names


def test_a_listing_of_one_page_is_one_request() -> None:
    """Nothing is asked in parallel before it is known that there are more."""
    bucket = Bucket([f"x-{i}" for i in range(1000)], 1000)
    list_all(bucket, "x-", 16, random.Random(0))
    assert bucket.asked == 1


DRAW = random.Random(1)
DISTRIBUTIONS = {
    "numbered": ("data/train-", [f"data/train-{i:05d}-of-100000" for i in range(100_000)]),
    "numbered, fewer than the digits allow": ("train-", [f"train-{i:05d}-of-20000" for i in range(20_000)]),
    "numbered in a bucket's root": ("", [f"data/part-{i:06d}.rec" for i in range(50_000)]),
    "hashes": ("h/", [f"h/{DRAW.getrandbits(64):016x}.rec" for _ in range(100_000)]),
    "days": (
        "",
        [
            f"year=2024/month={m:02d}/day={d:02d}/part-{i:04d}"
            for m in range(1, 13)
            for d in range(1, 29)
            for i in range(100)
        ],
    ),
    "words": ("", ["".join(DRAW.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(8)) for _ in range(50_000)]),
    "one crowded corner": ("", [f"aaaa/{i:07d}" for i in range(10)] + [f"z/zz/zz/{i:05d}" for i in range(50_000)]),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_rounds_are_few_and_requests_are_little_more_than_pages(name: str) -> None:
    """With sixteen listers a listing takes a small part of the rounds one lister takes, at a bounded price."""
    prefix, names = DISTRIBUTIONS[name]
    bucket = Bucket(names, 1000)
    pages = -(-len(bucket.names) // 1000)
    found, rounds, space = list_all(bucket, prefix, 16, random.Random(3))
    assert sorted(found) == bucket.names
    assert rounds <= pages / 3 + 6, (rounds, pages)
    assert bucket.asked == space.questions <= 2 * pages + 64, (bucket.asked, pages)


@given(
    prefix=st.sampled_from(["", "a/", "train-"]),
    names=st.lists(_LETTERS, min_size=3, max_size=3, unique=True),
    count=st.integers(1, 20),
)
def test_cuts_lie_inside(prefix: str, names: list[str], count: int) -> None:
    """In order, behind the last name and before the end, and no more than asked for."""
    first, last, end = sorted(prefix + name for name in names)
    for upto in (end, ""):
        cuts = find_cuts(prefix, first, last, upto, count)
        assert cuts == sorted(set(cuts))
        assert len(cuts) <= count
        assert all(last < cut and (not upto or cut < upto) for cut in cuts)
