from __future__ import annotations

import pytest

from asyncdata.wording import counted, grouped, kind_of, listed, with_article


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("int", "an int"),
        ("object", "an object"),
        ("list", "a list"),
        ("dict", "a dict"),
        ("uint8", "a uint8"),
        ("UUID", "a UUID"),
        ("Unpicklable", "an Unpicklable"),
    ],
)
def test_articles(name: str, wanted: str) -> None:
    """By the sound that a name begins with."""
    assert with_article(name) == wanted


def test_kinds() -> None:
    """None is no type that anybody has heard of."""
    values: list[object] = [1, [], None]
    assert [kind_of(value) for value in values] == ["an int", "a list", "None"]


def test_counts() -> None:
    """One is not many."""
    assert [counted(number, "file") for number in (0, 1, 2_000)] == ["0 files", "1 file", "2000 files"]
    assert [grouped(number, "file") for number in (0, 1, 2_000)] == ["0 files", "1 file", "2,000 files"]
    assert [counted(number, "axis", "axes") for number in (1, 2)] == ["1 axis", "2 axes"]


def test_lists_of_names() -> None:
    """A message has only so much room."""
    assert listed(["a", "b"]) == "'a', 'b'"
    assert listed(["x" * 100]) == repr("x" * 60 + "…")
    assert listed([str(number) for number in range(21)]).endswith("'19', …")
