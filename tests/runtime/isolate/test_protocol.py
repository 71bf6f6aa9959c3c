"""Laws of notes: what is packed comes out, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncdata.runtime.isolate.protocol import MESSAGE_BYTES, MOST_NOTES, Note, pack_notes, unpack_notes
from asyncdata.workers.messages import HEAD

_NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.builds(Note, _NUMBERS, _NUMBERS, _NUMBERS), max_size=50))
def test_what_is_packed_comes_out(notes: list[Note]) -> None:
    """All of them, in order."""
    assert list(unpack_notes(pack_notes(notes))) == notes


def test_as_many_as_may_travel_together_fit_into_a_message() -> None:
    """None needs a file of its own."""
    assert len(pack_notes([Note(1, 2, 3)] * MOST_NOTES)) + HEAD.size <= MESSAGE_BYTES
