"""Pure arithmetic on byte ranges: cuts long ones, joins nearby ones. No I/O, no clock.

A range is half open: ``start`` is its first byte, ``stop`` the one after its last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """The bytes ``[start, stop)`` of one object.

    Attributes:
        start: Offset of the first byte.
        stop: Offset after the last byte; equal to ``start`` for an empty range.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not a byte range: [{self.start}, {self.stop})")

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class CoalescedRange:
    """One request that serves several wanted ranges.

    Attributes:
        span: The bytes to ask for.
        parts: Indices of the wanted ranges that lie inside ``span``, in the order of their offsets.
    """

    span: ByteRange
    parts: tuple[int, ...]


def split_range(start: int, stop: int, chunk_bytes: int) -> Iterator[ByteRange]:
    """Cuts ``[start, stop)`` into consecutive ranges of ``chunk_bytes``; the last one may be shorter.

    Example::

        >>> list(split_range(0, 5, 2))
        [ByteRange(start=0, stop=2), ByteRange(start=2, stop=4), ByteRange(start=4, stop=5)]
    """
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be positive, not {chunk_bytes}")
    whole = ByteRange(start, stop)
    for at in range(whole.start, whole.stop, chunk_bytes):
        yield ByteRange(at, min(at + chunk_bytes, whole.stop))


def coalesce_ranges(
    wanted: Iterable[ByteRange], *, max_gap_bytes: int, max_span_bytes: int | None = None
) -> list[CoalescedRange]:
    """Joins ranges whose gap is at most ``max_gap_bytes`` into one request each, ordered by offset.

    The gap's bytes are read and thrown away, which is cheaper than a request of their own while the gap is small.
    Overlapping ranges always count as near. ``max_span_bytes`` bounds a joined span; a single range longer than that
    stays whole.
    """
    if max_gap_bytes < 0:
        raise ValueError(f"max_gap_bytes must not be negative: {max_gap_bytes}")
    joined: list[CoalescedRange] = []
    parts: list[int] = []
    start = stop = 0
    for index, item in sorted(enumerate(wanted), key=lambda pair: (pair[1], pair[0])):
        reach = max(stop, item.stop)
        fits = max_span_bytes is None or reach - start <= max_span_bytes
        if parts and item.start - stop <= max_gap_bytes and fits:
            stop = reach
        else:
            if parts:
                joined.append(CoalescedRange(ByteRange(start, stop), tuple(parts)))
            parts, start, stop = [], item.start, item.stop
        parts.append(index)
    if parts:
        joined.append(CoalescedRange(ByteRange(start, stop), tuple(parts)))
    return joined
