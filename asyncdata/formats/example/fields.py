"""Finds every field of many messages by stepping through all of them together.

The messages contain only fields with the tag 0a: the entries of a map, the strings of a list. A step reads only the
length of one field of each message. Messages that have ended are left out of further steps::

    message 0:   0a 11 ................. 0a 04 .... 0a 02 ..
    message 1:   0a 0e .............. 0a 09 .........
                 step 0                  step 1     step 2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.varints import ByteArray, IntArray, lengths_at

Mask: TypeAlias = npt.NDArray[np.bool_]

SPARE_BYTES: Final = 192
"""Messages that end this close to the end of the buffer are left over, because the vectorized scan reads ahead."""
RUN: Final = 8192
"""So many fields are looked at in one go: what is looked at again and again stays in the cache."""
_MOST_STEPS: Final = 1024
"""Messages with more fields than this are left over, so that damage cannot make many tiny steps."""
_TAG: Final = np.uint8(0x0A)


class FieldRun(NamedTuple):
    """Some steps.

    Attributes:
        first: The number of the first step.
        messages: By step: which messages have such a field, ascending.
        begin: Where each field begins, behind its length; all of a step, then all of the next.
        stop: Where it ends.
    """

    first: int
    messages: Sequence[IntArray]
    begin: IntArray
    stop: IntArray

    @property
    def message(self) -> IntArray:
        """Which message each field is of."""
        return np.concatenate(self.messages)

    @property
    def step(self) -> IntArray:
        """Which field of its message each is."""
        steps = range(self.first, self.first + len(self.messages))
        return np.repeat(steps, list(map(len, self.messages)))


def fields_of(array: ByteArray, position: IntArray, end: IntArray, good: Mask) -> Iterator[FieldRun]:
    """The fields of messages; marks messages that are damaged, while they are read.

    Args:
        array: The bytes.
        position: Where each message begins.
        end: Where it ends; those that are good, ``SPARE_BYTES`` before the end of the bytes at the latest.
        good: Which messages to read.
    """
    message = np.flatnonzero(good & (position < end))
    at, limit = position.take(message) + 1, end.take(message) + 1
    held: list[tuple[IntArray, IntArray, IntArray]] = []
    first = 0
    for step in range(_MOST_STEPS):
        if not len(message):
            break
        sizes: npt.NDArray[np.uint8] = array.take(at)
        if np.bitwise_or.reduce(sizes) < 0x80:
            # Where the next length would lie: behind this one, the field and a tag.
            following = at + sizes
            following += 2
            first = first if held else step
            held.append((message, at, following))
        else:
            # Steps with long fields are shown by themselves, so that of the others all lengths are of one byte.
            if held:
                yield _short(array, first, held, good)
                held = []
            lengths, widths, fine = lengths_at(array, at)
            begin = at + widths
            following = begin + lengths
            following += 1
            fine &= array.take(at - 1) == _TAG
            fine &= following <= limit
            if not fine.all():
                good[message[~fine]] = False
                message, begin, following, limit = message[fine], begin[fine], following[fine], limit[fine]
                if not len(message):
                    break
            yield FieldRun(step, (message,), begin, following - 1)
        more = following < limit
        if np.count_nonzero(more) < len(more):
            beyond = following > limit
            if np.count_nonzero(beyond):
                good[message[beyond]] = False
                np.minimum(following, limit, out=following)
            left = np.flatnonzero(more)
            message, following, limit = message.take(left), following.take(left), limit.take(left)
        at = following
        if held and (len(held) + 1) * len(held[-1][0]) > RUN:
            yield _short(array, first, held, good)
            held = []
    good[message] = False
    if held:
        yield _short(array, first, held, good)


def _short(array: ByteArray, first: int, held: list[tuple[IntArray, IntArray, IntArray]], good: Mask) -> FieldRun:
    """Steps whose fields all are short: of each message, where the length lies, and where the next one would."""
    messages, ats, nexts = zip(*held, strict=True)
    begin, stop = np.concatenate(ats), np.concatenate(nexts)
    odd = array.take(begin - 1) != _TAG
    if odd.any():
        good[np.concatenate(messages)[odd]] = False
    begin += 1
    stop -= 1
    return FieldRun(first, messages, begin, stop)


def enter(array: ByteArray, position: IntArray, stop: IntArray, good: Mask) -> IntArray:
    """Reads a length that must reach exactly to ``stop``; gives where its field begins."""
    keep_inside(position, array, good)
    sizes, widths, fine = lengths_at(array, position)
    begin = position + widths
    good &= fine
    good &= begin + sizes == stop
    return begin


def keep_inside(position: IntArray, array: ByteArray, good: Mask) -> None:
    """Keeps positions, which in damaged records may be anything, where there is something to look at."""
    farthest = len(array) - SPARE_BYTES
    if int(position.max(initial=0)) <= farthest:
        return
    good &= position <= farthest
    np.minimum(position, farthest, out=position)
