"""For peers that decode with this library's functions: batches of records from local files, and arrays from them."""

from __future__ import annotations

import glob
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cv2
import numpy as np

import asyncdata as ad
from benchmarks.peers.reading import frames
from benchmarks.workloads import PICTURE_SIZE, parser

Record = bytes | memoryview
Decoded = dict[str, Any]


def files(work: dict[str, Any]) -> list[str]:
    """The files to read, in order."""
    return sorted(glob.glob(work["pattern"]))


def blocks(paths: Sequence[str], size: int) -> Iterator[list[memoryview]]:
    """The records of files, so many at a time."""
    block: list[memoryview] = []
    for path in paths:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for record in frames(data):
            block.append(record)
            if len(block) == size:
                yield block
                block = []
    if block:
        yield block


def picture_decoder() -> Callable[[Record], Decoded]:
    """From one serialized Example to pixels and label."""
    cv2.setNumThreads(1)
    parse, decode = parser("jpeg"), ad.decode_image(size=PICTURE_SIZE, feature="image")
    return lambda record: decode(parse(record))


def decoder(kind: str) -> Callable[[Sequence[Record]], Decoded]:
    """From the serialized Examples of a batch to its arrays."""
    if kind != "jpeg":
        parse: Callable[[Sequence[Record]], Decoded] = parser(kind)
        return parse
    one = picture_decoder()

    def batch(records: Sequence[Record]) -> Decoded:
        elements = [one(record) for record in records]
        return {name: np.stack([element[name] for element in elements]) for name in elements[0]}

    return batch
