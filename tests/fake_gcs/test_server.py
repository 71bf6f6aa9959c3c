"""Starting, stopping, TLS, the command line, the process, the fixtures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

import fake_gcs
from fake_gcs import FakeGCS, FakeGCSProcess, Fault, Profile, Rule
from fake_gcs.__main__ import main
from fake_gcs.errors import GCSError
from tests.fake_gcs.asking import ask, raw, status_of
from tests.patience import LIMIT_S

ROOT = Path(fake_gcs.__file__).parent.parent


async def test_entering_does_not_block_the_loop_and_leaving_ends_the_thread() -> None:
    """``async with`` gives a running server; after it no thread is left and the port is free."""
    async with FakeGCS(buckets=["bkt"]) as server:
        assert (await asyncio.to_thread(ask, server, "GET", "/storage/v1/b/bkt")).status == 200
        port = server.port
    assert not any(thread.name == "fake_gcs" for thread in threading.enumerate())
    async with FakeGCS(port=port) as again:
        assert again.url == f"http://127.0.0.1:{port}"


def test_a_server_is_started_and_closed_without_a_block() -> None:
    """``start`` gives the running server, ``close`` ends its thread, twice if need be; it starts once at a time."""
    server = FakeGCS(buckets=["bkt"]).start()
    assert ask(server, "GET", "/storage/v1/b/bkt").status == 200
    with pytest.raises(RuntimeError, match="already running"):
        server.start()
    assert ask(server, "GET", "/storage/v1/b/bkt").status == 200
    server.close()
    server.close()
    assert not any(thread.name == "fake_gcs" for thread in threading.enumerate())
    assert "not running" in repr(server)
    assert ask(server.start(), "GET", "/storage/v1/b/bkt").status == 200
    server.close()


@pytest.mark.sampled
@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "os.kill(os.getpid(), signal.SIGINT)"])
@pytest.mark.parametrize("loop", ["", "fake_gcs.server.new_event_loop = asyncio.new_event_loop"])
def test_a_server_that_nobody_closed_lets_the_interpreter_end(tmp_path: Path, loop: str, end: str) -> None:
    """With a client in the middle of a stalled body, however the program ends: no hang, and not a word."""
    script = f"""
import asyncio, contextlib, os, signal, socket, fake_gcs.server
from fake_gcs import FakeGCS, Fault, Profile, Rule

{loop}
server = FakeGCS({str(tmp_path)!r}, Profile(rules=(Rule(fault=Fault(kind="stall", after_bytes=1)),)), buckets=["bkt"])
server.start().put("bkt", "x", bytes(1000))
sock = socket.create_connection(("127.0.0.1", server.port))
sock.sendall(b"GET /bkt/x HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n")
assert sock.recv(1)
with contextlib.suppress(KeyboardInterrupt):
    {end or "pass"}
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_start_that_is_given_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted while the server starts, the caller gets the interrupt and no thread stays."""

    def interrupted(_future: object, _timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    server = FakeGCS()
    monkeypatch.setattr("fake_gcs.server.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert not any(thread.name == "fake_gcs" for thread in threading.enumerate())


def test_a_port_that_is_taken_is_an_oserror() -> None:
    """The error comes out of ``with``, and nothing is left running."""
    with FakeGCS() as server, pytest.raises(OSError, match=r"[Aa]ddress"):
        FakeGCS(port=server.port).__enter__()


def test_leaving_drops_open_connections() -> None:
    """Clients in the middle of a stalled body do not keep the server from ending."""
    rule = Rule(fault=Fault(kind="stall", after_bytes=10))
    with FakeGCS(profile=Profile(rules=(rule,)), buckets=["bkt"]) as server:
        server.put("bkt", "x", bytes(1000))
        host, _, port = server.endpoint.rpartition(":")
        sock = socket.create_connection((host, int(port)))
        sock.sendall(b"GET /bkt/x HTTP/1.1\r\nHost: h\r\n\r\n")
        assert sock.recv(10)
        assert "1 requests" in repr(server)
    sock.close()


def test_a_server_that_does_not_run_says_so() -> None:
    """Methods that need the server are a RuntimeError outside the block; refusals come as they are."""
    server = FakeGCS()
    with pytest.raises(RuntimeError):
        server.put("bkt", "x", b"")
    with server, pytest.raises(GCSError):
        server.put("bkt", "x", b"")


def test_tls_with_a_certificate_made_on_the_fly(tmp_path: Path) -> None:
    """Verified HTTPS, small and large bodies both ways, byte for byte, and links that say https."""
    data = os.urandom(3 << 20)
    with FakeGCS(tmp_path, tls=True, buckets=["bkt"]) as server:
        context = ssl.create_default_context(cadata=server.certificate.decode())
        put = urllib.request.Request(f"{server.url}/bkt/x", data=data, method="PUT")
        with urllib.request.urlopen(put, context=context) as answer:
            assert answer.status == 200
        for url in (f"{server.url}/bkt/x", f"{server.url.replace('127.0.0.1', 'localhost')}/bkt/x"):
            with urllib.request.urlopen(url, context=context) as answer:
                assert answer.read() == data
        with urllib.request.urlopen(f"{server.url}/storage/v1/b/bkt/o/x", context=context) as answer:
            assert json.loads(answer.read())["mediaLink"].startswith("https://")
        assert status_of(raw(server, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")) == 0
        with urllib.request.urlopen(f"{server.url}/storage/v1/b/bkt", context=context) as answer:
            assert answer.status == 200


def test_a_proxy_client_reaches_any_host_here() -> None:
    """CONNECT to a host of Google's is answered by the server itself, over TLS with its own certificate."""
    with FakeGCS(proxy=True, buckets=["bkt"]) as server:
        server.put("bkt", "x", b"data")
        context = ssl.create_default_context(cadata=server.certificate.decode())
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({"https": server.url}), urllib.request.HTTPSHandler(context=context)
        )
        for url in (
            "https://storage.googleapis.com/bkt/x",
            "https://www.googleapis.com/storage/v1/b/bkt/o/x?alt=media",
        ):
            with opener.open(url) as answer:
                assert answer.read() == b"data"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_command_line(tmp_path: Path, end: signal.Signals) -> None:
    """Prints its URL on one line, serves, ends cleanly on a signal, and leaves its journal where it was told to."""
    command = [sys.executable, "-m", "fake_gcs", "--root", str(tmp_path / "root"), "--bucket", "bkt"]
    command += ["--profile", "zero", "--journal", str(tmp_path / "journal")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with urllib.request.urlopen(f"{url}/storage/v1/b/bkt") as answer:
        assert answer.status == 200
    process.send_signal(end)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, err) == (0, "", "")
    entries = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [entry["operation"] for entry in entries] == ["storage.buckets.get"]


def test_the_command_line_explains_what_is_wrong(tmp_path: Path) -> None:
    """An unknown profile, a taken port and the like end with a status and one line."""
    file = tmp_path / "file"
    file.touch()
    with FakeGCS() as server:
        for arguments, status in (
            (["--profile", "windy"], 2),
            (["--port", str(server.port)], 1),
            (["--bucket", "B"], 2),
            (["--root", str(file)], 2),
            (["--journal", str(tmp_path / "missing" / "journal")], 2),
        ):
            command = [sys.executable, "-m", "fake_gcs", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=False)
            assert (done.returncode, done.stdout) == (status, "")
            assert done.stderr.startswith("fake-gcs: ")
            assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_ports_of_the_command_line(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    """There are only so many."""
    with pytest.raises(SystemExit) as ended:
        main(["--port", port])
    assert ended.value.code == 2
    assert "between 0 and 65535" in capsys.readouterr().err


def test_a_server_in_another_process(tmp_path: Path) -> None:
    """The journal and the weather of a process are reached over the network; a path is never taken from it."""
    profile = Profile(rules=(Rule(fault=Fault(kind="status", status=502), nth=(2,)),))
    with FakeGCSProcess(tmp_path, profile, buckets=["bkt"]) as server:
        assert [ask(server, "GET", "/storage/v1/b/bkt").status for _ in range(3)] == [200, 502, 200]
        assert [entry.fault for entry in server.entries()] == ["", "status status=502", ""]
        server.clear_journal()
        server.change_profile("zero")
        assert ask(server, "GET", "/storage/v1/b/bkt").status == 200
        assert len(server.entries()) == 1
        for body in (b"{", b"[]]", b'{"extends": "/etc/passwd.json"}', b'{"windy": 1}'):
            assert ask(server, "PUT", "/_fake_gcs/profile", body).status == 400
        assert ask(server, "GET", "/_fake_gcs/secrets").status == 404
        assert ask(server, "POST", "/_fake_gcs/journal").status == 405
        assert ask(server, "GET", "/_fake_gcs/profile").json["name"] == "zero"
    with FakeGCSProcess(tls=True) as server:
        assert server.entries() == []


def test_the_journal_tells_ranges_and_bytes(memory: FakeGCS) -> None:
    """What was asked, which range, how much was sent; entries can be waited for, filtered and forgotten."""
    memory.put("bkt", "a b", b"0123456789")
    ask(memory, "GET", "/bkt/a%20b", Range="bytes=2-5", x_fake_gcs_test_id="t")
    ask(memory, "PUT", "/bkt/y", b"abc")
    assert memory.journal.wait(lambda journal: all(entry.ended_s for entry in journal))
    (entry,) = memory.journal.entries("storage.objects.get", "bkt/a b")
    assert (entry.range, entry.status, entry.sent, entry.test_id) == ("bytes=2-5", 206, 4, "t")
    assert entry.started_s <= (entry.first_byte_s or 0) <= (entry.ended_s or 0)
    assert memory.journal.entries("storage.objects.insert")[0].received == 3
    assert json.loads(entry.as_json())["object"] == "a b"
    memory.journal.clear()
    assert len(memory.journal) == 0
    assert not memory.journal.wait(lambda journal: len(journal) > 0, timeout_s=0.01)


@pytest.mark.parametrize("tls", [False, True])
def test_the_loop_may_be_asyncios_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tls: bool) -> None:
    """Without uvloop everything works the same: large bodies from files, paced, plain and over TLS."""
    monkeypatch.setattr("fake_gcs.server.new_event_loop", asyncio.new_event_loop)
    data = os.urandom(4 << 20)
    with FakeGCS(tmp_path, Profile(stream_bytes_per_s=100e6, total_bytes_per_s=150e6), tls=tls) as server:
        server.create_bucket("bkt")
        context = ssl.create_default_context(cadata=server.certificate.decode()) if tls else None
        put = urllib.request.Request(f"{server.url}/bkt/x", data=data, method="PUT")
        urllib.request.urlopen(put, context=context).close()
        with urllib.request.urlopen(f"{server.url}/bkt/x", context=context) as answer:
            assert answer.read() == data
