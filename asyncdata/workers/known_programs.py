"""The programs that a pool knows, by number. A long program is in a file, which is open until the program is removed.

Invariant: a number is used once.
"""

from __future__ import annotations

import itertools
import os

from asyncdata.workers.channel import store_body
from asyncdata.workers.messages import MAX_INLINE_BYTES


class Registered:
    """A registered program; a long one lies in a file whose descriptor every worker gets a copy of.

    Args:
        number: Its number.
        pickled: What the workers unpickle.
        fd: Of the file, or -1.
        limit_s: The longest that one call of a user function may take.
        label: What traces call its tasks.
    """

    __slots__ = ("fd", "label", "limit_s", "number", "pickled", "size")

    def __init__(self, number: int, pickled: bytes, fd: int, *, limit_s: float | None, label: str) -> None:
        self.number = number
        self.pickled = pickled
        self.size = len(pickled)
        self.fd = fd
        self.limit_s = limit_s
        self.label = label


class Registry:
    """See the module."""

    def __init__(self) -> None:
        self._programs: dict[int, Registered] = {}
        self._numbers = itertools.count(1)

    def __getitem__(self, number: int) -> Registered:
        return self._programs[number]

    def add(self, pickled: bytes, *, limit_s: float | None, label: str) -> int:
        """Takes a program; returns its number."""
        number = next(self._numbers)
        fd = store_body(pickled) if len(pickled) > MAX_INLINE_BYTES else -1
        self._programs[number] = Registered(number, pickled, fd, limit_s=limit_s, label=label)
        return number

    def remove(self, number: int) -> bool:
        """Drops a program; False where there is none of that number."""
        program = self._programs.pop(number, None)
        if program is None:
            return False
        if program.fd >= 0:
            os.close(program.fd)
            program.fd = -1
        return True

    def clear(self) -> None:
        """Drops all of them."""
        for number in list(self._programs):
            self.remove(number)
