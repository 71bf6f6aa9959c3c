"""What travels between the parent and whoever executes a task: small records of fixed fields, packed by struct."""

from __future__ import annotations

import functools
import pickle
import struct
from dataclasses import dataclass
from typing import Final

from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import Structure
from asyncdata.memory.wire import Shape

_HEADER: Final = struct.Struct("<qqqqqQQ?")
_REPLY: Final = struct.Struct("<bqqqd")
DONE: Final = 0
RAGGED: Final = 1
FAILED: Final = 2
CORRUPT: Final = 3
NO_SPAN: Final = -1


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
    """

    offset: int
    count: int
    batch_size: int
    batch_start: int
    keys: tuple[int, int]
    with_origin: bool
    shape: bytes
    inline: bytes = b""

    def encode(self) -> bytes:
        """The message."""
        head = _HEADER.pack(
            self.offset, self.count, self.batch_size, self.batch_start, len(self.shape), *self.keys, self.with_origin
        )
        return head + self.shape + self.inline

    @classmethod
    def decode(cls, payload: bytes) -> Task:
        """The task a message describes."""
        offset, count, size, start, shape_bytes, key0, key1, with_origin = _HEADER.unpack_from(payload)
        border = _HEADER.size + shape_bytes
        shape, inline = payload[_HEADER.size : border], payload[border:]
        return cls(offset, count, size, start, (key0, key1), with_origin, shape, inline)


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a task.

    Attributes:
        status: `DONE`, `RAGGED`, `FAILED` or `CORRUPT`.
        row: The row at which it failed.
        offset: Of the batch slab (`DONE`), or of the row tables (`RAGGED`).
        payloads: Offset of the slab of payloads, or `NO_SPAN`.
        seconds: What the task cost the worker.
        body: Pickled `Layout` (`DONE`), pickled `RaggedRows` (`RAGGED`), an encoded exception (`FAILED`).
    """

    status: int
    row: int
    offset: int
    payloads: int
    seconds: float
    body: bytes

    def encode(self) -> bytes:
        """The message."""
        return _REPLY.pack(self.status, self.row, self.offset, self.payloads, self.seconds) + self.body

    @classmethod
    def decode(cls, message: bytes) -> Reply:
        """The reply a message holds."""
        status, row, offset, payloads, seconds = _REPLY.unpack_from(message)
        return cls(status, row, offset, payloads, seconds, message[_REPLY.size :])


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """Results that are not alike, one payload per row and leaf.

    Attributes:
        structure: How the leaves nest.
        leaves: Per leaf, what each row is.
    """

    structure: Structure
    leaves: tuple[tuple[Leaf, ...], ...]


@functools.lru_cache(maxsize=64)
def encode_shape(shape: Shape) -> bytes:
    """The pickled shape that tasks carry."""
    return pickle.dumps(shape, 5)


@functools.lru_cache(maxsize=64)
def decode_shape(data: bytes) -> Shape:
    """The shape that a task carries."""
    shape: Shape = pickle.loads(data)  # noqa: S301 -- made by the parent process of this pipeline
    return shape
