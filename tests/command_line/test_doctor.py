"""``asyncdata doctor``: what it sees of this machine, and never a secret."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncdata.command_line.doctor import descriptors
from fake_gcs import FakeGCS


def test_the_machine(run: Callable[..., Any]) -> None:
    """Every check has a value; text and document tell the same."""
    ran = run("doctor", "--json")
    checks = {check["name"]: check for check in ran.document["checks"]}
    assert {"cores", "memory", "file descriptors", "shared memory", "uvloop", "credentials for gs"} <= set(checks)
    assert all(check["value"] for check in checks.values())
    assert ran.code == any(check["kind"] == "finding" for check in checks.values())
    text = run("doctor").out
    assert all(name in text for name in checks)


@pytest.mark.parametrize(
    ("soft", "hard", "kind"),
    [
        (1024, 524_288, "finding"),
        (1024, resource.RLIM_INFINITY, "finding"),
        (1024, 1024, "finding"),
        (65_536, 65_536, "ok"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, "ok"),
    ],
)
def test_file_descriptors(soft: int, hard: int, kind: str) -> None:
    """Few of them are a finding, with what to do about it; no limit is none."""
    found = descriptors(soft, hard)
    assert (found.kind, bool(found.advice)) == (kind, kind == "finding")
    assert "-1" not in found.value + found.advice


def test_no_secret_is_shown(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials are told by their names and kinds."""
    secret = "hunter2hunter2"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", secret)
    monkeypatch.setenv("https_proxy", f"http://me:{secret}@proxy")
    folder = tmp_path / ".config/gcloud"
    folder.mkdir(parents=True)
    file = {"type": "authorized_user", "refresh_token": secret}
    (folder / "application_default_credentials.json").write_text(json.dumps(file))
    ran = run("doctor", "--json", "--storage", f"az.account_key={secret}")
    assert secret not in ran.out + ran.err
    found = {check["name"]: check["value"] for check in ran.document["checks"]}
    assert "(authorized_user)" in found["credentials for gs"]
    assert "$AWS_ACCESS_KEY_ID" in found["credentials for s3"]
    assert "option account_key" in found["credentials for az"]


def test_urls_are_asked(run: Callable[..., Any]) -> None:
    """Each is read; one that does not answer ends with 3, and the others are asked all the same."""
    with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", bytes(10_000))
        storage = ("--storage", f"gs.endpoint_url={server.url}", "--storage", "gs.token=anon")
        ran = run("doctor", "gs://bucket/missing", "gs://bucket/x", "--json", *storage)
    assert ran.code == 3
    assert "first byte after" in ran.document["checks"][-1]["value"]
    assert "gs://bucket/missing" in ran.document["unreadable"][0]
