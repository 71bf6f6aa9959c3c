"""`BytesArray`: a batch of byte strings or texts, which is never truncated and copied only on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from asyncdata.wording import counted

_SPARE: Final = bytes(256)
"""Padding behind copied items, so that parsers that look ahead need no special case for the last ones."""


_SHORT: Final = 1024
"""Up to so many bytes an item, a call for each costs more than copying it twice."""

_SPREAD: Final = 8
"""Memory is copied as a whole where its items take at least one part in so many of it."""


class BytesArray(Sequence[Any]):
    """The batch of ``bytes`` or ``str`` elements: an immutable sequence with one item per element.

    The payloads are not copied: the array keeps the memory alive in which they were received. Indexing copies one item
    out.

    Attributes:
        memory: What the places point into, for this package: much else may lie in it, and it may be writable.
        places: ``int64[n, 2]``: offset in the memory and length of each item.

    Example:
        >>> import asyncdata as ad
        >>> batch = ad.BytesArray.from_items([b"one", b"", b"three"])
        >>> batch[2], len(batch), batch.nbytes
        (b'three', 3, 8)
        >>> [bytes(view) for view in batch.views()]
        [b'one', b'', b'three']
    """

    __slots__ = ("_own", "_text", "memory", "places")

    def __init__(self, memory: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], *, text: bool = False) -> None:
        """Wraps memory that is there already.

        Args:
            memory: Bytes that the places point into; owns or keeps alive the memory.
            places: ``int64[n, 2]`` offsets and lengths in bytes.
            text: Items are ``str`` (UTF-8) instead of ``bytes``.
        """
        self.memory = memory
        self.places = places
        self._text = text
        self._own: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]] | None = None

    @classmethod
    def from_items(cls, items: Sequence[bytes | bytearray | memoryview | str]) -> BytesArray:
        """Copies byte strings or texts into one array.

        Raises:
            TypeError: An item is neither, or both occur. Other buffers are rejected too, and views of objects, because
                the bytes of these are addresses.
        """
        text = len(items) > 0 and isinstance(items[0], str)
        for kind in set(map(type, items)):
            if not issubclass(kind, str if text else (bytes, bytearray, memoryview)):
                raise TypeError(f"the items of a BytesArray are all bytes or all str; one is of type {kind.__name__}")
        raw = list(map(_as_bytes, items))
        rows = np.empty((len(raw), 2), np.int64)
        rows[:, 1] = list(map(len, raw))
        np.cumsum(rows[:, 1], out=rows[:, 0])
        rows[:, 0] -= rows[:, 1]
        return cls(np.frombuffer(b"".join((*raw, _SPARE)), np.uint8), rows, text=text)

    @classmethod
    def copied(cls, base: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], *, text: bool = False) -> BytesArray:
        """Returns a private copy of rows in other memory."""
        if not len(rows):
            return cls(np.empty(0, np.uint8), np.empty((0, 2), np.int64), text=text)
        first, last = int(rows[:, 0].min()), int((rows[:, 0] + rows[:, 1]).max())
        total = int(rows[:, 1].sum())
        if last - first <= total + total // 4:
            # Nearly adjacent: one copy of everything from the first to the last.
            out = np.empty(last - first + len(_SPARE), np.uint8)
            out[: last - first] = base[first:last]
            moved = rows.copy()
            moved[:, 0] -= first
            return cls(out, moved, text=text)
        data = base.data
        packed = cls.from_items([data[offset : offset + length] for offset, length in rows.tolist()])
        return cls(packed.memory, packed.places, text=text)

    @property
    def text(self) -> bool:
        """Whether the items are ``str``."""
        return self._text

    @property
    def base(self) -> npt.NDArray[np.uint8]:
        """The items side by side, read-only: where they lie if they lie so, else a copy, made once."""
        return self._alone()[0]

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """``int64[n, 2]``: offset in ``base`` and length of each item, in bytes; read-only."""
        return self._alone()[1]

    def _alone(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Memory in which only the items are, and where."""
        if self._own is None:
            rows = np.empty((len(self), 2), np.int64)
            rows[:, 1] = self.places[:, 1]
            np.cumsum(rows[:, 1], out=rows[:, 0])
            rows[:, 0] -= rows[:, 1]
            filled = rows[:, 1] > 0
            steps = (self.places[:, 0] - rows[:, 0])[filled]
            if len(steps) and (steps == steps[0]).all():
                base = self.memory[steps[0] : steps[0] + self.nbytes]
            else:
                base = np.frombuffer(b"".join(self.views()), np.uint8)
            base.flags.writeable = rows.flags.writeable = False
            self._own = base, rows
        return self._own

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """``int64[n]``: the length of each item in bytes."""
        return self.places[:, 1].copy()

    @property
    def nbytes(self) -> int:
        """Bytes of all items together."""
        return int(self.places[:, 1].sum())

    def views(self) -> list[memoryview]:
        """A read-only memoryview per item, without a copy; each keeps the memory of the whole batch alive."""
        memory = self.memory.data.toreadonly()
        return [memory[offset : offset + length] for offset, length in self.places.tolist()]

    def copy(self) -> BytesArray:
        """The same items in private memory."""
        return BytesArray.copied(self.memory, self.places, text=self._text)

    def tolist(self) -> list[Any]:
        """All items as ``bytes`` or ``str``."""
        items = copied_items(self.memory, self.places)
        return list(map(bytes.decode, items)) if self._text else items

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self)):
            yield self[row]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> BytesArray: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return BytesArray(self.memory, self.places[index], text=self._text)
        offset, length = self.places[index].tolist()
        part = self.memory[offset : offset + length]
        return str(part.data, "utf-8") if self._text else part.tobytes()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, str | bytes):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compared by content, like a list

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a BytesArray can become an array of objects only by copying its items")
        out = np.empty(len(self), object)
        out[:] = self.tolist()
        return out if dtype is None else out.astype(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self.tolist(), self._text)

    def __repr__(self) -> str:
        shown = ", ".join(repr(item[:16]) for item in self[:3])
        more = ", …" if len(self) > 3 else ""
        return f"BytesArray([{shown}{more}], {counted(len(self), 'item')}, {counted(self.nbytes, 'byte')})"


def copied_items(memory: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> list[bytes]:
    """Copies byte strings out of memory, without a step of Python for each if they are short and of one length.

    Args:
        memory: Contiguous bytes.
        places: ``int64[n, 2]``: offset and length of each item.
    """
    lengths = places[:, 1]
    size = int(lengths[0]) if len(lengths) else 0
    if 0 < size <= _SHORT and (lengths == size).all():
        windows: npt.NDArray[np.void] = np.ndarray((len(memory) - size + 1,), f"V{size}", memory, strides=(1,))
        items: list[bytes] = windows[places[:, 0]].tolist()
        return items
    starts, ends = places[:, 0], places[:, 0] + lengths
    first, last = (int(starts.min()), int(ends.max())) if len(places) else (0, 0)
    total = int(lengths.sum())
    if total <= _SHORT * len(places) and last - first <= _SPREAD * (total + len(places)):
        # Cutting bytes takes half as long as cutting a memoryview, and copying all of them first next to nothing.
        data = memory[first:last].tobytes()
        return [data[start:end] for start, end in zip((starts - first).tolist(), (ends - first).tolist(), strict=True)]
    view = memory.data
    return [view[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _loaded(items: list[Any], text: bool) -> BytesArray:
    found = BytesArray.from_items(items)
    return BytesArray(found.memory, found.places, text=text)


def _as_bytes(item: Any) -> Any:
    """A text, or what has a buffer, as something that has as many items as bytes."""
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, memoryview):
        if item.format == "O":
            raise TypeError("the items of a BytesArray are all bytes or all str; one is a view of objects")
        return item if item.ndim == 1 and item.itemsize == 1 else bytes(item)
    return item
