"""obstore passes the suite over Google's XML API, over S3's, and over its own memory; its errors become typed ones."""

from __future__ import annotations

import asyncio
import gc
import gzip
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import obstore
import pytest
from obstore.store import MemoryStore

from asyncdata.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UnsupportedURLError,
)
from asyncdata.options import Environment, HedgeOptions, Options, RetryOptions, TimeoutOptions
from asyncdata.storage import FailureCause, Fetcher
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.backends import spec_for
from asyncdata.storage.cloud_options import fsspec_options, store_config
from asyncdata.storage.failures import ReadFailedError, read_failed
from asyncdata.storage.obstore import ObstoreReader, typed_error
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.testing import run_virtual
from asyncdata.testing.readers import RangeReaderSuite, Store
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.patience import LIMIT_S
from tests.storage.raw_server import DATA, RawServer
from tests.storage.test_truth import LIES, SIZE, START, fetcher_of


@pytest.fixture(scope="module", autouse=True)
def _runtime_of_obstore() -> None:
    """obstore's threads are the process's, from the first use on; no single test is to be blamed for them."""
    asyncio.run(_touch())


async def _touch() -> None:
    await obstore.put_async(MemoryStore(), "x", b"")


class ServerPlace:
    """A bucket of a fake server, written to from beside."""

    def __init__(self, server: FakeGCS, base: str, reader: RangeReader, spec: ReaderSpec | None) -> None:
        self.reader = reader
        self.spec = spec
        self._server = server
        self._base = base

    def url(self, name: str) -> str:
        return self._base + name

    async def put(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(self._server.put, "bucket", f"some/where/{name}", data)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._server.delete, "bucket", f"some/where/{name}")


def opened(base: str, options: dict[str, Any]) -> tuple[RangeReader, ReaderSpec]:
    """The reader that the registry chooses for a URL."""
    scheme = base.partition("://")[0].replace("abfs", "az")
    spec = spec_for(base, Options(storage={scheme: options}), Environment())
    return spec.open(), spec


def gs_options(server: FakeGCS) -> dict[str, Any]:
    return {"backend": "obstore", "endpoint_url": server.url, "token": "anon"}


class TestGs(RangeReaderSuite):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with FakeGCS(buckets=["bucket"]) as server:
            reader, spec = opened("gs://bucket/", gs_options(server))
            assert isinstance(reader, ObstoreReader)
            try:
                yield ServerPlace(server, "gs://bucket/some/where/", reader, spec)
            finally:
                await reader.aclose()


class TestGsOverTls(RangeReaderSuite):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with FakeGCS(buckets=["bucket"], tls=True) as server:
            # A certificate that is its own authority is refused by obstore's TLS, whatever it is told to trust.
            reader, spec = opened("gs://bucket/", {**gs_options(server), "verify_tls": False})
            try:
                yield ServerPlace(server, "gs://bucket/some/where/", reader, spec)
            finally:
                await reader.aclose()


class TestS3(RangeReaderSuite):
    """S3's reading API is the one that the fake server's XML API speaks."""

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with FakeGCS(buckets=["bucket"]) as server:
            reader, spec = opened("s3://bucket/", {"endpoint_url": server.url, "anon": True, "region": "eu-west-1"})
            assert isinstance(reader, ObstoreReader)
            try:
                yield ServerPlace(server, "s3://bucket/some/where/", reader, spec)
            finally:
                await reader.aclose()


@asynccontextmanager
async def serving(*rules: Rule) -> AsyncIterator[tuple[FakeGCS, RangeReader]]:
    """A server with a bucket, in that weather, and a reader of it."""
    async with FakeGCS(buckets=["bucket"], profile=Profile(rules=rules)) as server:
        await asyncio.to_thread(server.put, "bucket", "x", bytes(100_000))
        reader, _ = opened("gs://bucket/", gs_options(server))
        try:
            yield server, reader
        finally:
            await reader.aclose()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(kind="status", status=429), TransientStorageError),
        (Fault(kind="status", status=503), TransientStorageError),
        (Fault(kind="status", status=408), TransientStorageError),
        (Fault(kind="status", status=400), StorageError),
        (Fault(kind="status", status=401), AccessDeniedError),
        (Fault(kind="status", status=403), AccessDeniedError),
        (Fault(kind="reset"), TransientStorageError),
        (Fault(kind="truncate", after_bytes=5000), TransientStorageError),
    ],
    ids=lambda value: getattr(value, "kind", "") + str(getattr(value, "status", None) or ""),
)
async def test_what_a_server_answers_becomes_a_typed_error(fault: Fault, kind: type[StorageError]) -> None:
    """The type says whether another attempt may help; the URL is named; nothing is retried beneath the Fetcher."""
    async with serving(Rule(fault=fault, nth=(2,))) as (server, reader):
        info = await reader.stat("gs://bucket/x")
        with pytest.raises(StorageError) as caught:
            await reader.read_into(info, 10, memoryview(bytearray(50_000)))
        assert isinstance(caught.value, kind)
        assert isinstance(caught.value, TransientStorageError) == (kind is TransientStorageError)
        assert caught.value.url == "gs://bucket/x"
        assert len(server.journal) == 2
        # The next attempt is an ordinary one.
        assert await reader.read_into(info, 10, memoryview(bytearray(50_000))) == 50_000


async def test_a_beginning_that_is_refused_is_no_empty_object() -> None:
    """416 to an opening read means an empty object only if its size is 0 as well."""
    fault = Fault(kind="status", status=416)
    async with serving(Rule(fault=fault, nth=(1,))) as (_, reader):
        buffer = memoryview(bytearray(1000))
        with pytest.raises(TransientStorageError, match="beginning of an object of 100000 bytes") as caught:
            await reader.open_read("gs://bucket/x", buffer)
        assert caught.value.url == "gs://bucket/x"
        assert (await reader.open_read("gs://bucket/x", buffer))[1] == 1000


class Hoarder:
    """obstore, and somebody who never lets go of what it raised, as its threads do now and then."""

    def __init__(self) -> None:
        self.raised: list[BaseException] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await getattr(obstore, name)(*args, **kwargs)
            except Exception as error:
                self.raised.append(error)
                raise

        return call


@pytest.mark.sampled
@pytest.mark.parametrize("call", ["stat", "glob", "read", "changed", "open"])
async def test_an_exception_that_obstore_keeps_holds_nothing_of_ours(call: str) -> None:
    """Nobody's buffer, and no frame that may lead to one."""
    changes = call == "changed"
    kept = Hoarder()
    async with serving() as (server, reader):
        assert isinstance(reader, ObstoreReader)
        info = await reader.stat("gs://bucket/x")
        await asyncio.to_thread(server.delete, "bucket", "x")
        if changes:
            await asyncio.to_thread(server.put, "bucket", "x", bytes(7))
        else:
            server.profile = Profile(rules=(Rule(fault=Fault(kind="status", status=403)),))
        reader._obstore = kept
        buffer = bytearray(1000)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "stat": lambda: reader.stat("gs://bucket/x"),
            "glob": lambda: reader.glob("gs://bucket/x"),
            "open": lambda: reader.open_read("gs://bucket/x", memoryview(buffer)),
        }
        with pytest.raises(StorageError):
            await calls.get(call, lambda: reader.read_into(info, 0, memoryview(buffer)))()
        gc.collect()
        buffer.clear()  # BufferError where anybody still has a view
        assert kept.raised
        assert not [each for each in kept.raised if each.__traceback__ or each.__context__]


@pytest.mark.sampled
async def test_a_body_that_breaks_off_or_drips_is_gone_on_with() -> None:
    """Pieces that came are kept: an attempt goes on behind them, and neither way to fail goes on for ever."""
    data = random.Random(5).randbytes(2_000_000)
    faults = (
        Fault(kind="truncate", after_bytes=700_000),
        Fault(kind="drip", after_bytes=600_000, bytes_per_s=100),
        Fault(kind="stall", after_bytes=800_000),
    )
    rules = tuple(Rule(fault=fault, nth=(1,), media_only=True) for fault in faults)
    async with FakeGCS(buckets=["bucket"]) as server:
        await asyncio.to_thread(server.put, "bucket", "x", data)
        limits = TimeoutOptions(connect_s=20, first_byte_s=1, idle_s=1, floor_s=1, least_bytes_per_s=512 << 10)
        retry = RetryOptions(initial_delay_s=0.001)
        options = Options(
            storage={"gs": gs_options(server)}, timeouts=limits, retry=retry, hedge=HedgeOptions(enabled=False)
        )
        fetcher = Fetcher(options, Environment())
        try:
            info = await fetcher.stat("gs://bucket/x")
            for number, rule in enumerate(rules):
                server.profile = Profile(rules=(rule,))
                buffer = bytearray(len(data))
                async with asyncio.timeout(LIMIT_S):
                    if number:
                        await fetcher.read(info, 0, memoryview(buffer))
                    else:
                        assert await fetcher.open_read("gs://bucket/x", memoryview(buffer)) == (info, len(data))
                assert buffer == data
                assert fetcher.stats().resumes == number + 1
            assert fetcher.stats().wasted_bytes == 0
        finally:
            await fetcher.aclose()


async def test_a_replaced_object_names_both_versions() -> None:
    """What was listed and what is there now."""
    async with serving() as (server, reader):
        info = await reader.stat("gs://bucket/x")
        await asyncio.to_thread(server.put, "bucket", "x", b"1" * 100_000)
        current = await reader.stat("gs://bucket/x")
        with pytest.raises(ObjectChangedError) as caught:
            await reader.read_into(info, 0, memoryview(bytearray(100)))
        assert str(info.version) in str(caught.value)
        assert str(current.version) in str(caught.value)


async def test_objects_that_are_kept_compressed_are_read_as_they_are_kept() -> None:
    """As by the own range client: sizes and ranges are those of the stored bytes."""
    stored = gzip.compress(bytes(range(256)) * 400)
    async with serving() as (server, reader):
        await asyncio.to_thread(server.put, "bucket", "z", stored, contentEncoding="gzip")
        info = await reader.stat("gs://bucket/z")
        buffer = bytearray(50)
        assert await reader.read_into(info, 20, memoryview(buffer)) == 50
        assert (info.size, bytes(buffer)) == (len(stored), stored[20:70])


async def test_an_untrusted_certificate_is_an_error_at_once() -> None:
    """It is not worth another attempt."""
    async with FakeGCS(buckets=["bucket"], tls=True) as server:
        reader, _ = opened("gs://bucket/", gs_options(server))
        with pytest.raises(StorageError, match="certificate") as caught:
            await reader.stat("gs://bucket/x")
        assert not isinstance(caught.value, TransientStorageError)
        await reader.aclose()


async def test_names_that_object_store_cannot_spell() -> None:
    """An empty segment is an error that names the URL."""
    async with serving() as (_, reader):
        with pytest.raises(UnsupportedURLError, match="gs://bucket/a//b"):
            await reader.stat("gs://bucket/a//b")


async def test_without_obstore_fsspec_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless obstore was asked for by name: then the error says how to install it."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UnsupportedURLError, match="s3"):  # s3fs is not installed either
        opened("s3://bucket/", {"anon": True})
    with pytest.raises(StorageError, match=r"asyncdata\[obstore\]"):
        opened("s3://bucket/", {"backend": "obstore"})


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
def test_unknown_options_are_named_without_their_values(scheme: str) -> None:
    """A message names keys only: values may be secrets."""
    with pytest.raises(ValueError, match="'seceret'") as caught:
        opened(f"{scheme}://bucket/", {"backend": "obstore", "seceret": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_store_that_cannot_be_made_shows_no_secret() -> None:
    """obstore's own words are left out: they may repeat what it was given."""
    reader, _ = opened("az://container/", {"account_name": "a", "account_key": "hunter2", "config": {"nonsense": "x"}})
    with pytest.raises(StorageError) as caught:
        asyncio.run(reader.glob("az://container/*"))
    assert "hunter2" not in str(caught.value)
    assert "nonsense" in str(caught.value)


@pytest.mark.parametrize("scheme", ["az", "abfs"])
def test_an_azure_url_without_an_account_is_asked_for_one(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual first mistake names its cures."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    reader, _ = opened(f"{scheme}://container/", {})
    with pytest.raises(StorageError, match=r"which account\? .*'account_name'.*AZURE_STORAGE_ACCOUNT_NAME"):
        asyncio.run(reader.glob(f"{scheme}://container/*"))


def test_options_in_both_libraries_terms() -> None:
    """What everybody sets means the same to either."""
    options = {"endpoint_url": "http://here:9000", "anon": True, "region": "eu-west-1", "requester_pays": True}
    chosen = store_config("s3", options)
    assert chosen.config == {
        "endpoint": "http://here:9000",
        "region": "eu-west-1",
        "virtual_hosted_style_request": False,
        "request_payer": True,
        "skip_signature": True,
    }
    assert chosen.client == {"allow_http": True}
    assert store_config("s3", {"endpoint_url": "HTTP://here:9000"}).client == {"allow_http": True}
    assert fsspec_options("s3", options)["client_kwargs"] == {"region_name": "eu-west-1"}
    with pytest.raises(StorageError, match="obstore"):
        fsspec_options("s3", {"proxy": "http://here"})


def test_an_azure_url_may_name_the_account() -> None:
    """``abfs://container@account.dfs.core.windows.net/name``, as Hadoop writes it."""
    reader, _ = opened("abfs://c@acc.dfs.core.windows.net/", {"account_key": "aGVsbG8="})
    assert isinstance(reader, ObstoreReader)
    store, name = reader.place("abfs://c@acc.dfs.core.windows.net/a/b")
    assert name == "a/b"
    assert (store.config["account_name"], store.config["container_name"]) == ("acc", "c")


@pytest.mark.parametrize("options", [{"account_name": "acc"}, {"config": {"azure_storage_account_name": "acc"}}])
async def test_the_account_of_an_azure_url_and_of_the_options_must_be_one(options: dict[str, Any]) -> None:
    """The container of that name in another account is not what was asked for."""
    reader, _ = opened("abfs://c@acc.dfs.core.windows.net/", {"account_key": "aGVsbG8=", **options})
    assert isinstance(reader, ObstoreReader)
    store, _ = reader.place("abfs://c@acc.dfs.core.windows.net/a")
    assert "acc" in store.config.values()
    with pytest.raises(UnsupportedURLError, match="the URL names the account 'other', and the storage options another"):
        await reader.stat("abfs://c@other.dfs.core.windows.net/a")


def test_a_time_limit_is_transient() -> None:
    """The type is all that counts."""
    assert isinstance(typed_error(TimeoutError(), "s3://b/x"), TransientStorageError)
    assert isinstance(typed_error(FileNotFoundError(), "s3://b/x"), ObjectNotFoundError)


@pytest.mark.parametrize(
    ("moment", "cause", "filled"),
    [
        ("limit", FailureCause.FIRST_BYTE_TIMEOUT, 0),
        ("answer", FailureCause.OVERTAKEN, 0),
        ("piece", FailureCause.OVERTAKEN, 2),
    ],
)
def test_an_attempt_can_be_ended_at_any_moment(moment: str, cause: FailureCause, filled: int) -> None:
    """In the turn of the loop in which its time limit ends it, its answer comes, or a piece does."""
    attempt = Attempt()

    def overtake(now: str) -> None:
        if now == moment:
            assert attempt.wire is not None
            attempt.wire.fail(read_failed("a second attempt was ahead", FailureCause.OVERTAKEN))

    class Answer:
        meta: ClassVar[Any] = {"size": 4, "e_tag": "v"}
        range = (0, 4)

        async def stream(self, min_chunk_size: int) -> AsyncIterator[bytes]:
            del min_chunk_size
            overtake("piece")
            yield b"ab"
            yield b"cd"

    async def get_async(store: object, name: str, *, options: object) -> Answer:
        del store, name, options
        if moment == "limit":
            try:
                await asyncio.Event().wait()
            finally:
                overtake("limit")
        overtake("answer")
        return Answer()

    async def scenario() -> None:
        reader = ObstoreReader(lambda bucket: bucket, limits=TimeoutOptions())
        reader._obstore = SimpleNamespace(get_async=get_async)
        info = ObjectInfo(url="s3://b/x", size=4, version="v")
        with pytest.raises(ReadFailedError) as caught:
            await reader.read_into(info, 0, memoryview(bytearray(4)), attempt)
        assert (caught.value.cause, caught.value.filled) == (cause, filled)

    run_virtual(scenario())


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name in LIES if "gs" in LIES[name][3]])
async def test_a_lie_to_obstore_is_a_typed_error(name: str) -> None:
    """obstore knows versions by their ETag alone, and says less about what was wrong; wrong bytes never pass."""
    script, kind, _, _ = LIES[name]
    async with RawServer(script) as server:
        fetcher, listed = fetcher_of(server, "obstore")
        buffer = bytearray(SIZE)
        try:
            if name == "another generation":
                await fetcher.read(listed["gs"], START, memoryview(buffer))
                assert buffer == DATA[START : START + SIZE]
                return
            with pytest.raises(StorageError) as caught:
                await fetcher.read(listed["gs"], START, memoryview(buffer))
            assert isinstance(caught.value, ObjectChangedError) == (kind is ObjectChangedError), repr(caught.value)
            assert caught.value.url == listed["gs"].url
        finally:
            await fetcher.aclose()
