"""Backends that users bring: registered, checked, conforming, and known to the loader process."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import asyncdata as ad
from asyncdata.formats.tfrecord import encode_many
from asyncdata.options import Environment
from asyncdata.storage import RangeReader, ReaderSpec, backends, spec_for
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
    with pytest.raises(ValueError, match=r"served by tests\.storage\.sqlite_backend already"):
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
    assert refused == [f"blobs:// is served by {served.open_reader} already"] * 7


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
