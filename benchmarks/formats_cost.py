"""What framing and parsing cost: CPU time per record on one core, one Markdown table each.

    python -m benchmarks.formats_cost

Medians of several rounds over records that lie in memory; results are checked once before the clock runs.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from asyncdata.formats.example import parse_example
from asyncdata.formats.features import Feature, FixedLenFeature, VarLenFeature
from asyncdata.formats.serialize import serialize_example
from asyncdata.formats.tfrecord import check_payloads, encode_many, frame

ROUNDS: Final = 7
BLOCKS: Final = (64, 256, 1024)


def per_record_us(work: Callable[[], object], records: int) -> float:
    """Median CPU time of one record, in microseconds."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return statistics.median(times) / records * 1e6


def framing() -> None:
    """Walk with length checksums, and payload checksums, by payload size."""
    print("| payload | frame us | payload CRC us | both, GB/s |\n|---|---|---|---|")
    for size, count in ((100, 40_000), (1000, 40_000), (10_000, 6000), (100_000, 600)):
        source = random.Random(size)
        payloads = [source.randbytes(source.randint(size * 4 // 5, size * 6 // 5)) for _ in range(count)]
        view = memoryview(bytearray(encode_many(payloads)))
        found = frame(view, 0, len(view), remaining=len(view))
        assert len(found.rows) == count
        assert not len(check_payloads(view, found.rows))
        walk = per_record_us(lambda view=view: frame(view, 0, len(view)), count)  # type: ignore[misc]  # bound now
        check = per_record_us(lambda view=view, rows=found.rows: check_payloads(view, rows), count)  # type: ignore[misc]  # bound now
        print(f"| {size} | {walk:.2f} | {check:.2f} | {len(view) / count / (walk + check) / 1000:.2f} |")


def scalars(names: list[str], source: random.Random) -> dict[str, Any]:
    """Integers of up to 40 bits and floats, in turn."""
    return {
        name: source.getrandbits(source.randint(1, 40)) if index % 2 else source.random()
        for index, name in enumerate(names)
    }


def workloads() -> dict[str, tuple[Mapping[str, Feature], list[bytes]]]:
    """Specs and records, by name."""
    source = random.Random(1)
    found: dict[str, tuple[Mapping[str, Feature], list[bytes]]] = {}
    for count in (10, 40):
        names = [f"f{index:02}" for index in range(count)]
        spec = {name: FixedLenFeature([], int if index % 2 else float) for index, name in enumerate(names)}
        found[f"{count} scalars"] = spec, [serialize_example(scalars(names, source)) for _ in range(2048)]
        mixed = [source.sample(list(scalars(names, source).items()), count) for _ in range(2048)]
        found[f"{count} scalars, any key order"] = spec, [serialize_example(dict(items)) for items in mixed]
    image = {"image": FixedLenFeature([], bytes), "label": FixedLenFeature([], int)}
    pictures = [{"image": source.randbytes(50_000), "label": source.randint(0, 1000)} for _ in range(1024)]
    found["image 50 KB + label"] = image, [serialize_example(features) for features in pictures]
    lists = [np.array([source.randrange(50_000) for _ in range(1024)]) for _ in range(1024)]
    found["1024 int64"] = {"ids": FixedLenFeature([1024], int)}, [serialize_example({"ids": ids}) for ids in lists]
    ragged: dict[str, Feature] = {
        "ids": VarLenFeature(int),
        "words": VarLenFeature(bytes),
        "x": FixedLenFeature([], float),
    }
    found["ragged int64, strings, a float"] = (
        ragged,
        [
            serialize_example(
                {
                    "ids": np.array([source.randrange(50_000) for _ in range(source.randrange(30))], np.int64),
                    "words": [source.randbytes(4) for _ in range(source.randrange(4))],
                    "x": source.random(),
                }
            )
            for _ in range(2048)
        ],
    )
    return found


def parsing() -> None:
    """Records one by one, and in blocks that lie in one buffer; views instead of copies of bytes values."""
    print("| record | one by one us |" + "".join(f" block of {size} us |" for size in BLOCKS))
    print("|---|---|" + "---|" * len(BLOCKS))
    for name, (spec, records) in workloads().items():
        parse = parse_example(spec, zero_copy=True)
        sizes = np.array([len(record) for record in records])
        rows = np.stack((np.cumsum(sizes) - sizes, sizes), axis=1)
        view = memoryview(b"".join(records) + bytes(256))
        for index, value in enumerate(parse.rows(view, rows)[next(iter(spec))]):
            assert np.array_equal(value, parse(records[index])[next(iter(spec))])
        cells = [per_record_us(lambda: [parse(record) for record in records], len(records))]  # noqa: B023 -- called here
        for size in BLOCKS:
            cuts = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
            cells.append(per_record_us(lambda: [parse.rows(view, cut) for cut in cuts], len(records)))  # noqa: B023 -- called here
        print(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


if __name__ == "__main__":
    framing()
    print()
    parsing()
