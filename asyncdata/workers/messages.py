"""The messages between the parent and its worker processes: a fixed head and a body of raw bytes.

    parent → worker, tasks:    PROGRAM  TASK  GRANT  DENY  FORGET  NOTE
    worker → parent, tasks:    READY  NEED  REPLY  FAILED
    parent → worker, control:  WITHDRAW  SAMPLE  CLOSE
    worker → parent, control:  WITHDRAWN

A message is never longer than ``MAX_MESSAGE_BYTES``. A body that does not fit is sent in a nameless file, whose
descriptor goes with the message; the head then contains ``ATTACHED`` and the length of the body. Nothing here is
pickled.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

HEAD: Final = struct.Struct("<BB6xQQQ")
"""Kind, flags, and three numbers whose meaning depends on the kind (see ``Message``)."""

MAX_MESSAGE_BYTES: Final = 4096
MAX_INLINE_BYTES: Final = MAX_MESSAGE_BYTES - HEAD.size

ATTACHED: Final = 1
"""Flag: the body is the content of the file whose descriptor came with the message."""
PASSED: Final = 2
"""Flag: a descriptor came with the message, for the receiver to keep."""

READY: Final = 1
TASK: Final = 2
REPLY: Final = 3
FAILED: Final = 4
NEED: Final = 5
GRANT: Final = 6
DENY: Final = 7
PROGRAM: Final = 8
FORGET: Final = 9
WITHDRAW: Final = 10
WITHDRAWN: Final = 11
CLOSE: Final = 12
SAMPLE: Final = 13
NOTE: Final = 14


class Message(NamedTuple):
    """One message, its body fetched.

    Attributes:
        kind: One of the constants above.
        ticket: Which execution it concerns; for PROGRAM and FORGET the program's number.
        first: TASK: the program's number. NEED: bytes wanted. GRANT: offset. REPLY, FAILED: nanoseconds spent.
            SAMPLE: microseconds between two looks at its stack, 0 for none; the first one brings the file to note
            lines in. NOTE: whether it notes when it runs tasks; the first one brings the file.
        second: GRANT: size in bytes. NEED: what for, a number of the program's. With a body: its length.
        body: Payload, reply, program or encoded failure.
        fd: A descriptor that was handed over, the receiver's from now on; -1 without one.
        lost: Why the body, or the descriptor, did not arrive; only for receivers that say they can do without.
    """

    kind: int
    ticket: int
    first: int
    second: int
    body: bytes
    fd: int = -1
    lost: OSError | None = None
