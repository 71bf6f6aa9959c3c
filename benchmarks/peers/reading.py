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


def fields(view: memoryview) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a protobuf message of varints and byte strings."""
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        value, at = _varint(view, at)
        if tag & 7 == 2:
            yield tag >> 3, view[at : at + value]
            at += value
        else:
            yield tag >> 3, value


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def parse(record: memoryview) -> tuple[memoryview, int]:
    """Image and label of an Example."""
    image, label = memoryview(b""), 0
    for _, features in fields(record):
        for _, entry in fields(features):
            (_, key), (_, feature) = fields(entry)
            ((_, values),) = fields(feature)
            ((_, value),) = fields(values)
            if key == b"image":
                image = value
            else:
                label = _varint(value, 0)[0]
    return image, label


def element_of(record: memoryview, kind: str) -> Any:
    """What is delivered of a record: its bytes, or the byte string and the number of an Example."""
    if kind == "raw":
        return bytes(record)
    image, label = parse(record)
    return bytes(image), label


def numbers_of(batch: Sequence[Any]) -> list[int]:
    """The numbers of what `element_of` made."""
    return raw_numbers(batch) if isinstance(batch[0], bytes) else [label for _, label in batch]


def raw_numbers(batch: Sequence[bytes]) -> list[int]:
    """The numbers of raw records."""
    return [int.from_bytes(item[:8], "little") for item in batch]


def batches_of(records: Iterable[memoryview], work: dict[str, Any]) -> Iterator[list[Any]]:
    """Lists of so many elements each, which may be kept."""
    batch: list[Any] = []
    for record in records:
        batch.append(element_of(record, work["kind"]))
        if len(batch) == work["batch"]:
            yield batch
            batch = []
    if batch:
        yield batch


def report(batches: Iterable[Any], numbers_of: Callable[[Any], Sequence[int]] = numbers_of) -> None:
    """Takes all batches, prints what they cost, and ends the process: see `cost` and `end`."""
    end([cost(batches, numbers_of)])


def cost(batches: Iterable[Any], numbers_of: Callable[[Any], Sequence[int]] = numbers_of) -> dict[str, float]:
    """Takes all batches and returns what they cost, from making the iterator on.

    Args:
        batches: Of elements as `element_of` makes them, unless `numbers_of` says otherwise.
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
    return {
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


def end(epochs: Sequence[dict[str, float]]) -> None:
    """Prints what each epoch cost, and ends the process at once."""
    print(json.dumps(epochs), flush=True)
    # Threads of the clients are not waited for.
    os._exit(0)
