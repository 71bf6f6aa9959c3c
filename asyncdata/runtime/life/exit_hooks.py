"""Closes open Runtimes at the interpreter's exit, and releases them in a forked child."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Final, Protocol

_LOGGER: Final = logging.getLogger(__name__)


class Closable(Protocol):
    """The part of a Runtime that is needed here."""

    def close(self) -> None:
        """Ends everything."""

    def drop_inherited(self, nowhere: int) -> None:
        """In a forked child: points the parent's descriptors to the null device."""


_alive: weakref.WeakSet[Closable] = weakref.WeakSet()


def enlist(runtime: Closable) -> None:
    """Registers a Runtime that is now open."""
    _alive.add(runtime)


def discharge(runtime: Closable) -> None:
    """Removes a Runtime that has closed or cannot be closed."""
    _alive.discard(runtime)


def _close_all() -> None:
    for runtime in list(_alive):
        try:
            runtime.close()
        except Exception as error:  # noqa: BLE001 -- the interpreter ends; nobody could catch it
            _LOGGER.warning("%s", error)


def _drop_inherited() -> None:
    runtimes = list(_alive)
    _alive.clear()
    if not runtimes:
        return
    try:
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # no descriptor available: the inherited ones stay open
    for runtime in runtimes:
        runtime.drop_inherited(nowhere)
    os.close(nowhere)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
