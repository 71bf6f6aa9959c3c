"""The order log: what steps without a fixed order chose, in a local file that is only appended to.

    magic │ life: the state it began at │ choices │ choices │ life │ choices │ …        a piece: length, checksum, body

A *life* is one iterator; its choices follow it, those of each delivery in front of the delivery itself. So whatever the
consumer was given can be repeated, even if its process was killed at once: a piece that was cut off is the last one,
and the next life overwrites it. Several lives of an epoch, each from a state of the one before, are one run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from asyncdata.errors import ObjectNotFoundError, StateError, StorageError, refused
from asyncdata.planner.fingerprint import first_unlike
from asyncdata.runtime.state.choices import Chosen, Recorded, pack
from asyncdata.runtime.state.document import with_checksum
from asyncdata.runtime.state.news import News
from asyncdata.wording import counted

_MAGIC: Final = b"asyncdata order log 1\n"
_HEAD: Final = struct.Struct("<II")
_CHOICES: Final = struct.Struct("<QI")
_MOST_BYTES: Final = 1 << 30
_CAN_LOCK_NOT: Final = frozenset({errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS})
_PACK_BYTES: Final = 256


class Life(NamedTuple):
    """What one iterator wrote.

    Attributes:
        state: The state that it began at, as `state_dict` makes it.
        listings: What it listed, as in a state.
        choices: Of its stages.
    """

    state: dict[str, Any]
    listings: list[Any]
    choices: dict[int, list[bytes]]

    @property
    def epoch(self) -> Any:
        """The number of its epoch."""
        return self.state.get("epoch")

    @property
    def position(self) -> Any:
        """Elements of the epoch that were delivered before it."""
        return self.state.get("position")

    @property
    def document(self) -> dict[str, Any]:
        """The state to begin at, with the files that the life found."""
        known = self.state.get("listings", [])
        return with_checksum({**self.state, "listings": [*known, *self.listings]}) if self.listings else self.state


class RecordedRun(NamedTuple):
    """A life to be repeated.

    Attributes:
        life: The life.
        until: The position at which a later life took over, or None.
    """

    life: Life
    until: int | None

    @property
    def recorded(self) -> Recorded:
        """The choices of its stages."""
        return self.life.choices


class OrderLogWriter:
    """Appends a life to a log. Written to by whoever takes deliveries, in front of each.

    Args:
        path: The file; made if it is not there, with access for its owner only.
        state: The state that the life begins at.

    Raises:
        StateError: Another iterator writes it, or it is no order log, or one of another pipeline.
        SystemResourceError: It cannot be written.
    """

    def __init__(self, path: str, state: Mapping[str, Any]) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise refused("the order log cannot be written", error, url=path) from error
        self.close = weakref.finalize(self, _release, self._file, os.getpid())
        try:
            self._lock()
            end = self._end_of(state)
            os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
            if not end:
                self._write(_MAGIC)
            self._append(json.dumps({"state": state}, allow_nan=False, separators=(",", ":")).encode())
        except OSError as error:
            self.close()
            raise refused("the order log cannot be written", error, url=path) from error
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(
                "another iterator writes this order log: give each pipeline and each process a log of its own, and "
                "close an iterator before the next one begins",
                url=self._path,
            ) from None
        except OSError as error:
            if error.errno not in _CAN_LOCK_NOT:
                raise

    def _end_of(self, state: Mapping[str, Any]) -> int:
        """Where the last whole piece ends."""
        size = os.fstat(self._file).st_size
        data = b"".join(iter(lambda: os.read(self._file, 1 << 20), b"")) if size else b""
        end = len(_MAGIC) if data[: len(_MAGIC)] == _MAGIC else 0
        for body, after in _pieces(data, self._path):
            end = after
            if body[:1] == b"{" and "state" in (piece := _json(body, self._path)):
                check_same_plan(state["plan"], piece["state"], self._path)
        return end

    def append(self, news: News) -> None:
        """What has happened up to the next delivery.

        Raises:
            SystemResourceError: It cannot be written; what was written before can be read.
        """
        try:
            if news.listings:
                listings = [listing.to_json() for listing in news.listings]
                self._append(json.dumps({"listings": listings}, separators=(",", ":")).encode())
            if news.choices:
                self._append(_packed(news.choices))
        except OSError as error:
            raise refused("the order log cannot be written", error, url=self._path) from error

    def _append(self, body: bytes) -> None:
        self._write(_HEAD.pack(len(body), zlib.crc32(body)) + body)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]


def _release(file: int, pid: int) -> None:
    # A process that is just being started may have the descriptor for a moment longer. The lock is one for all
    # processes that have it: a forked child that gives up its copy must not unlock what the parent writes.
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def _packed(choices: Sequence[Chosen]) -> bytes:
    parts = []
    for stage, runs in choices:
        packed = pack(runs)
        parts += [_CHOICES.pack(stage, len(packed)), packed]
    body = b"".join(parts)
    return b"c" + body if len(body) < _PACK_BYTES else b"z" + zlib.compress(body, 1)


def check_same_plan(here: Sequence[str], there: Mapping[str, Any], path: str) -> None:
    """Looks whether a life is one of this plan.

    Args:
        here: The plan's fingerprint.
        there: The state that the life began at.
        path: Of the log.

    Raises:
        StateError: It is one of another plan; the message names the first difference.
    """
    unlike = first_unlike(here, [str(line) for line in there.get("plan", ())], "in the log")
    if unlike is not None:
        raise StateError(f"the order log is of another pipeline: {unlike}", url=path)


def find_run(path: str, epoch: int, position: int) -> RecordedRun:
    """The life of a log that has begun at this position of an epoch, the last one if there are several.

    Raises:
        ObjectNotFoundError: There is no such file.
        StateError: It is damaged or no order log, or there is no such life in it.
    """
    lives = [life for life in _lives(path) if life.epoch == epoch]
    # A life that began at an earlier position than those before it replaces what these have delivered since.
    run: list[Life] = []
    for life in lives:
        while run and run[-1].position >= life.position:
            run.pop()
        run.append(life)
    for number, life in enumerate(run):
        if life.position == position:
            return RecordedRun(life, run[number + 1].position if number + 1 < len(run) else None)
    begun = ", ".join(str(life.position) for life in run) or "none"
    raise StateError(
        f"the order log has no run of epoch {epoch} that begins behind {counted(position, 'element')}, but behind "
        f"these: {begun}",
        url=path,
    )


def _lives(path: str) -> list[Life]:
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise ObjectNotFoundError("there is no such order log", url=path) from None
    except OSError as error:
        raise StorageError(f"the order log cannot be read: {error.strerror}", url=path) from error
    lives: list[Life] = []
    for body, _ in _pieces(data, path):
        if body[:1] == b"{":
            piece = _json(body, path)
            if "state" in piece:
                lives.append(Life(piece["state"], [], {}))
            elif lives:
                lives[-1].listings.extend(piece.get("listings", ()))
        elif lives:
            for stage, runs in _choices(body, path):
                lives[-1].choices.setdefault(stage, []).append(runs)
    return lives


def _pieces(data: bytes, path: str) -> Iterator[tuple[bytes, int]]:
    """Whole pieces, each with the place behind it."""
    if not _MAGIC.startswith(data[: len(_MAGIC)]):
        raise StateError("the file is no order log, or one of a later version", url=path)
    at = len(_MAGIC)
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if end > len(data):
            return  # its writer was killed
        body = data[at + _HEAD.size : end]
        if not length or zlib.crc32(body) != checksum:
            if end == len(data) or not any(data[at:]):
                return
            raise StateError(f"the order log is damaged at byte {at}", url=path)
        yield body, end
        at = end


def _json(body: bytes, path: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        piece = json.loads(body)
        state = piece.get("state", {})
        numbered = "state" not in piece or all(type(state.get(name)) is int for name in ("epoch", "position"))
        if numbered and isinstance(piece.get("listings", []), list):
            return piece  # type: ignore[no-any-return]  # checked
    raise StateError("the order log is damaged: a piece of it cannot be read", url=path)


def _choices(body: bytes, path: str) -> Iterator[tuple[int, bytes]]:
    try:
        data = body[1:]
        if body[:1] == b"z":
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(data, _MOST_BYTES)
            if not unpacker.eof:
                raise ValueError("it does not end")
        elif body[:1] != b"c":
            raise ValueError("a piece of another version")
        at = 0
        while at < len(data):
            stage, length = _CHOICES.unpack_from(data, at)
            at += _CHOICES.size + length
            if at > len(data):
                raise ValueError("it ends too early")
            yield stage, data[at - length : at]
    except (struct.error, ValueError, zlib.error) as error:
        raise StateError(f"the order log is damaged: {error}", url=path) from error
