"""The documentation of ``Options.storage`` names every key that a backend takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from asyncdata.options import Options
from asyncdata.storage import cloud_options, http
from asyncdata.storage.gcs import reader as gcs
from asyncdata.storage.webhdfs import reader as webhdfs

KEYS: dict[str, Iterable[str]] = {
    "gs": gcs.KNOWN_OPTIONS | {"backend"},
    "gs by obstore": cloud_options.KNOWN_OPTIONS["gs"],
    "s3": cloud_options.KNOWN_OPTIONS["s3"],
    "az": cloud_options.KNOWN_OPTIONS["az"],
    "http": http.KNOWN_OPTIONS,
    "webhdfs": webhdfs.KNOWN_OPTIONS,
}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "urls.md"


@pytest.mark.parametrize("scheme", KEYS)
def test_every_key_is_named(scheme: str) -> None:
    """In the docstring, and in the reference page."""
    page = PAGE.read_text(encoding="utf-8")
    for key in KEYS[scheme]:
        assert f"``{key}``" in (Options.__doc__ or "")
        assert f"`{key}`" in page
