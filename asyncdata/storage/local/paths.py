"""Which path a name of a local file means."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import unquote, urlsplit

from asyncdata.errors import UnsupportedURLError

_LEAD: Final = re.compile("file:|local:(?=//)", re.IGNORECASE)


def path_of(url: str) -> str:
    """The path that a plain path, a ``file://`` or a ``local://`` URL means."""
    lead = _LEAD.match(url)
    if lead is None:
        return url
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise UnsupportedURLError(f"a {parts.scheme}:// URL of another host", url=url)
    # Only percent signs that quote something are taken as such: names are used as they are written elsewhere.
    path = url[lead.end() :].removeprefix("//").removeprefix(parts.netloc)
    return unquote(path) if "%" in path and not os.path.lexists(path) else path
