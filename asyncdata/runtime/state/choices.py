"""`Choices`: in which order a stage without a fixed order has passed rows on, noted by one run and repeated by another.

    recording   stage ── note ──▶ AllChoices ── take ──▶ News ──▶ the iterator ──▶ order log
    repeating   order log ──▶ the iterator ──▶ AllChoices ──▶ stage: wanted, took

A choice is a run of rows: ``(first, count)``. For a map, `count` rows of its input from `first` on; for an interleave,
the next `count` rows of the dataset that input row `first` was made into. Rows are counted from where the iterator
began, so a run depends on nothing but the rows themselves: not on slots, tasks, workers, or the sizes of blocks.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from asyncdata.errors import StateError
from asyncdata.memory.advance import Rows

Recorded: TypeAlias = Mapping[int, Sequence[bytes]]
"""Packed runs by the number of their stage, in their order."""

_HEAD: Final = struct.Struct("<IBB")
_WIDTHS: Final = (1, 2, 4, 8)
_MOST_RUNS: Final = 1 << 28


class Chosen(NamedTuple):
    """Choices of one stage.

    Attributes:
        stage: Its number, the same in every run.
        runs: ``int64[n, 2]``: first row and count.
    """

    stage: int
    runs: Rows


class Choices:
    """Those of one stage. Stage loop only.

    Args:
        stage: Its number.
        noted: Where its choices are noted, if they are.
        recorded: Those that it repeats; None: it chooses by itself.

    Attributes:
        repeats: Whether it repeats recorded choices.
        wanted: The run that comes next, as far as it was not taken; None where the log ends.
    """

    def __init__(self, stage: int, noted: list[Chosen] | None, recorded: Sequence[bytes] | None) -> None:
        self.repeats = recorded is not None
        self.wanted: tuple[int, int] | None = None
        self._stage = stage
        self._noted = noted
        self._packed = deque(recorded or ())
        self._runs: Iterator[list[int]] = iter(())
        self._next()

    def note(self, runs: Any) -> None:
        """These were passed on."""
        if self._noted is not None and len(runs):
            self._noted.append(Chosen(self._stage, np.asarray(runs, np.int64)))

    def took(self, count: int, *, on: int = 0) -> None:
        """Of the wanted run, so many rows were passed on; what is left of it begins so many rows further on."""
        assert self.wanted is not None
        first, left = self.wanted
        self.wanted = (first + on, left - count)
        if left == count:
            self._next()

    def _next(self) -> None:
        while (run := next(self._runs, None)) is None and self._packed:
            self._runs = iter(unpack(self._packed.popleft()).tolist())
        self.wanted = None if run is None else (run[0], run[1])

    def ends(self, label: str) -> StateError:
        """The error for a stage that has more rows than the log."""
        return StateError(
            "the order log ends here: the run that it was written by got no further, or kept the order of this step",
            stage=label,
        )

    def misses(self, label: str) -> StateError:
        """The error for a stage that has no such row as it is to pass on."""
        return StateError(
            "the order log does not fit: it was written with other data, or with functions that gave other elements",
            stage=label,
        )


class AllChoices:
    """Those of all stages of a pipeline. Stage loop only.

    Args:
        notes: Whether they are noted.
        recorded: Those that are repeated; None: stages choose by themselves.
    """

    def __init__(self, *, notes: bool, recorded: Recorded | None) -> None:
        self._noted: list[Chosen] | None = [] if notes else None
        self._recorded = recorded
        self._alike: dict[int, int] = {}

    def begin(self, key: tuple[Any, ...], *, is_needed: bool) -> Choices | None:
        """Those of a stage that is made now.

        Args:
            key: What is known of it: its epoch, the element around it, its step. Of stages with the same key, such as
                those of equal elements, the order in which they are made tells one from the other.
            is_needed: Whether it has a choice; otherwise it only repeats what another run chose.
        """
        number = _digest(key)
        alike = self._alike[number] = self._alike.get(number, -1) + 1
        number = _digest((*key, alike))
        known = self._recorded or {}
        if not is_needed and number not in known:
            return None
        return Choices(number, self._noted, None if self._recorded is None else known.get(number, ()))

    @property
    def pending(self) -> int:
        """How much was noted since the last time."""
        return len(self._noted or ())

    def take(self) -> tuple[Chosen, ...]:
        """What was noted since the last time."""
        if not self._noted:
            return ()
        taken = tuple(self._noted)
        self._noted.clear()
        return taken


def _digest(key: tuple[Any, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")


def pack(runs: Rows) -> bytes:
    """Runs in few bytes: first rows as differences, each column in the narrowest integers that hold it."""
    columns = (np.diff(runs[:, 0], prepend=0), runs[:, 1])
    widths = [next(width for width in _WIDTHS if _fits(column, width)) for column in columns]
    parts = [column.astype(f"<i{width}").tobytes() for column, width in zip(columns, widths, strict=True)]
    return b"".join([_HEAD.pack(len(runs), *widths), *parts])


def _fits(column: Rows, width: int) -> bool:
    most = 1 << (8 * width - 1)
    return not len(column) or (int(column.min()) >= -most and int(column.max()) < most)


def unpack(data: bytes) -> Rows:
    """What `pack` was given.

    Raises:
        StateError: It is not what `pack` makes.
    """
    try:
        count, *widths = _HEAD.unpack_from(data)
        if count > _MOST_RUNS or not set(widths) <= set(_WIDTHS) or len(data) != _HEAD.size + count * sum(widths):
            raise ValueError("lengths")
        first = np.frombuffer(data, f"<i{widths[0]}", count, _HEAD.size)
        counts = np.frombuffer(data, f"<i{widths[1]}", count, _HEAD.size + count * widths[0])
        runs = np.stack((np.cumsum(first, dtype=np.int64), counts.astype(np.int64)), axis=1)
        if (runs[:, 0] < 0).any() or (runs[:, 1] <= 0).any():
            raise ValueError("numbers")
    except (struct.error, ValueError) as error:
        raise StateError(f"the order log is damaged: choices cannot be read ({error})") from error
    return runs
