"""Listings of many pages against a server: in parallel, complete, patient with one failed page."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncdata.errors import AccessDeniedError, ObjectNotFoundError, TransientStorageError
from asyncdata.options import Environment, Options, RetryOptions
from asyncdata.storage.backends import spec_for
from asyncdata.storage.gcs.listing import LISTERS, Globbing, ListedBucket
from asyncdata.storage.reader import RangeReader
from asyncdata.testing import run_virtual
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS, Fault, Latency, Profile, Rule
from tests.patience import virtual_time

NAMES = [f"data/train-{i:05d}-of-05000" for i in range(5000)]


@pytest.fixture(scope="module")
def filled() -> Any:
    """A server with 5,000 objects, and some beside them."""
    with FakeGCS(buckets=["bucket"]) as server:
        for name in [*NAMES, "data/deep/x", "data/train", "data/train-", "data/trainer", "data/uh"]:
            server.put("bucket", name, b"1")
        yield server


@asynccontextmanager
async def reading(server: FakeGCS, **retry: Any) -> AsyncIterator[RangeReader]:
    """A reader of the server."""
    options = Options(
        storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
        retry=RetryOptions(initial_delay_s=0.001, max_delay_s=0.002, **retry),
    )
    reader = spec_for("gs://bucket/", options, Environment()).open()
    try:
        yield reader
    finally:
        await reader.aclose()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("pattern", "count"),
    [("data/train-*", 5001), ("data/**", 5005), ("**/train-*", 5001), ("data/*", 5004), ("data/train-0*7-*", 500)],
)
async def test_a_long_listing_is_complete(filled: FakeGCS, pattern: str, count: int) -> None:
    """Every pattern that takes several pages finds each object once, sorted."""
    async with reading(filled) as reader:
        found = [info.url for info in await reader.glob(f"gs://bucket/{pattern}")]
        assert len(found) == count
        assert found == sorted(set(found))


def put_all(server: FakeGCS) -> None:
    for name in NAMES:
        server.put("bucket", name, b"1")


@asynccontextmanager
async def weather(profile: Profile, **retry: Any) -> AsyncIterator[tuple[FakeGCS, RangeReader]]:
    """A server with the names alone, in that weather."""
    async with FakeGCS(buckets=["bucket"], profile=profile) as server:
        await asyncio.to_thread(put_all, server)
        async with reading(server, **retry) as reader:
            yield server, reader


@pytest.mark.sampled
async def test_pages_are_asked_for_at_the_same_time() -> None:
    """Behind the first page, which says that there are more, the rest comes in parallel."""
    async with weather(Profile(latency=Latency(median_s=0.05))) as (server, reader):
        assert len(await reader.glob("gs://bucket/data/train-*")) == 5000
        entries = server.journal.entries("storage.objects.list")
        most = max(sum(a.started_s <= b.started_s < (a.ended_s or 1e9) for a in entries) for b in entries)
        assert most >= 3
        assert len(entries) <= 30


@pytest.mark.sampled
async def test_a_page_that_fails_is_asked_for_again_and_the_others_are_not() -> None:
    """Failures now and then cost a request each."""
    rule = Rule(fault=Fault(kind="status", status=503), operations="storage.objects.list", rate=0.2)
    async with weather(Profile(rules=(rule,), seed=4)) as (server, reader):
        assert len(await reader.glob("gs://bucket/data/train-*")) == 5000
        failed = len(server.journal.faults())
        assert failed > 0
        assert len(server.journal.entries("storage.objects.list")) <= 30 + failed


@pytest.mark.sampled
async def test_a_page_that_goes_on_failing_ends_the_glob() -> None:
    """With a transient error that tells how often it was tried; no request goes on behind it."""
    rule = Rule(fault=Fault(kind="status", status=503), operations="storage.objects.list")
    async with weather(Profile(rules=(rule,))) as (server, reader):
        with pytest.raises(TransientStorageError) as caught:
            await reader.glob("gs://bucket/data/train-*")
        assert (caught.value.attempts, caught.value.url) == (4, "gs://bucket/data/train-*")
        assert len(server.journal) == 4


@pytest.mark.sampled
async def test_a_refusal_in_the_middle_ends_the_glob_at_once() -> None:
    """It is not tried again, and comes alone, not in a group."""
    rule = Rule(fault=Fault(kind="status", status=403), operations="storage.objects.list", nth=(4,))
    async with weather(Profile(rules=(rule,))) as (_, reader):
        with pytest.raises(AccessDeniedError):
            await reader.glob("gs://bucket/data/train-*")


async def test_many_names_are_looked_at_together(filled: FakeGCS) -> None:
    """Names without wildcards are looked up at the same time; those that do not exist are left out."""
    names = ",".join(f"train-{i:05d}-of-05000" for i in (*range(40), 7777))
    async with reading(filled) as reader:
        assert len(await reader.glob(f"gs://bucket/data/{{{names}}}")) == 40


async def test_a_missing_bucket_is_an_error() -> None:
    """A glob without matches is not, a bucket that does not exist is."""
    async with FakeGCS(buckets=["bucket"]) as server, reading(server) as reader:
        assert await reader.glob("gs://bucket/x*") == []
        with pytest.raises(ObjectNotFoundError):
            await reader.glob("gs://nowhere/x*")


@pytest.mark.sampled
async def test_a_cancelled_listing_leaves_nothing_behind() -> None:
    """Whenever it is cancelled, and the reader goes on working."""
    draw = random.Random(2)
    async with weather(Profile(latency=Latency(median_s=0.002))) as (_, reader):
        for _ in range(10):
            task = asyncio.ensure_future(reader.glob("gs://bucket/data/train-*"))
            await asyncio.wait([task], timeout=draw.uniform(0.0, 0.03))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert len(await reader.glob("gs://bucket/data/train-*")) == 5000


async def test_a_listing_opens_connections_for_the_first_reads(filled: FakeGCS) -> None:
    """When it is done, they are there: the first read does not wait for a handshake."""
    async with reading(filled) as reader:
        (info,) = await reader.glob("gs://bucket/data/u*")
        before = "0 busy, 4 idle, 4 opened"
        assert before in repr(reader)
        await reader.read_into(info, 0, memoryview(bytearray(1)))
        assert before in repr(reader)


def test_waiting_for_a_turn_is_no_part_of_the_first_try() -> None:
    """A name that waited for longer than the deadline, because of those before it, is looked at again all the same."""
    names = [str(number) for number in range(2 * LISTERS)]
    failed: set[str] = set()

    async def stat(url: str) -> ObjectInfo:
        if url not in failed and int(url.rpartition("/")[2]) >= LISTERS:
            failed.add(url)
            raise TransientStorageError("busy")
        await virtual_time(1.5)
        return ObjectInfo(url=url, size=1)

    async def ask(url: str, pattern: str) -> Any:
        raise AssertionError

    async def nothing() -> None:
        pass

    async def scenario() -> int:
        place = ListedBucket(endpoint="http://unused", bucket="bucket", scheme="gs", user_project=None)
        retry = RetryOptions(initial_delay_s=0.01, deadline_s=1)
        globbing = Globbing(place, "gs://bucket/{0..}", ask=ask, stat=stat, retry=retry, meanwhile=nothing)
        await globbing.run(names, [], [])
        return len(globbing.found)

    assert run_virtual(scenario()) == len(names)
    assert len(failed) == LISTERS
