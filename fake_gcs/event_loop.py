"""uvloop where it is installed, asyncio's own loop where not."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop, not running and not set as anyone's current loop."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop  # noqa: PLC0415 -- optional, and only here

    return uvloop.new_event_loop()
