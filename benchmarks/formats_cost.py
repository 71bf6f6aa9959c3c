"""What framing, serializing and parsing cost: CPU time per record on one core, one Markdown table each.

    python -m benchmarks.formats_cost [--tensorflow PYTHON] [--quick] [--parsing | --serializing]

Parsing is compared with ``tf.io.parse_example`` on the same records in blocks of the same size, both on one core: a
round of the one, then a round of the other, medians of several. Without TensorFlow its column is empty.

Serializing is compared with protobuf's own implementation in C (upb), from the same dicts to the same bytes, in turn,
by the least time of many: the quick way fills the message's fields, the usual one makes a message for each feature. A
join of the longest value with a few bytes on either side is what no writer can beat.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from asyncdata.formats.example.features import Feature, FixedLenFeature, RaggedFeature, VarLenFeature
from asyncdata.formats.example.parser import ExampleParser, parse_example
from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.tfrecord import check_payloads, encode_many, frame
from asyncdata.memory.bytesarray import BytesArray
from benchmarks.conditions import conditions
from benchmarks.launch import find_python
from benchmarks.protobuf_examples import ExampleWriter
from benchmarks.servers import REPOSITORY, here

ROUNDS: Final = 9
BLOCKS: Final = (256, 1024)
_SIDES: Final = ("xmin", "xmax", "ymin", "ymax")


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


def examples() -> dict[str, dict[str, Any]]:
    """Features of one Example, by name."""
    source = random.Random(2)
    found: dict[str, dict[str, Any]] = {
        "a label": {"label": 3},
        "an id, a string, a float": {"id": source.getrandbits(60), "name": b"a name", "x": 0.5},
        "10 scalars": scalars([f"f{index:02}" for index in range(10)], source),
        "2 lists of 4": {"box": [source.random() for _ in range(4)], "shape": [224, 224, 3, 1]},
        "a picture's objects, 12 features": {
            "image/height": 480,
            "image/width": 640,
            "image/filename": b"img_000123.jpg",
            "image/source_id": b"123",
            "image/key/sha256": source.randbytes(32).hex().encode(),
            "image/format": b"jpeg",
            **{f"image/object/bbox/{side}": [source.random() for _ in range(5)] for side in _SIDES},
            "image/object/class/text": [b"cat", b"dog", b"person", b"car", b"cat"],
            "image/object/class/label": [17, 18, 1, 3, 17],
        },
        "a text, 6 features": {
            "tokens": [source.randrange(50_000) for _ in range(32)],
            "mask": [1] * 32,
            "length": 32,
            "id": b"doc-00012",
            "source": b"wiki",
            "weight": 0.75,
        },
        "a click, 7 features": {
            "user": source.getrandbits(60),
            "item": source.getrandbits(60),
            "clicked": 1,
            "price": 3.5,
            "country": b"DE",
            "history": [source.randrange(1 << 20) for _ in range(8)],
            "scores": [source.random() for _ in range(8)],
        },
    }
    kinds: dict[str, Callable[[], Any]] = {
        "int64 below 128": lambda: source.randrange(1 << 7),
        "int64 below 1000": lambda: source.randrange(1000),
        "int64 below 50,000": lambda: source.randrange(50_000),
        "int64 of 60 bits": lambda: source.getrandbits(60),
        "int64 of any size and sign": lambda: source.choice((1, -1)) * source.getrandbits(source.randint(1, 62)),
        "float": source.random,
        "strings of 8 B": lambda: source.randbytes(8),
        "strings of 2 to 12 B": lambda: source.randbytes(source.randint(2, 12)),
    }
    for kind, value in kinds.items():
        for count in (1, 2, 8, 16, 32, 128):
            found[f"{count} {kind}, a list"] = {"values": [value() for _ in range(count)]}
    found |= {
        "10 int64, an array": {"ids": np.array([source.randrange(50_000) for _ in range(10)])},
        "1024 int64, an array": {"ids": np.array([source.randrange(50_000) for _ in range(1024)])},
        "1024 float32, an array": {"x": np.array([source.random() for _ in range(1024)], np.float32)},
    }
    for size in (1, 40, 400):
        found[f"an image of {size} KB, a label"] = {"image": source.randbytes(size * 1000), "label": 7}
    return found


def serializing(*, rounds: int) -> None:
    """One Example from a dict, by each of the ways there are, in turn."""
    writer = ExampleWriter()
    print("us per Example; x: part of upb's\n")
    print("| Example | asyncdata | upb, quick | x | upb, usual | x | a join |\n|---|---:|---:|---:|---:|---:|---:|")
    for name, features in examples().items():
        assert sorted(serialize_example(features)) == sorted(writer.by_fields(features)), "other bytes, or more"
        longest = max((value for value in features.values() if isinstance(value, bytes)), key=len, default=b"")
        ways: dict[str, Callable[[], bytes]] = {
            "ours": lambda features=features: serialize_example(features),  # type: ignore[misc]  # bound now
            "quick": lambda features=features: writer.by_fields(features),  # type: ignore[misc]  # bound now
            "usual": lambda features=features: writer.by_messages(features),  # type: ignore[misc]  # bound now
            "join": lambda longest=longest: b"".join((b"%30d", longest, b"%30d")),  # type: ignore[misc]  # bound now
        }
        least = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds):
            for way, work in ways.items():
                least[way] = min(least[way], timeit.timeit(work, number=200) / 200 * 1e6)
        ours, quick, usual = least["ours"], least["quick"], least["usual"]
        cells = (
            f"{ours:.2f} | {quick:.2f} | {ours / quick:.2f} | {usual:.2f} | {ours / usual:.2f} | {least['join']:.2f}"
        )
        print(f"| {name} | {cells} |", flush=True)


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
        optional = {
            name: FixedLenFeature([], int, 0) if index % 2 else FixedLenFeature([], float, 0.0)
            for index, name in enumerate(names)
        }
        found[f"{count} scalars"] = spec, [serialize_example(scalars(names, source)) for _ in range(2048)]
        mixed = [source.sample(list(scalars(names, source).items()), count) for _ in range(2048)]
        found[f"{count} scalars, any key order"] = spec, [serialize_example(dict(items)) for items in mixed]
        found[f"{count} scalars, any order, a fifth missing"] = (
            optional,
            [serialize_example(dict(items[: count - source.randint(0, 2 * count // 5)])) for items in mixed],
        )
    image = {"image": FixedLenFeature([], bytes), "label": FixedLenFeature([], int)}
    pictures = [{"image": source.randbytes(50_000), "label": source.randint(0, 1000)} for _ in range(1024)]
    found["image 50 KB + label"] = image, [serialize_example(features) for features in pictures]
    maybe = {"image": FixedLenFeature([], bytes, b""), "label": FixedLenFeature([], int, -1)}
    found["image 50 KB + label, some missing"] = (
        maybe,
        [
            serialize_example(
                {key: features[key] for key in (("image", "label"), ("label",), ("label", "image"))[i % 3]}
            )
            for i, features in enumerate(pictures)
        ],
    )
    lists = [np.array([source.randrange(50_000) for _ in range(1024)]) for _ in range(1024)]
    found["1024 int64"] = {"ids": FixedLenFeature([1024], int)}, [serialize_example({"ids": ids}) for ids in lists]
    wide = [np.array([source.getrandbits(62) for _ in range(1024)]) for _ in range(1024)]
    found["1024 int64 of 9 bytes"] = (
        {"ids": FixedLenFeature([1024], int)},
        [serialize_example({"ids": i}) for i in wide],
    )
    floats = [np.array([source.random() for _ in range(1024)], np.float32) for _ in range(1024)]
    found["1024 float32"] = {"x": FixedLenFeature([1024], float)}, [serialize_example({"x": x}) for x in floats]
    ragged: dict[str, Feature] = {
        "ids": VarLenFeature(int),
        "words": VarLenFeature(bytes),
        "x": FixedLenFeature([], float),
    }
    mixed_lists = [
        {
            "ids": np.array([source.randrange(50_000) for _ in range(source.randrange(30))], np.int64),
            "words": [source.randbytes(4) for _ in range(source.randrange(4))],
            "x": source.random(),
        }
        for _ in range(2048)
    ]
    found["ragged int64, strings, a float"] = ragged, [serialize_example(features) for features in mixed_lists]
    found["the same, any key order"] = (
        ragged,
        [serialize_example(dict(source.sample(list(features.items()), 3))) for features in mixed_lists],
    )
    words: dict[str, Feature] = {"words": RaggedFeature(bytes)}
    texts = [[source.randbytes(source.randint(2, 10)) for _ in range(source.randrange(200))] for _ in range(1024)]
    found["100 strings"] = words, [serialize_example({"words": text}) for text in texts]
    return found


class Peer:
    """``tf.io.parse_example`` in a process of its own, asked for one round at a time."""

    def __init__(self, python: str, folder: str) -> None:
        script = str(REPOSITORY / "benchmarks" / "peers" / "tf_parse.py")
        self._process = subprocess.Popen(
            [python, script, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=here(),
        )

    def round_s(self, name: str, block: int) -> float:
        """CPU seconds of one pass over a workload."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name} {block}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def peer_of(
    python: str | None, found: Mapping[str, tuple[Mapping[str, Feature], list[bytes]]]
) -> Iterator[Peer | None]:
    """The peer with every workload in its folder; None without an interpreter."""
    if python is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        for number, (spec, records) in enumerate(found.values()):
            parts = {
                key: (
                    type(feature).__name__,
                    feature.dtype,
                    list(getattr(feature, "shape", ())),
                    _plain(getattr(feature, "default_value", None)),
                )
                for key, feature in spec.items()
            }
            splits = np.cumsum([0, *map(len, records)])
            data = np.frombuffer(b"".join(records), np.uint8)
            np.savez(Path(folder) / f"{number}.npz", data=data, splits=splits, spec=json.dumps(parts))
        peer = Peer(python, folder)
        try:
            yield peer
        finally:
            peer.close()


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def parsing(python: str | None, *, rounds: int) -> None:
    """Blocks of records, by each of the ways there are, in turn."""
    print("CPU us per record; x: part of tf.io.parse_example's\n")
    print("| record | block | tf.io.parse_example | asyncdata | x |\n|---|---|---|---|---|")
    found = workloads()
    with peer_of(python, found) as peer:
        for number, (name, (spec, records)) in enumerate(found.items()):
            for block in BLOCKS:
                batches = [_batch(records[at : at + block]) for at in range(0, len(records), block)]
                ways = {"ours": _rounds(parse_example(spec), batches)}
                if peer is not None:
                    ways["tf"] = lambda number=number, block=block: peer.round_s(str(number), block)  # type: ignore[misc]  # bound now
                times: dict[str, list[float]] = {way: [] for way in ways}
                for _ in range(rounds):
                    for way, once in ways.items():
                        times[way].append(once() / len(records) * 1e6)
                middle = {way: statistics.median(found) for way, found in times.items()}
                print(f"| {name} | {block} | {_cells(middle)} |", flush=True)


def _batch(records: list[bytes]) -> BytesArray:
    return BytesArray.from_items(records)


def _rounds(parse: ExampleParser, batches: list[BytesArray]) -> Callable[[], float]:
    for batch in batches:
        parse(batch)

    def once() -> float:
        began = time.process_time()
        for batch in batches:
            parse(batch)
        return time.process_time() - began

    return once


def _cells(middle: Mapping[str, float]) -> str:
    ours = middle["ours"]
    return f"{middle['tf']:.2f} | {ours:.2f} | {ours / middle['tf']:.2f}" if "tf" in middle else f" | {ours:.2f} | "


def main() -> None:
    """All tables."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tensorflow", metavar="PYTHON", help="interpreter that has TensorFlow")
    arguments.add_argument("--quick", action="store_true", help="few rounds")
    arguments.add_argument("--parsing", action="store_true", help="parsing alone")
    arguments.add_argument("--serializing", action="store_true", help="serializing alone")
    options = arguments.parse_args()
    print(f"{conditions(packages=('asyncdata', 'numpy', 'protobuf'))}\n")
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    if options.serializing:
        serializing(rounds=20 if options.quick else 100)
        return
    python = find_python(("tensorflow",), options.tensorflow)
    if not options.parsing:
        framing()
        print()
        serializing(rounds=20 if options.quick else 100)
        print()
    parsing(python, rounds=3 if options.quick else ROUNDS)


if __name__ == "__main__":
    main()
