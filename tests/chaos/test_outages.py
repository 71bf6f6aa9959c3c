"""A server that dies and comes back; a network that is gone for a while. With the time limits and retries users get."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from fake_gcs import FakeGCSProcess, Profile
from tests.integration.shards import BUCKET, records, shard_bytes
from tests.samples import samples

SHARDS, COUNT, SIZE = 6, 100, 4000
AWAY_S = samples(2, 10)
SLOWLY = Profile(stream_bytes_per_s=300e3)

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A folder that servers take for their buckets."""
    folder = tmp_path / BUCKET
    folder.mkdir()
    for shard in range(SHARDS):
        (folder / f"shard-{shard:03d}.tfrecord").write_bytes(shard_bytes(records(shard, COUNT, SIZE)))
    return tmp_path


def everything() -> list[bytes]:
    """All records in the order of a deterministic interleave of three shards."""
    groups = [range(first, first + 3) for first in range(0, SHARDS, 3)]
    shards = [records(shard, COUNT, SIZE) for shard in range(SHARDS)]
    return [shards[shard][number] for group in groups for number in range(COUNT) for shard in group]


def read(url: str, after: int, happens: Callable[[], None]) -> list[bytes]:
    """All records; something happens behind the first few."""
    storage = {"gs": {"endpoint_url": url, "token": "anon"}}
    options = ad.Options(storage=storage, num_workers=0, memory_limit_bytes=4 << 20, chunk_bytes=64 << 10)
    dataset = (
        ad.Dataset.list_files(f"gs://{BUCKET}/*", shuffle=False)
        .interleave(ad.TFRecordDataset, cycle_length=3)
        .with_options(options)
    )
    found: list[bytes] = []
    with dataset.iterator() as elements:
        for element in elements:
            found.append(element)
            if len(found) == after:
                happens()
    return found


def test_a_server_dies_and_comes_back(bucket: Path) -> None:
    """Killed in the middle of bodies, away for some seconds, started again on its port: no record lost or doubled."""
    first = FakeGCSProcess(bucket, SLOWLY)
    back: list[FakeGCSProcess] = []

    def start_again(port: int) -> None:
        back.append(FakeGCSProcess(bucket, port=port).__enter__())

    with first:
        port = int(first.url.rpartition(":")[2])
        later = threading.Timer(AWAY_S, start_again, (port,))

        def die() -> None:
            first.kill()
            later.start()

        try:
            assert read(first.url, 10, die) == everything()
        finally:
            later.join()
            for server in back:
                server.close()


class Wire:
    """Carries bytes to a server and back, until it is cut: then nothing moves and nobody is told."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self._target = host, int(port)
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends, self._ended = socket.socketpair()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self, seconds: float) -> None:
        """Nothing moves for so long."""
        self._whole.clear()
        self._timer = threading.Timer(seconds, self._whole.set)
        self._timer.start()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._ended, *self._pairs], [], [])
            self._whole.wait()
            if self._ended in ready:
                return
            for sock in ready:
                if sock is self._listener:
                    near, _ = self._listener.accept()
                    far = socket.create_connection(self._target)
                    self._pairs[near], self._pairs[far] = far, near
                elif sock in self._pairs:
                    self._carry(sock)

    def _carry(self, sock: socket.socket) -> None:
        other = self._pairs[sock]
        try:
            data = sock.recv(1 << 16)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for end in (sock, other):
            self._pairs.pop(end, None)
            end.close()

    def close(self) -> None:
        """Ends the thread and closes everything."""
        self._ends.send(b".")
        self._thread.join()
        self._timer.join()
        for sock in (self._listener, self._ends, self._ended, *self._pairs):
            sock.close()


@pytest.fixture
def wire(bucket: Path) -> Iterator[Any]:
    """A wire to a server."""
    with FakeGCSProcess(bucket, SLOWLY) as server:
        wire = Wire(server.endpoint)
        yield wire
        wire.close()


def test_a_network_that_vanishes_for_a_while(wire: Wire) -> None:
    """Bytes in flight stop, new connections get no answer, then all goes on: no record lost or doubled."""
    assert read(wire.url, 10, lambda: wire.cut(AWAY_S)) == everything()
