"""Streaming decompression with bounded output: GZIP (any number of members), ZLIB and ZSTD (any number of frames).

A decompressor receives pieces of the compressed object and fills buffers. It never holds more than a small piece of
output itself, so a file that expands a thousandfold is expanded one buffer at a time::

    while piece := next compressed bytes:
        decompressor.feed(piece)
        while n := decompressor.read_into(buffer):    # less than the buffer's size once the piece is used up
            ... buffer[:n] ...
    decompressor.finish()                             # raises if the stream is not at an end

The output does not depend on how the compressed bytes are divided. Streams of one format may follow one another. Zeros
behind the last GZIP member are padding; other bytes there are an error. An empty object has no output. From a damaged
GZIP or ZLIB stream, all output in front of the damage is returned before the error is raised.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, Literal, TypeAlias

from asyncdata import arguments
from asyncdata.errors import CompressionError
from asyncdata.formats import crc32c, zstd
from asyncdata.formats.signatures import look_of

CompressionType: TypeAlias = Literal["", "GZIP", "ZLIB", "ZSTD"]
COMPRESSION_TYPES: Final[tuple[CompressionType, ...]] = ("", "GZIP", "ZLIB", "ZSTD")

_WINDOW_BITS: Final = {"GZIP": 31, "ZLIB": 15}
_INPUT_BYTES: Final = 1 << 20
"""Input is handed to the decoder in pieces of this size: it copies what it did not use."""
_HEAD_BYTES: Final = 12
_GZIP_SIGNATURE: Final = b"\x1f\x8b"
_ZSTD_SIGNATURE: Final = b"\x28\xb5"


def check_compression_type(compression_type: str | None) -> CompressionType:
    """The compression named as tf.data names it; None and "" mean none.

    Raises:
        ValueError: If it is none that is known.
    """
    if compression_type is None or isinstance(compression_type, str):
        for known in COMPRESSION_TYPES:
            if known == (compression_type or ""):
                return known
    raise ValueError(
        f"compression_type must be None, '', 'GZIP', 'ZLIB' or 'ZSTD', not {arguments.shown(compression_type)}"
    )


class Decompressor:
    """One compressed object, decoded from its first byte to its last.

    Attributes:
        bytes_in: Compressed bytes used so far.
        bytes_out: Bytes given out so far.
    """

    def __init__(self, compression_type: str, *, url: str | None = None, version: str | None = None) -> None:
        kind = check_compression_type(compression_type)
        if not kind:
            raise ValueError("there is nothing to decompress without a compression_type")
        self.bytes_in = 0
        self.bytes_out = 0
        self._kind = kind
        self._url = url
        self._version = version
        self._input = memoryview(b"")
        self._head = b""
        # Taken from the input and not used yet: what the decoder left over, or the first byte of a signature.
        self._pending = b""
        # None before, between and behind the streams of the object.
        self._stream: Any = None
        self._streams = 0
        self._padding = False
        # The decoder filled all the room it had, so that it may hold more output without more input.
        self._full = False
        # Why nothing follows what was given out.
        self._damage: CompressionError | None = None

    def feed(self, data: memoryview | bytes) -> None:
        """Gives the next compressed bytes. They are referred to, not copied, until ``wants_input`` is true again.

        Raises:
            ValueError: If the bytes fed before are not used up.
        """
        if self._input:
            raise ValueError(f"{len(self._input)} bytes that were fed before are not used up")
        self._input = memoryview(data)
        if len(self._head) < _HEAD_BYTES:
            self._head += bytes(self._input[: _HEAD_BYTES - len(self._head)])

    @property
    def wants_input(self) -> bool:
        """Whether everything that was fed is used up and read."""
        started = self._stream is not None or len(self._pending) > 1
        return not (self._input or self._full or (self._pending and started) or self._damage)

    @property
    def is_damaged(self) -> bool:
        """Whether the next `read_into` raises."""
        return self._damage is not None

    def read_into(self, buffer: memoryview) -> int:
        """Fills the buffer from its start; returns how many bytes, fewer than its size once more input is needed.

        Raises:
            CompressionError: If the bytes are not of this compression, or damaged, and everything in front of that
                place was given out.
        """
        filled, size = 0, len(buffer)
        try:
            while filled < size and self._damage is None and (self._stream is not None or self._begin()):
                if not self._pending and self._input:
                    self._pending = self._take(_INPUT_BYTES)
                if not self._pending and not self._full:
                    break
                filled += self._inflate(buffer[filled:])
        except CompressionError as error:
            self._damage = error
        if self._damage is not None and not filled:
            raise self._damage
        return filled

    def finish(self) -> None:
        """Says that all compressed bytes were fed and all output was read.

        Raises:
            CompressionError: If the object ends inside a stream.
            ValueError: If output is left to be read.
        """
        if not self.wants_input:
            raise ValueError("there is output left to be read")
        if self._stream is not None or (self._pending and not self._streams):
            raise self._error(
                f"the {self._kind} stream is truncated: it has {self.bytes_in + len(self._pending)} bytes"
            )
        padding = self._kind == "GZIP" and self._pending == b"\0"
        if self._pending and not padding:
            raise self._garbage()

    def _take(self, count: int) -> bytes:
        taken = bytes(self._input[:count])
        self._input = self._input[count:]
        return taken

    def _inflate(self, room: memoryview) -> int:
        """Decodes one piece into ``room``."""
        before = len(self._pending)
        again = self._stream.copy()
        try:
            out = self._stream.decompress(self._pending, len(room))
        except (zlib.error, zstd.StreamError) as error:
            return self._salvage(again, room, error)
        room[: len(out)] = out
        self.bytes_out += len(out)
        self._full = len(out) == len(room)
        self._pending = self._stream.unconsumed_tail
        if self._stream.eof:
            self._pending = self._stream.unused_data
            self._stream = None
            self._streams += 1
            self._full = False
        self.bytes_in += before - len(self._pending)
        return len(out)

    def _salvage(self, stream: Any, room: memoryview, why: Exception) -> int:
        """Decodes byte by byte what lies in front of a damaged place, from where the decoder was before."""
        filled = 0
        # First what it holds without more input.
        steps = [b"", *(self._pending[at : at + 1] for at in range(len(self._pending)))] if stream is not None else []
        rest = b""
        for byte in steps:
            if filled == len(room):
                break
            try:
                out = stream.decompress(rest + byte, len(room) - filled)
            except zlib.error:
                break
            rest = stream.unconsumed_tail
            room[filled : filled + len(out)] = out
            filled += len(out)
        self.bytes_out += filled
        self._damage = self._error(f"the {self._kind} stream is damaged ({why})")
        return filled

    def _begin(self) -> bool:
        """Starts the next stream, if there is one and its first two bytes are here."""
        while self._kind == "GZIP" and self._streams and (self._pending or self._input):
            if not self._pending:
                self._pending = self._take(_INPUT_BYTES)
            rest = self._pending.lstrip(b"\0")
            if len(rest) != len(self._pending):
                self.bytes_in += len(self._pending) - len(rest)
                self._pending, self._padding = rest, True
            if rest:
                break
        if self._padding and self._pending:
            raise self._garbage()
        if len(self._pending) < 2:
            self._pending += self._take(2 - len(self._pending))
        if len(self._pending) < 2:
            return False
        if not _signature(self._kind, self._pending):
            raise self._garbage() if self._streams else self._error(self._unlike())
        self._stream = zstd.stream() if self._kind == "ZSTD" else zlib.decompressobj(_WINDOW_BITS[self._kind])
        return True

    def _unlike(self) -> str:
        text = f"the object is not {self._kind}: it begins with {self._head.hex(' ')}"
        if len(self._head) == _HEAD_BYTES:
            (stored,) = struct.unpack_from("<I", self._head, 8)
            if stored == crc32c.masked_checksum(self._head[:8]):
                return f"{text}, as an uncompressed TFRecord file does: pass compression_type=None"
        for kind in ("GZIP", "ZLIB", "ZSTD"):
            if _signature(kind, self._head):
                return f"{text}, which looks like {kind}: pass compression_type={kind!r}"
        if look := look_of(self._head):
            return f"{text}, which looks like {look}: leave compression_type out"
        return f"{text}; pass compression_type=None if it is not compressed"

    def _garbage(self) -> CompressionError:
        head = self._pending[:8].hex(" ")
        return self._error(
            f"behind the end of the {self._kind} stream, at compressed byte {self.bytes_in}, lies {head}"
        )

    def _error(self, message: str) -> CompressionError:
        return CompressionError(message, url=self._url, version=self._version, offset=self.bytes_out)


def _signature(kind: str, head: bytes) -> bool:
    """Whether a stream of this kind can begin with these bytes, of which there are at least two."""
    if kind == "GZIP":
        return head.startswith(_GZIP_SIGNATURE)
    if kind == "ZSTD":
        # A frame, or one that decoders pass over.
        return head.startswith(_ZSTD_SIGNATURE) or (head[1] == 0x2A and 0x50 <= head[0] <= 0x5F)
    return head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0
