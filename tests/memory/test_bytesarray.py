"""`BytesArray`: a sequence of byte strings, or texts, that copies nothing unasked."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.bytesarray import BytesArray

ITEMS = [b"one", b"", b"\x00three\x00", b"\xff"]


@given(st.one_of(st.lists(st.binary(max_size=20)), st.lists(st.text(max_size=20))))
def test_it_is_the_sequence_it_was_made_of(items: list[bytes] | list[str]) -> None:
    """Items, slices, lengths and comparison are those of the list."""
    array = BytesArray.from_items(items)
    assert list(array) == array.tolist() == items
    assert array == items
    assert array == BytesArray.from_items(items)
    assert array[1:] == items[1:]
    assert array[::-2] == items[::-2]
    assert len(array) == len(items)
    raw = [item.encode() if isinstance(item, str) else item for item in items]
    assert array.lengths.tolist() == [len(item) for item in raw]
    assert array.nbytes == sum(map(len, raw))
    assert [bytes(view) for view in array.views()] == raw
    assert array.copy() == items
    if items:
        assert array[-1] == items[-1]
        assert pickle.loads(pickle.dumps(array)) == items


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 96)), max_size=40),
    st.sampled_from([None, 0, 1, 7, 1024, 1025]),
)
def test_its_items_are_the_bytes_at_its_places(places: list[tuple[int, int]], size: int | None) -> None:
    """Wherever they lie in the memory, twice or far apart, of one length or of many."""
    memory = np.random.default_rng(0).integers(0, 3, 6000, np.uint8)  # many zeros, also at ends
    rows = np.array([(at, length if size is None else size) for at, length in places], np.int64).reshape(-1, 2)
    expected = [memory.data[at : at + length].tobytes() for at, length in rows.tolist()]
    assert BytesArray(memory, rows).tolist() == expected
    assert all(type(item) is bytes for item in BytesArray(memory, rows).tolist())
    text = BytesArray(memory, rows, text=True)
    assert text.tolist() == [item.decode() for item in expected]


def test_it_is_a_view_until_it_is_copied() -> None:
    """The payloads stay where they are; a copy has memory of its own."""
    base = np.frombuffer(bytearray(b"..one..three"), np.uint8)
    array = BytesArray(base, np.array([[2, 3], [7, 5]]))
    copy = array.copy()
    base[2] = ord("O")
    assert array[0] == b"One"
    assert bytes(array.views()[0]) == b"One"
    assert copy[0] == b"one"


@pytest.mark.parametrize("places", [[[2, 3], [5, 1]], [[7, 5], [2, 3]], [[2, 3], [7, 0], [7, 5]], [[4, 0]], []])
def test_nothing_but_its_items_is_shown(places: list[list[int]]) -> None:
    """What else lies in the memory does not; and none of it can be written to."""
    memory = np.frombuffer(bytearray(b"..one..three"), np.uint8)
    array = BytesArray(memory, np.array(places, np.int64).reshape(-1, 2))
    items = array.tolist()
    assert array.base.tobytes() == b"".join(items)
    assert [array.base[at : at + size].tobytes() for at, size in array.rows.tolist()] == items
    assert array.base is array.base
    assert not array.base.flags.writeable
    assert not array.rows.flags.writeable
    assert all(view.readonly for view in array.views())


def test_indices_behind_the_end() -> None:
    """An index that is not there is an IndexError, as of any sequence."""
    array = BytesArray.from_items(ITEMS)
    with pytest.raises(IndexError):
        array[4]
    with pytest.raises(IndexError):
        array[-5]
    assert b"one" in array
    assert array.index(b"\xff") == 3
    assert list(reversed(array)) == ITEMS[::-1]


def test_as_numpy() -> None:
    """numpy sees an array of objects, in which nothing is truncated; without a copy there is none."""
    array = BytesArray.from_items(ITEMS)
    objects = np.asarray(array)
    assert objects.dtype == object
    assert objects.tolist() == ITEMS
    assert np.asarray(array, "S8")[2] == b"\x00three"
    with pytest.raises(ValueError, match="copying"):
        array.__array__(copy=False)


def test_comparison_is_with_sequences() -> None:
    """A byte string is no sequence of byte strings, and arrays are no keys."""
    array = BytesArray.from_items([b"a"])
    assert array != b"a"
    assert array != [b"b"]
    assert array != [b"a", b"a"]
    with pytest.raises(TypeError):
        hash(array)


def test_it_shows_itself_briefly() -> None:
    """The text of a large batch is short."""
    assert repr(BytesArray.from_items(ITEMS)) == ("BytesArray([b'one', b'', b'\\x00three\\x00', …], 4 items, 11 bytes)")
    assert len(repr(BytesArray.from_items([b"x" * 1000] * 1000))) < 120


@pytest.mark.parametrize("items", [[b"a", "b"], ["a", b"b"], [1], [np.arange(2)], [[b"a"]], [None]])
def test_items_are_bytes_or_texts(items: Any) -> None:
    """Nothing else is taken for its bytes: those of an array of objects would be addresses."""
    with pytest.raises(TypeError, match="all bytes or all str"):
        BytesArray.from_items(items)


@pytest.mark.parametrize("text", [False, True])
def test_a_pickle_keeps_what_items_are(text: bool) -> None:
    """Also of one without items."""
    for items in ([], ["a", ""] if text else [b"a", b""]):
        packed = BytesArray.from_items(items)
        packed = BytesArray(packed.base, packed.rows, text=text)
        again = pickle.loads(pickle.dumps(packed))
        assert (again.text, again.tolist()) == (text, items)


def test_views_are_the_bytes_they_show() -> None:
    """Whatever they show them as; those of objects are refused."""
    array = np.array([[1, 2], [3, 4]], np.int32)
    views: list[Any] = [memoryview(each) for each in (array, array.reshape(-1), np.array(5, "u1"))]  # type: ignore[arg-type]  # numpy of 3.11 has no Buffer
    items = [views[0], b"a", views[1], memoryview(b"bc"), views[2]]
    assert BytesArray.from_items(items).tolist() == [array.tobytes(), b"a", array.tobytes(), b"bc", b"\x05"]
    with pytest.raises(TypeError, match="view of objects"):
        BytesArray.from_items([memoryview(np.array([None]))])  # type: ignore[arg-type]  # see above
