"""Asynchronous storage tests run once on uvloop, which the I/O loop is, and once on asyncio's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop

# libuv keeps one pipe per process from its first loop on; no single test is to be blamed for it.
uvloop.new_event_loop().close()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops every async test of this folder runs on."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
