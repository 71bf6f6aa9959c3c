"""`RaggedArray`: rows of different lengths, side by side in one flat array.

    values      a b c d e f          row_splits  0 2 2 6
    rows        [a b] [] [c d e f]

Row i is ``values[row_splits[i]:row_splits[i + 1]]``. ``values`` may again be a RaggedArray, for lists of lists. In an
element a RaggedArray is structure, not a leaf: the flat values and the splits of every level are ordinary flat arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from asyncdata.memory.bytesarray import BytesArray

Flat: TypeAlias = npt.NDArray[Any] | BytesArray
"""The innermost values: an array whose first axis is the value, or byte strings."""
Splits: TypeAlias = npt.NDArray[Any]


class RaggedArray:
    """An immutable sequence of rows that differ in length: tf.RaggedTensor's vocabulary over numpy.

    Rows and slices are views, not copies, and keep the memory of the whole array alive.

    Example:
        >>> import asyncdata as ad
        >>> rows = ad.RaggedArray.from_rows([[1, 2], [], [3, 4, 5]])
        >>> rows.values.tolist(), rows.row_splits.tolist(), rows.shape
        ([1, 2, 3, 4, 5], [0, 2, 2, 5], (3, None))
        >>> rows[2].tolist(), rows[1:].to_list(), rows.to_dense(-1).tolist()
        ([3, 4, 5], [[], [3, 4, 5]], [[1, 2, -1], [-1, -1, -1], [3, 4, 5]])

    Args:
        values: All rows end to end: an array, a `BytesArray`, or a RaggedArray.
        row_splits: Ascending int32 or int64, one more than there are rows, beginning with 0 and ending with the number
            of values.

    Attributes:
        values: See above.
        row_splits: See above.
    """

    __slots__ = ("row_splits", "values")

    def __init__(self, values: Flat | RaggedArray, row_splits: Splits) -> None:
        if not isinstance(values, np.ndarray | BytesArray | RaggedArray):
            values = np.asarray(values)
        splits = np.asarray(row_splits)
        if splits.dtype not in (np.int32, np.int64):
            splits = splits.astype(np.int64)
        if splits.ndim != 1 or not len(splits) or splits[0] != 0 or (splits[1:] < splits[:-1]).any():
            raise ValueError("row_splits must be ascending and begin with 0")
        if splits[-1] != len(values):
            raise ValueError(f"row_splits end with {splits[-1]}, but there are {len(values)} values")
        self.values = values
        self.row_splits = splits

    # --- making one

    @classmethod
    def from_nested_row_splits(cls, flat_values: Flat, nested_row_splits: Sequence[Splits]) -> RaggedArray:
        """Makes one from the innermost values and the splits of every level, outermost first."""
        if not nested_row_splits:
            raise ValueError("a RaggedArray needs at least one level of rows")
        values: Flat | RaggedArray = flat_values
        for splits in reversed(nested_row_splits):
            values = cls(values, splits)
        assert isinstance(values, RaggedArray)
        return values

    @classmethod
    def from_row_lengths(cls, values: Flat | RaggedArray, row_lengths: Any) -> RaggedArray:
        """Makes one from all values and the length of each row."""
        lengths = np.asarray(row_lengths)
        splits = np.zeros(len(lengths) + 1, lengths.dtype if lengths.dtype == np.int32 else np.int64)
        np.cumsum(lengths, out=splits[1:])
        return cls(values, splits)

    @classmethod
    def from_rows(cls, rows: Sequence[Any], *, row_splits_dtype: Any = np.int64) -> RaggedArray:
        """Copies rows into one RaggedArray: arrays or lists of one dtype, byte strings or texts, RaggedArrays."""
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        splits = np.zeros(len(rows) + 1, row_splits_dtype)
        np.cumsum(lengths, out=splits[1:])
        return cls(concat_values(list(rows)), splits)

    # --- what it is

    @property
    def flat_values(self) -> Flat:
        """The innermost values."""
        return self.values.flat_values if isinstance(self.values, RaggedArray) else self.values

    @property
    def nested_row_splits(self) -> tuple[Splits, ...]:
        """The splits of every level, outermost first."""
        if isinstance(self.values, RaggedArray):
            return (self.row_splits, *self.values.nested_row_splits)
        return (self.row_splits,)

    @property
    def ragged_rank(self) -> int:
        """Levels of rows: 1 for rows of values, 2 for rows of rows."""
        return len(self.nested_row_splits)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the innermost values; ``object`` for byte strings."""
        flat = self.flat_values
        return np.dtype(object) if isinstance(flat, BytesArray) else flat.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Number of rows, None for each ragged axis, then the shape of one innermost value."""
        flat = self.flat_values
        inner = () if isinstance(flat, BytesArray) else flat.shape[1:]
        return (len(self), *(None,) * self.ragged_rank, *inner)

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of all splits."""
        return int(self.values.nbytes) + int(self.row_splits.nbytes)

    def nrows(self) -> int:
        """The number of rows."""
        return len(self)

    def row_lengths(self) -> Splits:
        """The length of each row."""
        return np.diff(self.row_splits)

    def value_rowids(self) -> Splits:
        """The row of each value."""
        return np.repeat(np.arange(len(self), dtype=self.row_splits.dtype), self.row_lengths())

    # --- turning it into something else

    def to_list(self) -> list[Any]:
        """Nested Python lists."""
        inner = self.values.to_list() if isinstance(self.values, RaggedArray) else self.values.tolist()
        return [inner[begin:end] for begin, end in pairwise(self.row_splits.tolist())]

    def tolist(self) -> list[Any]:
        """The same under numpy's name."""
        return self.to_list()

    def to_dense(self, default_value: Any = None) -> npt.NDArray[Any]:
        """A rectangular array: every row padded to the longest one.

        Args:
            default_value: The padding; None means 0, ``b""`` or ``""``.

        Raises:
            ValueError: The values cannot hold the padding as it is.
        """
        return self._padded(_padding(default_value, self.flat_values))

    def _padded(self, padding: Any) -> npt.NDArray[Any]:
        inner = self.values._padded(padding) if isinstance(self.values, RaggedArray) else np.asarray(self.values)  # noqa: SLF001 -- its own class
        lengths = self.row_lengths()
        out = np.full((len(self), int(lengths.max(initial=0)), *inner.shape[1:]), padding, inner.dtype)
        out[np.arange(out.shape[1]) < lengths[:, None]] = inner
        return out

    def to_sparse(self) -> tuple[npt.NDArray[np.int64], Flat, npt.NDArray[np.int64]]:
        """``(indices, values, dense_shape)``, the parts of the tf.SparseTensor with the same contents.

        Raises:
            ValueError: For values with dimensions.
        """
        lengths = self.row_lengths()
        place = np.empty((len(self.values), 2), np.int64)
        place[:, 0] = self.value_rowids()
        place[:, 1] = np.arange(len(self.values)) - np.repeat(self.row_splits[:-1], lengths)
        extents = [len(self), int(lengths.max(initial=0))]
        if isinstance(self.values, RaggedArray):
            inner, values, inner_shape = self.values.to_sparse()
            indices = np.concatenate((place[inner[:, 0]], inner[:, 1:]), axis=1)
            return indices, values, np.array([*extents, *inner_shape[1:]], np.int64)
        if len(self.shape) > 2:
            raise ValueError(f"only rows of single values can become sparse, not the shape {self.shape}")
        return place, self.values, np.array(extents, np.int64)

    def copy(self) -> RaggedArray:
        """The same rows in private memory."""
        return RaggedArray(self.values.copy(), self.row_splits.copy())

    # --- a sequence

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __iter__(self) -> Iterator[Any]:
        for begin, end in pairwise(self.row_splits.tolist()):
            yield self.values[begin:end]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> RaggedArray: ...
    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            row = range(len(self))[index]
            return self.values[int(self.row_splits[row]) : int(self.row_splits[row + 1])]
        begin, end, step = index.indices(len(self))
        if step != 1:
            return self.take(np.arange(begin, end, step))
        end = max(begin, end)
        splits = self.row_splits[begin : end + 1]
        return RaggedArray(self.values[int(splits[0]) : int(splits[-1])], splits - splits[0])

    def take(self, indices: Any) -> RaggedArray:
        """A copy of the rows at these indices."""
        picked = [self[int(index)] for index in np.asarray(indices)]
        if not picked:
            return RaggedArray(self.values[:0], self.row_splits[:1])
        return RaggedArray.from_rows(picked, row_splits_dtype=self.row_splits.dtype)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RaggedArray):
            return self.shape == other.shape and self.to_list() == other.to_list()
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compared by content, like a list

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a RaggedArray can become an array of objects only by copying every row")
        out = np.empty(len(self), object)
        for row, values in enumerate(self):
            out[row] = values
        return out if dtype is None else out.astype(dtype)

    def __repr__(self) -> str:
        shown = ", ".join(repr(list(row[:4].tolist()))[:60] for row in self[:3])
        return f"RaggedArray([{shown}{', …' if len(self) > 3 else ''}], shape={self.shape}, dtype={self.dtype})"


def _padding(value: Any, flat: Flat) -> Any:
    """What these values are padded with; None for what stands for nothing among them."""
    kind = _string_kind(flat)
    dtype = np.dtype(object) if isinstance(flat, BytesArray) else flat.dtype
    if value is None:
        return (kind or bytes)() if dtype.kind == "O" else np.zeros((), dtype)[()]
    if kind is bytes and isinstance(value, str):
        value = value.encode()
    if not (_holds(dtype, value) if kind is None else isinstance(value, kind) and _holds(dtype, value)):
        values = dtype.name if kind is None or dtype.kind != "O" else kind.__name__
        raise ValueError(f"the default value {value!r} does not fit values of {values}")
    return value


def _string_kind(flat: Flat) -> type | None:
    """Whether values are byte strings or texts; None for others."""
    if isinstance(flat, BytesArray):
        return str if flat.text else bytes
    if flat.dtype == object:
        kinds = set(map(type, flat.flat))
        return kinds.pop() if kinds in ({bytes}, {str}) else None
    return {"S": bytes, "U": str}.get(flat.dtype.kind)


def _holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Whether an array has a place for it; floats may be rounded."""
    if dtype.kind not in "biufcSU":
        return True
    given = np.asarray(value)
    try:
        with np.errstate(all="ignore"):
            cast = given.astype(dtype, casting="same_kind" if given.dtype.kind in "cSU" else "unsafe")
            if dtype.kind in "fc":
                return bool((np.isfinite(cast) | ~np.isfinite(given.astype(complex))).all())
            return bool((cast == given).all())
    except (TypeError, ValueError, OverflowError):
        return False


def concat_values(parts: Sequence[Any]) -> Flat | RaggedArray:
    """Values of several rows, end to end: arrays, lists, byte strings or texts, or RaggedArrays."""
    if not parts:
        return np.empty(0, np.float32)
    if isinstance(parts[0], RaggedArray):
        lengths = np.concatenate([np.asarray(part.row_lengths()) for part in parts])
        splits = np.zeros(len(lengths) + 1, parts[0].row_splits.dtype)
        np.cumsum(lengths, out=splits[1:])
        return RaggedArray(concat_values([part.values for part in parts]), splits)
    sample = next((part[0] for part in parts if len(part)), None)
    if isinstance(parts[0], BytesArray) or isinstance(sample, bytes | str):
        return BytesArray.from_items([item for part in parts for item in part])
    if isinstance(sample, list | tuple | RaggedArray) and not isinstance(parts[0], np.ndarray):
        rows = [row for part in parts for row in part]
        return RaggedArray.from_rows(rows)
    arrays = [np.asarray(part) for part in parts]
    typed = [array for part, array in zip(parts, arrays, strict=True) if len(array) or isinstance(part, np.ndarray)]
    return np.concatenate(typed) if typed else np.empty(0, np.float32)
