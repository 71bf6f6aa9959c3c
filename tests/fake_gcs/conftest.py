"""Servers for the tests of fake_gcs: in memory and in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_gcs import FakeGCS


@pytest.fixture(params=["memory", "directory"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeGCS]:
    """A server with one bucket ``bkt``, with each backing."""
    root = tmp_path / "root" if request.param == "directory" else None
    if root is not None:
        root.mkdir()
    with FakeGCS(root, buckets=["bkt"]) as running:
        yield running


@pytest.fixture
def memory() -> Iterator[FakeGCS]:
    """A server in memory with one bucket ``bkt``, for what does not depend on the backing."""
    with FakeGCS(buckets=["bkt"]) as running:
        yield running
