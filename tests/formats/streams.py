"""Any framed format, plainly: pieces of an object in, records out, one by one, each a copy.

The data path of a pipeline frames in place and copies nothing; here its framers are tried on objects cut anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from asyncdata.errors import CorruptRecordError, DataError
from asyncdata.formats.compression import Decompressor, check_compression_type
from asyncdata.formats.crc32c import Bytes
from asyncdata.formats.framing import Framer, Frames, Place, Refs, Values
from asyncdata.formats.tfrecord import check_payloads, frame
from asyncdata.memory.structure import LEAF, unflatten
from asyncdata.types import Element

_BLOCK: Final = 1024
_OUTPUT_BYTES: Final = 1 << 16


def iter_framed(
    framer: Framer, pieces: Iterable[Bytes], *, url: str | None = None, size: int | None = None, block: int = _BLOCK
) -> Iterator[Element]:
    """Yields the records of one object.

    Args:
        framer: Of the format.
        pieces: The object's bytes in order, cut anywhere.
        url: The object, for errors.
        size: Its size, where known.
        block: Records framed at a time.

    Raises:
        DataError: If the bytes are not what the format promises.
    """
    held = bytearray()
    place = Place(url=url)
    for piece in _and_none(pieces):
        held += piece or b""
        while True:
            remaining = None if size is None else size - place.offset
            with memoryview(held) as view:
                frames = framer.frame(
                    view, 0, len(view), limit=block, remaining=remaining, last=piece is None, place=place
                )
                records = elements_of(framer, frames, view)
            yield from records
            if frames.error is not None:
                raise frames.error
            if frames.ended or (piece is None and frames.stop == len(held)):
                return
            del held[: frames.stop]
            place = Place(
                url=url,
                offset=place.offset + frames.stop,
                record=place.record + len(records),
                line=frames.next_line,
                columns=frames.columns,
            )
            if not records:
                break


def _and_none(pieces: Iterable[Bytes]) -> Iterator[Bytes | None]:
    yield from pieces
    yield None


def elements_of(framer: Framer, frames: Frames, view: memoryview) -> list[Element]:
    """The records as elements: private copies."""
    columns = [_items(values, view) for values in frames.values]
    structure = frames.structure or framer.structure
    if structure is LEAF:
        return columns[0] if columns else []
    return [unflatten(structure, iter(leaves)) for leaves in zip(*columns, strict=True)]


def _items(values: Values, view: memoryview) -> list[Any]:
    if isinstance(values, Refs):
        raw = [bytes(view[start : start + size]) for start, size in values.rows.tolist()]
        return [item.decode() for item in raw] if values.leaf.kind == "str" else raw
    return list(values)


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
        place = Place(url=url, version=version, offset=offset, record=index)
        used, payloads, error = _cut(held, place, check=check, last=False)
        yield from payloads
        if error is not None:
            raise error
        del held[:used]
        offset += used
        index += len(payloads)
    place = Place(url=url, version=version, offset=offset, record=index)
    _, _, error = _cut(held, place, check=check, last=True)
    if error is not None:
        raise error


def _cut(held: bytearray, place: Place, *, check: bool, last: bool) -> tuple[int, list[bytes], DataError | None]:
    """Bytes used, payloads, and why nothing follows them."""
    with memoryview(held) as view:
        frames = frame(view, 0, len(view), remaining=len(view) if last else None, check=check, place=place)
        rows = frames.rows
        error: DataError | None = frames.error
        bad = check_payloads(view, rows) if check else rows[:0, 0]
        if len(bad):
            behind = int(rows[bad[0], 0] - rows[0, 0])
            error = place.error(
                CorruptRecordError, "a payload checksum does not match", behind=behind, record=int(bad[0])
            )
            rows = rows[: bad[0]]
        return frames.stop, [bytes(view[start : start + size]) for start, size in rows.tolist()], error


def _decompressed(pieces: Iterable[Bytes], decompressor: Decompressor) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_OUTPUT_BYTES))
    for piece in pieces:
        decompressor.feed(bytes(piece))
        while count := decompressor.read_into(buffer):
            yield buffer[:count]
    decompressor.finish()
