"""What the interpreter's end and a fork mean for what is open: it is closed, or let go of."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Final, Protocol

_LOGGER: Final = logging.getLogger(__name__)


class Closable(Protocol):
    """A Runtime, as far as it matters here."""

    def close(self) -> None:
        """Ends everything."""

    def drop_inherited(self, nowhere: int) -> None:
        """In a forked child: points the parent's descriptors to that of the null device."""


_alive: weakref.WeakSet[Closable] = weakref.WeakSet()


def enlist(runtime: Closable) -> None:
    """It is open from now on."""
    _alive.add(runtime)


def discharge(runtime: Closable) -> None:
    """It has closed, or cannot be."""
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
        return  # no descriptor to be had: the inherited ones stay open
    for runtime in runtimes:
        runtime.drop_inherited(nowhere)
    os.close(nowhere)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
