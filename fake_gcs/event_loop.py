"""uvloop where it is installed, asyncio's own loop where not."""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:
    uvloop = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop, not running and not set as anyone's current loop."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
