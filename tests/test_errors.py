"""The tree of exceptions: their places, and what survives pickling."""

from __future__ import annotations

import copy
import pickle

import pytest

from asyncdata import errors
from asyncdata.errors import AsyncdataError, CorruptRecordError, TransientStorageError
from asyncdata.workers.failure import UserFunctionError

KINDS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AsyncdataError)),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", [*KINDS, UserFunctionError], ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling_whole(kind: type[AsyncdataError]) -> None:
    """Type, message, every attribute and notes are the same behind a pickle or a copy, and its text is, too."""
    error = kind("it broke", url="gs://b/o", version="7", offset=12, record=3, stage="map(f)", attempts=2)
    error.add_note("in map(f)")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.place() == error.place()
        assert again.__notes__ == ["in map(f)"]


def test_what_a_subclass_adds_survives_too() -> None:
    """The server's wish about the next attempt is not lost."""
    error = TransientStorageError("429", url="gs://b/o")
    error.retry_after_s = 2.5
    assert pickle.loads(pickle.dumps(error)).retry_after_s == 2.5


def test_a_place_is_completed_never_changed() -> None:
    """Who raises knows best; those who pass the error on only add what is missing."""
    error = CorruptRecordError("bad", record=3)
    error.complete(record=9, url="gs://b/o", stage="check", version=None)
    assert error.place() == {"url": "gs://b/o", "record": 3, "stage": "check"}


def test_control_characters_are_shown_escaped() -> None:
    """A name or a server's words cannot write on the terminal; the attributes stay as they are."""
    name = "gs://b/a\nb\x1b[2J\x85\ud800"
    error = AsyncdataError("no \x1b[1mobject\r\x00,\n\tas the server says", url=name, stage="map(\x07)")
    assert str(error) == (
        "no \\x1b[1mobject\\r\\x00,\n\tas the server says [url gs://b/a\\nb\\x1b[2J\\x85\\ud800, stage map(\\x07)]"
    )
    error.add_note("of\x1b[2J\nthe second line")
    assert error.__notes__ == ["of\\x1b[2J\nthe second line"]
    assert error.url == name
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
