"""Everything that is in a ``tf.train.Example``, for people who do not know it: no spec says what to expect.

A ``tf.train.SequenceExample`` begins like an Example with its context, followed by named lists of features.
"""

from __future__ import annotations

from typing import Any, Final

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.features import Kind
from asyncdata.formats.example.scalar import TAG_OF_KIND, Data, Place, decode, entries_of, fields_with, words_of
from asyncdata.formats.example.varints import WireError
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
        for key, place in entries_of(record, 0x0A):
            name = key.decode()
            found[name] = _value(record, name, place)
        for key, (begin, stop) in entries_of(record, 0x12):
            name, steps = key.decode(), fields_with(record, begin, stop, 0x0A)
            found[name] = [_value(record, name, place) for place in steps]
    except (WireError, IndexError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"the record is not a tf.train.Example: {words_of(error)}") from None
    return found


def _value(data: Data, name: str, place: Place) -> Any:
    begin, stop = place
    if begin == stop:
        return None
    kind = _KINDS.get(data[begin])
    if kind is None:
        raise WireError(f"feature {name!r} begins with byte {data[begin]:#04x}, which is not one of the three lists")
    return decode(data, place, Wanted(name, name.encode(), kind, (), -1, 1, None), None)
