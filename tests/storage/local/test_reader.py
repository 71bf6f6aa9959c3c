from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from asyncdata.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    UnsupportedURLError,
)
from asyncdata.options import Environment, Options
from asyncdata.storage import Fetcher
from asyncdata.storage.local.descriptors import Descriptors, max_idle_files
from asyncdata.storage.local.paths import path_of
from asyncdata.storage.local.reader import LocalReader
from asyncdata.types import ObjectInfo


def test_paths_and_file_urls() -> None:
    """A file URL is its path; other hosts have no local files."""
    assert path_of("/a b/c%20d") == "/a b/c%20d"
    assert path_of("file:///a/b") == "/a/b"
    assert path_of("file://localhost/a/b") == "/a/b"
    assert path_of("file:///a%20b") == "/a b"
    assert path_of("local:///a%20b") == "/a b"
    assert path_of("local:a") == "local:a"
    for elsewhere in ("file://elsewhere/a", "local://elsewhere/a"):
        with pytest.raises(UnsupportedURLError):
            path_of(elsewhere)


async def test_a_file_that_is_written_to_is_noticed(tmp_path: Path) -> None:
    """In place, appended to, cut short: the listed version or an error."""
    path = tmp_path / "x"
    reader = LocalReader(max_threads=2)
    changes: list[Callable[[], object]] = [
        lambda: os.utime(path, ns=(1, 1)),
        lambda: os.truncate(path, 10),
        lambda: path.write_bytes(b"x" * 1001),
    ]
    for change in changes:
        path.write_bytes(b"0123456789" * 100)
        info = await reader.stat(str(path))
        await reader.read_into(info, 0, memoryview(bytearray(10)))
        change()
        with pytest.raises(ObjectChangedError, match=str(info.version)):
            await reader.read_into(info, 0, memoryview(bytearray(10)))
    await reader.aclose()


async def test_a_replaced_file_stays_readable_while_it_is_open(tmp_path: Path) -> None:
    """Whoever listed the old file reads the old file to its end; who lists again reads the new one."""
    path = tmp_path / "x"
    path.write_bytes(b"old!")
    reader = LocalReader(max_threads=2)
    old = await reader.stat(str(path))
    buffer = bytearray(4)
    await reader.read_into(old, 0, memoryview(buffer))
    (tmp_path / "y").write_bytes(b"new!")
    os.replace(tmp_path / "y", path)
    await reader.read_into(old, 0, memoryview(buffer))
    assert buffer == b"old!"
    await reader.read_into(await reader.stat(str(path)), 0, memoryview(buffer))
    assert buffer == b"new!"
    await reader.aclose()


async def test_a_file_that_is_shorter_than_believed_is_a_clear_error(tmp_path: Path) -> None:
    """Also without a version, or a size: the message says where the file ends."""
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    reader = LocalReader(max_threads=1)
    with pytest.raises(ObjectChangedError, match="10 bytes were listed, now it has 5"):
        await reader.read_into(ObjectInfo(url=str(path), size=10), 0, memoryview(bytearray(10)))
    with pytest.raises(StorageError, match="ends at 5, 5 bytes before"):
        await reader.read_into(ObjectInfo(url=str(path), size=-1), 0, memoryview(bytearray(10)))
    await reader.aclose()


async def test_what_is_no_readable_file(tmp_path: Path) -> None:
    """Folders, missing files, odd paths and devices each have their error."""
    reader = LocalReader(max_threads=1)
    for url in (str(tmp_path), str(tmp_path / "missing"), "/dev/null", ""):
        with pytest.raises((ObjectNotFoundError, UnsupportedURLError)):
            await reader.stat(url)
    if os.geteuid() != 0:
        (tmp_path / "secret").touch(mode=0)
        with pytest.raises(AccessDeniedError):
            await reader.read_into(ObjectInfo(url=str(tmp_path / "secret"), size=1), 0, memoryview(bytearray(1)))
    await reader.aclose()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="there is no procfs")
async def test_a_file_that_states_no_size_and_has_content_is_refused(tmp_path: Path) -> None:
    """A file of procfs is not taken for an empty one: neither asked about, nor opened, nor listed. Empty files are."""
    reader = LocalReader(max_threads=2)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: reader.stat("/proc/self/status"),
        lambda: reader.open_read("file:///proc/self/status", memoryview(bytearray(10))),
        lambda: reader.glob("/proc/self/stat*"),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="size of 0 bytes but has content") as caught:
            await call()
        assert "/proc/self/stat" in str(caught.value)
    (tmp_path / "empty").write_bytes(b"")
    assert [info.size for info in await reader.glob(f"{tmp_path}/*")] == [0]
    await reader.aclose()


async def test_fifos_sockets_devices_and_directories_are_refused(tmp_path: Path) -> None:
    """By what they are; a FIFO, also one that has taken the place of a file, is never waited for."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"content")
    reader = LocalReader(max_threads=2)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        for path, kind in (
            (tmp_path / "fifo", "a FIFO, not a regular file.*from_generator"),
            (tmp_path / "socket", "a socket, not"),
            (Path("/dev/zero"), "a device, not"),
            (tmp_path / "folder", "a directory, not a regular file; use list_files"),
        ):
            calls: list[Awaitable[object]] = [
                reader.stat(str(path)),
                reader.open_read(str(path), memoryview(bytearray(10))),
                reader.glob(str(path)),
            ]
            for call in calls:
                with pytest.raises(ObjectNotFoundError, match=kind):
                    await call
        assert [info.url for info in await reader.glob(f"{tmp_path}/*")] == [str(tmp_path / "file")]
    info = await reader.stat(str(tmp_path / "file"))
    (tmp_path / "file").unlink()
    os.mkfifo(tmp_path / "file")
    with pytest.raises(ObjectChangedError):
        await reader.read_into(info, 0, memoryview(bytearray(7)))
    await reader.aclose()


async def test_a_file_whose_name_is_a_pattern_that_it_does_not_match_is_told_from_other_kinds(tmp_path: Path) -> None:
    """It is a regular file, and can be read by its name."""
    path = tmp_path / "star*[x]"
    path.write_bytes(b"content")
    reader = LocalReader(max_threads=1)
    with pytest.raises(ObjectNotFoundError, match="has these very characters as its name") as caught:
        await reader.glob(str(path))
    assert caught.value.url == str(path)
    assert (await reader.stat(str(path))).size == 7
    await reader.aclose()


async def test_open_files_are_bounded(tmp_path: Path) -> None:
    """Many files are read with few descriptors, and none is left after close."""
    reader = LocalReader(max_threads=4)
    names = [tmp_path / f"{number:04d}" for number in range(3 * max_idle_files())]
    for path in names:
        path.write_bytes(path.name.encode())
    infos = await reader.glob(f"{tmp_path}/*")

    async def check(info: ObjectInfo) -> None:
        buffer = bytearray(4)
        await reader.read_into(info, 0, memoryview(buffer))
        assert buffer == info.url[-4:].encode()

    await asyncio.gather(*(check(info) for info in infos * 2))
    assert f"<LocalReader {max_idle_files()} files open>" == repr(reader)
    await reader.aclose()
    assert "0 files" in repr(reader)


def test_descriptors_in_use_are_never_closed(tmp_path: Path) -> None:
    """The bound counts idle files only; the same file is opened once."""
    files = Descriptors(1)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(b"1")
    with files.using(str(paths[0]), None) as (first, version), files.using(str(paths[0]), version) as (again, _):
        assert first == again
        for path in paths[1:]:
            with files.using(str(path), None):
                pass
        assert os.pread(first, 1, 0) == b"1"
        assert len(files) == 2
    assert len(files) == 1
    files.close()


async def test_links_and_vanishing_files(tmp_path: Path) -> None:
    """Links to files are files; broken links and links in a circle are left out."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "x")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "real" / "circle").symlink_to(tmp_path)
    reader = LocalReader(max_threads=1)
    found = [info.url.removeprefix(str(tmp_path)) for info in await reader.glob(f"{tmp_path}/**")]
    assert found == ["/link", "/real/x"]
    await reader.aclose()


async def test_relative_paths_come_back_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern without a leading slash gives URLs without one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.rec").write_bytes(b"1")
    reader = LocalReader(max_threads=1)
    assert [info.url for info in await reader.glob("d/*.rec")] == ["d/x.rec"]
    assert [info.url for info in await reader.glob("**/x.rec")] == ["d/x.rec"]
    assert [info.url for info in await reader.glob("./d/x.rec")] == ["./d/x.rec"]
    await reader.aclose()


@pytest.mark.parametrize("lead", ["file:", "file://", "file://localhost", "FILE:", "local://", "LOCAL://"])
async def test_urls_come_back_as_they_were_written(tmp_path: Path, lead: str) -> None:
    """One slash means the same as three, in patterns as in names; what is listed can be read."""
    (tmp_path / "x.rec").write_bytes(b"1")
    reader = LocalReader(max_threads=1)
    url = f"{lead}{tmp_path}/x.rec"
    (listed,) = await reader.glob(f"{lead}{tmp_path}/*.rec")
    assert listed == await reader.stat(url)
    assert listed.url == url
    await reader.aclose()


async def test_random_ranges_of_a_changing_folder_never_mix(tmp_path: Path) -> None:
    """Files are replaced while they are read: every read gives one version's bytes or says that it changed."""
    draw = random.Random(4)
    path = tmp_path / "x"
    fetcher = Fetcher(Options(), Environment())
    path.write_bytes(bytes([0]) * 100_000)
    info = await fetcher.stat(str(path))
    read = changed = 0
    for generation in range(1, 60):
        if generation % 3:
            (tmp_path / "new").write_bytes(bytes([generation]) * 100_000)
            os.replace(tmp_path / "new", path)
        else:
            path.write_bytes(bytes([generation]) * 100_000)
        buffer = bytearray(draw.randrange(1, 90_000))
        if draw.random() < 0.5:
            info = await fetcher.stat(str(path))
            path.write_bytes(bytes([generation + 100]) * 100_000)
        try:
            await fetcher.read(info, draw.randrange(10_000), memoryview(buffer))
            read += 1
            assert len(set(buffer)) == 1
        except ObjectChangedError:
            changed += 1
            info = await fetcher.stat(str(path))
    assert read > 5
    assert changed > 5
    await fetcher.aclose()
