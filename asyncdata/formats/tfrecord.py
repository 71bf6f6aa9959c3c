"""TFRecord framing: where the records in a run of bytes are, and whether their checksums match.

A record on disk, with little-endian integers and masked CRC-32C::

    | length: 8 bytes | CRC of the 8 length bytes: 4 | payload: length bytes | CRC of the payload: 4 |

:func:`frame` finds whole records and never copies a payload. Invariants:

* Until its checksum is verified, a length is only used for comparisons. ``RecordRows.need``, the only figure by which a
  caller may allocate, comes from a verified length that fits the rest of the object.
* The records in front of a damaged place are returned together with the error.
* The rows do not depend on how an object is divided: an incomplete tail is framed again when more of it has arrived.

The walk is Python (each length leads to the next). But if some consecutive records have one length, the following ones
are assumed to have it too, and are examined together. numpy verifies the length checksums, 1024 at a time. Payload
checksums are a separate step, :func:`check_payloads`, so that it can run in another process.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.errors import BrokenFrameError, CorruptRecordError
from asyncdata.formats import crc32c, crc_run
from asyncdata.formats.crc32c import Bytes
from asyncdata.formats.framing import NOWHERE, Frames, Place, Positions, Refs
from asyncdata.formats.signatures import look_of
from asyncdata.memory.leaf import BYTES, Leaf
from asyncdata.memory.structure import LEAF, Structure
from asyncdata.wording import counted

HEADER_BYTES: Final = 12
FOOTER_BYTES: Final = 4
FRAME_BYTES: Final = HEADER_BYTES + FOOTER_BYTES
"""What a record of length 0 occupies."""

_CHECK_EVERY: Final = 1024
_ALIKE: Final = 4
"""So many records of one length in a row make it worth while to look for more of them at once."""

_FEW: Final = 32
"""Up to so many records, looking at one after the other is cheaper than at all of them at once."""

_FEW_CHECKS: Final = 256
"""Up to so many payload checksums, verifying one after the other is faster than all of them in one."""

_MOST_CHECKED_BYTES: Final = 8 << 20
"""Of records that are verified at a time on a loop: about a millisecond's work."""

_BEHIND_DAMAGE: Final = 16
"""Records framed at first behind a damaged one: those behind the next damaged one are verified again."""

_MAX_ROW_LENGTH: Final = (1 << 63) - 1
_length_at = struct.Struct("<Q").unpack_from
_word_at = struct.Struct("<I").unpack_from
_header = struct.Struct("<QI").pack
_pack_length = struct.Struct("<Q").pack
_pack_word = struct.Struct("<I").pack
_NOWHERE: Final = Place()


class RecordRows(NamedTuple):
    """What :func:`frame` found.

    Attributes:
        rows: int64[n, 2], one row per whole record: offset of the payload in the view, and its length. The payload's
            stored checksum lies at offset + length.
        stop: Position in the view after the last whole record; what follows is the cut-off tail, or the damage.
        need: Size of the whole frame that begins at ``stop``, once its 12-byte header is there and verified; else 0.
        error: Why nothing after ``stop`` can be framed; None when all is well.
    """

    rows: npt.NDArray[np.int64]
    stop: int
    need: int
    error: BrokenFrameError | None


def frame(
    view: memoryview,
    start: int,
    stop: int,
    *,
    limit: int = 0,
    remaining: int | None = None,
    check: bool = True,
    place: Place = _NOWHERE,
) -> RecordRows:
    """Finds the whole records in ``view[start:stop]``.

    Args:
        view: A contiguous view of bytes; the rows are offsets into it.
        start: Where a record begins.
        stop: End of the bytes that are there.
        limit: The most records to return; 0 for all. When it is reached, what follows is not looked at.
        remaining: Bytes of the object from ``start`` on, where known. A record that would reach beyond them is an
            error; so is a cut-off tail once ``remaining == stop - start``, which is how to say "this is all".
        check: Verify the length checksums.
        place: The place of ``start``, for errors.

    Returns:
        The rows, and either a tail to be completed or an error; see :class:`RecordRows`.
    """
    if not 0 <= start <= stop <= len(view):
        raise ValueError(f"start {start} and stop {stop} do not lie in a view of {len(view)} bytes")
    if remaining is not None and remaining < stop - start:
        raise ValueError(f"{stop - start} bytes are given, but only {remaining} remain according to the caller")
    array = np.frombuffer(view, np.uint8)
    blocks: list[npt.NDArray[np.int64]] = []
    position, count, bad = start, 0, False
    while not bad:
        want = min(_CHECK_EVERY, limit - count) if limit else _CHECK_EVERY
        starts = _walk(view, array, position, stop, want)
        whole = len(starts) - 1
        bounds = np.array(starts, np.int64)
        if check and whole:
            good = _verified(array, bounds) if whole > _FEW else _verified_singly(view, starts[:-1])
            bad = good < whole
            bounds = bounds[: good + 1]
        rows = np.empty((len(bounds) - 1, 2), np.int64)
        np.add(bounds[:-1], HEADER_BYTES, out=rows[:, 0])
        np.subtract(bounds[1:], bounds[:-1], out=rows[:, 1])
        rows[:, 1] -= FRAME_BYTES
        blocks.append(rows)
        position = int(bounds[-1])
        count += len(rows)
        if whole < want or count == limit:
            break
    rows = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    if count == limit and limit and not bad:
        return RecordRows(rows, position, 0, None)
    left = None if remaining is None else remaining - (position - start)
    place = dataclasses.replace(place, offset=place.offset + position - start, record=place.record + count)
    need, error = _tail(view, position, stop, left=left, check=check, place=place)
    return RecordRows(rows, position, need, error)


def _walk(
    view: memoryview, array: npt.NDArray[np.uint8], position: int, stop: int, count: int
) -> list[int] | npt.NDArray[np.int64]:
    """Starts of up to ``count`` whole records from ``position`` on, and the position after the last."""
    starts = _walk_on(view, [position], stop, min(count, _ALIKE))
    if len(starts) > _ALIKE and min(count, (stop - position) // (starts[1] - position)) <= _FEW:
        return _walk_on(view, starts, stop, count - _ALIKE)
    if len(starts) <= _ALIKE:
        return starts
    step = starts[1] - position
    if starts[-1] - position == step * _ALIKE:
        alike = _walk_alike(array, starts[-1], stop, count - _ALIKE, step)
        if len(alike) >= _ALIKE:
            rest = _walk_on(view, alike[-1:].tolist(), stop, count - _ALIKE - len(alike))
            return np.concatenate((np.array(starts, np.int64), alike, np.array(rest[1:], np.int64)))
    return _walk_on(view, starts, stop, count - _ALIKE)


def _walk_on(view: memoryview, starts: list[int], stop: int, count: int) -> list[int]:
    """The same starts and up to ``count`` further ones."""
    add = starts.append
    position = starts[-1]
    last_header = stop - HEADER_BYTES
    for _ in range(count):
        if position > last_header:
            break
        position += FRAME_BYTES + _length_at(view, position)[0]
        if position > stop:
            break
        add(position)
    return starts


def _walk_alike(array: npt.NDArray[np.uint8], position: int, stop: int, count: int, step: int) -> npt.NDArray[np.int64]:
    """Where the next records end that occupy ``step`` bytes like those before, up to the first other one."""
    starts = position + step * np.arange(min(count, (stop - position) // step))
    lengths = np.ndarray((len(array) - 7,), "<u8", array, strides=(1,))[starts]
    other = lengths != step - FRAME_BYTES
    first = int(other.argmax()) if len(other) else 0
    return starts[:first] + step if len(other) and other[first] else starts + step


def _verified(array: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> int:
    """How many headers, from the first on, have a length checksum that holds; of records between these bounds."""
    lengths = np.diff(bounds) - FRAME_BYTES
    stored = np.ndarray((len(array) - 3,), "<u4", array, strides=(1,))[bounds[:-1] + 8]
    # Records of one length have one checksum.
    distinct = lengths[:1] if (lengths == lengths[0]).all() else lengths
    wrong = crc32c.masked_length_checksums(distinct) != stored
    first = int(wrong.argmax())
    return first if wrong[first] else len(lengths)


def _verified_singly(view: memoryview, starts: Iterable[int]) -> int:
    """The same, one by one."""
    good = 0
    for start in starts:
        if crc32c.masked_checksum(view[start : start + 8]) != _word_at(view, start + 8)[0]:
            break
        good += 1
    return good


def _tail(
    view: memoryview, position: int, stop: int, *, left: int | None, check: bool, place: Place
) -> tuple[int, BrokenFrameError | None]:
    """Judges the record that begins at ``position`` and is not whole, if there is one."""
    if stop - position < HEADER_BYTES:
        if left is not None and 0 < left < FRAME_BYTES:
            text = (
                f"the file ends inside a record: {counted(left, 'byte is', 'bytes are')} too few for the smallest one"
            )
            return 0, place.error(BrokenFrameError, text)
        return 0, None
    (length,) = _length_at(view, position)
    if check and crc32c.masked_checksum(view[position : position + 8]) != _word_at(view, position + 8)[0]:
        hint = _recognise(view, position, stop) if place.offset == 0 else ""
        text = f"the length checksum of a record does not match (its length field contains {length}){hint}"
        return 0, place.error(BrokenFrameError, text)
    need = FRAME_BYTES + length
    if left is not None and need > left:
        text = (
            f"the file is truncated: a record of {counted(length, 'byte')} begins here, and "
            f"{counted(need - left, 'byte of it is', 'bytes of it are')} missing"
        )
        return 0, place.error(BrokenFrameError, text)
    if length > _MAX_ROW_LENGTH - FRAME_BYTES:
        return 0, place.error(BrokenFrameError, f"a record claims to have {counted(length, 'byte')}")
    return need, None


def _recognise(view: memoryview, position: int, stop: int) -> str:
    head = bytes(view[position : min(position + 8, stop)])
    look = look_of(head)
    found = f"it looks like {look}" if look else f"first bytes {head.hex(' ')}"
    return f"; the file does not begin like a TFRecord file ({found})"


def check_payloads(view: memoryview | npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Verifies payload checksums; returns the positions in ``rows`` of those that do not hold, ascending.

    Args:
        view: The bytes that ``rows`` refers to; each payload's stored checksum follows it.
        rows: int64[n, 2] as in ``RecordRows.rows``.
    """
    if not len(rows):
        return np.empty(0, np.int64)
    data = view.data if isinstance(view, np.ndarray) else view
    array = np.frombuffer(data, np.uint8)
    # Loops without a step of Python in them: the checksum of a small payload costs less than such a step.
    ends = rows[:, 0] + rows[:, 1]
    payloads = map(data.__getitem__, map(slice, rows[:, 0].tolist(), ends.tolist()))
    plain = np.fromiter(map(crc32c.checksum, payloads), np.uint32, len(rows))
    masked = (plain >> np.uint32(15)) | (plain << np.uint32(17))
    masked += np.uint32(crc32c.MASK_DELTA)
    words = np.ndarray((len(array) - FOOTER_BYTES + 1,), "<u4", array, strides=(1,))
    return np.flatnonzero(masked != words[ends])


def says_damaged(size: int) -> str:
    """What the error of a damaged record says, whoever verifies it."""
    return f"the payload checksum of a record of {counted(size, 'byte')} does not match"


def encode(payload: Bytes) -> bytes:
    """One record as it lies in a file."""
    return b"".join(_pieces(payload))


def encode_many(payloads: Iterable[Bytes]) -> bytes:
    """Records one after the other, as they lie in a file."""
    pieces: list[Bytes] = []
    for payload in payloads:
        pieces += _pieces(payload)
    return b"".join(pieces)


def _pieces(payload: Bytes) -> tuple[bytes, Bytes, bytes]:
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    length = _pack_length(size)
    return _header(size, crc32c.masked_checksum(length)), payload, _pack_word(crc32c.masked_checksum(payload))


class TFRecordFramer:
    """TFRecord files as one of the framed formats: payloads as references.

    Payload checksums of all records that are framed at once are verified, unless the reader of the records does it.

    Args:
        verify: Whether payload checksums are verified here.
        leaf: What the payloads are.

    Attributes:
        in_thread: Whether the next record is a large one that is verified.
    """

    structure: Structure = LEAF

    def __init__(self, *, verify: bool, leaf: Leaf = BYTES) -> None:
        self._verify = verify
        self._leaf = leaf
        self._most: int | None = None
        self.in_thread = False

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`."""
        del last  # a tail that nothing follows is noticed by who knows how much of it is missing
        if self._most is not None:
            limit = min(limit, self._most)
            self._most = 2 * self._most if self._most < _FEW_CHECKS else None
        rows, end, need, error = frame(view, start, stop, limit=limit, remaining=remaining, place=place)
        short = error is None and len(rows) < limit
        found = Frames(starts=NOWHERE, values=(), stop=end, need=need, error=error, short=short)
        if self._verify:
            rows = self._verified(view, rows, found, place)
        found.starts, found.values = rows[:, 0] - HEADER_BYTES, (Refs(rows, self._leaf),)
        return found

    def _verified(self, view: memoryview, rows: Positions, found: Frames, place: Place) -> Positions:
        """The records up to a damaged one, or up to as many as are verified at a time."""
        self.in_thread = False
        ends = rows[:, 0] + rows[:, 1]
        count = len(rows)
        if count > 1 and ends[-1] - rows[0, 0] > _MOST_CHECKED_BYTES:
            count = max(1, int(np.searchsorted(ends, rows[0, 0] + _MOST_CHECKED_BYTES, side="right")))
        bad = _first_bad(view, rows[:count])
        if bad is not None:
            self._most = _BEHIND_DAMAGE
            message = says_damaged(int(rows[bad, 1]))
            behind = int(rows[bad, 0] - rows[0, 0])
            found.error = place.error(CorruptRecordError, message, behind=behind, record=bad)
            found.resume = int(ends[bad]) + FOOTER_BYTES
        elif count == len(rows):
            self.in_thread = found.need > _MOST_CHECKED_BYTES
            return rows
        else:
            bad, found.error = count, None
            self.in_thread = int(rows[bad, 1]) > _MOST_CHECKED_BYTES
        found.stop, found.need, found.short = int(rows[bad, 0]) - HEADER_BYTES, 0, False
        return rows[:bad]


def _first_bad(view: memoryview, rows: Positions) -> int | None:
    """The first record that does not match its payload checksum; rows follow one another."""
    if len(rows) > _FEW_CHECKS and crc_run.holds(view, rows):
        return None
    bad = check_payloads(view, rows)
    return int(bad[0]) if len(bad) else None
