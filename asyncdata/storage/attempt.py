"""One attempt at a range, shared by its reader and the Fetcher: limits go down, observations come up.

A reader that does not see its connection may ignore the attempt. Other readers record what they see, and the Fetcher
measures, hedges and abandons accordingly. An attempt belongs to one loop and ends with the call that received it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from asyncdata.errors import StorageError
from asyncdata.options import TimeoutOptions
from asyncdata.types import ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Time limits of one attempt; what ``TimeoutOptions`` allows at most, and what was learned at best.

    Attributes:
        connect_s: Name look-up, TCP and TLS.
        first_byte_s: From sending the request to the head of the answer.
        idle_s: The longest silence inside a body.
        least_bytes_per_s: A body that stays below this on average, looked at every ``idle_s``, is given up.
    """

    connect_s: float
    first_byte_s: float
    idle_s: float
    least_bytes_per_s: float = 0.0

    @classmethod
    def of(cls, options: TimeoutOptions) -> ReadLimits:
        """As long as the options allow."""
        return cls(
            connect_s=options.connect_s,
            first_byte_s=options.first_byte_s,
            idle_s=options.idle_s,
            least_bytes_per_s=options.least_bytes_per_s,
        )


class Wire(Protocol):
    """Who receives the answer."""

    @property
    def filled(self) -> int:
        """Bytes that are in the caller's buffer."""
        ...

    def has_input(self) -> bool:
        """Whether bytes have arrived that were not looked at yet: then this process is late, not the server."""
        ...

    def nudge(self) -> None:
        """Has what arrived delivered, however little it is."""
        ...

    def fail(self, error: StorageError) -> None:
        """Ends the attempt with an error; of a ``ReadFailedError``, ``filled`` is set."""
        ...


class Attempt:
    """See the module's text. A plain class with defaults of its own: one is made per read, and most stay as they are.

    Attributes:
        limits: None for the reader's own.
        wire: Set while an answer is awaited or received, by readers that can tell.
        connect_s: How long a new connection took; negative where a kept one served.
        asked_at: When the request was sent, on the loop's clock; negative before.
        first_byte_at: When the head of the answer had come, on the loop's clock; negative before.
        received: Bytes it had put into the caller's buffer when it ended.
        skipped: Bytes that came and were not wanted: a server without ranges sends what lies before them, too.
        resends: Requests that were sent again at once because the server had closed a kept connection.
        opened: What the head told about an object that is being opened.
        detour: Whether another attempt at the same bytes is silent: of several ways this one takes another.
    """

    limits: ReadLimits | None = None
    wire: Wire | None = None
    connect_s: float = -1.0
    asked_at: float = -1.0
    first_byte_at: float = -1.0
    received: int = 0
    skipped: int = 0
    resends: int = 0
    opened: ObjectInfo | None = None
    detour: bool = False

    def __init__(self, limits: ReadLimits | None = None) -> None:
        self.limits = limits
