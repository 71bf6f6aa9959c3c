"""`Framer`: the protocol between a format of consecutive records and the code that has its bytes. Sans-I/O.

A framer gets a run of bytes that begins at a record's first byte, and returns where the whole records in it are::

    bytes   |rec 0|rec 1|rec 2|re…          frame() ──▶ starts, values, stop
                               └ stop: what follows is a cut-off tail, shown again when more of it is there

Invariants:

* The records do not depend on how an object is divided. A framer keeps no state about bytes that it did not report as
  used, except what follows from the `Place` that it is given, so that reading can begin at any record.
* A length stated by the bytes is only used for comparisons until it was checked against the rest of the object;
  ``Frames.need`` is the only figure by which a caller may allocate.
* The records in front of a damaged place are returned together with the error.
* A framer that is not ``in_thread`` can be pickled: workers may frame with copies of it, see `framing_task`.
* A framer may shorten a record in place (escaped quotes, carriage returns inside a line), but only within the bytes of
  the records that it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from asyncdata.errors import DataError
from asyncdata.memory.leaf import BYTES, Leaf
from asyncdata.memory.structure import LEAF, Structure, TupleOf

Positions: TypeAlias = npt.NDArray[np.int64]
E = TypeVar("E", bound=DataError)

NOWHERE: Final[Positions] = np.empty(0, np.int64)
NOWHERE.flags.writeable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in which object the bytes lie.

    Attributes:
        url: The object.
        version: Its generation or ETag.
        offset: Offset in the object (decompressed offset for compressed ones) of the first byte shown.
        record: Index in the object of the record that begins there.
        line: Number of the line that begins there, from 1; for formats that count lines.
        columns: What `Frames.columns` has said of the object's beginning.
    """

    url: str | None = None
    version: str | None = None
    offset: int = 0
    record: int = 0
    line: int = 1
    columns: tuple[int, ...] | None = None

    def error(self, kind: type[E], message: str, *, behind: int = 0, record: int = 0) -> E:
        """An error so many bytes and records behind this place."""
        return kind(
            message, url=self.url, version=self.version, offset=self.offset + behind, record=self.record + record
        )


class Refs(NamedTuple):
    """Values that stay where they are.

    Attributes:
        rows: ``int64[n, 2]``: position in the view and length of each. A row of no bytes has a position inside its
            record.
        leaf: What they are.
    """

    rows: Positions
    leaf: Leaf = BYTES


Values: TypeAlias = Refs | npt.NDArray[Any] | list[Any]
"""One leaf of the records: references, an array whose first axis is the record, or Python objects."""


@dataclass(slots=True, kw_only=True)
class Frames:
    """What a framer found.

    Attributes:
        starts: Position of the first byte of each record.
        values: Per leaf of the framer's structure.
        stop: Position behind the last byte used. Larger than the view's ``start`` also without records, where bytes
            were passed over.
        need: Size of the whole record that begins at ``stop``, once it is known and was checked; else 0.
        error: Why nothing after ``stop`` can be read; or, with `resume`, only the record that begins there.
        resume: Position behind a record that is wrong by itself; -1 without one.
        resume_line: Number of the line there.
        lines: Number of the line at which each record begins, where the format counts them.
        next_line: Number of the line at ``stop``, likewise.
        columns: Numbers of the columns that the object's beginning names, where it does: needed to go on anywhere.
        structure: How the values of these records nest, where that is not what the framer says.
        ended: The format says that nothing follows, whatever bytes do.
        short: No whole record follows in the bytes shown, which an answer without records says by itself.
    """

    starts: Positions
    values: tuple[Values, ...]
    stop: int
    need: int = 0
    error: DataError | None = None
    lines: Positions | None = None
    next_line: int = field(default=1)
    columns: tuple[int, ...] | None = None
    structure: Structure | None = None
    ended: bool = False
    short: bool = False
    resume: int = -1
    resume_line: int = 1


class Framer(Protocol):
    """See the module's docstring."""

    @property
    def structure(self) -> Structure:
        """How the values of one record nest."""

    @property
    def in_thread(self) -> bool:
        """Whether `frame` takes long enough per record to be kept away from event loops."""

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """Finds whole records in ``view[start:stop]``.

        Without a record in the answer, the rest behind ``stop`` is one that is cut off. With `last` nothing is ever
        cut off: the answer uses everything, reaches the limit, or has an error. Once everything was used with `last`
        said, the object is at its end; `last` may be said with no bytes.

        Args:
            view: Contiguous and writable.
            start: Where a record begins.
            stop: End of the bytes that are there.
            limit: The most records to return, at least 1.
            remaining: Bytes of the object from ``start`` on, where known.
            last: Nothing follows ``stop``.
            place: Of ``start``.
        """


class WholeFramer:
    """Whole objects: one record, which is everything, the empty object included.

    Args:
        url: Given in front of the bytes, if not None.
        beside: Arrays and numbers given behind them.
    """

    in_thread = False

    def __init__(self, url: str | None = None, beside: Sequence[Any] = ()) -> None:
        self._before: tuple[Values, ...] = () if url is None else ([url],)
        self._behind: tuple[Values, ...] = tuple(np.asarray(value)[np.newaxis] for value in beside)
        self.structure: Structure = whole_structure(len(self._before) + len(self._behind))

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`."""
        del view, limit
        size = stop - start
        if not last:
            return Frames(starts=NOWHERE, values=self._none(), stop=start, need=remaining or 0)
        if not size and place.offset:
            return Frames(starts=NOWHERE, values=self._none(), stop=stop)
        content: Values = Refs(np.array([[start, size]], np.int64)) if size else [b""]
        values = (*self._before, content, *self._behind)
        return Frames(starts=np.array([start], np.int64), values=values, stop=stop)

    def _none(self) -> tuple[Values, ...]:
        return tuple([] for _ in range(len(self._before) + 1 + len(self._behind)))


def whole_structure(others: int) -> Structure:
    """How the bytes of a whole object nest with so many other values."""
    return TupleOf((LEAF,) * (1 + others)) if others else LEAF
