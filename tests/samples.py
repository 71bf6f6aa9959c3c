"""How many samples a law is tried on: a few in every run, many in ``make soak``."""

from __future__ import annotations

import os
from typing import Final

SOAK: Final = os.environ.get("ASYNCDATA_SOAK", "") not in {"", "0"}
"""Whether this is the long run."""


def samples(default: int, full: int) -> int:
    """``default`` in an ordinary run, ``full`` with ASYNCDATA_SOAK=1."""
    return full if SOAK else default
