"""TFRecord files as one of the framed formats: payloads as references, their checksums still to be verified.

The checksums of lengths are verified here. Those of payloads lie behind them, where whoever verifies a payload finds
them; :func:`payloads_hold` does so for all that were framed at once.
"""

from __future__ import annotations

from typing import Final

from asyncdata.formats import crc_run
from asyncdata.formats.framing import Frames, Place, Positions, Refs
from asyncdata.formats.tfrecord import HEADER_BYTES, FrameContext, check_payloads, frame
from asyncdata.memory.leaf import BYTES, UNCHECKED_BYTES
from asyncdata.memory.structure import LEAF, Structure

_FEW: Final = 128
"""Up to this many records one by one is faster."""


class TFRecordFramer:
    """See the module's docstring.

    Args:
        check: Whether payload checksums are to be verified by whoever is given the records.
    """

    structure: Structure = LEAF
    in_thread = False

    def __init__(self, *, check: bool) -> None:
        self._leaf = UNCHECKED_BYTES if check else BYTES

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`."""
        del last  # a tail that nothing follows is noticed by who knows how much of it is missing
        context = FrameContext(
            url=place.url, version=place.version, object_offset=place.offset, record_index=place.record
        )
        rows, end, need, error = frame(view, start, stop, limit=limit, remaining=remaining, context=context)
        return Frames(
            starts=rows[:, 0] - HEADER_BYTES,
            values=(Refs(rows, self._leaf),),
            stop=end,
            need=need,
            error=error,
            short=error is None and len(rows) < limit,
        )


def payloads_hold(view: memoryview, rows: Positions) -> bool:
    """Whether the payload checksums of records that were framed together hold.

    Args:
        view: The bytes that `rows` refers to.
        rows: int64[n, 2], n > 0: position and length of each payload.
    """
    nbytes = int(rows[-1].sum() - rows[0, 0])
    if len(rows) > _FEW and nbytes < crc_run.MOST_BYTES:
        return crc_run.holds(view, rows)
    return not len(check_payloads(view, rows))
