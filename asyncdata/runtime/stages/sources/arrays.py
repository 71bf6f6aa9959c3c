"""Sources whose elements are there already, or follow from their number.

`range`, `from_tensor_slices`, `from_tensors`, lists of URLs; `counter` and `random`, which have no end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import SUB_INDEX, Advance, Mark, Rows, State
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, concat
from asyncdata.memory.structure import LEAF, Structure, flatten, leaves_of_all
from asyncdata.runtime.randomness import words
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.state.marker import Marker

_TOGETHER_BYTES: Final = 64 << 10
"""Of repetitions that are copied together."""

_BETWEEN_MARKS: Final = 32
"""Elements between two beginnings of repetitions that have marks, at least."""

Taken: TypeAlias = tuple[int, Structure, tuple[Column, ...]]
"""How many elements, how they nest, and their leaves, of which there may be none."""


class CountedStage(Stage):
    """The frame of such sources: the position is all the state there is.

    Args:
        context: What every stage is given.
        total: How many elements there are; None where that is not known, or there is no end.
    """

    def __init__(self, context: StageContext, total: int | None = None) -> None:
        super().__init__(context)
        self._total = total
        self._number = context.sources.add(context.path, context.label)
        self._marker = Marker()

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._marker.begin(mark["at"])

    @property
    def total(self) -> int | None:
        """How many elements there are, where that is known."""
        return self._total

    @abstractmethod
    def take(self, start: int, limit: int) -> Taken | None:
        """The elements from number `start` on, at most `limit`; None at the end."""

    async def _pull(self, limit: int) -> Block | None:
        return self._pull_ready(limit)

    def _pull_ready(self, limit: int) -> Block | None:
        found = self.take(self._marker.rows, limit)
        if found is None:
            return None
        count, structure, columns = found
        origin = self._origin(count)
        return Block(structure, columns, origin, source_advance(count, self._marker, self._mark, self._also(count)))

    @property
    def exhausted(self) -> bool:
        """Behind the last element."""
        return self._total is not None and self._marker.rows >= self._total

    def _mark(self, at: int) -> Mark:
        """What is written in front of the element of this number."""
        return {"at": at}

    def _also(self, count: int) -> Sequence[int]:  # noqa: ARG002 -- for those that have some
        """Which of the next so many elements have a mark beside those at fixed distances."""
        return ()

    def _origin(self, count: int) -> Rows:
        """Provenance of the next so many elements."""
        return source_origin(self._number, self._marker.rows, count)

    @property
    def draining(self) -> bool:
        """Nothing to prepare."""
        return True


def source_origin(source: int, start: int, count: int) -> Rows:
    """Provenance of consecutive elements of a source that is counted, not read."""
    origin = np.zeros((count, 4), np.int64)
    origin[:, 0] = source
    origin[:, 1] = np.arange(start, start + count)
    return origin


def source_advance(
    count: int,
    marker: Marker,
    mark: Callable[[int], Mark] = lambda number: {"at": number},
    also: Sequence[int] = (),
) -> Advance:
    """The advance of elements that are counted, not read; ``mark(number)`` is written in front of some of them."""
    start = marker.rows
    return Advance(count, marker.marks(count, lambda row: mark(start + row), also=also))


class RangeStage(CountedStage):
    """Consecutive integers as one array column per block."""

    def __init__(self, context: StageContext, values: range, dtype: str) -> None:
        super().__init__(context, len(values))
        self._values = values
        self._dtype = np.dtype(dtype)

    def take(self, start: int, limit: int) -> Taken | None:
        part = self._values[start : start + limit]
        if not part:
            return None
        array = np.arange(part.start, part.stop, part.step, dtype=np.int64).astype(self._dtype, copy=False)
        return len(part), LEAF, (ArrayColumn(array),)


class CounterStage(CountedStage):
    """``start, start + step, …`` without an end; integers wrap around as the dtype does, floats become infinite."""

    def __init__(self, context: StageContext, start: float, step: float, dtype: str) -> None:
        super().__init__(context)
        self._start = start
        self._step = step
        self._dtype = np.dtype(dtype)

    def take(self, start: int, limit: int) -> Taken:
        with np.errstate(over="ignore"):
            numbers = self._start + self._step * np.arange(start, start + limit, dtype=np.int64)
            return limit, LEAF, (ArrayColumn(numbers.astype(self._dtype, copy=False)),)


class RandomStage(CountedStage):
    """``int64`` numbers from 0 to 2**32 - 1 without an end, each a function of the key and its position."""

    def __init__(self, context: StageContext, key: tuple[int, int]) -> None:
        super().__init__(context)
        self._key = key

    def take(self, start: int, limit: int) -> Taken:
        return limit, LEAF, (ArrayColumn((words(self._key, start, limit) >> np.uint64(32)).astype(np.int64)),)


class SlicesStage(CountedStage):
    """Rows of arrays, as many at a time as take no more than some bytes: what is made of them may be copies."""

    def __init__(self, context: StageContext, arrays: tuple[npt.NDArray[Any], ...], structure: Structure) -> None:
        super().__init__(context, len(arrays[0]))
        self._arrays = arrays
        self._structure = structure
        self._most = BLOCK_ROWS

    def take(self, start: int, limit: int) -> Taken | None:
        self._most = min(2 * self._most, BLOCK_ROWS)  # these may be smaller than those before
        count = min(limit, self._most, len(self._arrays[0]) - start)
        if count <= 0:
            return None
        columns = self._columns(start, count)
        while count > 1 and sum(column.nbytes for column in columns) > self.context.block_bytes:
            self._most = count = count // 2
            columns = self._columns(start, count)
        return count, self._structure, columns

    def _columns(self, start: int, count: int) -> tuple[Column, ...]:
        parts = [array[start : start + count] for array in self._arrays]
        return tuple(ObjectColumn(list(part)) if part.dtype == object else ArrayColumn(part) for part in parts)


class ItemsStage(CountedStage):
    """A sequence of elements kept as Python objects."""

    def __init__(self, context: StageContext, items: tuple[Any, ...]) -> None:
        super().__init__(context, len(items))
        self._items = items

    def take(self, start: int, limit: int) -> Taken | None:
        part = self._items[start : start + limit]
        return (len(part), *columns_of(list(part))) if part else None


class RepeatedStage(CountedStage):
    """Repetitions of such a source: one block may have many of them, and elements are counted across all.

    Elements of different repetitions have different sub-indices, the same as if each repetition had its own stage.

    Args:
        source: Its elements, of which there are some; this stage takes its place.
        count: How many repetitions; None for ever.
        sub_index: Of each of them, see `Stage`.
    """

    def __init__(self, source: CountedStage, count: int | None, sub_index: Callable[[int], int]) -> None:
        assert source.total
        super().__init__(source.context, None if count is None else count * source.total)
        self._source = source
        self._length = source.total
        self._sub_index = sub_index
        # Its step is done here, too.
        self.meter, source.meter = source.meter, None

    def restore(self, mark: Mark) -> None:
        """See `Stage`; the mark is that of `repeat`."""
        inner, skip = mark["input"]
        self._marker.begin(mark["number"] * self._length + (inner["at"] if inner else 0) + skip)

    def take(self, start: int, limit: int) -> Taken | None:
        rows, nbytes, parts, nested = 0, 0, list[tuple[Column, ...]](), LEAF
        most = limit if self._total is None else min(limit, self._total - start)
        while rows < most and nbytes < _TOGETHER_BYTES:
            at = (start + rows) % self._length
            found = self._source.take(at, most - rows)
            if found is None or (parts and found[1] != nested):
                break
            count, nested, columns = found
            parts.append(columns)
            nbytes += sum(column.nbytes for column in columns)
            rows += count
            if at + count < self._length:
                break
        return (rows, nested, tuple(map(concat, zip(*parts, strict=True)))) if rows else None

    def _also(self, count: int) -> Sequence[int]:
        """Where repetitions begin, which a state tells then; of short ones only some."""
        every = self._length * -(-_BETWEEN_MARKS // self._length)
        return range(-self._marker.rows % every, count, every)

    def _mark(self, at: int) -> Mark:
        number, row = divmod(at, self._length)
        return {"number": number, "row": at, "input": State({"at": row}, 0)}

    def _origin(self, count: int) -> Rows:
        first = self._marker.rows
        origin = source_origin(self._number, first, count)
        origin[:, 1] %= self._length
        begun, ended = first // self._length, (first + count - 1) // self._length
        moved = [self._sub_index(number) for number in range(begun, ended + 1)]
        origin[:, SUB_INDEX] = np.array(moved, np.int64)[np.arange(first, first + count) // self._length - begun]
        return origin


def block_of_elements(elements: list[Any], origin: Rows, advance: Advance) -> Block:
    """A block of Python objects; see `columns_of`."""
    if not elements:
        return Block.empty(advance)
    structure, columns = columns_of(elements)
    return Block(structure, columns, origin, advance)


def columns_of(elements: list[Any]) -> tuple[Structure, tuple[Column, ...]]:
    """Columns of Python objects, of which there are some; unlike structures become bare objects."""
    _, structure = flatten(elements[0])
    leaves = None if structure is LEAF else leaves_of_all(structure, elements)
    if leaves is None:
        return LEAF, (ObjectColumn(elements),)
    return structure, tuple(map(ObjectColumn, leaves))
