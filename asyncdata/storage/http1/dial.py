"""A connected socket to whichever address of a host answers first.

A name may mean several addresses, of which some lead nowhere: an IPv6 route that swallows packets, a machine that is
gone. Waiting for the first until the time limit, attempt after attempt, would never reach the second. So the next
address is tried as well when one has not answered within a quarter of a second, and the first that answers is taken
(RFC 8305).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import aiohappyeyeballs

_NEXT_AFTER_S: Final = 0.25


async def dial(host: str, port: int) -> socket.socket:
    """Looks the name up and connects; cancelled, it leaves no socket.

    Raises:
        OSError: The name is not known, or no address of it can be connected to.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # One family after the other, as each may be broken as a whole.
    return await aiohappyeyeballs.start_connection(
        [(family, kind, number, "", address) for family, kind, number, _, address in found],
        happy_eyeballs_delay=_NEXT_AFTER_S,
        interleave=1,
        loop=loop,
    )
