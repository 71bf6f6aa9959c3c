"""The loops over bytes that numba compiles; the only file that imports it, and imported only where it is wanted.

Every kernel works on all records of a block and trusts nothing: a record with anything unusual in it is marked as not
good and left to the parser of single records, which gives its value or words its error. Positions never leave the
record, so no access is out of bounds.

Compiled code is kept in a directory that belongs to this user alone (see ``cache``); one compilation takes a few
seconds, loading it some 0.2 s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numba import types

_F = TypeVar("_F", bound=Callable[..., Any])


def _jit(function: _F) -> _F:
    compiled: Any = numba.njit(nogil=True, boundscheck=False)(function)
    return cast("_F", compiled)


@_jit
def _length(array: Any, position: Any, stop: Any) -> tuple[Any, Any]:
    """Begin and end of the field whose length is at ``position``; (-1, -1) unless it ends at or before ``stop``."""
    size: Any = 0
    for shift in range(0, 28, 7):
        if position >= stop:
            return -1, -1
        byte = np.int64(array[position])
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if size > stop - position:
                return -1, -1
            return position, position + size
    return -1, -1


@_jit
def _whole(array: Any, position: Any, stop: Any) -> Any:
    """Where the field begins whose length is at ``position`` and that ends exactly at ``stop``; -1 if it does not."""
    begin, end = _length(array, position, stop)
    return begin if end == stop else -1


@_jit
def _same(array: Any, position: Any, keys: Any, begin: Any, size: Any) -> bool:
    for at in range(size):
        if array[position + at] != keys[begin + at]:
            return False
    return True


@_jit
def _find(array: Any, position: Any, size: Any, keys: Any, bounds: Any, table: Any) -> Any:
    """The slot of a key, by FNV-1a and linear probing; -1 for one that is not wanted."""
    found = np.uint64(0xCBF29CE484222325)
    for at in range(position, position + size):
        found = (found ^ np.uint64(array[at])) * np.uint64(0x100000001B3)
    mask = len(table) - 1
    # The upper bits of short keys differ little: they are mixed in once more.
    place = np.int64((found * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)) & mask
    while True:
        slot = np.int64(table[place])
        if slot < 0:
            return -1
        if bounds[slot + 1] - bounds[slot] == size and _same(array, position, keys, bounds[slot], size):
            return slot
        place = (place + 1) & mask


@_jit
def _list(array: Any, begin: int, stop: int, tag: int) -> Any:
    """Where the list of a Feature begins, which must be of the kind and fill it; -1 if not."""
    if array[begin] != tag:
        return -1
    return _whole(array, begin + 1, stop)


@_jit
def _varint(array: Any, position: int, stop: int) -> tuple[np.int64, int]:
    """An int64 and the position behind it; position -1 if it is cut off or too long."""
    byte = np.uint64(array[position])
    position += 1
    if byte < np.uint64(0x80):
        return np.int64(byte), position
    value = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while position < stop and shift < np.uint64(70):
        byte = np.uint64(array[position])
        position += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value), position
        shift += np.uint64(7)
    return np.int64(0), -1


@_jit
def _of_word(word: Any, ninth: Any, tenth: Any) -> Any:
    """An int64 and its number of bytes from ten bytes, of which it may be a part; 0 bytes if it is too long.

    Without branches up to eight bytes, for long lists are made of these. Takes no array: each one that is passed on
    costs as much as ten numbers.
    """
    ended = ~word & np.uint64(0x8080808080808080)
    below = ended ^ (ended - np.uint64(1))  # all bits up to the last byte's; of a longer one, all bits
    value = word & below & np.uint64(0x7F7F7F7F7F7F7F7F)
    value = (value & np.uint64(0x007F007F007F007F)) | ((value & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    value = (value & np.uint64(0x00003FFF00003FFF)) | ((value & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    value = (value & np.uint64(0x000000000FFFFFFF)) | ((value & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
    if ended != np.uint64(0):
        bits = below & np.uint64(0x0101010101010101)
        return np.int64(value), np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))
    value |= (np.uint64(ninth) & np.uint64(0x7F)) << np.uint64(56)
    if ninth < 0x80:
        return np.int64(value), np.int64(9)
    value |= np.uint64(tenth) << np.uint64(63)
    return np.int64(value), np.int64(10 if tenth < 0x80 else 0)


@_jit
def _one_integer(array: Any, begin: int, stop: int) -> tuple[np.int64, bool]:
    """The only int64 of a Feature, and whether it is that."""
    size = stop - begin
    if size < 3 or size > 14 or array[begin] != 0x1A or array[begin + 1] != size - 2:
        return np.int64(0), False
    if array[begin + 2] == 0x0A:
        if size < 5 or array[begin + 3] != size - 4:
            return np.int64(0), False
        value, position = _varint(array, begin + 4, stop)
    elif array[begin + 2] == 0x08 and size > 3:
        value, position = _varint(array, begin + 3, stop)
    else:
        return np.int64(0), False
    return value, position == stop


@_jit
def _one_float(array: Any, begin: int, stop: int) -> tuple[np.int64, bool]:
    """The bits of the only float32 of a Feature, and whether it is that."""
    size = stop - begin
    if size < 7 or size > 8 or array[begin] != 0x12 or array[begin + 1] != size - 2:
        return np.int64(0), False
    if size == 8:
        if array[begin + 2] != 0x0A or array[begin + 3] != 4:
            return np.int64(0), False
    elif array[begin + 2] != 0x0D:
        return np.int64(0), False
    bits = np.int64(0)
    for at in range(4):
        bits |= np.int64(array[stop - 4 + at]) << (8 * at)
    return bits, True


@_jit
def _locate(
    array: Any,
    rows: Any,
    keys: Any,
    bounds: Any,
    table: Any,
    kinds: Any,
    begins: Any,
    ends: Any,
    numbers: Any,
    good: Any,
) -> None:
    """Where the Feature of every wanted key lies: of several entries of a key, the last one that has a value.

    Single numbers are read on the way, while their bytes are at hand.

    Args:
        array: The buffer.
        rows: Offset and length of each record.
        keys: All keys, end to end.
        bounds: Where each key lies among them.
        table: Slots by hash.
        kinds: By slot: 1 for a single int64, 2 for a single float32, 0 for anything else.
        begins: Out, by slot and record; -1 where there is none.
        ends: Out, by slot and record.
        numbers: Out, by slot and record: the number, or the bits of the float32.
        good: Out, by record.
    """
    slots = len(bounds) - 1
    after = np.full(slots + 1, -1, np.int64)  # which slot came behind which one in the record before
    for record in range(len(rows)):
        for slot in range(slots):
            begins[slot, record] = -1
        position = rows[record, 0]
        limit = position + rows[record, 1]
        previous = slots
        fine = True
        while fine and position < limit:
            if array[position] != 0x0A:
                fine = False
                break
            position, end = _length(array, position + 1, limit)
            if position < 0:
                fine = False
                break
            while position < end:
                if array[position] != 0x0A:
                    fine = False
                    break
                entry, stop = _length(array, position + 1, end)
                if entry < 0 or stop - entry < 2 or array[entry] != 0x0A or array[entry + 1] >= 0x80:
                    fine = False
                    break
                size = np.int64(array[entry + 1])
                key = entry + 2
                value = key + size
                if value + 1 >= stop or array[value] != 0x12:
                    fine = False
                    break
                begin = _whole(array, value + 1, stop)
                if begin < 0:
                    fine = False
                    break
                slot = after[previous]
                if (
                    slot < 0
                    or bounds[slot + 1] - bounds[slot] != size
                    or not _same(array, key, keys, bounds[slot], size)
                ):
                    slot = _find(array, key, size, keys, bounds, table)
                    after[previous] = slot
                if slot >= 0:
                    previous = slot
                    if begin < stop:
                        begins[slot, record] = begin
                        ends[slot, record] = stop
                        if kinds[slot] == 1:
                            numbers[slot, record], fine = _one_integer(array, begin, stop)
                        elif kinds[slot] == 2:
                            numbers[slot, record], fine = _one_float(array, begin, stop)
                        if not fine:
                            break
                position = stop
        good[record] = fine


@_jit
def _integers(
    array: Any, words: Any, usable: int, begins: Any, ends: Any, count: int, default: Any, out: Any, good: Any
) -> None:
    """As many int64 of every record as its shape has; a record without them gets the default, if there is one."""
    for record in range(len(begins)):
        if not good[record]:
            continue
        begin, stop = begins[record], ends[record]
        if begin < 0:
            good[record] = len(default) == count
            if good[record]:
                for at in range(count):
                    out[record, at] = default[at]
            continue
        position = _list(array, begin, stop, 0x1A)
        if position < 0:
            good[record] = False
            continue
        found = 0
        if position < stop and array[position] == 0x0A:
            position = _whole(array, position + 1, stop)
            if position >= 0 and position < stop and array[stop - 1] >= 0x80:
                position = -1
            while 0 <= position < stop and found < count:
                if position < usable:
                    out[record, found], size = _of_word(words[position], array[position + 8], array[position + 9])
                    position = position + size if size else -1
                else:
                    out[record, found], position = _varint(array, position, stop)
                found += 1
        while 0 <= position < stop - 1 and found < count and array[position] == 0x08:
            out[record, found], position = _varint(array, position + 1, stop)
            found += 1
        good[record] = position == stop and found == count


@_jit
def _floats(array: Any, begins: Any, ends: Any, count: int, default: Any, out: Any, good: Any) -> None:
    """The same for float32, whose bytes are copied: ``out`` is uint8[n, 4 * count], ``default`` uint8."""
    for record in range(len(begins)):
        if not good[record]:
            continue
        begin, stop = begins[record], ends[record]
        if begin < 0:
            good[record] = len(default) == 4 * count
            if good[record]:
                for at in range(4 * count):
                    out[record, at] = default[at]
            continue
        position = _list(array, begin, stop, 0x12)
        if position < 0:
            good[record] = False
            continue
        if position < stop and array[position] == 0x0A:
            position = _whole(array, position + 1, stop)
            if position < 0 or stop - position != 4 * count:
                good[record] = False
                continue
            for at in range(4 * count):
                out[record, at] = array[position + at]
            continue
        if stop - position != 5 * count:
            good[record] = False
            continue
        for number in range(count):
            if array[position] != 0x0D:
                good[record] = False
                break
            for at in range(4):
                out[record, 4 * number + at] = array[position + 1 + at]
            position += 5


@_jit
def _count(array: Any, begins: Any, ends: Any, tag: int, multiple: int, counts: Any, good: Any) -> None:
    """How many values the list of every record holds, which must be a multiple; they are checked on the way."""
    for record in range(len(begins)):
        counts[record] = 0
        begin, stop = begins[record], ends[record]
        if not good[record] or begin < 0:
            continue
        position = _list(array, begin, stop, tag)
        if position < 0:
            good[record] = False
            continue
        found = 0
        if tag == 0x0A:
            while 0 <= position < stop:
                if array[position] != 0x0A:
                    position = -1
                    break
                _, position = _length(array, position + 1, stop)
                found += 1
        elif position < stop and array[position] == 0x0A:
            position = _whole(array, position + 1, stop)
            if position < 0:
                good[record] = False
                continue
            if tag == 0x12:
                found = (stop - position) // 4
                position += 4 * found
            else:
                for at in range(position, stop):
                    found += array[at] < 0x80
                if position < stop and array[stop - 1] >= 0x80:
                    good[record] = False
                    continue
                position = stop
        elif tag == 0x12:
            while position + 5 <= stop and array[position] == 0x0D:
                position += 5
                found += 1
        else:
            while position + 1 < stop and array[position] == 0x08:
                _, position = _varint(array, position + 1, stop)
                if position < 0:
                    break
                found += 1
        good[record] = position == stop and found % multiple == 0
        counts[record] = found


@_jit
def _fill_integers(array: Any, words: Any, usable: int, begins: Any, ends: Any, splits: Any, out: Any) -> bool:
    """The int64 of counted lists; False if one is longer than ten bytes, which counting does not see."""
    for record in range(len(begins)):
        at, limit = splits[record], splits[record + 1]
        if at == limit:
            continue
        stop = ends[record]
        position = _list(array, begins[record], stop, 0x1A)
        packed = array[position] == 0x0A
        if packed:
            position = _whole(array, position + 1, stop)
        while at < limit:
            if not packed:
                out[at], position = _varint(array, position + 1, stop)
            elif position < usable:
                out[at], size = _of_word(words[position], array[position + 8], array[position + 9])
                position = position + size if size else -1
            else:
                out[at], position = _varint(array, position, stop)
            if position < 0:
                return False
            at += 1
    return True


@_jit
def _fill_floats(array: Any, begins: Any, ends: Any, splits: Any, out: Any) -> bool:
    """The bytes of the float32 of counted lists; ``out`` is uint8."""
    for record in range(len(begins)):
        at, limit = 4 * splits[record], 4 * splits[record + 1]
        if at == limit:
            continue
        stop = ends[record]
        position = _list(array, begins[record], stop, 0x12)
        if array[position] == 0x0A:
            position = _whole(array, position + 1, stop)
            for byte in range(limit - at):
                out[at + byte] = array[position + byte]
            continue
        while at < limit:
            for byte in range(4):
                out[at + byte] = array[position + 1 + byte]
            at += 4
            position += 5
    return True


@_jit
def _fill_strings(array: Any, begins: Any, ends: Any, splits: Any, out: Any) -> bool:
    """Offset and length of the byte strings of counted lists."""
    for record in range(len(begins)):
        at, limit = splits[record], splits[record + 1]
        if at == limit:
            continue
        stop = ends[record]
        position = _list(array, begins[record], stop, 0x0A)
        while at < limit:
            begin, position = _length(array, position + 1, stop)
            out[at, 0] = begin
            out[at, 1] = position - begin
            at += 1
    return True


_BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
_WORDS: Final = types.Array(types.uint64, 1, "A", readonly=True, aligned=False)
_READ: Final = types.Array(types.int64, 1, "C", readonly=True)
_PLACES: Final = types.int64[::1]
_MASK: Final = types.boolean[::1]
_ROWS: Final = types.Array(types.int64, 2, "C", readonly=True)
_TABLE: Final = types.Array(types.int32, 1, "C", readonly=True)
_KINDS: Final = types.Array(types.int8, 1, "C", readonly=True)
_GRID: Final = types.int64[:, ::1]
_none, _int, _bool = types.void, types.int64, types.boolean

SIGNATURES: Final[tuple[tuple[Any, Any], ...]] = (
    (_locate, _none(_BYTES, _ROWS, _BYTES, _READ, _TABLE, _KINDS, _GRID, _GRID, _GRID, _MASK)),
    (_integers, _none(_BYTES, _WORDS, _int, _READ, _READ, _int, _READ, _GRID, _MASK)),
    (_floats, _none(_BYTES, _READ, _READ, _int, _BYTES, types.uint8[:, ::1], _MASK)),
    (_count, _none(_BYTES, _READ, _READ, _int, _int, _PLACES, _MASK)),
    (_fill_integers, _bool(_BYTES, _WORDS, _int, _READ, _READ, _READ, _PLACES)),
    (_fill_floats, _bool(_BYTES, _READ, _READ, _READ, types.uint8[::1])),
    (_fill_strings, _bool(_BYTES, _READ, _READ, _READ, _GRID)),
)


def load(directory: str | None) -> tuple[Any, ...]:
    """Every kernel, compiled or read from a directory of earlier compilations; in the order of ``SIGNATURES``.

    Args:
        directory: Where compiled code is kept; None compiles for this process alone.
    """
    config: Any = numba.config
    before = config.CACHE_DIR
    for kernel, signature in SIGNATURES:
        if directory is not None:
            # Read by numba when caching is switched on, and nowhere else.
            config.CACHE_DIR = directory
            try:
                kernel.enable_caching()
            finally:
                config.CACHE_DIR = before
        kernel.compile(signature)
        kernel.disable_compile()
    return tuple(kernel for kernel, _ in SIGNATURES)


def version() -> str:
    """Of the compiler."""
    return str(numba.__version__)
