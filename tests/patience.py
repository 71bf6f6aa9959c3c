"""How long tests wait for what must come. A limit is there to end what hangs, not what a busy machine delays."""

from __future__ import annotations

from typing import Final

LIMIT_S: Final = 300.0
"""Half of a test's own time limit: what waits here fails with the better message, and is cleaned up."""
