"""A state, whenever it is taken, gives a fresh iterator exactly the elements that were left."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.state import document as document_module
from asyncdata.runtime.state.document import with_checksum
from fake_gcs import FakeGCS
from tests.integration.shards import BUCKET, records, shard_bytes
from tests.referee import pipelines
from tests.samples import samples

pytestmark = pytest.mark.usefixtures("two_workers")

D = ad.Dataset


def text(element: Any) -> str:
    """An element in a form that can be compared."""
    return json.dumps(pipelines.plain(element), sort_keys=True)


def run(it: ad.PipelineIterator) -> tuple[list[str], list[Any], str | None]:
    """All elements, the state in front of each and behind the last one, and the error that ended it."""
    elements: list[str] = []
    states = [it.state_dict()]
    try:
        for element in it:
            elements.append(text(element))
            states.append(it.state_dict())
    except Exception as error:  # noqa: BLE001 -- compared
        return elements, states, type(error).__name__
    return elements, states, None


def check(dataset: ad.Dataset, again: ad.Dataset, places: random.Random, most: int) -> None:
    """Restores the states of one dataset into iterators of an equal one.

    Elements that come as they are ready come in another order again: `test_exactly_once` has what holds for them.
    """
    with dataset.iterator() as it:
        try:
            elements, states, error = run(it)
        except ad.StateError as refused:
            assert "as they are ready" in str(refused)  # noqa: PT017 -- either outcome is right
            return
        assert str(ad.state.describe(states[-1])).startswith("state of version 7")
        assert ad.state.diff(states[-1], states[-1]) == []
        if states[-1]["unordered"]:
            return
    chosen = range(len(states)) if len(states) <= most else sorted(places.sample(range(len(states)), most))
    for count in chosen:
        state = json.loads(json.dumps(states[count]))
        with again.iterator(state=state) as it:
            assert it.position == count
            rest, later, ending = run(it)
        assert (rest, ending) == (elements[count:], error), f"after {count} of {len(elements)}: {state}"
        if count < len(states) - 1:
            # And once more from there.
            middle = places.randrange(count, len(states))
            with again.iterator(state=json.loads(json.dumps(later[middle - count]))) as it:
                assert run(it)[::2] == (elements[middle:], error), f"after {count}, then {middle}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Files of several formats, some of them empty."""
    return pipelines.write_files(tmp_path_factory.mktemp("files"), (30, 0, 1, 50))


# --- every source ----------------------------------------------------------------------------------------------------


def sources(folder: Path, compression: str | None) -> dict[str, ad.Dataset]:
    """A dataset of each format, of some thousand records or of large ones."""
    numbers = np.arange(3000)
    suffix = {"GZIP": ".gz", None: ""}[compression]
    records = folder / f"records{suffix}"
    with ad.TFRecordWriter(records, compression) as writer:
        writer.write_many([b"%d" % n * (n % 5) for n in numbers])
    large = folder / f"large{suffix}"
    with ad.TFRecordWriter(large, compression) as writer:
        writer.write_many([bytes([n]) * 100_000 for n in range(60)])
    opened = gzip.open if compression else open
    lines = folder / f"lines.txt{suffix}"
    with opened(lines, "wb") as file:
        file.write(b"".join(b"line %d\r\n" % n for n in numbers))
    values = folder / f"values.jsonl{suffix}"
    with opened(values, "wb") as file:
        file.write(b"".join(b'{"n": %d}\n\n' % n for n in numbers))
    samples = folder / f"samples.tar{suffix}"
    with opened(samples, "wb") as file, tarfile.open(fileobj=file, mode="w|") as tar:
        for n in numbers[::3].tolist():
            for extension in ("txt", "bin")[: 1 + n % 2]:
                member = tarfile.TarInfo(f"{'long' * (n % 50)}{n}.{extension}")
                member.size = n % 777
                tar.addfile(member, io.BytesIO(bytes([n % 256]) * member.size))
    table = folder / f"table.csv{suffix}"
    with opened(table, "wb") as file:
        file.write(b"a,b\n" + b"".join(b'%d,"x ""%d""\n y"\n' % (n, n) for n in numbers))
    return {
        "records": ad.TFRecordDataset(str(records), compression),
        "large": ad.TFRecordDataset(str(large), compression),
        "lines": ad.TextLineDataset(str(lines), compression),
        "csv": ad.CsvDataset(str(table), [np.int64, bytes], header=True, compression_type=compression),
        "csv by header": ad.CsvDataset(str(table), {"b": "", "a": 0}, compression, header=True),
        "json": ad.JsonLinesDataset(str(values), compression),
        "tar": ad.TarDataset(str(samples), compression),
    }


@pytest.mark.sampled
@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("name", ["records", "large", "lines", "csv", "csv by header", "json", "tar"])
def test_files_are_read_on(name: str, compression: str | None, tmp_path: Path) -> None:
    """From the place where they were left, also behind batches, shuffles and functions in workers."""
    dataset = sources(tmp_path, compression)[name]
    places = random.Random(3)
    check(dataset, dataset, places, samples(3, 40))
    alike = dataset if name in {"records", "large", "lines", "csv"} else dataset.map(repr)
    shuffled = alike.shuffle(300, seed=3).batch(50)
    check(shuffled, shuffled, places, samples(3, 40))


# --- the iterator's side ---------------------------------------------------------------------------------------------


def test_trainers_that_read_ahead() -> None:
    """States of earlier elements are known for a while; what was committed stays, and closing changes nothing."""
    dataset = D.range(100).shuffle(10, seed=1).batch(2).with_options(ad.Options(state_history=4))
    with dataset.iterator() as it:
        batches = [next(it) for _ in range(10)]
        assert it.position == 10
        with it_of(dataset, it.state_dict(at=7)) as other:
            assert [text(next(other)) for _ in range(3)] == list(map(text, batches[7:]))
        it.commit(6)
        for _ in range(30):
            next(it)
        assert it.state_dict()["position"] == 6
    with it_of(dataset, it.state_dict()) as other:
        assert [text(next(other)) for _ in range(4)] == list(map(text, batches[6:]))
        with pytest.raises(ValueError, match="position 5 was committed after 6"):
            other.commit(5)  # of before the resume: its state is not known any more
        assert other.state_dict()["position"] == 10
    with pytest.raises(ValueError, match="not reached"):
        it.commit(99)
    with pytest.raises(ValueError, match="committed after"):
        it.commit(5)


def it_of(dataset: ad.Dataset, state: Any) -> ad.PipelineIterator:
    """From a state on, through JSON."""
    return dataset.iterator(state=json.loads(json.dumps(state)))


def test_epochs_go_on_behind_a_state() -> None:
    """The end comes once, then the next epoch; orders are those of the uninterrupted run."""
    dataset = D.range(20).shuffle(20).with_options(ad.Options(seed=5))
    epochs = [list(map(int, dataset)) for _ in range(3)]
    assert epochs[0] != epochs[1]
    again = D.range(20).shuffle(20).with_options(ad.Options(seed=5))
    with again.iterator() as it:
        for _ in range(20):
            next(it)
        state = it.state_dict()
    fresh = D.range(20).shuffle(20).with_options(ad.Options(seed=5))
    it = fresh.iterator(state=state)
    assert list(it) == []
    assert [list(map(int, fresh)) for _ in range(2)] == epochs[1:]
    it = fresh.iterator()
    it.load_state_dict(state)
    assert (it.epoch, it.position, list(it)) == (0, 20, [])
    assert list(map(int, fresh)) == epochs[1]


async def test_async_iterators_have_states() -> None:
    """And load them between two elements."""
    dataset = D.range(30).shuffle(7, seed=1)
    async with dataset.iterator() as it:
        elements = [int(element) async for element in it]
    it = dataset.iterator(epoch=0)
    for _ in range(4):
        await anext(it)
    state = it.state_dict()
    for _ in range(3):
        await anext(it)
    it.load_state_dict(state)
    assert [int(element) async for element in it] == elements[4:]


def test_an_order_that_was_drawn_is_in_the_state() -> None:
    """A Dataset that is written anew draws other seeds; it gives the order of the state all the same."""

    def written() -> ad.Dataset:
        made = D.range(2).interleave(lambda _: D.range(25).shuffle(25, reshuffle_each_iteration=False))
        other = D.range(50).shuffle(50, reshuffle_each_iteration=False).take(50).map(lambda x: x + 25)
        return made.concatenate(other).concatenate(D.range(9).shuffle(3))

    check(written(), written(), random.Random(3), 100)
    with written().iterator() as it:
        first = [int(next(it)) for _ in range(20)]
        state = it.state_dict()
        rest = list(map(int, it))
    with it_of(written(), state) as it:
        assert list(map(int, it)) == rest
    assert sorted(first + rest) == sorted([*range(25), *range(25), *range(25, 75), *range(9)])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (D.range(10).shuffle(500).batch(2), r"buffer_size=500.* here, shuffle\(buffer_size=1000"),
        (D.range(11).shuffle(1000).batch(2), "stop=11"),
        (D.range(10).shuffle(1000), r"no more steps here, batch\(size=2"),
        (D.range(10).shuffle(1000).map(len).batch(2), r"map\(function=len"),
        (D.range(10).shuffle(1000).batch(2).with_options(ad.Options(seed=8)), "seed=8 here"),
    ],
)
def test_a_state_of_another_pipeline_is_refused(other: ad.Dataset, message: str) -> None:
    """The first difference is named."""
    with D.range(10).shuffle(1000).batch(2).iterator() as it:
        state = it.state_dict()
    with pytest.raises(ad.StateError, match=message):
        other.iterator(state=state)


NUMBERS = D.range(10)
LISTS = NUMBERS.map(np.arange)
SETTINGS: dict[str, tuple[Callable[[Any], ad.Dataset], Any, Any]] = {
    "record_bytes of several files": (lambda n: ad.FixedLengthRecordDataset(["a", "b"], n), 3, 5),
    "columns of several files": (lambda c: ad.CsvDataset(["a", "b"], [int, int], select_cols=c), [0, 1], [0, 2]),
    "a header of several files": (lambda h: ad.CsvDataset(["a", "b"], [int], header=h), True, False),
    "a delimiter": (lambda d: ad.CsvDataset("a", [int], field_delim=d), ";", ","),
    "columns of several Parquet files": (lambda c: ad.ParquetDataset(["a", "b"], columns=c), ["x"], ["y"]),
    "compression of several files": (lambda c: ad.TFRecordDataset(["a", "b"], c), "GZIP", "ZLIB"),
    "boundaries of buckets": (lambda b: LISTS.bucket_by_sequence_length(len, [b], [2, 2]), 3, 4),
    "sizes of buckets": (lambda b: LISTS.bucket_by_sequence_length(len, [3], [2, b]), 3, 4),
    "window_size": (lambda n: NUMBERS.group_by_window(lambda _: 0, lambda _, w: w.batch(3), window_size=n), 3, 6),
    "names of zip": (lambda n: D.zip({"a": NUMBERS, n: NUMBERS}), "b", "c"),
    "types of a generator": (lambda t: D.from_generator(list, output_types=t), np.int64, np.int32),
    "a specification": (
        lambda t: D.from_tensors([b""]).map(ad.parse_example({"f": ad.FixedLenFeature((), t)})),
        np.int64,
        np.float32,
    ),
    "channels": (lambda n: D.from_tensors([b""]).map(ad.decode_image(channels=n)), 1, 3),
    "boundaries of a function": (lambda b: NUMBERS.map(ad.Bucketize([1.0, b])), 2.0, 3.0),
    "numbers of an array": (lambda n: D.from_tensor_slices(np.array([1, 2, n])), 3, 4),
    "one number of many": (lambda n: D.from_tensor_slices(np.arange(70_000) + n), 0, 1),
    "texts": (lambda text: D.from_tensor_slices(["a", "b", text]), "c", "d"),
    "arrays": (lambda n: D.from_tensors([np.array([1, n])]), 3, 4),
    "a list": (lambda n: D.from_tensors([*range(300), n]), 3, 4),
    "an initial state": (lambda n: NUMBERS.scan(np.array([n]), lambda s, x: (s, x)), 3, 4),
    "bytes": (lambda text: LISTS.padded_batch(2, padding_values=text), 1, 2),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_changes_elements_is_compared(setting: str) -> None:
    """Whatever it belongs to; the same one fits, however often it is made, and after it was pickled."""
    make, value, other = SETTINGS[setting]
    state = make(value).iterator().state_dict()
    make(value).iterator(state=state)
    pickle.loads(cloudpickle.dumps(make(value))).iterator(state=state)
    with pytest.raises(ad.StateError, match=" here, "):
        make(other).iterator(state=state)


def test_a_state_of_many_open_files_is_small(tmp_path: Path) -> None:
    """64 bytes for each of them, and 2 KB."""
    for name in range(64):
        with ad.TFRecordWriter(tmp_path / f"a-long-name-of-a-file-{name:05d}.tfrecord") as writer:
            writer.write_many([os.urandom(50) for _ in range(20 + name)])
    files = D.list_files(f"{tmp_path}/*", shuffle=False)
    with files.interleave(ad.TFRecordDataset, cycle_length=64).batch(10).iterator() as it:
        for _ in range(100):
            next(it)
        state = it.state_dict()
    assert len(json.dumps(state, separators=(",", ":"))) <= 64 * 64 + 2048


def test_numbers_of_numpy_are_numbers() -> None:
    """A seed, a position that was committed, and one that is asked for: JSON can hold the state."""
    seed: Any = np.int64(3)
    position: Any = np.uint8(2)
    with D.range(10).shuffle(5).with_options(ad.Options(seed=seed)).iterator() as it:
        taken = [next(it) for _ in range(4)]
        it.commit(position)
        states = [it.state_dict(), it.state_dict(at=position)]
    assert json.loads(json.dumps(states)) == states
    assert [state["position"] for state in states] == [2, 2]
    assert len(taken) == 4


def test_a_state_of_a_later_version_is_refused() -> None:
    """So is what is none, or damaged."""
    dataset = D.range(10)
    with dataset.iterator() as it:
        state = it.state_dict()
    with pytest.raises(ad.StateError, match="version 8"):
        dataset.iterator(state={**state, "asyncdata_state": 8})
    for damaged in ({}, {"a": 1}, {**state, "state": 3}, {**state, "epoch": "1"}, {**state, "drawn": [1]}):
        with pytest.raises(ad.StateError):
            dataset.iterator(state=with_checksum(dict(damaged)))
    del state["seed"]
    with pytest.raises(ad.StateError, match="'seed' is missing"):
        dataset.iterator(state=with_checksum(state))


def test_an_object_that_has_changed_is_refused(tmp_path: Path) -> None:
    """One that was copied is not; one that was read to its end, or not begun, does not matter."""
    paths = [tmp_path / f"{i}.tfrecord" for i in range(3)]

    def write(i: int, text: bytes) -> None:
        with ad.TFRecordWriter(paths[i]) as writer:
            writer.write_many([text + b"%d" % n for n in range(2000)])

    for i in range(3):
        write(i, b"a")
    dataset = ad.TFRecordDataset([str(path) for path in paths])
    with dataset.iterator() as it:
        for _ in range(3500):
            next(it)
        state = it.state_dict()
        rest = list(it)
    write(0, b"other")
    copy = paths[1].with_suffix(".copy")
    copy.write_bytes(paths[1].read_bytes())
    status = paths[1].stat()
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    copy.replace(paths[1])
    with it_of(dataset, state) as it:
        assert list(it) == rest
    write(1, b"more")
    with pytest.raises(ad.StateError, match="changed since the state was taken") as caught:
        list(it_of(dataset, state))
    assert caught.value.url == str(paths[1])


def changed(value: Any, places: random.Random) -> Any:
    """A state with one part that was replaced or is missing."""
    if isinstance(value, dict) and value and places.random() < 0.9:
        key = places.choice(sorted(value))
        if places.random() < 0.15:
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: changed(value[key], places)}
    if isinstance(value, list) and value and places.random() < 0.8:
        index = places.randrange(len(value))
        return [*value[:index], changed(value[index], places), *value[index + 1 :]]
    return places.choice([None, 0, 1, -1, 7, 1 << 40, "x", [], [1], {}, {"~": "tuple", "items": []}, 0.5, True])


@pytest.mark.parametrize("deterministic", [True, False])
def test_one_character_of_a_state_was_changed(deterministic: bool, files: dict[str, list[str]]) -> None:
    """It is refused when the iterator is made, whatever the character means; what reads the same is the same."""
    names = D.from_tensor_slices(files["records"])
    dataset = names.interleave(ad.TFRecordDataset, 2, deterministic=deterministic).shuffle(9, seed=1).repeat(2).batch(3)
    with dataset.iterator() as it:
        taken = [next(it) for _ in range(4)]
        text = json.dumps(it.state_dict())
    assert taken
    places = random.Random(int(deterministic))
    refused = 0
    for _ in range(samples(300, 20_000)):
        place = places.randrange(len(text))
        try:
            state = json.loads(text[:place] + places.choice('0123456789-"[]{},~abn ') + text[place + 1 :])
        except ValueError:
            continue
        if state != json.loads(text):
            with pytest.raises(ad.StateError):
                dataset.iterator(state=state)
            refused += 1
    assert refused


@pytest.mark.parametrize("seed", range(samples(20, 2000)))
def test_a_state_that_was_changed_is_read_or_refused(
    seed: int, files: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an error of asyncdata's own; nothing hangs."""
    monkeypatch.setattr(document_module, "_MOST_PACKED", 0)
    places = random.Random(seed)
    records = ad.TFRecordDataset(files["records"])
    inner = D.range(20).concatenate(D.range(2))
    pipelines_of_all_kinds = [
        records.shuffle(7, seed=1).batch(3),
        D.zip((records.repeat(2), D.range(90).shuffle(9).enumerate())),
        D.range(40).scan(0, lambda state, x: (state + x, state)).shard(2, 1).skip(3),
        D.range(9).interleave(lambda _: inner, cycle_length=3).take(70).batch(4).rebatch([2, 3]),
        D.sample_from_datasets([D.range(50), D.range(50).batch(2).unbatch()], [0.5, 0.5], seed=2).window(3).map(repr),
    ]
    dataset = places.choice(pipelines_of_all_kinds)
    with dataset.iterator() as it:
        for _ in range(places.randint(0, 10)):
            next(it)
        state = json.loads(json.dumps(it.state_dict()))
    damaged = with_checksum({**state, "state": changed(state["state"], places)})
    try:
        with dataset.iterator(state=damaged) as it:
            for _ in range(100):
                next(it, None)
    except ad.AsyncdataError:
        pass


@pytest.mark.sampled
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_resume_reads_what_is_left(part: float, deterministic: bool) -> None:
    """And little more: each open file from a few marks in front of its position on."""
    shards, count, nbytes = 6, 60, 100_000
    record = nbytes + 16
    with FakeGCS(buckets=[BUCKET]) as server:
        for shard in range(shards):
            server.put(BUCKET, f"{shard}.tfrecord", shard_bytes(records(shard, count, nbytes)))
        options = ad.Options(
            storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
            deterministic=deterministic,
            memory_limit_bytes=64 << 20,
            num_workers=0,
        )
        files = ad.Dataset.list_files(f"gs://{BUCKET}/*.tfrecord", shuffle=False)
        dataset = files.interleave(ad.TFRecordDataset, 2, num_parallel_calls=2).batch(4)
        with ad.Runtime(options), dataset.iterator() as it:
            for _ in range(int(part * shards * count) // 4):
                next(it)
            state = it.state_dict()
        before = len(server.journal)
        with ad.Runtime(options):
            rest = sum(len(batch) for batch in dataset.iterator(state=state))
        sent = sum(entry.sent for entry in list(server.journal)[before:] if entry.range)
    assert rest == shards * count - int(part * shards * count) // 4 * 4
    assert sent <= rest * record + 2 * (3 * (1 << 20) + 2 * record)


@pytest.mark.parametrize("delivered", [2, 3, 40])
def test_a_file_that_was_begun_a_moment_ago_must_be_the_same(delivered: int, tmp_path: Path) -> None:
    """Its version is known from its second record on."""
    paths = [tmp_path / f"{i}.tfrecord" for i in range(4)]
    for path in paths:
        with ad.TFRecordWriter(path) as writer:
            writer.write_many([b"%d" % n for n in range(2000)])
    dataset = D.from_tensor_slices([str(path) for path in paths]).interleave(ad.TFRecordDataset, 1)
    with dataset.iterator() as it:
        for _ in range(4000 + delivered):
            next(it)
        state = it.state_dict()
    with ad.TFRecordWriter(paths[2]) as writer:
        writer.write_many([b"other"] * 2000)
    with pytest.raises(ad.StateError, match="changed since the state was taken"):
        list(it_of(dataset, state))
