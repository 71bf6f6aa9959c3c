"""`Drain`: sends what a channel has kept because its socket was full. Apart from `channel`, which needs no asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncdata.workers.channel import Channel


class Drain:
    """Has what a channel kept sent when its socket is writable. On a loop.

    Args:
        channel: One that does not block.
        loop: Watches it.
        drained: Called whenever nothing is left.
    """

    def __init__(
        self, channel: Channel, loop: asyncio.AbstractEventLoop, drained: Callable[[], None] | None = None
    ) -> None:
        self._channel = channel
        self._loop = loop
        self._drained = drained
        self._is_on = False

    def begin_unless(self, sent: bool) -> None:
        """Begins, unless `Channel.send` says that all is on its way."""
        if not sent and not self._is_on:
            self._is_on = True
            self._loop.add_writer(self._channel.fileno(), self._go_on)

    def _go_on(self) -> None:
        if self._channel.flush():
            self.end()
            if self._drained is not None:
                self._drained()

    def end(self) -> None:
        """Sends no more."""
        if self._is_on:
            self._is_on = False
            self._loop.remove_writer(self._channel.fileno())
