"""Where the loader runs: here, and for a sample of the tests (all that can, in a long run) in a process of its own."""

from __future__ import annotations

import os

import pytest

from asyncdata.options import Options


def isolate_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on ``Options()`` means ``Options(isolate=True)``."""
    defaults = Options.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "isolate", True)


@pytest.fixture(autouse=True)
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``here`` or ``isolated``."""
    mode: str = getattr(request, "param", os.environ.get("WHERE", "here"))
    if mode == "isolated":
        isolate_by_default(monkeypatch)
    return mode
