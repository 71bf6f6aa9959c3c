from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.storage.certificate import make_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """(what the client trusts, the server's)."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))
