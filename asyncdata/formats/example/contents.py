"""Everything that is in a ``tf.train.Example``, for people who do not know it: no spec says what to expect.

A ``tf.train.SequenceExample`` begins like an Example with its context, followed by named lists of features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.features import Kind
from asyncdata.formats.example.scalar import TAG_OF_KIND, Data, Place, decode, read_entry, words_of
from asyncdata.formats.example.varints import WireError, read_length, skip_field
from asyncdata.formats.example.wanted import Wanted

_KINDS: Final[dict[int, Kind]] = {tag: kind for kind, tag in TAG_OF_KIND.items()}


def features_of(record: bytes) -> dict[str, Any]:
    """The values of each feature: an array of numbers or of byte strings, None for a feature without a list.

    A feature list of a SequenceExample is a list of such values, one per step.

    Raises:
        CorruptRecordError: The record is no Example, or a name in it is no text.

    Example::

        >>> from asyncdata import serialize_example
        >>> features_of(serialize_example({"label": 3}))
        {'label': array([3])}
    """
    try:
        found: dict[str, Any] = {}
        for name, place in _entries(record, 0, len(record), 0x0A):
            found[name] = _value(record, name, place)
        for name, (begin, stop) in _entries(record, 0, len(record), 0x12):
            steps = _fields(record, begin, stop, 0x0A)
            found[name] = [_value(record, name, place) for place in steps]
    except (WireError, IndexError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"the record is not a tf.train.Example: {words_of(error)}") from None
    return found


def _entries(data: Data, position: int, end: int, tag: int) -> Iterator[tuple[str, Place]]:
    """The entries of the maps that are in fields of this tag."""
    for begin, stop in _fields(data, position, end, tag):
        for first, last in _fields(data, begin, stop, 0x0A):
            key, start, behind = read_entry(data, first, last)
            yield key.decode(), (start, behind)


def _fields(data: Data, position: int, end: int, tag: int) -> Iterator[Place]:
    """The fields of this tag in a message; all others are passed over."""
    while position < end:
        if data[position] == tag:
            begin, position = read_length(data, position + 1, end)
            yield begin, position
        else:
            position = skip_field(data, position, end)


def _value(data: Data, name: str, place: Place) -> Any:
    begin, stop = place
    if begin == stop:
        return None
    kind = _KINDS.get(data[begin])
    if kind is None:
        raise WireError(f"feature {name!r} begins with byte {data[begin]:#04x}, which is not one of the three lists")
    return decode(data, place, Wanted(name, name.encode(), kind, (), -1, 1, None), None)
