"""TFRecord, plainly: pieces of an object in, payloads out, one by one, each a copy.

The data path of a pipeline frames in place and copies nothing; this is for tools, for tests, and for reading a file
whose size does not matter. Memory: one record and one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncdata.errors import DataError
from asyncdata.formats.compression import Decompressor, check_compression_type
from asyncdata.formats.crc32c import Bytes
from asyncdata.formats.tfrecord import FrameContext, check_payloads, frame, payload_error

_OUTPUT_BYTES = 1 << 16


def iter_records(
    pieces: Iterable[Bytes],
    *,
    compression_type: str | None = None,
    check: bool = True,
    url: str | None = None,
    version: str | None = None,
) -> Iterator[bytes]:
    """Yields the payloads of one object.

    Args:
        pieces: Its bytes in order, cut anywhere. A piece is not referred to after the next one is asked for.
        compression_type: As tf.data names it.
        check: Verify the checksums.
        url: The object, for errors.
        version: Its version, for errors.

    Raises:
        BrokenFrameError: If the framing is damaged or the object is cut short.
        CorruptRecordError: If a payload checksum does not match.
        CompressionError: If the compression is another one, damaged or cut short.
    """
    if check_compression_type(compression_type):
        decompressor = Decompressor(compression_type or "", url=url, version=version)
        pieces = _decompressed(pieces, decompressor)
    held = bytearray()
    offset = index = 0
    for piece in pieces:
        held += piece
        place = FrameContext(url=url, version=version, object_offset=offset, record_index=index)
        used, payloads, error = _cut(held, place, check=check, last=False)
        yield from payloads
        if error is not None:
            raise error
        del held[:used]
        offset += used
        index += len(payloads)
    place = FrameContext(url=url, version=version, object_offset=offset, record_index=index)
    _, _, error = _cut(held, place, check=check, last=True)
    if error is not None:
        raise error


def _cut(held: bytearray, place: FrameContext, *, check: bool, last: bool) -> tuple[int, list[bytes], DataError | None]:
    """Bytes used, payloads, and why nothing follows them."""
    with memoryview(held) as view:
        frames = frame(view, 0, len(view), remaining=len(view) if last else None, check=check, context=place)
        rows = frames.rows
        error: DataError | None = frames.error
        bad = check_payloads(view, rows) if check else rows[:0, 0]
        if len(bad):
            error = payload_error(int(bad[0]), rows, context=place)
            rows = rows[: bad[0]]
        return frames.stop, [bytes(view[start : start + size]) for start, size in rows.tolist()], error


def _decompressed(pieces: Iterable[Bytes], decompressor: Decompressor) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_OUTPUT_BYTES))
    for piece in pieces:
        decompressor.feed(bytes(piece))
        while count := decompressor.read_into(buffer):
            yield buffer[:count]
    decompressor.finish()
