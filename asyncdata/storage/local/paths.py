"""Which path a name of a local file means."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from asyncdata.errors import UnsupportedURLError


def path_of(url: str) -> str:
    """The path that a plain path or ``file://`` URL means."""
    if not url.lower().startswith("file:"):
        return url
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise UnsupportedURLError("a file:// URL of another host", url=url)
    # Only percent signs that quote something are taken as such: names are used as they are written elsewhere.
    path = url[len("file:") :].removeprefix("//").removeprefix(parts.netloc)
    return unquote(path) if "%" in path and not os.path.lexists(path) else path
