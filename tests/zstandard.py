"""The module for ZSTD: Python's own where there is one, the extra's before 3.14."""

from __future__ import annotations

import importlib
import sys
from typing import Any

zstd: Any = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
