"""Records between the parent and the executor of a task: small, with fixed fields, packed by struct."""

from __future__ import annotations

import functools
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from asyncdata.memory.layout import Layout
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.pickling import dumps
from asyncdata.memory.structure import Structure
from asyncdata.memory.unlike import Kinds
from asyncdata.memory.wire import Shape

_HEADER: Final = struct.Struct("<qqqqqqqQQqqqq?")
_REPLY: Final = struct.Struct("<bqqqqqdQ")
DONE: Final = 0
RAGGED: Final = 1
NO_SPAN: Final = -1
NO_ROOM: Final = (NO_SPAN, 0)
RESULTS: Final = 0
PAYLOADS: Final = 1
"""What a task needs memory for: the slab of the whole batch, which all its tasks share, and payloads of its own."""
DAMAGED: Final = b""
"""Stands for the exception of a row whose payload's checksum does not hold."""
HUNG: Final = b"-"
"""Stands for the exception of a row on which a function has not returned; only the parent process knows more."""
_UNLIKE: Final = b"="
"""Begins what stands for the exception of a row that makes no batch with others: `Kinds` of all rows of the task."""


@dataclass(frozen=True, slots=True)
class Task:
    """One call's work.

    Attributes:
        offset: Of the packed block in the arena; `NO_SPAN` when it is in the message.
        count: Rows of this task.
        batch_size: Rows of the batch that the results belong to.
        batch_start: Which row of the batch the first result is.
        keys: Key of the random generators: seed, and a mix of epoch and stage.
        with_origin: Whether provenance is packed with the rows.
        shape: The pickled `Shape` of the packed block.
        inline: The packed block itself, when it is in the message.
        hung: Rows that no function is called for again: on these one did not return, and its process was ended.
        most_bytes: Of the results, unless they are one row's: the rows behind are left for another task. 0: no limit.
        results: Offset and size of the memory that was taken for `RESULTS`.
        payloads: Likewise for `PAYLOADS`.
    """

    offset: int
    count: int
    batch_size: int
    batch_start: int
    keys: tuple[int, int]
    with_origin: bool
    shape: bytes
    inline: bytes = b""
    hung: tuple[int, ...] = ()
    most_bytes: int = 0
    results: tuple[int, int] = NO_ROOM
    payloads: tuple[int, int] = NO_ROOM

    def encode(self) -> bytes:
        """The message."""
        numbers = self.offset, self.count, self.batch_size, self.batch_start, self.most_bytes
        rooms = (*self.results, *self.payloads)
        head = _HEADER.pack(*numbers, len(self.shape), len(self.hung), *self.keys, *rooms, self.with_origin)
        return head + struct.pack(f"<{len(self.hung)}q", *self.hung) + self.shape + self.inline

    @classmethod
    def decode(cls, payload: bytes) -> Task:
        """The task a message describes."""
        numbers = _HEADER.unpack_from(payload)
        offset, count, size, start, most, shape_bytes, rows, key0, key1, *rooms, with_origin = numbers
        hung = struct.unpack_from(f"<{rows}q", payload, _HEADER.size)
        begin = _HEADER.size + 8 * rows
        border = begin + shape_bytes
        shape, inline = payload[begin:border], payload[border:]
        results, payloads = tuple(rooms[:2]), tuple(rooms[2:])
        return cls(offset, count, size, start, (key0, key1), with_origin, shape, inline, hung, most, results, payloads)


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a task.

    Attributes:
        status: `DONE` or `RAGGED`: how the results lie.
        count: Rows that have results: all but those that failed, and those behind a failure that ended the task.
        offset: Of the batch slab (`DONE`), or of the row tables (`RAGGED`).
        payloads: Offset of the slab of payloads, or `NO_SPAN`.
        seconds: What the task cost the worker.
        body: Pickled `Layout` (`DONE`) or `RaggedRows` (`RAGGED`); empty without results.
        failed: What `encode_failed` makes of the rows that failed; empty without any.
        used: Rows that the task is done with; those behind are left for another one.
        payload_bytes: What the payloads take.
    """

    status: int
    count: int
    offset: int
    payloads: int
    seconds: float
    body: bytes
    failed: bytes = b""
    used: int = 0
    payload_bytes: int = 0

    def encode(self) -> bytes:
        """The message."""
        numbers = self.status, self.count, self.offset, self.payloads, self.used, self.payload_bytes
        head = _REPLY.pack(*numbers, self.seconds, len(self.failed))
        return head + self.failed + self.body

    @classmethod
    def decode(cls, message: bytes) -> Reply:
        """The reply a message holds."""
        status, count, offset, payloads, used, payload_bytes, seconds, failed_bytes = _REPLY.unpack_from(message)
        border = _REPLY.size + failed_bytes
        body, failed = message[border:], message[_REPLY.size : border]
        return cls(status, count, offset, payloads, seconds, body, failed, used, payload_bytes)


def encode_failed(failed: Sequence[tuple[int, bytes]]) -> bytes:
    """Rows that failed, in ascending order, each with its encoded exception, or `DAMAGED`."""
    return pickle.dumps(failed, 5) if failed else b""


def decode_failed(data: bytes) -> list[tuple[int, bytes]]:
    """The inverse of `encode_failed`."""
    if not data:
        return []
    failed: list[tuple[int, bytes]] = pickle.loads(data)  # noqa: S301 -- from a worker process of this pipeline
    return failed


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """Results that are not alike, one payload per row and leaf.

    Attributes:
        structure: How the leaves nest.
        leaves: Per leaf, what each row is.
        nests: Whether rows are whole elements, nests among them, because they do not all nest alike.
    """

    structure: Structure
    leaves: tuple[tuple[Leaf, ...], ...]
    nests: bool = False


@functools.lru_cache(maxsize=64)
def decode_layout(body: bytes) -> Layout:
    """The layout in the body of a reply; tasks of one stage bring the same one over and over."""
    layout: Layout = pickle.loads(body)  # noqa: S301 -- from a worker process of this pipeline
    return layout


def encode_unlike(kinds: Kinds) -> bytes:
    """What stands for the exception of a row."""
    return _UNLIKE + dumps(kinds)


def decode_unlike(failed: bytes) -> Kinds | None:
    """What the rows of a task are that failed because these make no batch; None if that is not why."""
    for _, blob in decode_failed(failed):
        if blob.startswith(_UNLIKE):
            kinds: Kinds = pickle.loads(blob[len(_UNLIKE) :])  # noqa: S301 -- from a worker process of this pipeline
            return kinds
    return None


@functools.lru_cache(maxsize=64)
def encode_shape(shape: Shape) -> bytes:
    """The pickled shape that tasks carry."""
    return dumps(shape)


@functools.lru_cache(maxsize=64)
def decode_shape(data: bytes) -> Shape:
    """The shape that a task carries."""
    shape: Shape = pickle.loads(data)  # noqa: S301 -- made by the parent process of this pipeline
    return shape
