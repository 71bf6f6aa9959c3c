"""Clients nobody here wrote, unmodified, over a real socket.

Each runs its scenario in a process of its own against a server in another one: some of them hold the interpreter's lock
while they wait, and none of them is held to this suite's rules on warnings and leaks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from fake_gcs import FakeGCSProcess
from tests.patience import LIMIT_S

HERE = Path(__file__).parent
QUIET = {"NO_GCE_CHECK": "true", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "GOOGLE_AUTH_TOKEN_FOR_TESTING": "x"}


def need(package: str, name: str) -> None:
    """Skip, and say what would have been needed."""
    parts = package.split(".")
    if any(find_spec(".".join(parts[: count + 1])) is None for count in range(len(parts))):
        pytest.skip(f"{name} is not installed: this client was NOT tried against fake_gcs (pip install {name})")


def play(scenario: str, *arguments: str, server: FakeGCSProcess, environment: Mapping[str, str] | None = None) -> None:
    """Run a scenario; its own words and the last requests are the message when it fails."""
    done = subprocess.run(
        [sys.executable, str(HERE / f"{scenario}_scenario.py"), *arguments],
        env={**os.environ, **QUIET, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        requests = "\n".join(f"{one.method} {one.target} {one.range} {one.status}" for one in server.entries()[-15:])
        pytest.fail(f"{done.stdout}\n{done.stderr[-4000:]}\n{requests}")


def test_gcsfs(tmp_path: Path) -> None:
    """gcsfs writes, reads, lists, copies, merges and removes."""
    with FakeGCSProcess(tmp_path) as server:
        play("gcsfs", server.url, server=server)


def test_google_cloud_storage(tmp_path: Path) -> None:
    """Google's own client, its transfer manager and its batches."""
    need("google.cloud.storage", "google-cloud-storage")
    with FakeGCSProcess(tmp_path / "root") as server:
        play("google", server.url, str(tmp_path), server=server)


def test_obstore(tmp_path: Path) -> None:
    """object_store's GCS client takes every answer of the XML API."""
    need("obstore", "obstore")
    with FakeGCSProcess(tmp_path, buckets=["bkt"]) as server:
        play("obstore", server.url, server=server)


def test_pyarrow(tmp_path: Path) -> None:
    """google-cloud-cpp, through pyarrow's filesystem."""
    need("pyarrow", "pyarrow")
    with FakeGCSProcess(tmp_path, buckets=["bkt"]) as server:
        play("pyarrow", server.endpoint, server=server)


def test_tensorstore(tmp_path: Path) -> None:
    """tensorstore's key-value store."""
    need("tensorstore", "tensorstore")
    with FakeGCSProcess(tmp_path, buckets=["bkt"]) as server:
        play("tensorstore", server=server, environment={"TENSORSTORE_GCS_HTTP_URL": server.url})


@pytest.mark.slow
def test_tensorflow(tmp_path: Path) -> None:
    """TensorFlow's gs://, whose hosts can not be changed: the server is its proxy and its authority."""
    need("tensorflow", "tensorflow-cpu")
    with FakeGCSProcess(tmp_path / "root", proxy=True, buckets=["bkt"]) as server:
        certificate = tmp_path / "certificate.pem"
        certificate.write_bytes(server.certificate)
        proxy = {"https_proxy": server.url, "CURL_CA_BUNDLE": str(certificate)}
        play("tensorflow", server=server, environment=proxy)


def test_rclone(tmp_path: Path) -> None:
    """rclone copies, checks, lists, moves and purges; it uploads by chunks and downloads from the mediaLink."""
    if shutil.which("rclone") is None:
        pytest.skip("rclone is not installed: this client was NOT tried against fake_gcs (apt-get install rclone)")
    source = tmp_path / "source"
    source.mkdir()
    (source / "a b").write_bytes(b"123")
    (source / "\u00fc").write_bytes(os.urandom(20_000_000))
    with FakeGCSProcess(tmp_path / "root", buckets=["bkt"]) as server:
        base = ["rclone", "--config", "/dev/null", "--gcs-endpoint", f"{server.url}/storage/v1/", "--gcs-anonymous"]
        base += ["--gcs-project-number", "1", "--retries", "1", "--low-level-retries", "1"]

        def rclone(*arguments: str) -> str:
            done = subprocess.run([*base, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        rclone("copy", str(source), ":gcs:bkt/rc")
        assert any(entry.range == f"bytes 0-{(16 << 20) - 1}/*" for entry in server.entries())
        rclone("check", str(source), ":gcs:bkt/rc")
        assert rclone("cat", ":gcs:bkt/rc/a b") == "123"
        rclone("copyto", ":gcs:bkt/rc/\u00fc", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == (source / "\u00fc").read_bytes()
        rclone("copyto", ":gcs:bkt/rc/\u00fc", ":gcs:bkt/rc/copy")
        rclone("moveto", ":gcs:bkt/rc/copy", ":gcs:bkt/rc/moved")
        assert rclone("lsf", ":gcs:bkt/rc").splitlines() == ["a b", "moved", "\u00fc"]
        rclone("sync", str(source), ":gcs:bkt/rc")
        rclone("purge", ":gcs:bkt/rc")
        assert rclone("lsf", ":gcs:bkt") == ""
