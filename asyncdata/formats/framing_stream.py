"""Any framed format, plainly: pieces of an object in, records out, one by one, each a copy.

The data path of a pipeline frames in place and copies nothing; this is for tools and tests. Memory: the largest record
and one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from asyncdata.formats.crc32c import Bytes
from asyncdata.formats.framing import Framer, Frames, Place, Refs, Values
from asyncdata.memory.structure import LEAF, unflatten
from asyncdata.types import Element

_BLOCK: Final = 1024


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
                url=url, offset=place.offset + frames.stop, record=place.record + len(records), line=frames.next_line
            )
            if not records:
                break


def _and_none(pieces: Iterable[Bytes]) -> Iterator[Bytes | None]:
    yield from pieces
    yield None


def elements_of(framer: Framer, frames: Frames, view: memoryview) -> list[Element]:
    """The records as elements: private copies."""
    columns = [_items(values, view) for values in frames.values]
    if framer.structure is LEAF:
        return columns[0]
    return [unflatten(framer.structure, iter(leaves)) for leaves in zip(*columns, strict=True)]


def _items(values: Values, view: memoryview) -> list[Any]:
    if isinstance(values, Refs):
        raw = [bytes(view[start : start + size]) for start, size in values.rows.tolist()]
        return [item.decode() for item in raw] if values.leaf.kind == "str" else raw
    return list(values)
