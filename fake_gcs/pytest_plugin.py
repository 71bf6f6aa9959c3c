"""pytest fixtures: ``pytest_plugins = ["fake_gcs.pytest_plugin"]`` in a conftest, or ``-p fake_gcs.pytest_plugin``.

``fake_gcs`` is a server with a bucket ``test-bucket``, new for each test; ``fake_gcs_environ`` sets the environment
variables by which the usual clients find it. The mark ``fake_gcs(profile=..., buckets=..., root=..., tls=...)`` passes
arguments to ``FakeGCS``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fake_gcs.server import FakeGCS

BUCKET = "test-bucket"
"""The bucket every server has."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", "fake_gcs(**arguments): arguments of FakeGCS for the fixture of that name")


@pytest.fixture
def fake_gcs(request: pytest.FixtureRequest) -> Iterator[FakeGCS]:
    """A running server."""
    marker = request.node.get_closest_marker("fake_gcs")
    arguments = {"buckets": [BUCKET], **(marker.kwargs if marker else {})}
    with FakeGCS(**arguments) as server:
        yield server


@pytest.fixture
def fake_gcs_environ(fake_gcs: FakeGCS, monkeypatch: pytest.MonkeyPatch) -> FakeGCS:
    """The same, with the environment in which gcsfs, google-cloud-storage and tensorstore use it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", fake_gcs.url)
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", fake_gcs.url)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "fake")
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    return fake_gcs
