"""The documentation of ``Options.storage`` names every key that a backend takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncdata.options import Options
from asyncdata.storage.backends import BUILT_IN

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "urls.md"


@pytest.mark.parametrize("scheme", BUILT_IN)
def test_every_key_is_named(scheme: str) -> None:
    """In the docstring, and in the reference page."""
    page = PAGE.read_text(encoding="utf-8")
    for key in BUILT_IN[scheme].options:
        assert f"``{key}``" in (Options.__doc__ or "")
        assert f"`{key}`" in page
