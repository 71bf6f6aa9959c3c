"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fake_gcs
from tests.patience import LIMIT_S

TESTS = """
import os, urllib.error, urllib.request
import pytest
from fake_gcs import Fault, Profile, Rule

def test_server(fake_gcs):
    assert fake_gcs.names("test-bucket") == []
    fake_gcs.put("test-bucket", "x", b"data")
    assert urllib.request.urlopen(fake_gcs.url + "/test-bucket/x").read() == b"data"

@pytest.mark.fake_gcs(profile=Profile(rules=(Rule(fault=Fault(kind="status")),)), buckets=["other"])
def test_mark(fake_gcs_environ):
    assert os.environ["STORAGE_EMULATOR_HOST"] == fake_gcs_environ.url
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(fake_gcs_environ.url + "/storage/v1/b/other")

def test_each_test_has_its_own(fake_gcs):
    assert "STORAGE_EMULATOR_HOST" not in os.environ
    assert fake_gcs.names("test-bucket") == []
"""


def test_fixtures_and_mark_work_in_a_project_of_their_own(tmp_path: Path) -> None:
    """A conftest line is all that is needed; the mark passes arguments; warnings are errors there too."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["fake_gcs.pytest_plugin"]\n')
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "--strict-markers",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
    ]
    environment = {"PYTHONPATH": str(Path(fake_gcs.__file__).parent.parent), "PATH": ""}
    done = subprocess.run(
        [*command, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=LIMIT_S,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
