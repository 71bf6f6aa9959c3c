"""What ``benchmarks.steps`` reads, the same for both sides."""

from __future__ import annotations

from typing import Final

import numpy as np

_SOURCE: Final = np.random.default_rng(1)
_ROWS: Final = 20_000

TABLE: Final = {"features": _SOURCE.integers(0, 100, (_ROWS, 16)), "label": np.arange(_ROWS)}
STOPS: Final = np.concatenate(([0], np.cumsum(_SOURCE.integers(1, 100, _ROWS))))
"""Where rows of 1 to 99 numbers begin in `FLAT`, and the end."""
FLAT: Final = np.arange(STOPS[-1])
