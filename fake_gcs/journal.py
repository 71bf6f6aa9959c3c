"""What was asked of the server, when, which range, what was answered and which fault was given.

An entry appears when the request's head has been read and is filled in while the request goes on, so a request that
hangs can be seen hanging. Written by the server's thread, read by any.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

MAX_ENTRIES = 200_000
"""Entries that are kept; the oldest go first."""


@dataclass(slots=True)
class Entry:
    """One request. Fields are filled in as the request proceeds; all times are seconds of one monotonic clock.

    Attributes:
        number: From 0, in order of arrival.
        method: HTTP method.
        target: Request target as sent, percent-encoded.
        started_s: When the head had been read.
        connection: Number of the connection, from 0.
        operation: Google's name of the method; empty while the path has not been understood.
        bucket: Bucket name, or empty.
        object: Object name, or empty.
        range: The ``Range`` or ``Content-Range`` header, or empty.
        account: To whom the token of the request was issued by ``/token``, or empty.
        test_id: Of the client's test, or empty.
        status: Of the answer; None while there is none, or when a fault left none.
        received: Body bytes taken from the client.
        sent: Body bytes handed to the socket.
        first_byte_s: When the answer began; None before.
        ended_s: When it ended; None while it is still running.
        fault: The fault that was given, in one line; empty for none.
        broken: The client went away before the end.
    """

    number: int
    method: str
    target: str
    started_s: float
    connection: int
    operation: str = ""
    bucket: str = ""
    object: str = ""
    range: str = ""
    account: str = ""
    test_id: str = ""
    status: int | None = None
    received: int = 0
    sent: int = 0
    first_byte_s: float | None = None
    ended_s: float | None = None
    fault: str = ""
    broken: bool = False

    def as_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


def account_of(authorization: str) -> str:
    """The account that a token of ``/token`` names; empty for any other, which may be a real secret."""
    _, _, account = authorization.partition("Bearer fake-")
    return account


class Journal:
    """The entries, in order of arrival."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._entries: deque[Entry] = deque(maxlen=limit)
        self._count = 0
        self._changed = threading.Condition()
        self._waiting = 0

    def begin(self, method: str, target: str, connection: int) -> Entry:
        """A request arrived."""
        entry = Entry(self._count, method, target, time.monotonic(), connection)
        self._count += 1
        self._entries.append(entry)
        self.changed()
        return entry

    def changed(self) -> None:
        """An entry has something new to tell."""
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def entries(self, operation: str = "", target: str = "") -> list[Entry]:
        """The entries of an operation (``storage.objects.get``) and of one ``bucket/object``; empty for any."""
        return [
            entry
            for entry in list(self._entries)
            if (not operation or entry.operation == operation)
            and (not target or f"{entry.bucket}/{entry.object}" == target)
        ]

    def faults(self) -> list[Entry]:
        """The entries that were given a fault."""
        return [entry for entry in list(self._entries) if entry.fault]

    def clear(self) -> None:
        """Forget what was written so far; numbers continue."""
        self._entries.clear()

    def wait(self, condition: Callable[[Journal], bool], timeout_s: float = 30.0) -> bool:
        """Block until the condition holds; False when the time is over. Not for the server's own thread."""
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: condition(self), timeout_s)
            finally:
                self._waiting -= 1

    def __len__(self) -> int:
        """Number of entries kept."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Over a copy, in order of arrival."""
        return iter(list(self._entries))
