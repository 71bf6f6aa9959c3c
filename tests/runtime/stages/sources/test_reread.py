"""Objects that are replaced while they are read: every index once, every record whole, or the documented error."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

import pytest

import asyncdata as ad
from asyncdata.errors import ObjectChangedError, ObjectNotFoundError
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.reread import MOST_RESTARTS, RestartStage
from fake_gcs import FakeGCS
from tests.runtime.stages.laws import Bench

COUNT = 300


def record(version: int, index: int) -> bytes:
    return b"%d-%04d" % (version, index) + bytes([version]) * 3000


def shard(version: int, count: int = COUNT, bad: tuple[int, ...] = ()) -> bytes:
    file = io.BytesIO()
    with ad.TFRecordWriter(file) as writer:
        writer.write_many(record(version, index) for index in range(count))
    data = bytearray(file.getvalue())
    for index in bad:
        data[index * (len(data) // count) + 20] ^= 1
    return bytes(data)


def options(server: FakeGCS, on_change: str = "restart") -> ad.Options:
    return ad.Options(
        storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
        num_workers=0,
        chunk_bytes=4096,
        max_requests_in_flight=2,
        on_change=on_change,  # type: ignore[arg-type]  # one of two words
    )


def split(found: bytes) -> tuple[int, int]:
    """(version, index), after a look whether the record is whole."""
    version, index = int(found[:1]), int(found[2:6])
    assert found == record(version, index)
    return version, index


LISTED: dict[str, Callable[[], ad.Dataset]] = {
    "listed": lambda: ad.Dataset.list_files("gs://bucket/*", shuffle=False).interleave(ad.TFRecordDataset, 1),
    "opened": lambda: ad.TFRecordDataset("gs://bucket/x"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("how", LISTED)
@pytest.mark.parametrize("taken", [0, 1, 37, 150, 299])
def test_the_new_version_goes_on_where_the_old_one_ended(how: str, taken: int) -> None:
    """Each index comes once and in order; the version changes once, between two records."""
    with FakeGCS(buckets=["bucket"]) as server, ad.Runtime(options(server)):
        server.put("bucket", "x", shard(1))
        with LISTED[how]().iterator() as iterator:
            found = [split(next(iterator)) for _ in range(taken)]
            server.put("bucket", "x", shard(2))
            found += [split(element) for element in iterator]
            restarts = iterator.stats().fetch["restarts"]
        assert [index for _, index in found] == list(range(COUNT))
        versions = [version for version, _ in found]
        assert versions == sorted(versions)
        if 0 < taken < 200:
            assert versions[-1] == 2
            assert restarts == 1


@pytest.mark.parametrize("count", [0, 5, 100])
def test_a_shorter_version_ends_the_file(count: int) -> None:
    """What was handed out stays; nothing is invented."""
    with FakeGCS(buckets=["bucket"]) as server, ad.Runtime(options(server)):
        server.put("bucket", "x", shard(1))
        with ad.TFRecordDataset("gs://bucket/x").iterator() as iterator:
            found = [split(next(iterator)) for _ in range(50)]
            server.put("bucket", "x", shard(2, count))
            found += [split(element) for element in iterator]
        indices = [index for _, index in found]
        assert indices == list(range(len(indices)))
        assert {index for version, index in found if version == 2} <= set(range(50, count))


@pytest.mark.sampled
@pytest.mark.parametrize("count", [COUNT, 151, 150, 40, 0])
@pytest.mark.parametrize("taken", [0, 1, 150, 299])
def test_a_state_goes_on_in_the_new_version(taken: int, count: int) -> None:
    """By the numbers of its records, wherever the state's place in the old version would lie in the new one."""
    with FakeGCS(buckets=["bucket"]) as server, ad.Runtime(options(server)):
        server.put("bucket", "x", shard(1))
        dataset = ad.TFRecordDataset("gs://bucket/x")
        with dataset.iterator() as iterator:
            for _ in range(taken):
                next(iterator)
            state = iterator.state_dict()
        server.put("bucket", "x", shard(2, count))
        with dataset.iterator(state=state) as iterator:
            found = [split(element) for element in iterator]
        assert found == [(2, index) for index in range(taken, count)]


@pytest.mark.parametrize("bad", [(0,), (3, 4), (49, 50, 51)])
def test_records_that_were_left_out_count_as_well(bad: tuple[int, ...]) -> None:
    """An index that was handed out before does not come again because another one had failed."""
    with FakeGCS(buckets=["bucket"]) as server, ad.Runtime(options(server)):
        server.put("bucket", "x", shard(1, bad=bad))
        with ad.TFRecordDataset("gs://bucket/x").ignore_errors().iterator() as iterator:
            found = [split(next(iterator)) for _ in range(50)]
            server.put("bucket", "x", shard(2, bad=bad))
            found += [split(element) for element in iterator]
            skipped = iterator.stats().skipped.elements
        assert [index for _, index in found] == [index for index in range(COUNT) if index not in bad]
        assert skipped >= len(bad)


def test_other_shards_do_not_notice() -> None:
    """One of several files that are read in turn is replaced; every record of every file comes once."""
    with FakeGCS(buckets=["bucket"]) as server, ad.Runtime(options(server)):
        for name in range(4):
            server.put("bucket", f"{name}", shard(1 + name))
        ds = ad.Dataset.list_files("gs://bucket/*", shuffle=False).interleave(
            ad.TFRecordDataset, cycle_length=4, deterministic=False
        )
        with ds.iterator() as iterator:
            found = [split(element) for element in itertools.islice(iterator, 100)]
            server.put("bucket", "2", shard(9))
            found += [split(element) for element in iterator]
        for version in (1, 2, 4):
            assert [index for other, index in found if other == version] == list(range(COUNT))
        assert [index for version, index in found if version in {3, 9}] == list(range(COUNT))


def test_unless_asked_for_it_is_an_error_that_names_both_versions() -> None:
    """What was listed, and what is there."""
    with FakeGCS(buckets=["bucket"]) as server, ad.Runtime(options(server, "raise")):
        listed = server.put("bucket", "x", shard(1))
        with LISTED["listed"]().iterator() as iterator:
            next(iterator)
            found = server.put("bucket", "x", shard(2))
            with pytest.raises(ObjectChangedError) as caught:
                list(iterator)
        assert str(listed) in str(caught.value)
        assert str(found) in str(caught.value)
        assert (caught.value.version, caught.value.found) == (str(listed), str(found))


class Changing(Stage):
    """A file that is another one whenever somebody looks."""

    async def _pull(self, limit: int) -> Block | None:  # noqa: ARG002 -- the signature is the stage's
        raise ObjectChangedError("the object changed", url="x")


async def test_an_object_that_changes_all_the_time_ends_in_the_error() -> None:
    """After a few restarts; it is never read in a circle."""
    made = forgotten = 0

    def make() -> Stage:
        nonlocal made
        made += 1
        return Changing(context)

    def forget() -> None:
        nonlocal forgotten
        forgotten += 1

    bench = Bench()
    context = bench.context("file")
    stage = RestartStage(context, make, forget)
    with pytest.raises(ObjectChangedError):
        await stage.pull(10)
    assert (made, forgotten) == (1 + MOST_RESTARTS, MOST_RESTARTS)
    await bench.put_back(stage)


def test_an_object_that_was_deleted_is_not_found() -> None:
    """There is nothing to begin again with."""
    with FakeGCS(buckets=["bucket"]) as server, ad.Runtime(options(server)):
        server.put("bucket", "x", shard(1))
        with ad.TFRecordDataset("gs://bucket/x").iterator() as iterator:
            next(iterator)
            server.delete("bucket", "x")
            with pytest.raises(ObjectNotFoundError):
                list(iterator)
