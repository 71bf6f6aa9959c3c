"""`LeftInFiles`: where those elements of one track lie that were passed on and not delivered yet.

    position   0 1 2 3 4 5 6 7 8 9
    delivered  ■ ■ ■ · ■ ■ · · ■            at = 3, later = 4, 5, 8
    kept             3     6 7   9          a state in front of 8 needs 3, 6 and 7

Elements arrive block by block, and are forgotten some time after they were delivered.
"""

from __future__ import annotations

import numpy as np

from asyncdata.memory.advance import Rows
from asyncdata.runtime.state.places import Places


class LeftInFiles:
    """See the module's docstring.

    Args:
        places: Of those that are left in the beginning, in the order of their positions, with these.
    """

    __slots__ = ("_parts",)

    def __init__(self, places: Places | None = None) -> None:
        self._parts: list[Places] = [] if places is None else [places]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def copy(self) -> LeftInFiles:
        """Another one, which knows the same."""
        made = LeftInFiles()
        made._parts = self._parts.copy()
        return made

    def add(self, places: Places) -> None:
        """The next elements were passed on."""
        self._parts.append(places)

    @property
    def parts(self) -> int:
        """How many blocks are kept."""
        return len(self._parts)

    def forget(self, at: int, later: Rows) -> None:
        """Lets go of what was delivered: all in front of a position, and later ones."""
        if not self._parts:
            return
        places = Places.concat(self._parts)
        positions = positions_of(places)
        place = np.searchsorted(later, positions)
        is_left = positions >= at
        inside = place < len(later)
        is_left[inside] &= later[place[inside]] != positions[inside]
        if not is_left.all():
            places = places.chosen(np.flatnonzero(is_left))
        self._parts = [places] if len(places) else []

    def before(self, position: int, count: int) -> Places | None:
        """The elements in front of a position, where so many are left; None if not all of them are known.

        To be asked once those that were delivered are forgotten.
        """
        if not self._parts:
            return None
        (places,) = self._parts
        known = int(np.searchsorted(positions_of(places), position))
        return places.chosen(np.arange(known)) if known == count else None


def positions_of(places: Places) -> Rows:
    """The position of each element, of which each uses up one."""
    assert places.used is not None
    return places.used.pairs[:, 1]
