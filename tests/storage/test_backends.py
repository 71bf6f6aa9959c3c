"""Which backend serves a URL; and those that users bring: registered, checked, conforming, known to the loader."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import asyncdata as ad
from asyncdata.errors import StorageError, UnsupportedURLError
from asyncdata.formats.tfrecord import encode_many
from asyncdata.options import Environment, HedgeOptions, Options, TimeoutOptions
from asyncdata.storage import Fetcher, RangeReader, ReaderSpec, backends, spec_for
from asyncdata.storage.cloud_options import store_config
from asyncdata.storage.urls import scheme_of
from asyncdata.testing.readers import RangeReaderSuite, Store
from tests.storage import sqlite_backend

MODULE = ad.BackendSpec("tests.storage.sqlite_backend", options={"database"})
FUNCTION = ad.BackendSpec(sqlite_backend.open_reader, {"database"})
RECORDS = [b"one", b"two", b"three"]


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers for one test alone."""
    monkeypatch.setattr(backends, "_REGISTERED", {})


@pytest.fixture
def options(tmp_path: Path) -> ad.Options:
    """Of a store with two files of records."""
    database = tmp_path / "blobs.sqlite"
    sqlite_backend.create(database)
    for number in range(2):
        sqlite_backend.put(database, f"train-{number}.rec", encode_many(RECORDS))
    return ad.Options(num_workers=0, storage={"blobs": {"database": str(database)}})


def records() -> ad.Dataset:
    """Of all files, in order."""
    return ad.Dataset.list_files("blobs://train-*.rec", shuffle=False).flat_map(ad.TFRecordDataset)


@pytest.mark.parametrize("spec", [MODULE, FUNCTION], ids=["module", "function"])
def test_a_registered_backend_is_read(spec: ad.BackendSpec, options: ad.Options) -> None:
    """Listed and read like any other; its options are the scheme's."""
    ad.register_backend("blobs", spec)
    assert list(records().with_options(options)) == RECORDS * 2


def test_the_loader_process_knows_it(options: ad.Options) -> None:
    """Registered before the loader process started, or after; by the name of a module, or as a function by value."""
    ad.register_backend("blobs", MODULE)
    with ad.Runtime(dataclasses.replace(options, isolate=True)):
        assert list(records()) == RECORDS * 2

        def open_later(_: ReaderSpec) -> RangeReader:
            return spec_for("blobs://", options, Environment()).open()

        ad.register_backend("later", ad.BackendSpec(open_later))
        with pytest.raises(ad.ObjectNotFoundError, match="no such blob") as caught:
            list(ad.TFRecordDataset("later://x"))
        assert caught.value.url == "later://x"


def test_options_are_checked() -> None:
    """A key that the backend does not take is refused with the nearest one that it does."""
    wrong = ad.Options(storage={"blobs": {"databas": "x"}})
    with pytest.raises(ValueError, match="no such URL scheme"):
        ad.Dataset.range(1).with_options(wrong)
    ad.register_backend("blobs", MODULE)
    with pytest.raises(ValueError, match="did you mean 'database'"):
        ad.Dataset.range(1).with_options(wrong)


@pytest.mark.parametrize("scheme", ["gs", "file", "s3a", "https"])
def test_asyncdatas_own_schemes_stay(scheme: str) -> None:
    """Under their aliases too."""
    with pytest.raises(ValueError, match=f"asyncdata serves {scheme}:// itself"):
        ad.register_backend(scheme, MODULE)


@pytest.mark.parametrize("scheme", ["", "Blobs", "blobs://", "two words", "a::b"])
def test_what_is_no_scheme_is_refused(scheme: str) -> None:
    """It could never be found again."""
    with pytest.raises(ValueError, match="scheme must be"):
        ad.register_backend(scheme, MODULE)


def test_what_is_no_spec_is_refused() -> None:
    """Where it is given, by name."""
    with pytest.raises(TypeError, match="spec must be a BackendSpec"):
        ad.register_backend("blobs", "tests.storage.sqlite_backend")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError, match="open_reader must be a function"):
        ad.BackendSpec(3)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError, match="options must be a list of str"):
        ad.BackendSpec("module", options="database")


def test_a_scheme_has_one_backend() -> None:
    """The same one may be registered again, changed or not, as when a notebook's cell runs twice; another may not."""
    ad.register_backend("blobs", ad.BackendSpec("tests.storage.sqlite_backend"))
    ad.register_backend("blobs", MODULE)
    assert backends.backend_of("blobs") == MODULE
    with pytest.raises(ValueError, match=r"tests\.storage\.sqlite_backend already serves"):
        ad.register_backend("blobs", ad.BackendSpec("another.module"))


def test_of_many_threads_one_registers() -> None:
    """All others are told who was first."""
    refused: list[str] = []
    start = threading.Barrier(8)

    def register(number: int) -> None:
        start.wait()
        try:
            ad.register_backend("blobs", ad.BackendSpec(f"module_{number}"))
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=register, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served = backends.backend_of("blobs")
    assert served is not None
    assert refused == [f"{served.open_reader} already serves blobs://"] * 7


@pytest.mark.parametrize(
    ("url", "backend"),
    [
        ("gs://b/o", "gcs.reader"),
        ("gcs://b/o", "gcs.reader"),
        ("/a/b", "local.reader"),
        ("a", "local.reader"),
        ("file:///a", "local.reader"),
        ("memory://x", "memory"),
        ("http://h/x", "http"),
        ("https://h/x", "http"),
        ("s3://b/o", "obstore"),
        ("hdfs://h/o", "hdfs.reader"),
        ("webhdfs://h/o", "webhdfs.reader"),
        ("swebhdfs://h/o", "webhdfs.reader"),
        ("az://c/o", "obstore"),
        ("ftp://h/o", "fsspec"),
    ],
)
def test_every_scheme_has_its_backend(url: str, backend: str) -> None:
    """What is unknown goes to fsspec."""
    options = Options(timeouts=TimeoutOptions(idle_s=3.0), max_requests_in_flight=7)
    spec = spec_for(url, options, Environment())
    assert spec.backend == f"asyncdata.storage.{backend}"
    assert (spec.timeouts.idle_s, spec.max_connections) == (3.0, 7 + options.hedge.max_at_once)


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("http://h/x", {"headers": ["a: b"]}, "'headers' must be a dict"),
        ("http://h/x", {"ca_file": 5}, "'ca_file' does not name a file of certificates: 5"),
        ("https://h/x", {"ca_file": "\0"}, "'ca_file' does not name"),
        ("http://h/x", {"proxy": ["p:1"]}, "must be http://host:port, where the host may follow a user name"),
        ("hdfs://h:1/x", {"config": "dfs.replication"}, "'config' must be a dict"),
        ("webhdfs://h:1/x", {"delegation_token_file": 5}, "the delegation token cannot be read"),
    ],
)
async def test_a_value_that_an_option_cannot_have_is_named(url: str, options: dict[str, object], words: str) -> None:
    """Whatever its type, and before anything is opened."""
    fetcher = Fetcher(Options(storage={scheme_of(url): options}), Environment())
    with pytest.raises(StorageError, match=words) as caught:
        await fetcher.stat(url)
    assert words in str(caught.value)
    await fetcher.aclose()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ca_file": "/nowhere/ca.pem"}, "'ca_file' does not name a file of certificates: /nowhere/ca.pem"),
        ({"ca_file": 5}, "'ca_file' does not name"),
        ({"config": "region=x"}, "'config' must be a dict"),
        ({"anon": "false"}, "'anon' must be True or False"),
        ({"requester_pays": 1}, "'requester_pays' must be True or False"),
        ({"verify_tls": "no"}, "'verify_tls' must be True or False"),
    ],
)
def test_a_value_that_an_option_of_a_cloud_cannot_have_is_named(options: dict[str, object], words: str) -> None:
    """Likewise; a text is no switch, because "false" would be true."""
    with pytest.raises(StorageError, match=words):
        store_config("s3", options)
    assert store_config("s3", {"anon": None, "requester_pays": False}).config == {}


def test_a_spec_shows_no_option() -> None:
    """Options may hold secrets; they travel by pickle, not by print."""
    spec = spec_for("s3://b/o", Options(storage={"s3": {"secret": "hush"}}), Environment())
    assert "hush" not in repr(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.options == {"secret": "hush"}


async def test_unknown_schemes_are_refused_with_a_reason() -> None:
    """A misspelt scheme, or one whose package is not installed."""
    for url in ("", "nonsense://x", "simplecache::gs://b/o"):
        with pytest.raises(UnsupportedURLError):
            spec_for(url, Options(), Environment()).open()


@pytest.mark.parametrize("url", ["gs://b/o", "/a", "memory://x", "http://h/x", "https://h/x", "file:///a"])
async def test_opened_readers_speak_the_protocol(url: str) -> None:
    """Opening connects to nothing, and closing at once leaves nothing."""
    reader = spec_for(url, Options(storage={"gs": {"token": "anon"}}), Environment()).open()
    assert isinstance(reader, RangeReader)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await reader.aclose()


@pytest.mark.parametrize(
    ("url", "choice", "backend"),
    [
        ("gs://b/o", "obstore", "obstore"),
        ("gs://b/o", "fsspec", "fsspec"),
        ("s3://b/o", "fsspec", "fsspec"),
        ("az://c/o", "obstore", "obstore"),
    ],
)
def test_a_backend_may_be_chosen(url: str, choice: str, backend: str) -> None:
    """By the option ``backend`` of the scheme."""
    storage = {scheme_of(url): {"backend": choice}}
    assert spec_for(url, Options(storage=storage), Environment()).backend == f"asyncdata.storage.{backend}"


@pytest.mark.parametrize(("url", "choice"), [("hdfs://h/o", "obstore"), ("gs://b/o", "gcsfs"), ("s3://b/o", "")])
def test_a_backend_that_does_not_serve_a_scheme(url: str, choice: str) -> None:
    """The error names what there is, and the URL."""
    with pytest.raises(UnsupportedURLError, match="'fsspec'") as caught:
        spec_for(url, Options(storage={scheme_of(url): {"backend": choice}}), Environment())
    assert caught.value.url == url


def test_second_attempts_have_room_beside_a_full_window() -> None:
    """As many connections as reads may run and second attempts beside them; no more where there are none."""
    options = Options(max_requests_in_flight=7, hedge=HedgeOptions(max_at_once=3))
    assert spec_for("gs://b/o", options, Environment()).max_connections == 10
    options = Options(max_requests_in_flight=7, hedge=HedgeOptions(enabled=False))
    assert spec_for("gs://b/o", options, Environment()).max_connections == 7


class _Blobs:
    def __init__(self, database: Path, reader: RangeReader, spec: ReaderSpec | None) -> None:
        self.database = database
        self.reader = reader
        self.spec = spec

    def url(self, name: str) -> str:
        return f"blobs://{name}"

    async def put(self, name: str, data: bytes) -> None:
        sqlite_backend.put(self.database, name, data)

    async def delete(self, name: str) -> None:
        sqlite_backend.delete(self.database, name)


class TestSqlite(RangeReaderSuite):
    """The shipped suite is what the author of a backend needs."""

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        ad.register_backend("blobs", MODULE)
        with TemporaryDirectory() as folder:
            database = Path(folder, "blobs.sqlite")
            sqlite_backend.create(database)
            options = ad.Options(storage={"blobs": {"database": str(database)}})
            spec = spec_for("blobs://", options, Environment())
            reader = spec.open()
            try:
                yield _Blobs(database, reader, spec)
            finally:
                await reader.aclose()
