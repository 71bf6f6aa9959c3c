"""Elements without a fixed order that were read and not delivered are read again where they lie: once, and little else.

How many bytes it takes decides how an element is read; most tests here read all of them where they lie.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.runtime.state import left_in_files
from asyncdata.runtime.state.document import tracks_from_json, with_checksum
from asyncdata.runtime.state.json_codec import packed, to_json
from asyncdata.runtime.state.tracks import to_saved
from fake_gcs import FakeGCS
from tests.integration.resumed_reads import read_after_resume
from tests.integration.shards import BUCKET, gs_storage, put_shards, records, shard_bytes
from tests.samples import samples

pytestmark = pytest.mark.sampled

D = ad.Dataset
Make = Callable[[Path], ad.Dataset]


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """One for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=0)):
        yield


@pytest.fixture
def always_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be read where it lies is, however little that saves."""
    monkeypatch.setattr(left_in_files, "_DENSE", 0)
    monkeypatch.setattr(left_in_files, "_REQUEST_BYTES", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of records of different sizes: few, none, one, many, large; some records of two files are damaged.

    In some files of CSV the first rows are.
    """
    made = tmp_path_factory.mktemp("any-order")
    for number, (count, size) in enumerate([(40, 0), (0, 0), (1, 30), (200, 700), (9, 90_000), (150, 40), (60, 5)]):
        rows = [row.replace(b"\n", b"_").replace(b"\r", b"_") for row in records(number, count, size)]
        if number == 5:
            rows = [row * (1 + n % 30) for n, row in enumerate(rows)]
        data = shard_bytes(rows)
        (made / f"{number}.tfrecord").write_bytes(data)
        (made / f"{number}.tfrecord.gz").write_bytes(shard_bytes(rows, "GZIP"))
        (made / f"{number}.txt").write_bytes(b"".join(row + b"\r\n" * (n % 2) + b"\n" for n, row in enumerate(rows)))
        (made / f"{number}.jsonl").write_bytes(b"".join(b'["%s", %d]\n' % (row[:3], len(row)) for row in rows))
        cells = b"".join(b'%d,"%s,\n""",%d\n' % (n, row[:4], number) for n, row in enumerate(rows))
        (made / f"{number}.csv").write_bytes(b"row,text,file\n" + cells)
        (made / f"{number}.first-wrong").write_bytes(b"row,text,file\n" + b"wrong,x,1\n" * (number % 3) + cells)
        (made / f"{number}.fixed").write_bytes(b"h" + b"".join(row.ljust(9)[:9] for row in rows))
        if number in {3, 5}:
            offset = 0
            damaged = bytearray(data)
            for n, row in enumerate(rows):
                damaged[offset + 12] ^= n % 7 == 3
                offset += len(row) + 16
            # Of the other one, what is behind a damaged header is left out.
            damaged[offset // 2 :] = b"?" * 99 if number == 5 else damaged[offset // 2 :]
            (made / f"{number}.damaged").write_bytes(damaged)
    return made


def doubled(element: bytes) -> bytes:
    """A function."""
    return element * 2


def numbered(element: bytes, rng: Any) -> tuple[bytes, int]:
    """A function with random numbers, which belong to the element."""
    return element, int(rng.integers(1000))


def by_header(file: str) -> ad.Dataset:
    """Rows, of which columns are named by the header."""
    return ad.CsvDataset(file, {"file": 0, "text": "", "row": 0}, header=True)


def shown(element: Any) -> bytes:
    """What can be compared, whatever it is."""
    return repr(element).encode()


def few(element: bytes) -> ad.Dataset:
    """None to two elements, as they are ready."""
    return D.from_tensor_slices([element + b"%d" % n for n in range(len(element) % 3)]).map(doubled, 2)


def names(folder: Path, kind: str = "tfrecord") -> ad.Dataset:
    """Files of one format."""
    return D.list_files(f"{folder}/*.{kind}", shuffle=True, seed=3)


def sloppy(files: ad.Dataset, make: Any = ad.TFRecordDataset, cycle: int = 3) -> ad.Dataset:
    """What datasets of files have, as it is ready; in a fixed order if the options say so."""
    return files.interleave(make, cycle, num_parallel_calls=cycle)


def one_by_one(folder: Path) -> ad.Dataset:
    """In a fixed order; one file comes twice."""
    files = [f"{folder}/{n}.tfrecord" for n in (3, 1, 3, 5)]
    return D.from_tensor_slices(files).interleave(ad.TFRecordDataset, 1, deterministic=True)


def tolerant(dataset: ad.Dataset) -> ad.Dataset:
    """Leaves out what fails."""
    policy = ad.ErrorPolicy(max_in_a_row=1000, max_skipped=None, log_warning=False)
    return dataset.with_options(ad.Options(errors=policy))


IN_BUFFER: dict[str, Make] = {
    "records": lambda p: sloppy(names(p)),
    "records, cycle 1": lambda p: sloppy(names(p), cycle=1),
    "map behind": lambda p: sloppy(names(p)).map(doubled, 2).prefetch(9),
    "random map behind": lambda p: sloppy(names(p)).map(numbered, rng=True),
    "repeat of names": lambda p: sloppy(names(p).repeat(2)),
    "filter inside": lambda p: sloppy(names(p), lambda f: ad.TFRecordDataset(f).filter(lambda x: len(x) % 3)),
    "shuffle inside": lambda p: sloppy(names(p), lambda f: ad.TFRecordDataset(f).shuffle(20, seed=2)),
    "take inside": lambda p: sloppy(names(p), lambda f: ad.TFRecordDataset(f).skip(3).take(90)),
    "lines": lambda p: sloppy(names(p, "txt"), ad.TextLineDataset),
    "fixed": lambda p: sloppy(names(p, "fixed"), lambda f: ad.FixedLengthRecordDataset(f, 9, 1)),
    "objects": lambda p: sloppy(names(p, "t*"), ad.FileDataset),
    "JSON": lambda p: sloppy(names(p, "jsonl"), ad.JsonLinesDataset).map(shown),
    "CSV by header": lambda p: sloppy(names(p, "csv"), by_header).map(shown, 2),
    "shard of files": lambda p: sloppy(names(p).shard(2, 1)),
    "shard of files, shuffle": lambda p: sloppy(names(p).shard(2, 0).shuffle(9, seed=1).prefetch(2)),
    "some compressed": lambda p: sloppy(
        D.list_files(f"{p}/*.tfrecord*", shuffle=False),
        lambda f: ad.TFRecordDataset(f, "GZIP" if f.endswith(".gz") else None),
    ),
    "unordered map of files": lambda p: one_by_one(p).map(doubled, 3),
    "unordered map of interleave": lambda p: (
        names(p).interleave(ad.TFRecordDataset, 2, deterministic=True).map(doubled, 3)
    ),
    "unordered map of map": lambda p: one_by_one(p).filter(len).map(doubled, 2, deterministic=True).map(doubled, 3),
    "policy": lambda p: tolerant(sloppy(names(p))),
    "policy, damage": lambda p: tolerant(sloppy(names(p, "damaged"), cycle=2)),
    "policy, first rows": lambda p: tolerant(sloppy(names(p, "first-wrong"), by_header)).map(shown, 2),
}
"""Inputs of a shuffle that begins with what lies in files."""

BY_INPUT: dict[str, Make] = {
    "map inside": lambda p: sloppy(names(p), lambda f: ad.TFRecordDataset(f).map(doubled, 2, deterministic=True)),
    "unordered map inside": lambda p: sloppy(names(p), lambda f: ad.TFRecordDataset(f).map(doubled, 2)),
    "options inside": lambda p: sloppy(
        names(p), lambda f: ad.TFRecordDataset(f).with_options(ad.Options(storage={"gs": {"token": "anon"}}))
    ),
    "filter behind": lambda p: sloppy(names(p)).filter(lambda x: len(x) % 3),
    "take behind": lambda p: sloppy(names(p)).take(1000),
    "enumerate behind": lambda p: sloppy(names(p)).enumerate().map(lambda _, x: x),
    "flat_map behind": lambda p: sloppy(names(p)).flat_map(few),
    "nested": lambda p: sloppy(names(p), lambda f: sloppy(D.from_tensors(f))),
    "nested, ordered": lambda p: sloppy(
        names(p), lambda f: D.from_tensors(f).interleave(ad.TFRecordDataset, deterministic=True)
    ),
    "concatenated": lambda p: sloppy(names(p)).concatenate(one_by_one(p).map(doubled, 2)),
    "policy, filter": lambda p: tolerant(sloppy(names(p)).filter(lambda x: 5 // (len(x) % 5))),
}
"""Inputs of a shuffle that begin with what lies in files."""

OTHERS: dict[str, Make] = {
    "compressed": lambda p: sloppy(names(p, "tfrecord.gz"), lambda f: ad.TFRecordDataset(f, "GZIP")),
    "shard of records": lambda p: one_by_one(p).shard(2, 1).map(doubled, 2),
    "repeat inside": lambda p: sloppy(names(p), lambda f: ad.TFRecordDataset(f).repeat(2)),
    "policy, map inside": lambda p: tolerant(
        sloppy(names(p), lambda f: ad.TFRecordDataset(f).map(doubled, 2, deterministic=True))
    ),
}
"""Inputs whose elements have to be made again."""

KINDS = {**IN_BUFFER, **BY_INPUT, **OTHERS}
SIZES = [150, 20, 2000]


def in_no_order(kind: str, folder: Path, size: int) -> ad.Dataset:
    """The elements of a kind, shuffled; two runs of them have different orders."""
    return KINDS[kind](folder).shuffle(size, seed=5).with_options(ad.Options(seed=9, deterministic=False))


def state_of(it: ad.PipelineIterator, at: int | None = None) -> Any:
    """As it is read from a file."""
    return json.loads(json.dumps(it.state_dict(at=at)))


def lives(dataset: ad.Dataset, draw: random.Random, most: int) -> tuple[list[Any], list[Any]]:
    """All elements, of iterators each of which begins at a state of the one before it; and their states."""
    found: list[Any] = []
    states: list[Any] = []
    ended = False
    while not ended:
        with dataset.iterator(epoch=None if states else 2, state=states[-1] if states else None) as it:
            first, count = it.position, draw.randint(0, most)
            heard = list(itertools.islice(it, count))
            ended = len(heard) < count
            used = len(heard) if ended else draw.randint(max(0, len(heard) - 10), len(heard))
            states.append(state_of(it, first + used))
        found += heard[:used]
    assert list(dataset.iterator(state=states[-1])) == [], "behind the end"
    return found, states


@pytest.mark.usefixtures("always_lie")
@pytest.mark.parametrize("kind", ["map behind", "map inside", "unordered map of interleave"])
def test_an_order_log_repeats_what_was_read_where_it_lies(kind: str, folder: Path, tmp_path: Path) -> None:
    """Lives are repeated as one run: each of them reads the same elements where they lie."""
    for seed in range(samples(1, 20)):
        log = tmp_path / f"{kind} {seed}"
        dataset = in_no_order(kind, folder, 60)
        found, _ = lives(dataset.with_options(ad.Options(order_log=log)), random.Random(seed), 120)
        assert list(dataset.with_options(ad.Options(replay=log)).iterator(epoch=2)) == found


def begun(dataset: ad.Dataset) -> Any:
    """A state when everything was read and little was delivered."""
    with dataset.iterator() as it:
        for _ in range(9):
            next(it)
        return state_of(it)


@pytest.mark.usefixtures("always_lie")
@pytest.mark.parametrize("kind", KINDS)
def test_every_element_is_delivered_once(kind: str, folder: Path) -> None:
    """By iterators that are closed at drawn elements and begin at the states of one another."""
    draw = random.Random(kind)
    lying = 0
    for size in (SIZES * 3)[len(kind) % 3 :][: samples(1, 6)]:
        dataset = in_no_order(kind, folder, size)
        if "random" not in kind:
            dataset = dataset.map(numbered, rng=True)
        expected = Counter(dataset.with_options(ad.Options(deterministic=True)).iterator(epoch=2))
        found, states = lives(dataset, draw, 120)
        assert Counter(found) == expected
        tracks = [track for state in states for track in tracks_from_json(state)]
        lying += sum(track.lying is not None for track in tracks)
    assert not lying or kind not in OTHERS


@pytest.mark.usefixtures("always_lie")
@pytest.mark.parametrize("step", [lambda ds: ds, lambda ds: ds.batch(7), lambda ds: ds.repeat(3).shuffle(9).batch(4)])
def test_other_steps_behind(step: Callable[[ad.Dataset], ad.Dataset], folder: Path) -> None:
    """No shuffle, batches, repetitions."""
    draw = random.Random(1)
    for kind in draw.sample([*IN_BUFFER], samples(2, 17)):
        if "random" in kind:
            continue
        dataset = step(KINDS[kind](folder)).with_options(ad.Options(seed=9, deterministic=False))

        def rows(elements: Any) -> Counter[Any]:
            return Counter(row for each in elements for row in (each.tolist() if hasattr(each, "tolist") else [each]))

        expected = rows(dataset.with_options(ad.Options(deterministic=True)).iterator(epoch=2))
        assert rows(lives(dataset, draw, 60)[0]) == expected


@pytest.mark.usefixtures("always_lie")
@pytest.mark.parametrize("kind", [*IN_BUFFER, *BY_INPUT])
def test_a_state_says_what_is_read_where_it_lies(kind: str, folder: Path) -> None:
    """How many elements these are, and where reading goes on behind them."""
    state = begun(in_no_order(kind, folder, 2000))
    count = sum(len(track.lying) for track in tracks_from_json(state) if track.lying is not None)
    assert count
    assert f"{count:,} elements that were read and not delivered are read from where they lie" in str(
        ad.state.describe(state)
    )


@pytest.mark.usefixtures("always_lie")
@pytest.mark.parametrize("isolate", [False, True])
def test_little_memory_is_enough(isolate: bool, folder: Path) -> None:
    """Under a limit that the pipeline just runs with, in this process and in another one."""
    with ad.Runtime(ad.Options(num_workers=0, memory_limit_bytes=8 << 20, isolate=isolate)):
        for kind in ("map behind", "map inside"):
            dataset = in_no_order(kind, folder, 100)
            expected = Counter(dataset.with_options(ad.Options(deterministic=True)))
            assert Counter(lives(dataset, random.Random(kind), 150)[0]) == expected


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("nbytes", "count", "buffer"), [(4000, 300, 1000), (66_000, 30, 120)])
@pytest.mark.parametrize("make", [ad.TFRecordDataset, lambda url: ad.TFRecordDataset(url).map(doubled)])
def test_little_more_is_read_than_what_is_left(
    part: float, nbytes: int, count: int, buffer: int, make: Callable[[str], ad.Dataset]
) -> None:
    """What is left, gaps between elements of the buffer, and what lies between a mark and the last element read."""
    shards, cycle = 16, 4
    record = nbytes + 16
    with FakeGCS(buckets=[BUCKET]) as server:
        put_shards(server, shards, count, nbytes)
        options = ad.Options(storage=gs_storage(server), num_workers=0, memory_limit_bytes=256 << 20)
        files = D.list_files(f"gs://{BUCKET}/*.tfrecord", shuffle=False)
        dataset = files.interleave(make, cycle, num_parallel_calls=cycle, deterministic=False).shuffle(buffer, seed=1)
        delivered = int(part * shards * count)
        state, rest, sent = read_after_resume(server, dataset, options, delivered)
    assert len(set(rest)) == len(rest) == shards * count - delivered
    left = sum(len(track.lying) for track in tracks_from_json(state) if track.lying is not None)
    # Behind a tenth, most of what was read was not delivered, and is read on.
    assert part < 0.5 or left
    assert sent <= (len(rest) + 2 * left) * record + cycle * (3 << 18), (sent / record, len(rest), left)


def test_files_that_have_ended_are_not_opened_again(always_lie: None) -> None:
    """Only what is left of them is read, by requests of its own."""
    del always_lie
    with FakeGCS(buckets=[BUCKET]) as server:
        put_shards(server, 4, 300, 2000)
        options = ad.Options(storage=gs_storage(server), num_workers=0)
        files = D.list_files(f"gs://{BUCKET}/*.tfrecord", shuffle=False)
        dataset = files.interleave(ad.TFRecordDataset, 4, num_parallel_calls=4, deterministic=False).shuffle(1000)
        _, rest, sent = read_after_resume(server, dataset, options, 1190)
    assert len(set(rest)) == 10
    assert sent <= 6 * 10 * 2016, "less than the first chunk of a file"


def test_an_object_that_was_replaced_is_refused(always_lie: None) -> None:
    """Also if all of it was read, and only the buffer has elements of it."""
    del always_lie
    with FakeGCS(buckets=[BUCKET]) as server:
        files = D.from_tensor_slices(put_shards(server, 3, 50, 10))
        options = ad.Options(storage=gs_storage(server), num_workers=0)
        dataset = files.interleave(ad.TFRecordDataset, 3, num_parallel_calls=3, deterministic=False).shuffle(200)
        with ad.Runtime(options):
            state = begun(dataset)
            server.put(BUCKET, "shard-000.tfrecord", shard_bytes(records(7, 50, 10)))
            with pytest.raises(ad.StateError, match="changed since the state was taken"):
                list(dataset.iterator(state=state))


def test_what_cannot_be_read_where_it_lies_is_refused(always_lie: None, folder: Path) -> None:
    """By the options that do not allow it."""
    del always_lie
    dataset = in_no_order("records", folder, 2000)
    state = begun(dataset)
    with pytest.raises(ad.StateError, match="not possible with on_change='restart'"):
        list(dataset.with_options(ad.Options(on_change="restart")).iterator(state=state))


@pytest.mark.usefixtures("always_lie")
def test_states_of_version_5_are_read(folder: Path) -> None:
    """Each column of what lies in files is bytes of one width, and all of the tracks is compressed together."""
    dataset = in_no_order("records", folder, 200)
    whole = Counter(dataset)
    with dataset.iterator() as it:
        begun = [next(it) for _ in range(120)]
        state = state_of(it)
    value = to_saved(tracks_from_json(state))
    places = value["lying"]["places"]
    value = to_json(value)
    value["lying"]["places"] = {"~": "places", **to_json(places.__reduce__()[1][0])}
    state = with_checksum({**state, "asyncdata_state": 5, "tracks": packed(value)})
    assert Counter(begun + list(dataset.iterator(state=state))) == whole
