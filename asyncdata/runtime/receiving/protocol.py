"""The messages between a Runtime and one of its receiving processes, by `asyncdata.workers.channel`.

    Runtime → receiver:   OPEN  START  READ  CANCEL  NUDGE  FAIL  ASK  LOOK  CLOSE
    receiver → Runtime:   READY  NOTE  SEEN  INPUT  DONE

Bodies are pickles between processes of one program; bytes of storage never travel here, but through the arena.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, Final, NamedTuple

from asyncdata.storage.attempt import ReadLimits
from asyncdata.types import ObjectInfo

OPEN: Final = 1
"""A recipe of readers and its number; the reader is opened at once."""
START: Final = 9
"""READY follows when everything that was said before is done."""
READ: Final = 2
"""An `Order`; its place in the arena is in the head."""
CANCEL: Final = 3
"""Ends a read; DONE follows."""
NUDGE: Final = 4
"""See `Wire.nudge`."""
FAIL: Final = 5
"""Ends an answer with an error, if it is not complete; see `Wire.fail`."""
ASK: Final = 6
"""Whether an answer has input; INPUT follows."""
LOOK: Final = 7
"""How far the answers have come; SEEN follows, which also says that the process is alive."""
CLOSE: Final = 8
"""Closes the readers and ends the process."""

READY: Final = 16
NOTE: Final = 17
"""What was noted of an attempt so far."""
SEEN: Final = 18
"""Pairs of a ticket and the bytes that are in its buffer."""
INPUT: Final = 19
DONE: Final = 20
"""An `Outcome`: nothing writes to the buffer any more."""

_PAIR: Final = struct.Struct("<QQ")


class Order(NamedTuple):
    """One attempt.

    Attributes:
        recipe: Number of the recipe.
        target: The object, or the URL of one about which nothing is known.
        start: Offset of the first byte in it.
        nbytes: Of the buffer.
        limits: See `Attempt`, as the following.
        opened: What was told of an object that is being opened.
        detour: Whether another way is to be taken.
    """

    recipe: int
    target: ObjectInfo | str
    start: int
    nbytes: int
    limits: ReadLimits | None
    opened: ObjectInfo | None
    detour: bool


class Outcome(NamedTuple):
    """How it ended.

    Attributes:
        value: What the reader returned.
        error: What it raised instead; None with a value, and where it was cancelled.
        notes: What was noted of the attempt.
        fallbacks: Bodies of all reads so far that took aiohttp's path, by reason.
    """

    value: Any
    error: BaseException | None
    notes: dict[str, Any]
    fallbacks: dict[str, int]


def packed(value: object) -> bytes:
    """As a body."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpacked(body: bytes) -> Any:
    """A body."""
    return pickle.loads(body)  # noqa: S301 -- made by a process of this program, not from storage


def packed_pairs(pairs: list[tuple[int, int]]) -> bytes:
    """As the body of SEEN."""
    return b"".join(_PAIR.pack(*pair) for pair in pairs)


def unpacked_pairs(body: bytes) -> dict[int, int]:
    """The body of SEEN."""
    return dict(_PAIR.iter_unpack(body))
