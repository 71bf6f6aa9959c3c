"""The protocol's texts: URLs that are built, answers that are not to be trusted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import ObjectNotFoundError, StorageError
from asyncdata.storage.webhdfs.requests import (
    Caller,
    NameNodePath,
    answer_error,
    build_url,
    parse_listing,
    parse_status,
)

_STATUS = {"type": "FILE", "length": 5, "modificationTime": 7, "pathSuffix": "a"}


def test_a_url_quotes_the_path_and_names_the_caller() -> None:
    """A token replaces the names of users."""
    place = NameNodePath(origin="http://h:1", path="/a b%20?#ä")
    url = build_url(place, "OPEN", Caller(user="me", do_as="you"), {"offset": 1, "length": 2})
    assert url == "http://h:1/webhdfs/v1/a%20b%2520%3F%23%C3%A4?op=OPEN&offset=1&length=2&user.name=me&doas=you"
    assert build_url(place, "X", Caller(user="me", token="t&t")).endswith("?op=X&delegation=t%26t")
    assert "t&t" not in repr(Caller(token="t&t"))


@pytest.mark.parametrize(
    "change",
    [
        {"length": -1},
        {"length": "5"},
        {"type": "PIPE"},
        {"type": ["FILE"]},
        {"type": {}},
        {"modificationTime": None},
        {"pathSuffix": "../../x"},
        {"pathSuffix": "."},
        {"pathSuffix": "..", "type": "DIRECTORY"},
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(change: dict[str, Any]) -> None:
    """Negative sizes, other types, names that lead out of their folder; and what is too deep to be read."""
    with pytest.raises(StorageError):
        parse_listing(b"[" * 100_000, "/f")
    body = json.dumps({"FileStatuses": {"FileStatus": [{**_STATUS, **change}]}}).encode()
    with pytest.raises(StorageError):
        parse_listing(body, "/f")


def test_a_symbolic_link_hides_nothing_beside_it() -> None:
    """A link is not followed, and is no file; the files of its folder are listed all the same."""
    link, file = {**_STATUS, "type": "SYMLINK", "pathSuffix": "link"}, {**_STATUS, "pathSuffix": "file"}
    body = json.dumps({"FileStatuses": {"FileStatus": [link, file]}}).encode()
    assert [entry.path for entry in parse_listing(body, "/f")] == ["/f/file"]
    with pytest.raises(ObjectNotFoundError, match="symbolic link"):
        parse_status(json.dumps({"FileStatus": link}).encode(), "/f/link")


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_any_bytes_are_an_answer_or_an_error(body: bytes) -> None:
    """No other exception escapes, whatever a server sends."""
    for parse in (lambda: parse_status(body, "/x"), lambda: parse_listing(body, "/x")):
        with pytest.raises(StorageError):
            parse()
    assert isinstance(answer_error(500, body, Caller()), StorageError)


@pytest.mark.parametrize("before", [0, 240, 295])
def test_a_token_that_is_repeated_is_not_shown(before: int) -> None:
    """Also where the server's words end inside of it."""
    body = b"x" * before + b" no secretsecretsecret here"
    assert "secr" not in str(answer_error(500, body, Caller(token="secretsecretsecret")))
