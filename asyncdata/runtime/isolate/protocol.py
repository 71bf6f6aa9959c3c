"""The messages between the consumer's process and its loader process.

    consumer → loader, control:     OPEN  TRACE  RUN  NOTES  ASK
    loader → consumer, control:     ANSWER  FAREWELL
    loader → consumer, a pipeline:  ARENA  SHAPE  DELIVERY  FAILED  END  STUCK  LAST_STATS     its end: all is put back
    consumer → loader, its life:    CLOSE                                   its end: the consumer is dead
    consumer → loader, a pipeline:  nothing                                 its end: the consumer is gone

A note is three numbers: its kind, its subject, and a value. Notes are small and frequent, and finalizers write them, so
they are sent together. Each may arrive twice, and none depends on the order of the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

OPEN: Final = 1
"""Ticket: number of a pipeline. Its socket comes with it."""
RUN: Final = 2
"""Ticket: number of the pipeline; first: length. The file with what is to be run comes with it."""
NOTES: Final = 3
ASK: Final = 4
"""Ticket: number of the question; first: of the pipeline whose snapshot is wanted."""
ANSWER: Final = 5
"""Ticket: number of the question; the body is the pickled snapshot."""
FAREWELL: Final = 6
"""The loader has put everything back; a body is what stood in the way."""
ARENA: Final = 7
"""First: length. The descriptor comes with it, before the first delivery."""
SHAPE: Final = 8
"""The body is the pickled structure of the deliveries that follow."""
DELIVERY: Final = 9
"""Ticket: number of the delivery, for RELEASED; first: TO_COPY or 0."""
DELIVERY_FILE: Final = 10
"""As DELIVERY; second: length of the file that comes with it, in place of a body."""
FAILED: Final = 11
"""The pipeline's error; first: whether a worker process had it before."""
END: Final = 12
STUCK: Final = 13
"""The pipeline that the consumer has left does not end; the body is an error that tells why."""
LAST_STATS: Final = 14
"""The body is the pickled snapshot of a pipeline that has been put back."""
CLOSE: Final = 15
TRACE: Final = 16
"""Ticket: number of the pipeline. The file in which it notes what it does comes with it."""

TO_COPY: Final = 1

RELEASED: Final = 1
"""Of a delivery: nobody views it any more. Value: 0."""
TAKEN: Final = 2
"""Of a pipeline: how many deliveries the consumer has taken."""
WAITING: Final = 3
"""Of a pipeline: the consumer waits, having taken so many deliveries; or -1, it does not."""
LEFT: Final = 4
"""Of a pipeline: the consumer is gone; what was sent after so many deliveries it has never seen."""

MESSAGE_BYTES: Final = 1 << 16
"""Of control and pipeline sockets: rows of a large delivery still go in one message."""
MOST_NOTES: Final = 1024

_NOTE: Final = struct.Struct("<qqq")


class Note(NamedTuple):
    """See the module."""

    kind: int
    concerns: int
    value: int


def pack_notes(notes: Sequence[Note]) -> bytes:
    """The body of NOTES, for at most `MOST_NOTES`."""
    return b"".join([_NOTE.pack(*note) for note in notes])


def unpack_notes(body: bytes) -> Iterator[Note]:
    """What `pack_notes` packed."""
    return (Note(*numbers) for numbers in _NOTE.iter_unpack(body))
