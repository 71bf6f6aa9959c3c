"""Fixtures of the tests of stages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.stages.framing_ways import WAYS, framing


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where files are framed."""
    with framing(request.param):
        yield request.param
