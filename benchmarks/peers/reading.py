"""What the peers' programs share: records out of bytes, and the line of JSON they end with."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from benchmarks.measure import cpu_s, tree_cpu_s


def frames(data: Any) -> Iterator[memoryview]:
    """The records of a TFRecord file; checksums are not looked at."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        (length,) = struct.unpack_from("<Q", view, at)
        yield view[at + 12 : at + 12 + length]
        at += length + 16


def raw_numbers(batch: Sequence[bytes]) -> list[int]:
    """The numbers of raw records."""
    return [int.from_bytes(item[:8], "little") for item in batch]


def batches_of(records: Iterable[memoryview], size: int) -> Iterator[list[bytes]]:
    """Lists of so many records each, as ``bytes`` that may be kept."""
    batch: list[bytes] = []
    for record in records:
        batch.append(bytes(record))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def report(batches: Iterable[Any], numbers_of: Callable[[Any], Sequence[int]] = raw_numbers) -> None:
    """Takes all batches and prints what they cost, from making the iterator on.

    Args:
        batches: Of records; raw ones unless `numbers_of` says otherwise.
        numbers_of: The numbers of a batch's records.
    """
    me = os.getpid()
    cpu, parent = tree_cpu_s(me), cpu_s(me)
    began = time.perf_counter()
    first_s, first_records, records, checksum = 0.0, 0, 0, 0
    for batch in batches:
        first_s = first_s or time.perf_counter() - began
        numbers = numbers_of(batch)
        checksum += sum(numbers)
        records += len(numbers)
        first_records = first_records or len(numbers)
    wall_s = time.perf_counter() - began
    print(
        json.dumps(
            {
                "first_s": first_s,
                "wall_s": wall_s,
                "first_records": first_records,
                "records": records,
                "nbytes": 0,
                "cpu_s": tree_cpu_s(me) - cpu,
                "parent_cpu_s": cpu_s(me) - parent,
                "tasks": 0,
                "checksum": checksum,
            }
        ),
        flush=True,
    )
    # Threads of the clients are not waited for.
    os._exit(0)
