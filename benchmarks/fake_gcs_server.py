"""``python -m benchmarks.fake_gcs_server``: is the server the bottleneck?

Two tables. The first reads 8 MiB ranges of the same files from nginx and from ``fake_gcs`` in turn, each pinned to one
processor with the client on another, and counts the bytes served per CPU second of the server. The second opens a
thousand connections to a ``fake_gcs`` with a total of 500 MB/s and looks at what each of them gets.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.conditions import conditions
from benchmarks.measure import cpu_s, in_turn, tree
from benchmarks.servers import Server, fake_gcs, find_nginx, nginx
from benchmarks.table import markdown, median_cell, ratio_cell

RANGE_BYTES: Final = 8 << 20
_FILES: Final = 4
_FILE_BYTES: Final = 64 << 20
_BUCKET: Final = "data"
_SERVER_CPU: Final = 1
_CLIENT_CPU: Final = 0
_TOTAL_BYTES_PER_S: Final = 500e6
_FAIR: Final = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One measurement.

    Attributes:
        size: Bytes of bodies the client received.
        wall_s: Time it took.
        cpu_s: CPU time of the server.
    """

    size: int
    wall_s: float
    cpu_s: float


def read_ranges(server: Server, connections: int, size: int) -> Served:
    """Read ranges over so many connections until about ``size`` bytes have come."""
    buffer = bytearray(1 << 20)
    left: dict[socket.socket, int] = {}
    asked = received = 0

    def ask(sock: socket.socket) -> None:
        nonlocal asked
        name = f"{asked % _FILES}.bin"
        start = asked // _FILES * RANGE_BYTES % _FILE_BYTES
        span = f"bytes={start}-{start + RANGE_BYTES - 1}"
        sock.sendall(f"GET /{_BUCKET}/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nRange: {span}\r\n\r\n".encode())
        left[sock] = -1
        asked += 1

    with selectors.DefaultSelector() as selector:
        socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(connections)]
        try:
            began, cpu_before = time.perf_counter(), _server_cpu_s(server)
            for one in socks:
                selector.register(one, selectors.EVENT_READ)
                ask(one)
            while left:
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    sock = key.fileobj
                    count = sock.recv_into(buffer)
                    if not count:
                        raise ConnectionError("the server closed the connection")
                    if left[sock] < 0:
                        head = buffer.index(b"\r\n\r\n", 0, count) + 4
                        assert buffer.startswith(b"HTTP/1.1 206")
                        left[sock] = RANGE_BYTES
                        count -= head
                    left[sock] -= count
                    received += count
                    if not left[sock]:
                        if received < size:
                            ask(sock)
                        else:
                            del left[sock]
            return Served(size=received, wall_s=time.perf_counter() - began, cpu_s=_server_cpu_s(server) - cpu_before)
        finally:
            for one in socks:
                one.close()


def _server_cpu_s(server: Server) -> float:
    return sum(cpu_s(pid) for pid in tree(server.pid))


def compare(root: Path, rounds: int, size: int) -> str:
    """The first table."""
    rows = []
    with fake_gcs(root, cpu=_SERVER_CPU) as fake, nginx(root, cpu=_SERVER_CPU) as other:
        for server in (fake, other):
            read_ranges(server, 4, size // 4)  # Checksums of the files are computed, pages are touched.
        for connections in (1, 4, 16):

            def run(server: Server, count: int = connections) -> Callable[[], Served]:
                return lambda: read_ranges(server, count, size)

            measured = in_turn(rounds, {"nginx": run(other), "fake_gcs": run(fake)}, _note)
            ours = [one.size / 1e9 / one.cpu_s for one in measured["fake_gcs"]]
            theirs = [one.size / 1e9 / one.cpu_s for one in measured["nginx"]]
            for name, values in (("nginx", theirs), ("fake_gcs", ours)):
                rates = [one.size / 1e9 / one.wall_s for one in measured[name]]
                ratio = ratio_cell(ours, theirs) if name == "fake_gcs" else ""
                rows.append([f"{name}, {connections} connections", median_cell(rates), median_cell(values), ratio])
    return markdown(["8 MiB ranges", "GB/s", "GB per CPU-s of the server", "of nginx"], rows)


def share(root: Path, connections: int, seconds: float) -> str:
    """The second table."""
    profile = {"total_bytes_per_s": _TOTAL_BYTES_PER_S}
    with fake_gcs(root, profile) as server:
        for number in range(_FILES):
            _first_bytes(server, number)
        cpu_before = _server_cpu_s(server)
        got, wall_s = _take(server, connections, seconds)
        server_cpu_s = _server_cpu_s(server) - cpu_before
    fair = _TOTAL_BYTES_PER_S / connections
    rates = sorted(count / wall_s for count in got)
    within = sum(abs(rate - fair) <= _FAIR * fair for rate in rates)
    row = [
        f"{connections} connections, {wall_s:.1f} s",
        f"{sum(rates) / 1e6:.1f}",
        f"{rates[0] / 1e6:.3f}",
        f"{rates[len(rates) // 2] / 1e6:.3f}",
        f"{rates[-1] / 1e6:.3f}",
        f"{within} of {connections}",
        f"{server_cpu_s / wall_s:.2f}",
    ]
    head = ["500 MB/s in total", "MB/s", "least", "median", "most", f"within {_FAIR:.0%}", "CPUs of the server"]
    return markdown(head, [row])


def _first_bytes(server: Server, number: int) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        request = f"GET /{_BUCKET}/{number}.bin HTTP/1.1\r\nHost: h\r\nRange: bytes=0-0\r\nConnection: close\r\n\r\n"
        sock.sendall(request.encode())
        while sock.recv(1 << 16):
            pass


def _take(server: Server, connections: int, seconds: float) -> tuple[list[int], float]:
    """What each connection gets, after a second in which all of them come up to speed."""
    buffer = bytearray(1 << 18)
    got: dict[socket.socket, int] = {}
    with selectors.DefaultSelector() as selector:
        try:
            for number in range(connections):
                sock = socket.create_connection(("127.0.0.1", server.port))
                # The whole file several times: nobody must come to an end.
                request = f"GET /{_BUCKET}/{number % _FILES}.bin HTTP/1.1\r\nHost: h\r\n\r\n"
                sock.sendall(request.encode())
                got[sock] = 0
                selector.register(sock, selectors.EVENT_READ)
            began = time.perf_counter()
            base = dict(got)
            measured_from = began
            while (now := time.perf_counter()) < began + 1.0 + seconds:
                if measured_from == began and now >= began + 1.0:
                    base, measured_from = dict(got), now
                for key, _ in selector.select(0.1):
                    assert isinstance(key.fileobj, socket.socket)
                    got[key.fileobj] += key.fileobj.recv_into(buffer)
            wall_s = time.perf_counter() - measured_from
            return [got[sock] - base[sock] for sock in got], wall_s
        finally:
            for sock in got:
                sock.close()


def _note(text: str) -> None:
    print(f"  {text}", file=sys.stderr)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="read in one measurement")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the second table")
    parser.add_argument("--connections", type=int, default=1000)
    options = parser.parse_args()
    print(conditions(packages=("asyncdata", "uvloop")))
    with tempfile.TemporaryDirectory(prefix="benchmark-fake-gcs-") as folder:
        root = Path(folder)
        (root / _BUCKET).mkdir()
        for number in range(_FILES):
            (root / _BUCKET / f"{number}.bin").write_bytes(os.urandom(1 << 20) * (_FILE_BYTES >> 20))
        if find_nginx() is None:
            print("\nnginx is not installed: the first table was NOT measured (apt-get install nginx-light)")
        else:
            if len(os.sched_getaffinity(0)) > 1:
                os.sched_setaffinity(0, {_CLIENT_CPU})
            print("\n" + compare(root, options.rounds, int(options.gigabytes * 1e9)))
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        print("\n" + share(root, options.connections, options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
