"""Records of one length, between a header and a footer that are skipped.

As in tf.data, the bytes between header and footer must be a whole number of records. If the size of the object is
known, this is checked before the first record; otherwise (compressed objects) after the last one.
"""

from __future__ import annotations

import numpy as np

from asyncdata.errors import BrokenFrameError, DataError
from asyncdata.formats.framing import Frames, Place, Refs
from asyncdata.memory.structure import LEAF, Structure


class FixedLengthFramer:
    """See the module's docstring.

    Args:
        record_bytes: Length of a record, at least 1.
        header_bytes: Bytes in front of the first record.
        footer_bytes: Bytes behind the last record.
    """

    structure: Structure = LEAF
    in_thread = False

    def __init__(self, record_bytes: int, *, header_bytes: int = 0, footer_bytes: int = 0) -> None:
        if record_bytes < 1 or header_bytes < 0 or footer_bytes < 0:
            raise ValueError(
                f"record_bytes must be at least 1, header_bytes and footer_bytes at least 0, not {record_bytes}, "
                f"{header_bytes} and {footer_bytes}"
            )
        self._record = record_bytes
        self._header = header_bytes
        self._footer = footer_bytes

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`."""
        del view
        known = remaining is not None
        left = remaining if remaining is not None else stop - start if last else None
        header = max(0, self._header - place.offset)
        if left is not None and place.offset > 0 and left <= self._footer and known:
            return self._found(start, 0, stop)
        body = None if left is None else left - header - self._footer
        error = None
        if body is not None and (body < 0 or body % self._record):
            error = self._error(place, place.offset + (left or 0))
            if known or body < 0:
                return self._found(start, 0, start, error=error)
        first = start + header
        if first > stop:
            return self._found(start, 0, stop)
        # Without the object's size, the last bytes there are may be the footer.
        end = stop - self._footer if body is None else min(stop, first + body)
        count = min(limit, max(0, end - first) // self._record)
        used = first + count * self._record
        if body is not None and used == first + body:
            used = stop
        need = 0
        if not count and used < stop and error is None:
            # What may be the footer is shown again each time. Where it is longer than a record, more than one record
            # has to come with it, and how many there are is not known.
            footer = 0 if known else self._footer
            need = self._record + footer if footer <= self._record else 0
        return self._found(first, count, used, need=need, error=error if count < limit else None)

    def _found(self, first: int, count: int, stop: int, *, need: int = 0, error: DataError | None = None) -> Frames:
        starts = first + self._record * np.arange(count, dtype=np.int64)
        rows = np.empty((count, 2), np.int64)
        rows[:, 0] = starts
        rows[:, 1] = self._record
        return Frames(starts=starts, values=(Refs(rows),), stop=stop, need=need, error=error)

    def _error(self, place: Place, size: int) -> BrokenFrameError:
        return place.error(
            BrokenFrameError,
            f"{size} bytes less a header of {self._header} and a footer of {self._footer} are not a whole number of "
            f"records of {self._record} bytes",
        )
