"""URL to bytes. This package knows nothing about records, arenas or plans; it is plain asyncio on the running loop."""

from __future__ import annotations

from asyncdata.storage.backends import spec_for
from asyncdata.storage.counters import FetchStats
from asyncdata.storage.failures import (
    EncodedBodyError,
    FailureCause,
    RangeIgnoredError,
    ReadFailedError,
    UnframedBodyError,
)
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.ranges import ByteRange, CoalescedRange, coalesce_ranges, split_range
from asyncdata.storage.reader import RangeReader, ReaderSpec

__all__ = [
    "ByteRange",
    "CoalescedRange",
    "EncodedBodyError",
    "FailureCause",
    "FetchStats",
    "Fetcher",
    "RangeIgnoredError",
    "RangeReader",
    "ReadFailedError",
    "ReaderSpec",
    "UnframedBodyError",
    "coalesce_ranges",
    "spec_for",
    "split_range",
]
