"""What many records have in common: their sizes, and the types, shapes and ranges of what is in them. Pure.

Memory does not grow with the number of records: sizes are counted by their first three digits, and only the first
fields are kept, up to a fixed number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from asyncdata.formats.signatures import look_of

_MOST_FIELDS: Final = 1000
_MOST_SHAPES: Final = 4
_DEEPEST: Final = 20


Range: TypeAlias = "tuple[float, float] | None"


class Sizes:
    """Minimum, median and maximum of sizes; the median to three digits.

    Attributes:
        count: How many there were.
        total: Their sum.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self._least = self._most = 0
        self._rounded: Counter[int] = Counter()

    def add(self, size: int) -> None:
        """One more."""
        self._least = min(self._least, size) if self.count else size
        self._most = max(self._most, size)
        self.count += 1
        self.total += size
        step = 10 ** max(0, len(str(size)) - 3)
        self._rounded[size // step * step] += 1

    def figures(self) -> dict[str, int] | None:
        """The figures; None without any size."""
        if not self.count:
            return None
        left = (self.count + 1) // 2
        for rounded in sorted(self._rounded):
            left -= self._rounded[rounded]
            if left <= 0:
                median = min(max(rounded, self._least), self._most)
                return {"min": self._least, "median": median, "max": self._most}
        raise AssertionError("the median is one of the sizes")


def _wider(known: Range, least: float, most: float) -> Range:
    return (least, most) if known is None else (min(known[0], least), max(known[1], most))


@dataclass(slots=True)
class FieldSummary:
    """One field of the records.

    Attributes:
        records: How many records have it.
        dtypes: Of its values.
        shapes: Of its values; empty once they are too many to tell.
        numbers: The smallest and the largest one.
        lengths: Of the shortest and the longest text or byte string.
        looks: What its byte strings look like.
    """

    records: int = 0
    dtypes: set[str] = field(default_factory=set)
    shapes: set[tuple[int, ...]] | None = field(default_factory=set)
    numbers: Range = None
    lengths: Range = None
    looks: set[str] = field(default_factory=set)

    def add(self, value: Any) -> None:
        """One more value."""
        self.records += 1
        if value is None:
            self.dtypes.add("none")
        elif isinstance(value, bytes | str):
            self.dtypes.add(type(value).__name__)
            self._shape(())
            self.lengths = _wider(self.lengths, len(value), len(value))
            self._look(value)
        else:
            array = _array_of(value)
            self._shape(array.shape)
            self._values(array)

    def _values(self, array: Any) -> None:
        if array.dtype.kind not in "OUS":
            self.dtypes.add(str(array.dtype))
            if array.size and array.dtype.kind in "biuf":
                self._numbers(array)
            return
        for each in array.ravel().tolist():
            if isinstance(each, list | np.ndarray):
                self._values(_array_of(each))
                continue
            self.dtypes.add("none" if each is None else type(each).__name__)
            if isinstance(each, bytes | str):
                self.lengths = _wider(self.lengths, len(each), len(each))
                self._look(each)

    def _numbers(self, array: Any) -> None:
        if array.dtype.kind == "f":
            array = array[np.isfinite(array)]
            if not array.size:
                return
        self.numbers = _wider(self.numbers, array.min().item(), array.max().item())

    def _shape(self, shape: tuple[int, ...]) -> None:
        if self.shapes is not None:
            self.shapes.add(shape)
            if len(self.shapes) > _MOST_SHAPES:
                self.shapes = None

    def _look(self, value: bytes | str) -> None:
        if isinstance(value, bytes) and (look := look_of(value[:16], file=False)):
            self.looks.add(look)

    def figures(self) -> dict[str, Any]:
        """The same as plain data."""
        texts = bool(self.dtypes) and self.dtypes <= {"bytes", "str", "none"}
        least, most = (self.lengths if texts else self.numbers) or (None, None)
        limits = {"min_bytes": least, "max_bytes": most} if texts else {"min": least, "max": most}
        return {
            "records": self.records,
            "dtypes": sorted(self.dtypes),
            "shapes": None if self.shapes is None else sorted(list(shape) for shape in self.shapes),
            **limits,
            "looks": sorted(self.looks),
        }


class FieldSummaries:
    """The fields of many records, by their names.

    Attributes:
        summaries: By name; ``a.b`` is ``b`` of ``a``.
        left_out: Values of fields beyond the first thousand.
    """

    def __init__(self) -> None:
        self.summaries: dict[str, FieldSummary] = {}
        self.left_out = 0

    def add(self, record: Any, name: str = "", depth: int = 0) -> None:
        """One more record, or a part of one."""
        if isinstance(record, Mapping) and depth < _DEEPEST:
            for key, value in record.items():
                self.add(value, f"{name}.{key}" if name else str(key), depth + 1)
            return
        summary = self.summaries.get(name)
        if summary is None:
            if len(self.summaries) >= _MOST_FIELDS:
                self.left_out += 1
                return
            summary = self.summaries[name] = FieldSummary()
        summary.add(record)


def _array_of(value: Any) -> Any:
    """A value as an array; lists that are no array as an array of objects, empty ones without a type."""
    if not isinstance(value, list | tuple):
        return np.asarray(value)
    try:
        array = np.asarray(value)
    except ValueError:  # its lists differ in length
        return np.array([*value, None], object)[:-1]
    return array if array.size else array.astype(object)
