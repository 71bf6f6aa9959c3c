"""An epoch that is resumed ends with the files that it began with, whatever happened to their folder or bucket."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.state.document import with_checksum
from fake_gcs import FakeGCS
from tests.integration.shards import gs_storage, shard_bytes

D = ad.Dataset
Put = Callable[[str, int], None]
"""Makes a file of this name with so many records."""

BUCKET = "growing"
NAMES = [f"part-{number}.rec" for number in range(0, 60, 10)]


def void(_: object) -> None:
    """Nothing."""


def content(name: str, count: int) -> bytes:
    """A file whose records name it."""
    return shard_bytes([f"{name}:{number}".encode() for number in range(count)])


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """One for all pipelines of a test, without workers."""
    with ad.Runtime(ad.Options(num_workers=0)):
        yield


@pytest.fixture(params=["disk", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ad.Options, Put]]:
    """A pattern, options that read it, and how files are made there."""
    if request.param == "disk":

        def put(name: str, count: int) -> None:
            (tmp_path / name).write_bytes(content(name, count))

        for name in NAMES:
            put(name, 9)
        yield f"{tmp_path}/*.rec", ad.Options(seed=1), put
        return
    with FakeGCS(buckets=[BUCKET]) as server:
        for name in NAMES:
            server.put(BUCKET, name, content(name, 9))
        yield (
            f"gs://{BUCKET}/*.rec",
            ad.Options(seed=1, storage=gs_storage(server)),
            lambda name, count: void(server.put(BUCKET, name, content(name, count))),
        )


def pipelines(pattern: str) -> list[ad.Dataset]:
    """Several ways to read files that are listed."""
    listed = D.list_files(pattern)
    return [
        listed.interleave(ad.TFRecordDataset, cycle_length=3).shuffle(7).batch(4),
        D.list_files(pattern, shuffle=False).flat_map(ad.TFRecordDataset).filter(lambda record: b":3" not in record),
        listed.enumerate().map(lambda number, url: f"{number} {url}"),
        ad.TFRecordDataset(listed).unique().repeat(2),
        D.range(3).flat_map(lambda _: D.list_files(pattern).flat_map(ad.TFRecordDataset)),
    ]


def run(it: ad.PipelineIterator) -> tuple[list[str], list[str]]:
    """All elements as text, and the state in front of each and behind the last one."""
    elements: list[str] = []
    states = [json.dumps(it.state_dict())]
    for element in it:
        elements.append(repr(element))
        states.append(json.dumps(it.state_dict()))
    return elements, states


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(5))
def test_new_files_wait_for_the_next_epoch(place: tuple[str, ad.Options, Put], number: int) -> None:
    """From any place on, the epoch is finished without them, also when it is interrupted a second time."""
    pattern, options, put = place
    dataset = pipelines(pattern)[number].with_options(options)
    with dataset.iterator(epoch=0) as it:
        elements, states = run(it)
    put("part-05.rec", 3)
    put("part-99.rec", 3)
    step = max(1, len(elements) // 6)
    for position in range(1, len(states), step):
        again = pipelines(pattern)[number].with_options(options)
        with again.iterator(state=json.loads(states[position])) as it:
            rest, later = run(it)
        assert rest == elements[position:]
        with again.iterator(state=json.loads(later[len(later) // 2])) as it:
            assert run(it)[0] == rest[len(later) // 2 :]
    fresh = pipelines(pattern)[number].with_options(options)
    assert any("part-99" in element for element in map(repr, fresh))


def test_nothing_was_delivered_yet(place: tuple[str, ad.Options, Put]) -> None:
    """A state in front of the first element is of no listing."""
    pattern, options, put = place
    dataset = pipelines(pattern)[0].with_options(options)
    with dataset.iterator(epoch=0) as it:
        state = it.state_dict()
    put("part-05.rec", 3)
    with dataset.iterator(state=state) as it:
        assert any("part-05" in repr(batch) for batch in it)


def test_files_that_are_gone(tmp_path: Path) -> None:
    """One that was read to its end is not missed; another one is named."""
    for name in NAMES:
        (tmp_path / name).write_bytes(content(name, 2000))
    dataset = D.list_files(f"{tmp_path}/*.rec", shuffle=False).flat_map(ad.TFRecordDataset)
    with dataset.iterator() as it:
        for _ in range(3500):
            next(it)
        state = it.state_dict()
        rest = list(it)
    (tmp_path / NAMES[0]).unlink()
    with dataset.iterator(state=state) as it:
        assert list(it) == rest
    # A copy is as good as the file.
    moved = tmp_path / NAMES[4]
    status = moved.stat()
    copy = tmp_path / "copy"
    copy.write_bytes(moved.read_bytes())
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    copy.replace(moved)
    with dataset.iterator(state=state) as it:
        assert list(it) == rest
    (tmp_path / NAMES[5]).unlink()
    with pytest.raises(ad.ObjectNotFoundError, match=NAMES[5]):
        list(dataset.iterator(state=state))


REPEATING: list[Callable[[ad.Dataset], ad.Dataset]] = [
    lambda ds: ds,
    lambda ds: D.zip(ds, D.counter()),
    lambda ds: ds.unique(),
    lambda ds: ds.window(2).flat_map(lambda window: window),
    lambda ds: ds.cache(),
]


@pytest.mark.parametrize("step", range(len(REPEATING)))
@pytest.mark.parametrize("reader", [ad.TFRecordDataset, ad.FileDataset])
def test_local_files_that_were_replaced(reader: Callable[[str], ad.Dataset], step: int, tmp_path: Path) -> None:
    """None takes the place of one that the epoch was begun with, also where no mark says which that was."""
    for name in NAMES:
        (tmp_path / name).write_bytes(content(name, 3))
    dataset = REPEATING[step](D.list_files(f"{tmp_path}/*.rec", shuffle=False).interleave(reader, 2))
    with dataset.iterator() as it:
        next(it)
        state = it.state_dict()
        rest = len(list(it))
    for name in NAMES:
        (tmp_path / name).write_bytes(content(name, 4))
    with pytest.raises(ad.StateError, match="has changed since the state was taken"):
        list(dataset.iterator(state=state))
    lenient = dataset.with_options(ad.Options(on_change="restart"))
    assert len(list(lenient.iterator(state=state))) >= rest


def test_objects_that_were_replaced() -> None:
    """One that is still to be read is refused with both generations."""
    with FakeGCS(buckets=[BUCKET]) as server:
        for name in NAMES:
            server.put(BUCKET, name, content(name, 2000))
        dataset = (
            D.list_files(f"gs://{BUCKET}/*.rec", shuffle=False)
            .flat_map(ad.TFRecordDataset)
            .with_options(ad.Options(storage=gs_storage(server)))
        )
        with dataset.iterator() as it:
            for _ in range(3500):
                next(it)
            state = it.state_dict()
            rest = list(it)
        server.put(BUCKET, NAMES[0], content(NAMES[0], 5))
        before = len(server.journal)
        with dataset.iterator(state=state) as it:
            assert list(it) == rest
        assert "storage.objects.list" not in [entry.operation for entry in list(server.journal)[before:]]
        server.put(BUCKET, NAMES[5], content(NAMES[5], 5))
        with pytest.raises(ad.ObjectChangedError, match=f"{NAMES[5]}.*generation|generation.*{NAMES[5]}"):
            list(dataset.iterator(state=state))


def test_an_isolated_loader(tmp_path: Path) -> None:
    """The listing comes from there with the elements, and goes back with the state."""
    for name in NAMES:
        (tmp_path / name).write_bytes(content(name, 9))
    dataset = pipelines(f"{tmp_path}/*.rec")[0].with_options(ad.Options(seed=1))
    with ad.Runtime(ad.Options(isolate=True, num_workers=0)):
        with dataset.iterator(epoch=0) as it:
            elements, states = run(it)
        (tmp_path / "part-05.rec").write_bytes(content("new", 3))
        for position in (1, 5, len(elements) - 1):
            with dataset.iterator(state=json.loads(states[position])) as it:
                assert run(it)[0] == elements[position:]


def test_a_manifest_file_that_was_written_anew(tmp_path: Path) -> None:
    """It is a listing like any other."""
    for name in NAMES:
        (tmp_path / name).write_bytes(content(name, 9))
    manifest = tmp_path / "all.jsonl"
    ad.write_manifest(f"{tmp_path}/*.rec", manifest)
    dataset = D.from_manifest(manifest, seed=3)
    with dataset.iterator(epoch=0) as it:
        elements, states = run(it)
    ad.write_manifest(f"{tmp_path}/part-[12]*.rec", manifest)
    for position in range(1, len(states)):
        with dataset.iterator(state=json.loads(states[position])) as it:
            assert run(it)[0] == elements[position:]
    assert len(list(dataset)) == 2


# --- beside the states -----------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path) -> ad.Dataset:
    """A dataset of many files."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(700):
        (folder / f"a-rather-long-name-{number * 7919 % 10007:05d}.rec").touch()
    return D.list_files(f"{folder}/*.rec").with_options(ad.Options(seed=4))


def taken(dataset: ad.Dataset, count: int) -> dict[str, Any]:
    """The state behind so many elements."""
    with dataset.iterator(epoch=0) as it:
        for _ in range(count):
            next(it)
        return it.state_dict()


def test_a_long_listing_is_written_once(many: ad.Dataset, tmp_path: Path) -> None:
    """It lies beside the states of its epoch, which stay small; it can be read as a manifest."""
    states = tmp_path / "states"
    states.mkdir()
    ad.state.save(states / "1", taken(many, 100))
    (listing,) = states.glob("listing-*.jsonl")
    written = listing.stat().st_mtime_ns, listing.stat().st_ino
    ad.state.save(states / "2", taken(many, 200))
    assert sorted(path.name for path in states.iterdir()) == ["1", "2", listing.name]
    assert (listing.stat().st_mtime_ns, listing.stat().st_ino) == written
    assert (states / "2").stat().st_size < 2048
    assert ad.state.load(states / "2") == taken(many, 200)
    assert len(list(D.from_manifest(listing))) == 700
    whole = list(many.iterator(epoch=0))
    with many.iterator(state=ad.state.load(states / "2")) as it:
        assert list(it) == whole[200:]
    # What was loaded can be saved elsewhere.
    ad.state.save(tmp_path / "moved", ad.state.load(states / "1"))
    assert ad.state.load(tmp_path / "moved") == taken(many, 100)


def test_a_long_listing_beside_objects(many: ad.Dataset) -> None:
    """Two requests of a later state: one that finds it there, one that writes the state."""
    with FakeGCS(buckets=[BUCKET]) as server:
        options = ad.Options(storage=gs_storage(server))
        ad.state.save(f"gs://{BUCKET}/run/1", taken(many, 100), options)
        before = len(server.journal)
        ad.state.save(f"gs://{BUCKET}/run/2", taken(many, 200), options)
        operations = [entry.operation for entry in list(server.journal)[before:]]
        assert operations == ["storage.objects.get", "storage.objects.insert"]
        assert ad.state.load(f"gs://{BUCKET}/run/2", options) == taken(many, 200)


def test_a_listing_that_is_not_there(many: ad.Dataset, tmp_path: Path) -> None:
    """The error names it, as it does of one that is damaged; the state by itself is refused, too."""
    path = tmp_path / "state"
    ad.state.save(path, taken(many, 100))
    bare = json.loads(path.read_text(encoding="utf-8"))
    with pytest.raises(ad.StateError, match=r"ad\.state\.load"):
        many.iterator(state=bare)
    (listing,) = tmp_path.glob("listing-*.jsonl")
    listing.write_bytes(listing.read_bytes().replace(b"-00000.rec", b"-00000.REC"))
    with pytest.raises(ad.StateError, match="damaged") as caught:
        ad.state.load(path)
    assert caught.value.url == str(listing)
    listing.unlink()
    with pytest.raises(ad.StateError, match="not there") as caught:
        ad.state.load(path)
    assert caught.value.url == str(listing)
    bare["listings"][0]["digest"] = "../../etc/passwd"
    path.write_text(json.dumps(with_checksum(bare)), encoding="utf-8")
    with pytest.raises(ad.StateError, match="no digest"):
        ad.state.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"data": "AAAA"},
        {"data": 3},
        {"digest": "0" * 32},
        {"of": None, "data": None},
    ],
)
def test_a_damaged_listing_is_refused(many: ad.Dataset, change: dict[str, Any]) -> None:
    """With an error of one kind."""
    state = taken(many, 3)
    state["listings"] = [{**state["listings"][0], **change}]
    with pytest.raises(ad.StateError):
        many.iterator(state=state)
    with pytest.raises(ad.StateError):
        many.iterator(state={**state, "listings": 3})


def test_signed_urls_are_not_stored() -> None:
    """Their listing is made anew: it is what was written, and the signatures of a later run are other ones."""
    with FakeGCS(buckets=[BUCKET]) as server:
        for name in NAMES:
            server.put(BUCKET, name, content(name, 9))

        def signed(signature: str) -> ad.Dataset:
            urls = [f"{server.url}/{BUCKET}/{name}?X-Goog-Signature={signature}" for name in NAMES]
            return D.list_files(urls, shuffle=False).flat_map(ad.TFRecordDataset)

        with signed("first-secret").iterator() as it:
            for _ in range(20):
                next(it)
            text = json.dumps(it.state_dict())
            rest = list(it)
        assert "first-secret" not in text
        assert "listings" not in text
        with signed("other-secret").iterator(state=json.loads(text)) as it:
            assert list(it) == rest


@pytest.mark.parametrize("index", range(4))
def test_a_shard_that_has_ended_goes_on_behind_the_list(index: int, tmp_path: Path) -> None:
    """Where the next file of it would be if there were more."""
    for number in range(7):
        (tmp_path / str(number)).touch()
    names = D.list_files(f"{tmp_path}/*", shuffle=False).shard(4, index)
    with names.iterator() as it:
        assert len(list(it)) == (1 if index == 3 else 2)
        state = it.state_dict()
    assert list(names.iterator(state=state)) == []


@pytest.mark.parametrize(
    "kept", [list, np.array, lambda urls: [url.encode() for url in urls], lambda urls: np.array(urls, "S")]
)
@pytest.mark.parametrize(
    "source", [ad.Dataset.from_tensor_slices, lambda urls: ad.Dataset.from_tensors(urls).repeat(3)]
)
def test_elements_that_are_urls_may_be_signed_anew(source: Any, kept: Any) -> None:
    """As texts, as bytes and in arrays, of another length too: the state is of the same dataset; not of other URLs."""

    def signed(signature: str, names: list[str]) -> ad.Dataset:
        urls = [f"https://host/{name}?X-Goog-Date=1&X-Goog-Signature={signature}" for name in names]
        return source(kept(urls))  # type: ignore[no-any-return]  # both sources make datasets

    with signed("one", NAMES).iterator() as it:
        next(it)
        state = it.state_dict()
    rest = list(signed("another", NAMES).iterator(state=state))
    assert str(rest) == str(list(signed("another", NAMES))[1:])
    with pytest.raises(ad.StateError, match="another pipeline"):
        list(signed("one", NAMES[::-1]).iterator(state=state))
