"""The law of damaged records: whatever lies between the files and the first reader, whoever verifies.

A damaged record is never delivered nor given to a function, is reported exactly once with its place, and counts against
quotas. The others are those of the same files without it.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.formats.tfrecord import FRAME_BYTES, encode_many
from tests.samples import samples

Step = Callable[[ad.Dataset], ad.Dataset]
FILES = 3


def record(shard: int, number: int, size: int) -> bytes:
    """A record that says itself whether it is whole."""
    body = b"%d-%d-" % (shard, number) + b"x" * size
    return b"%08x" % zlib.crc32(body) + body


def is_whole(element: Any) -> bool:
    """Whether an element, or any part of it, is no damaged record."""
    if isinstance(element, tuple):
        return all(map(is_whole, element))
    return not isinstance(element, bytes) or element == b"line" or b"%08x" % zlib.crc32(element[8:]) == element[:8]


def look(*parts: Any) -> Any:
    """A function that is given no damaged record."""
    if not is_whole(parts):
        raise AssertionError(f"a function was given a damaged record: {parts}")
    return parts if len(parts) > 1 else parts[0]


async def look_later(*parts: Any) -> Any:
    """The same, awaited."""
    return look(*parts)


def look_and_keep(*parts: Any) -> bool:
    """The same as a predicate."""
    look(*parts)
    return True


SOURCES: dict[str, Callable[[list[str]], ad.Dataset]] = {
    "one file": lambda urls: ad.TFRecordDataset(urls[0]),
    "one after the other": lambda urls: ad.TFRecordDataset(urls, num_parallel_reads=None),
    "in turn": lambda urls: ad.TFRecordDataset(urls, num_parallel_reads=2),
    "interleave": lambda urls: ad.Dataset.from_tensor_slices(urls).interleave(ad.TFRecordDataset, 3, 2),
    "sloppy": lambda urls: ad.Dataset.from_tensor_slices(urls).interleave(ad.TFRecordDataset, 3, deterministic=False),
    "concatenated": lambda urls: ad.TFRecordDataset(urls[0]).concatenate(ad.TFRecordDataset(urls[1:])),
    "of its own": lambda urls: ad.Dataset.from_tensor_slices(urls).interleave(lambda url: ad.TFRecordDataset(url), 2),  # noqa: PLW0108 -- a function of the user's
    "unlike": lambda urls: ad.Dataset.range(2).interleave(lambda n: lines() if n else ad.TFRecordDataset(urls), 2),
    "read inside": lambda urls: ad.Dataset.from_tensor_slices(urls).flat_map(
        lambda url: ad.TFRecordDataset(url).map(look, num_parallel_calls=2)
    ),
}
"""By the last three a function of the user's makes the datasets."""

PASSING: dict[str, Step] = {
    "shuffle": lambda ds: ds.shuffle(7, seed=5),
    "repeat": lambda ds: ds.repeat(2),
    "prefetch": lambda ds: ds.prefetch(3),
    "options": lambda ds: ds.with_options(ad.Options(seed=3)),
}
CHANGING: dict[str, Step] = {
    "skip": lambda ds: ds.skip(9),
    "shard": lambda ds: ds.shard(3, 1),
    "take all": lambda ds: ds.take(10_000),
    "filter": lambda ds: ds.filter(look_and_keep),
    "unique": lambda ds: ds.unique(),
    "inline map": lambda ds: ds.map(look),
    "enumerate": lambda ds: ds.enumerate(),
    "zip": lambda ds: ad.Dataset.zip((ad.Dataset.range(10_000), ds)),
    "with lines": lambda ds: ds.concatenate(lines()),
    "sample": lambda ds: ad.Dataset.sample_from_datasets([ds, lines()], seed=2),
    "batch": lambda ds: ds.batch(4).unbatch(),
    "window": lambda ds: ds.window(5).flat_map(lambda *parts: ad.Dataset.zip(parts) if len(parts) > 1 else parts[0]),
    "group": lambda ds: ds.group_by_window(lambda *_: 0, lambda _, group: group, window_size=3),
    "cache": lambda ds: ds.cache(),
    "ignore_errors": lambda ds: ds.ignore_errors(),
}
ENDING: dict[str, Step] = {
    "take": lambda ds: ds.take(15),
    "take_while": lambda ds: ds.take_while(lambda *parts: b"-20-" not in parts[-1]),
    "zip short": lambda ds: ad.Dataset.zip((ad.Dataset.range(20), ds)),
}
"""After these some records may not have their turn."""

IN_TASKS: dict[str, Step] = {
    "processes": lambda ds: ds.map(look, num_parallel_calls=2),
    "threads": lambda ds: ds.map(look, num_parallel_calls=2, executor="thread"),
    "batches": lambda ds: ds.map(look, num_parallel_calls=2).batch(4),
    "batches of two": lambda ds: ds.map(look, num_parallel_calls=2).map(look, num_parallel_calls=2).batch(4),
}
ON_THE_LOOP: dict[str, Step] = {
    "nobody": lambda ds: ds,
    "inline": lambda ds: ds.map(look),
    "awaited": lambda ds: ds.map(look_later, num_parallel_calls=3),
    "predicate": lambda ds: ds.filter(look_and_keep),
}
BEHIND: dict[str, Step] = {
    "nothing": lambda ds: ds,
    "skip": lambda ds: ds.skip(2),
    "shuffle": lambda ds: ds.shuffle(4, seed=1),
    "prefetch": lambda ds: ds.prefetch(2),
}


def lines() -> ad.Dataset:
    """Elements that are no records."""
    return ad.Dataset.from_tensor_slices([b"line"] * 11)


@dataclass(frozen=True, kw_only=True)
class Files:
    """The same files damaged, sound, and without the records that are damaged."""

    damaged: list[str]
    sound: list[str]
    rest: list[str]
    bad: list[tuple[str, int, int]]
    """URL, number and offset."""
    wrong: frozenset[bytes]
    """The damaged records, as they were."""


def write(folder: Path, draw: random.Random, damage: float) -> Files:
    """Files of a few records each."""
    names: dict[str, list[str]] = {"damaged": [], "sound": [], "rest": []}
    bad: list[tuple[str, int, int]] = []
    wrong: set[bytes] = set()
    for shard in range(FILES):
        records = [record(shard, number, draw.choice([0, 3, 50, 700])) for number in range(draw.randint(10, 40))]
        data, at, rest = bytearray(encode_many(records)), 0, []
        path = folder / f"damaged-{shard}"
        for number, payload in enumerate(records):
            if draw.random() < damage:
                data[at + 12 + draw.randrange(len(payload) + 4)] ^= 1 << draw.randrange(8)
                bad.append((str(path), number, at))
                wrong.add(payload)
            else:
                rest.append(payload)
            at += FRAME_BYTES + len(payload)
        for name, content in (("damaged", data), ("sound", encode_many(records)), ("rest", encode_many(rest))):
            names[name].append(str(folder / f"{name}-{shard}"))
            (folder / f"{name}-{shard}").write_bytes(content)
    return Files(bad=bad, wrong=frozenset(wrong), **names)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan."""

    source: str
    between: tuple[str, ...]
    reader: str
    behind: str

    def build(self, urls: list[str], between: Sequence[Step] = ()) -> ad.Dataset:
        """The dataset, with other steps in front of the reader."""
        ds = SOURCES[self.source](urls)
        for name in self.between:
            ds = STEPS[name](ds)
        for step in between:
            ds = step(ds)
        return BEHIND[self.behind](READERS[self.reader](ds))

    @property
    def in_tasks(self) -> bool:
        """Whether worker tasks verify."""
        passing = all(name in PASSING for name in self.between)
        return passing and self.reader in IN_TASKS and list(SOURCES).index(self.source) < len(SOURCES) - 3

    @property
    def reads_all(self) -> bool:
        """Whether every record has its turn."""
        return not set(self.between) & set(ENDING)

    @property
    def has_order(self) -> bool:
        """Whether the order is the same in every run."""
        return self.source != "sloppy"

    def expected(self, files: Files) -> ad.Dataset:
        """The same elements, of files without damage."""
        if self.in_tasks:
            return self.build(files.sound, [lambda ds: ds.filter(lambda payload: payload not in files.wrong)])
        return self.build(files.rest)

    def reports(self, files: Files) -> Counter[tuple[str, int, int]]:
        """How often every damaged record is read."""
        epochs = 1
        for name in self.between:
            if name == "repeat" and "cache" not in self.between[: self.between.index(name)]:
                epochs = 2
        urls = files.damaged[:1] if self.source == "one file" else files.damaged
        return Counter({place: epochs for place in files.bad if place[0] in urls})


PAIRING, MIXING = {"enumerate", "zip", "zip short"}, {"with lines", "sample"}
"""Only elements of one structure become a batch."""

STEPS = PASSING | CHANGING | ENDING
READERS = IN_TASKS | ON_THE_LOOP


def drawn(draw: random.Random) -> Case:
    """Any plan; as often one whose tasks verify, or would if it were not for a single step."""
    between = draw.sample(list(PASSING), draw.randint(0, 3))
    sources, readers = list(SOURCES), list(READERS)
    match draw.randrange(3):
        case 0:
            between = draw.sample(list(STEPS), draw.randint(0, 3))
            while sum(name in PAIRING for name in between) + any(name in MIXING for name in between) > 1:
                between = draw.sample(list(STEPS), draw.randint(0, 3))
        case 1:
            sources, readers = sources[:-3], list(IN_TASKS)
        case _:
            sources, readers = sources[:-3], list(IN_TASKS)
            between.insert(draw.randint(0, len(between)), draw.choice(list(CHANGING | ENDING)))
    return Case(
        source=draw.choice([name for name in sources if name != "sloppy" or "shard" not in between]),
        between=tuple(between),
        reader=draw.choice(readers),
        behind=draw.choice(list(BEHIND)),
    )


def flat(found: Iterator[Any]) -> Iterator[Any]:
    """Elements as plain Python data, those of batches one by one."""
    for element in found:
        parts = element if isinstance(element, tuple) else (element,)
        if hasattr(parts[-1], "tolist") and not isinstance(parts[-1], bytes):
            yield from zip(*(part.tolist() for part in parts), strict=True)
        else:
            yield tuple(part.item() if hasattr(part, "item") else part for part in parts)


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_records_are_left_out_and_told(tmp_path: Path, workers: int) -> None:
    """Under a policy: the others arrive as they would without the damaged ones, and each of these is told once."""
    with ad.Runtime(ad.Options(num_workers=workers, memory_limit_bytes=32 << 20, chunk_bytes=4096)):
        for seed in range(samples(25, 1000)):
            draw = random.Random(100 * seed + workers)
            case = drawn(draw)
            folder = tmp_path / str(seed)
            folder.mkdir()
            files = write(folder, draw, draw.choice([0.0, 0.1, 0.5, 1.0]))
            check_left_out(case, files, folder, draw)


def check_left_out(case: Case, files: Files, folder: Path, draw: random.Random) -> None:
    """See the test."""
    listed = folder / "quarantine"
    policy = ad.ErrorPolicy(max_skipped=None, quarantine=listed)
    expected = list(flat(iter(case.expected(files))))
    with case.build(files.damaged).with_options(ad.Options(errors=policy)).iterator() as iterator:
        found = list(flat(iterator))
        skipped = iterator.stats().skipped
    assert all(map(is_whole, found)), case
    if case.reads_all or case.has_order:
        assert (found if case.has_order else len(found)) == (expected if case.has_order else len(expected)), case
    told = [json.loads(line) for line in listed.read_text().splitlines()]
    assert all("CorruptRecordError" in line["error"] for line in told), case
    places = Counter((line["url"], line["record"], line["offset"]) for line in told)
    if case.reads_all:
        assert places == case.reports(files), case
    assert places <= case.reports(files), case
    assert (skipped.elements, skipped.shards) == (len(told), 0), case
    if told and case.reads_all and "ignore_errors" not in case.between:
        short = ad.ErrorPolicy(max_skipped=draw.randrange(len(told)))
        with pytest.raises(ad.TooManyErrorsError):
            list(case.build(files.damaged).with_options(ad.Options(errors=short)))


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_damaged_record_is_an_error(tmp_path: Path, workers: int) -> None:
    """Without a policy: what comes before it is delivered, as it would be without it, and the error names its place."""
    with ad.Runtime(ad.Options(num_workers=workers, memory_limit_bytes=32 << 20, chunk_bytes=4096)):
        for seed in range(samples(25, 1000)):
            draw = random.Random(100 * seed + 10 + workers)
            case = drawn(draw)
            folder = tmp_path / str(seed)
            folder.mkdir()
            files = write(folder, draw, draw.choice([0.0, 0.02, 0.1]))
            check_raised(case, files)


def check_raised(case: Case, files: Files) -> None:
    """See the test."""
    expected = list(flat(iter(case.expected(files))))
    found: list[Any] = []
    error: ad.CorruptRecordError | None = None
    try:
        for element in flat(iter(case.build(files.damaged))):
            found.append(element)  # noqa: PERF402 -- those in front of the error are kept
    except ad.CorruptRecordError as caught:
        error = caught
    assert all(map(is_whole, found)), case
    if case.has_order:
        assert found == expected[: len(found)], case
    if error is None:
        assert not case.reads_all or not case.reports(files) or "ignore_errors" in case.between, case
        assert not case.has_order or found == expected, case
    else:
        assert (error.url, error.record, error.offset) in case.reports(files), case
        assert error.stage
