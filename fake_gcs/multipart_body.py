r"""Takes ``multipart/related`` apart while it streams: a metadata part, then a media part of any size.

Both CR LF and bare LF line ends are taken; the first line decides which of them the body uses, so a media part may
itself contain or end in either. Memory is bounded: of the media part only as much is held back as could be the
beginning of a delimiter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from email.message import Message

from fake_gcs.errors import invalid

_MAX_METADATA_BYTES = 4 << 20
_MAX_PART_HEAD_BYTES = 16 * 1024
_MAX_BOUNDARY = 200


def boundary_of(content_type: str, kind: str) -> bytes:
    """The boundary of a ``multipart/<kind>`` content type.

    Raises:
        GCSError: 400 when it is another type or has no usable boundary.
    """
    message = Message()
    message["content-type"] = content_type
    boundary = message.get_param("boundary")
    if message.get_content_type() != f"multipart/{kind}" or not isinstance(boundary, str):
        raise invalid(f"The body must be multipart/{kind} with a boundary.")
    boundary = boundary.rstrip()
    if not 1 <= len(boundary) <= _MAX_BOUNDARY or not boundary.isascii():
        raise invalid("The multipart boundary is malformed.")
    return boundary.encode()


class RelatedParser:
    """Two parts: the first is collected in ``metadata``, the second goes to ``media`` piece by piece.

    Attributes:
        metadata: Body of the first part, once it is complete.
        media_type: Content type of the second part; empty when it names none.
        done: The closing delimiter was seen.
    """

    def __init__(self, boundary: bytes, begin_media: Callable[[RelatedParser], Callable[[bytes], None]]) -> None:
        self._boundary = boundary
        self._begin_media = begin_media
        self._write: Callable[[bytes], None] | None = None
        self._buffer = bytearray()
        self._line_end = b""
        self._step: Callable[[], bool] = self._opening
        self.metadata = b""
        self.media_type = ""
        self.done = False

    def write(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            GCSError: 400 for anything that is not two parts.
        """
        if self.done:
            return
        self._buffer += data
        while self._step():
            pass

    def finish(self) -> None:
        """The body is over; 400 unless the closing delimiter was there."""
        if not self.done:
            raise invalid("Missing end boundary in multipart body.", code="BadContent")

    def _opening(self) -> bool:
        """Skip the preamble up to the first delimiter line; it tells the line ends."""
        mark = b"--" + self._boundary
        at = 0 if self._buffer.startswith(mark) else self._buffer.find(b"\n" + mark)
        if at < 0 or len(self._buffer) < at + len(mark) + 3:
            if len(self._buffer) > _MAX_PART_HEAD_BYTES:
                raise invalid("The multipart body has no opening boundary.")
            return False
        if at or self._buffer[0:1] == b"\n":
            at += 1
        rest = self._buffer[at + len(mark) :].lstrip(b" \t")
        for line_end in (b"\r\n", b"\n"):
            if rest.startswith(line_end):
                self._line_end = line_end
                self._buffer = rest[len(line_end) :]
                self._step = self._first_head
                return True
        raise invalid("The multipart body is malformed.")

    def _take_head(self) -> Message | None:
        """Part headers up to the blank line."""
        if self._buffer.startswith(self._line_end):
            del self._buffer[: len(self._line_end)]
            return Message()
        blank = re.search(rb"\r?\n\r?\n", self._buffer)
        if blank is None:
            if len(self._buffer) > _MAX_PART_HEAD_BYTES:
                raise invalid("The headers of a part are too long.")
            return None
        head = Message()
        for line in bytes(self._buffer[: blank.start()]).decode("latin-1").splitlines():
            name, colon, value = line.partition(":")
            if not colon:
                raise invalid("A part header is malformed.")
            head[name.strip()] = value.strip()
        del self._buffer[: blank.end()]
        return head

    def _first_head(self) -> bool:
        if self._take_head() is None:
            return False
        self._step = self._first_body
        return True

    def _first_body(self) -> bool:
        mark = self._line_end + b"--" + self._boundary
        at = self._buffer.find(mark)
        if at < 0 and self._buffer.startswith(mark[len(self._line_end) :]):
            at, mark = 0, mark[len(self._line_end) :]
        if at < 0 or len(self._buffer) < at + len(mark) + 2:
            if len(self._buffer) > _MAX_METADATA_BYTES:
                raise invalid("The metadata part is too long.")
            return False
        self.metadata = bytes(self._buffer[:at])
        rest = self._buffer[at + len(mark) :].lstrip(b" \t")
        if not rest.startswith(self._line_end):
            raise invalid("The multipart body needs two parts.")
        self._buffer = rest[len(self._line_end) :]
        self._step = self._second_head
        return True

    def _second_head(self) -> bool:
        head = self._take_head()
        if head is None:
            return False
        self.media_type = head.get("content-type", "")
        self._write = self._begin_media(self)
        self._buffer[:0] = self._line_end  # An empty media part may be followed by the delimiter at once.
        self._skip = len(self._line_end)
        self._step = self._media
        return True

    def _media(self) -> bool:
        mark = self._line_end + b"--" + self._boundary
        at = self._buffer.find(mark)
        if at < 0:
            self._emit(max(self._skip, len(self._buffer) - len(mark) - 2))
            return False
        after = bytes(self._buffer[at + len(mark) : at + len(mark) + 2])
        if after == b"--":
            self._emit(max(at, self._skip))
            self._buffer.clear()
            self.done = True
            return False
        if len(after) < 2 and b"--".startswith(after):
            self._emit(max(self._skip, at))
            return False
        if after.startswith((b"\n", b"\r\n")):
            raise invalid("The multipart body must have exactly two parts.")
        self._emit(at + len(mark))
        return True

    def _emit(self, stop: int) -> None:
        if stop > self._skip and self._write is not None:
            self._write(bytes(self._buffer[self._skip : stop]))
            del self._buffer[:stop]
            self._skip = 0
