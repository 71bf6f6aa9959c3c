"""A knob that somebody turns all the time."""

from __future__ import annotations

from random import Random

from asyncdata.runtime.tuning.knob import Knob


class Restless(Knob):
    """Another value at every reading, the first and the least one included.

    Args:
        value: The least.
        most: The largest.
        seed: Of the values.
    """

    def __init__(self, value: int, most: int | None = None, seed: int = 1) -> None:
        self._random = Random(seed)
        self._least, self._most = value, 4 * value + 3 if most is None else most
        super().__init__(value)

    @property
    def value(self) -> int:
        """What counts for this reading."""
        return self._random.randint(self._least, self._most)

    @value.setter
    def value(self, value: int) -> None:
        """Is not heard."""
