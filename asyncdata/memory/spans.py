"""Divides one sparse offset space into spans. Pure bookkeeping; touches no memory.

The space is many times larger than the resident limit, so addresses are plentiful and pages are expensive::

    0                                                                 top                          space_bytes
    |  live  | cached |  live  | hole ....... | cached |     live     | never used, or punched again ...... |
                ^ free, pages still resident     ^ the oldest of these is punched out when a span does not fit

Invariants:

* Live spans, cached spans and holes never overlap, and together they cover [0, top) exactly.
* Used plus cached bytes never exceed the resident limit, less what is taken elsewhere, unless the used bytes do by
  themselves: the ledger decides who may take memory. Evicted ranges are *owed* until they are returned for punching,
  with the next span or by ``trim``.
* A range in ``Taken.punch`` is in no live and in no cached span, except that the span taken with it may reuse it. Punch
  first, then use the span.

A request is rounded up to a size class (every size up to 16 granules, then 8 sizes per doubling, so at most 12.5 % are
lost). A free span of the same class is taken last in, first out, because its pages are the warmest. Otherwise a new
range is cut: above ``top`` while there is space, later from the smallest hole that is large enough, at the lowest
address. Cached spans are evicted oldest first, and only until the new span fits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import Final, NamedTuple

GRANULE: Final = 65536
"""Default unit of cutting, in bytes: a multiple of every usual page size."""

_FINE_STEPS: Final = 16
"""Up to this many granules every size is a class of its own."""

_STEP_BITS: Final = 3
"""Beyond, each doubling has 2**_STEP_BITS classes."""


class Span(NamedTuple):
    """A range of the arena; both numbers are multiples of the granule."""

    offset: int
    nbytes: int


class Taken(NamedTuple):
    """A span to use.

    Attributes:
        span: Where it is.
        punch: The (offset, nbytes) ranges whose pages must go back to the system before the span is used.
        is_new: The span has no pages yet.
    """

    span: Span
    punch: list[tuple[int, int]]
    is_new: bool


class SpanAllocator:
    """Spans of one offset space under a limit of resident bytes.

    Args:
        space_bytes: Length of the offset space; some ten times the limit, so that fragmentation does not matter.
        resident_limit_bytes: Most bytes that are live or cached at any time, where not more are live.
        granule: Unit of cutting, in bytes.
        start: Offset of the first span; what lies before it, and behind ``space_bytes``, belongs to somebody else.
    """

    __slots__ = (
        "_by_age",
        "_by_class",
        "_cached",
        "_elsewhere",
        "_granule",
        "_holes",
        "_limit",
        "_live",
        "_owed",
        "_owed_bytes",
        "_punched",
        "_space",
        "_top",
        "_used",
    )

    def __init__(self, space_bytes: int, resident_limit_bytes: int, granule: int = GRANULE, *, start: int = 0) -> None:
        if granule < 1:
            raise ValueError(f"granule must be at least 1 byte, not {granule}")
        if resident_limit_bytes < granule:
            raise ValueError(f"resident_limit_bytes must hold one granule of {granule}, not {resident_limit_bytes}")
        if space_bytes - start < resident_limit_bytes:
            raise ValueError(f"space_bytes ({space_bytes}) is below resident_limit_bytes ({resident_limit_bytes})")
        self._granule = granule
        self._limit = resident_limit_bytes - resident_limit_bytes % granule
        self._space = space_bytes - space_bytes % granule
        self._live: dict[int, Span] = {}
        self._by_class: dict[int, deque[Span]] = {}
        self._by_age: OrderedDict[int, Span] = OrderedDict()
        self._holes = _Holes()
        self._top = start
        self._used = 0
        self._cached = 0
        self._elsewhere = 0
        self._owed: list[tuple[int, int]] = []
        self._owed_bytes = 0
        self._punched = 0

    # --- what there is -------------------------------------------------------------------------------------------

    @property
    def limit_bytes(self) -> int:
        """The resident limit, rounded down to granules."""
        return self._limit

    @property
    def used_bytes(self) -> int:
        """Bytes in spans that are taken."""
        return self._used

    @property
    def cached_bytes(self) -> int:
        """Bytes in spans that were given back and whose pages are kept."""
        return self._cached

    @property
    def resident_bytes(self) -> int:
        """Upper bound of the pages the arena has in memory: used, cached and not yet punched."""
        return self._used + self._cached + self._owed_bytes

    @property
    def punched_bytes(self) -> int:
        """Sum over all ranges handed out for punching so far."""
        return self._punched

    @property
    def top_offset(self) -> int:
        """End of the part of the space that is cut up; no live or cached span lies above it."""
        return self._top

    def span_at(self, offset: int) -> Span | None:
        """The live span that begins at ``offset``, if there is one."""
        return self._live.get(offset)

    def span_bytes(self, nbytes: int) -> int:
        """What a request for ``nbytes`` occupies; the number to charge before taking it. Nothing takes a granule, too.

        The class of a request that fits the limit never exceeds the limit. A larger request has a class too.
        """
        if nbytes < 0:
            raise ValueError(f"a span of {nbytes} bytes")
        granules = max(-(-nbytes // self._granule), 1)
        if granules <= _FINE_STEPS:
            return granules * self._granule
        shift = (granules - 1).bit_length() - 1 - _STEP_BITS
        size = (-(-granules >> shift) << shift) * self._granule
        return size if size <= self._limit else max(granules * self._granule, self._limit)

    def __repr__(self) -> str:
        return (
            f"<SpanAllocator used {self._used} in {len(self._live)} spans, cached {self._cached} in "
            f"{len(self._by_age)}, limit {self._limit}, top {self._top} of {self._space}, {len(self._holes)} holes>"
        )

    # --- what is done --------------------------------------------------------------------------------------------

    def take(self, nbytes: int) -> Taken | None:
        """Takes a span of at least ``nbytes``; ``None`` if the space has no room for it now."""
        size = self.span_bytes(nbytes)
        free = self._by_class.get(size)
        is_new = not free
        if free:
            span = free.pop()
            del self._by_age[span.offset]
            self._cached -= size
        else:
            offset = self._place(size)
            if offset is None:
                return None
            span = Span(offset, size)
        self._used += size
        self._live[span.offset] = span
        return Taken(span, self._hand_out_owed() if self._owed else [], is_new)

    def give(self, offset: int) -> None:
        """Gives the span that begins at ``offset`` back; its pages stay resident for the next of its class.

        Raises:
            ValueError: No live span begins there; for instance, it was given back before.
        """
        span = self._live.pop(offset, None)
        if span is None:
            raise ValueError(f"no live span begins at offset {offset}")
        size = span.nbytes
        self._used -= size
        self._cached += size
        free = self._by_class.get(size)
        if free is None:
            free = self._by_class[size] = deque()
        free.append(span)
        self._by_age[offset] = span
        while self._used + self._cached > self._limit - self._elsewhere and self._by_age:
            self._evict_oldest()

    def leave(self, nbytes: int) -> list[tuple[int, int]]:
        """So many more bytes of the limit (fewer if negative) lie elsewhere; returns the ranges to punch for them."""
        self._elsewhere += nbytes
        return self.trim(max(0, self._limit - self._elsewhere - self._used))

    def trim(self, keep_bytes: int = 0) -> list[tuple[int, int]]:
        """Evicts cached spans, oldest first, until at most ``keep_bytes`` are cached; returns the ranges to punch."""
        while self._cached > keep_bytes:
            self._evict_oldest()
        return self._hand_out_owed()

    # --- how -----------------------------------------------------------------------------------------------------

    def _place(self, size: int) -> int | None:
        """Finds addresses for a new span within the resident limit, evicting cached spans as far as needed."""
        while self._by_age and self._used + self._cached + size > self._limit - self._elsewhere:
            self._evict_oldest()
        while True:
            if self._top + size <= self._space:
                self._top += size
                return self._top - size
            offset = self._holes.take(size)
            if offset is not None or not self._by_age:
                return offset
            self._evict_oldest()

    def _evict_oldest(self) -> None:
        offset, span = self._by_age.popitem(last=False)
        size = span.nbytes
        free = self._by_class[size]
        free.popleft()  # each class is in order of age too, so its oldest is this very span
        if not free:
            del self._by_class[size]
        self._cached -= size
        self._owed.append((offset, size))
        self._owed_bytes += size
        offset, size = self._holes.merge(offset, size)
        if offset + size == self._top:
            self._top = offset
        else:
            self._holes.add(offset, size)

    def _hand_out_owed(self) -> list[tuple[int, int]]:
        owed, self._owed = self._owed, []
        self._punched += self._owed_bytes
        self._owed_bytes = 0
        return owed


class _Holes:
    """Ranges without pages below ``top``; no two of them touch."""

    __slots__ = ("_by_size", "_end_of", "_start_of")

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._by_size)

    def add(self, offset: int, nbytes: int) -> None:
        insort(self._by_size, (nbytes, offset))
        self._end_of[offset] = offset + nbytes
        self._start_of[offset + nbytes] = offset

    def _remove(self, offset: int, nbytes: int) -> None:
        del self._by_size[bisect_left(self._by_size, (nbytes, offset))]
        del self._end_of[offset]
        del self._start_of[offset + nbytes]

    def merge(self, offset: int, nbytes: int) -> tuple[int, int]:
        """Takes out the holes that touch the range and returns the range together with them."""
        end = offset + nbytes
        after = self._end_of.get(end)
        if after is not None:
            self._remove(end, after - end)
            end = after
        before = self._start_of.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            offset = before
        return offset, end - offset

    def take(self, nbytes: int) -> int | None:
        """Cuts ``nbytes`` from the smallest hole that is large enough; the lowest address decides among equals."""
        at = bisect_left(self._by_size, (nbytes, 0))
        if at == len(self._by_size):
            return None
        size, offset = self._by_size[at]
        self._remove(offset, size)
        if size > nbytes:
            self.add(offset + nbytes, size - nbytes)
        return offset
