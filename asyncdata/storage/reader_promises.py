"""Compares what a reader returned with what `RangeReader` promises. Pure.

Readers may be anybody's. One that returns fewer bytes than it was asked for, as files and sockets do, would leave the
rest of a buffer as it was, and that would be delivered as data.
"""

from __future__ import annotations

from asyncdata.errors import StorageError
from asyncdata.storage.failures import FailureCause, read_failed
from asyncdata.types import ObjectInfo


def check_filled(filled: object, wanted: int, info: ObjectInfo | None = None) -> None:
    """Refuses a number of bytes other than the one that was wanted.

    Args:
        filled: What the reader returned.
        wanted: How many bytes it was to read.
        info: The object, of a read that opened it.

    Raises:
        ReadFailedError: Fewer bytes; the rest is to be read.
        StorageError: More bytes than there was room for, or no number.
    """
    if filled == wanted:
        return
    what = f"the reader returned {filled!r:.60} after a read of {wanted} bytes"
    if not isinstance(filled, int) or not 0 <= filled < wanted:
        raise StorageError(f"{what}; it must return the number of bytes that it wrote")
    failure = read_failed(what, FailureCause.SHORT_BODY, filled=filled)
    failure.info = info
    raise failure


def check_opened(opened: object, nbytes: int) -> tuple[ObjectInfo, int]:
    """Returns what ``open_read`` returned for a buffer of so many bytes.

    Raises:
        ReadFailedError: Fewer bytes than the object and the buffer have.
        StorageError: Anything else that is not promised.
    """
    if not isinstance(opened, tuple) or len(opened) != 2:
        raise StorageError(
            f"the reader's open_read returned {type(opened).__name__} instead of an ObjectInfo and an int"
        )
    info = check_info(opened[0], "open_read")
    check_filled(opened[1], min(info.size, nbytes), info)
    return info, opened[1]


def check_info(info: object, method: str) -> ObjectInfo:
    """Returns what a reader's method said about an object.

    Raises:
        StorageError: It is no `ObjectInfo`, or has no size.
    """
    if not isinstance(info, ObjectInfo):
        raise StorageError(f"the reader's {method} returned {type(info).__name__} instead of ObjectInfo")
    size: object = info.size  # as anybody may have set it
    if not isinstance(size, int) or size < 0:
        raise StorageError(
            f"the reader's {method} returned an ObjectInfo whose size is {size!r:.60}; it must be the object's "
            "number of bytes"
        )
    return info


def check_listing(infos: object) -> list[ObjectInfo]:
    """Returns what a reader's ``glob`` found.

    Raises:
        StorageError: It is not a list of `ObjectInfo`.
    """
    if not isinstance(infos, list):
        raise StorageError(f"the reader's glob returned {type(infos).__name__} instead of a list")
    for info in infos:
        check_info(info, "glob")
    return infos
