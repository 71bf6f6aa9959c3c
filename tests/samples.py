"""How many samples a law is tried on: a few in every run, many in ``make soak``."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings

SOAK: Final = os.environ.get("ASYNCDATA_SOAK", "") not in {"", "0"}
"""Whether this is the long run."""


_PART: Final = 0.4
"""Of what laws ask for by default: an ordinary run is to end within six minutes on two processors."""

_SIZES: Final = 1 << 20


def samples(default: int, full: int) -> int:
    """A part of ``default`` in an ordinary run, ``full`` with ASYNCDATA_SOAK=1. Sizes in bytes are no counts."""
    if SOAK:
        return full
    return max(min(default, 2), round(_PART * default)) if default < _SIZES else default


def drawing(default: int, full: int) -> settings:
    """How a law draws so many examples (see `samples`): the same ones in every ordinary run, others in each long one.

    An example may take as long as it needs, and one that fails is made smaller and printed.
    """
    return settings(
        max_examples=samples(default, full),
        derandomize=not SOAK,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=True,
    )
