"""What `ragged_batch` makes of one leaf: its values end to end, and where the rows of every level begin.

    elements   [a b]  []  [c d e f]          values  a b c d e f     splits  0 2 2 6

A leaf without axes is stacked as by `batch`. How many axes become ragged is said by the leaf's static shape, where one
is known: up to the last one of unknown length, none if all are known. Else all of them do: what a batch becomes must
not depend on which elements happen to meet in it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.layout import as_bytes
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import LEAF, DictOf, RaggedOf, RecordOf, Structure, TupleOf, leaf_names
from asyncdata.runtime.stage import Pause
from asyncdata.runtime.stages.group.uneven import Part, Plan, Stack, Stored, strings_part
from asyncdata.runtime.stages.group.values import Numbers, StringArrays, StringLists, Strings, Values


class Ragging:
    """How `ragged_batch` lays its batches out.

    Args:
        splits_dtype: Of the row splits.
        ranks: Nested like the elements: how many axes of a leaf become ragged; None for all.
    """

    def __init__(self, splits_dtype: str, ranks: Any) -> None:
        self._dtype = np.dtype(splits_dtype)
        self._ranks = ranks

    def __call__(self, structure: Structure, values: Sequence[Values]) -> Plan:
        """The leaves of one batch.

        Raises:
            UnbatchableError: An element does not fit.
        """
        parts: list[Part] = []
        rest = iter(values)
        names = iter(leaf_names(structure))
        return Plan(self._walk(structure, rest, names, self._ranks, parts), parts)

    def _walk(
        self,
        structure: Structure,
        values: Iterator[Values],
        names: Iterator[str],
        ranks: Any,
        parts: list[Part],
    ) -> Structure:
        if isinstance(structure, TupleOf | DictOf | RecordOf):
            pairs = zip(structure.children, _ranks_of(structure, ranks), strict=True)
            children = tuple(self._walk(child, values, names, rank, parts) for child, rank in pairs)
            return dataclasses.replace(structure, children=children)
        name = next(names)
        rank = ranks if isinstance(ranks, int) else None
        try:
            if isinstance(structure, RaggedOf):
                columns = [next(values) for _ in range(1 + structure.levels)]
                return self._of_ragged(columns, parts)
            return self._of_leaf(next(values), rank, parts)
        except UnbatchableError as error:
            error.complete(leaf=name or None)
            raise

    def _of_leaf(self, values: Values, rank: int | None, parts: list[Part]) -> Structure:
        if isinstance(values, Strings):
            parts.append(strings_part(values))
            return LEAF
        if isinstance(values, StringLists):
            items = [as_bytes(item) for part in values.lists for item in part]
            parts.append(strings_part(Strings(None, items, values.text)))
            parts.append(self._splits(np.array([len(part) for part in values.lists], np.int64)))
            return RaggedOf(1)
        if isinstance(values, StringArrays):
            raise UnbatchableError(
                "ragged_batch takes no arrays of strings with several axes; use batch or padded_batch"
            )
        shapes = values.shapes()
        levels = _levels(shapes, rank)
        if not levels:
            leaf = Leaf("array", values.dtype.str, (len(values.arrays), *shapes[0].tolist()))
            parts.append(Stored(leaf, Stack(values)))
            return LEAF
        inner = tuple(shapes[0, levels:].tolist())
        parts.append(_flat(_flattened(values, levels), values.dtype, inner))
        rows = np.ones(len(shapes), np.int64)
        for level in range(levels):
            parts.append(self._splits(np.repeat(shapes[:, level], rows)))
            rows = rows * shapes[:, level]
        return RaggedOf(levels)

    def _of_ragged(self, columns: list[Values], parts: list[Part]) -> Structure:
        flat, *splits = columns
        if isinstance(flat, Numbers):
            shapes = flat.shapes()
            if (shapes[:, 1:] != shapes[0, 1:]).any():
                raise UnbatchableError("the innermost values of RaggedArrays in one batch differ in shape")
            parts.append(_flat(list(flat.arrays), flat.dtype, tuple(shapes[0, 1:].tolist())))
        elif isinstance(flat, StringArrays):
            raise UnbatchableError("ragged_batch takes no RaggedArrays of arrays of strings")
        else:
            assert isinstance(flat, StringLists)
            items = [as_bytes(item) for part in flat.lists for item in part]
            parts.append(strings_part(Strings(None, items, flat.text)))
        assert all(isinstance(level, Numbers) for level in splits)
        outermost = splits[0]
        assert isinstance(outermost, Numbers)
        parts.append(self._splits(np.array([len(level) - 1 for level in outermost.arrays], np.int64)))
        for level in splits:
            assert isinstance(level, Numbers)
            parts.append(self._splits(np.concatenate([np.diff(one) for one in level.arrays]).astype(np.int64)))
        return RaggedOf(1 + len(splits))

    def _splits(self, lengths: npt.NDArray[np.int64]) -> Part:
        splits = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=splits[1:])
        if splits[-1] > np.iinfo(self._dtype).max:
            raise UnbatchableError(f"{splits[-1]} values in one batch need row_splits_dtype int64")
        return Stored(Leaf("array", self._dtype.str, splits.shape), _Array(splits))


def _ranks_of(structure: TupleOf | DictOf | RecordOf, ranks: Any) -> list[Any]:
    """What is known of each child; None where nothing is."""
    if isinstance(structure, TupleOf):
        known = isinstance(ranks, tuple) and len(ranks) == len(structure.children)
        return list(ranks) if known else [None] * len(structure.children)
    names = structure.keys if isinstance(structure, DictOf) else structure.fields
    return [ranks.get(name) if isinstance(ranks, dict) else None for name in names]


def _levels(shapes: npt.NDArray[np.int64], rank: int | None) -> int:
    """How many axes become ragged."""
    axes = shapes.shape[1]
    if rank is None or rank > axes:
        return int(axes)
    differ = np.flatnonzero((shapes != shapes[0]).any(axis=0))
    if len(differ) and int(differ[-1]) >= rank:
        raise UnbatchableError(
            f"elements of one batch differ in axis {int(differ[-1])}, which was known to have one length"
        )
    return rank


def _flattened(values: Numbers, levels: int) -> list[npt.NDArray[Any]]:
    """Arrays that have one axis in place of those that become ragged, and of that of the elements."""
    if isinstance(values.arrays, np.ndarray):
        return [_merged(values.arrays, 1 + levels)]
    return [_merged(array, levels) for array in values.arrays]


def _merged(array: npt.NDArray[Any], axes: int) -> npt.NDArray[Any]:
    """An array whose first axes are one. Any other may have length 0, so that numpy could not tell the length of it."""
    return array.reshape(math.prod(array.shape[:axes]), *array.shape[axes:])


def _flat(arrays: list[npt.NDArray[Any]], dtype: np.dtype[Any], inner: tuple[int, ...]) -> Part:
    total = sum(map(len, arrays))
    return Stored(Leaf("array", dtype.str, (total, *inner)), _EndToEnd(arrays))


class _EndToEnd:
    """Writes arrays one after the other."""

    def __init__(self, arrays: list[npt.NDArray[Any]]) -> None:
        self._arrays = arrays

    async def __call__(self, out: npt.NDArray[Any], pause: Pause) -> None:
        np.concatenate(self._arrays, out=out)
        await pause()


class _Array:
    """Writes what is there already."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    async def __call__(self, out: npt.NDArray[Any], pause: Pause) -> None:
        out[...] = self._array
        await pause()
