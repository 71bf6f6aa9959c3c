"""`map` of a vectorized function: called for a block of elements at once, with an array per leaf.

How many elements a block holds depends on how the data arrived, so the function must treat every row alike and by
itself; then any blocking gives the same elements. Elements that make no array together (of different types, dtypes or
shapes) are given to it in calls of their own, since NumPy would convert what arrived together.

    rows of the block      [3, 1, 4]        one array per leaf, a copy that the function may write to
    function               lambda x: 2 * x
    rows of its result     [6, 2, 8]        one array (or `BytesArray`) per leaf, as many rows
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.own import own
from asyncdata.memory.structure import LEAF, Structure, flatten, leaf_names, unflatten
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.sources.arrays import columns_of
from asyncdata.wording import counted, kind_of
from asyncdata.workers.calling import explain_call, no_coroutine
from asyncdata.workers.failure import annotate, as_raisable


class VectorizedMapStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        function: The user's function; a tuple element is unpacked into its arguments.
    """

    def __init__(self, context: StageContext, upstream: Stage, function: Callable[..., Any]) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._function = function
        self._rows = 1

    async def _pull(self, limit: int) -> Block | None:
        await self._pause()
        if self._block is None:
            self._block = await self._upstream.pull(min(limit, self._rows))
        block = self._block
        if block is None or not len(block):
            self._block = None
            return block
        structure, columns = _regular(block)
        alike = list(map(_alike, columns))
        count = min([limit, len(block), *(found for found, _ in alike)])
        self._block = None
        if count < len(block):
            block, self._block = block.split(count)
        try:
            element = unflatten(structure, iter([array_of(count) for _, array_of in alike]))
            structure, columns = self._call(element, block.origin)
        finally:
            block.release()
        made = Block(structure, columns, block.origin, block.advance)
        self._rows = max(1, self.context.block_bytes * len(made) // max(made.nbytes, 1))
        return made

    def _call(self, element: Any, origin: Rows) -> tuple[Structure, tuple[Column, ...]]:
        arguments = element if type(element) is tuple else (element,)
        try:
            value = no_coroutine(self._function(*arguments))
            leaves, structure = flatten(value)
            named = zip(leaves, leaf_names(structure), strict=True)
            return structure, tuple(_column_of(leaf, name, len(origin)) for leaf, name in named)
        except BaseException as error:
            explain_call(error, self._function, arguments)
            raised = as_raisable(error)
            sources = self.context.sources
            first, last = sources.name_element(origin[0]), sources.name_element(origin[-1])
            annotate(raised, f"in {self.label}, called for {counted(len(origin), 'element')} from {first} to {last}")
            if raised is error:
                raise
            raise raised from raised.__cause__


def _regular(block: Block) -> tuple[Structure, Sequence[Column]]:
    """The rows of a block; where they nest in different ways, and are bare objects, the first that nest alike."""
    column = block.columns[0] if block.structure is LEAF else None
    one_leaf = isinstance(column, RefColumn) and column.leaf is not None and column.leaf.kind != "object"
    if column is None or isinstance(column, ArrayColumn) or one_leaf:
        return block.structure, block.columns
    items = [column.element(row) for row in range(len(column))]
    structure = flatten(items[0])[1]
    return columns_of(list(itertools.takewhile(lambda item: flatten(item)[1] == structure, items)))


def _alike(column: Column) -> tuple[int, Callable[[int], Any]]:
    """How many rows from the first on make one array, and what makes it, in private memory, of so many of them.

    Byte strings and texts become a BytesArray.
    """
    if isinstance(column, ArrayColumn):
        array = column.array
        return len(column), lambda count: own(array[:count])
    if isinstance(column, RefColumn) and column.leaf is not None and column.leaf.kind in ("bytes", "str"):
        slabs, rows, text = column.slabs, column.rows, column.leaf.kind == "str"
        return len(column), lambda count: BytesArray.copied(slabs.arena.array, rows[:count], text=text)
    items = [column.element(row) for row in range(len(column))]
    kind = _kind(items[0])
    return next((row for row, item in enumerate(items) if _kind(item) != kind), len(items)), lambda count: _stacked(
        items[:count], kind
    )


def _kind(item: Any) -> Any:
    """What an item has in common with those that make an array with it: a type, or dtype and shape."""
    if isinstance(item, bytes | str):
        return bytes if isinstance(item, bytes) else str
    if isinstance(item, Mapping | np.ma.MaskedArray):  # NumPy would read its keys, or drop the mask
        return np.dtype(object), ()
    try:
        array = np.asarray(item)
    except ValueError:  # lists of different lengths
        return np.dtype(object), ()
    return array.dtype, array.shape


def _stacked(items: list[Any], kind: Any) -> Any:
    if kind in (bytes, str):
        return BytesArray.from_items(items)
    dtype, shape = kind
    stacked = np.empty((len(items), *shape), dtype)
    for row, item in enumerate(items):
        stacked[row] = item
    return stacked


def _column_of(leaf: Any, name: str, rows: int) -> Column:
    where = f"leaf {name!r} of what it returned" if name else "what it returned"
    if not isinstance(leaf, np.ndarray | BytesArray) or np.shape(leaf)[:1] != (rows,):
        shown = f"an array of shape {leaf.shape}" if isinstance(leaf, np.ndarray) else kind_of(leaf)
        raise TypeError(
            f"a vectorized function was called with {counted(rows, 'element')} and must return arrays of "
            f"{counted(rows, 'row')}, but {where} is {shown}"
        )
    if isinstance(leaf, BytesArray):
        return ObjectColumn(leaf.tolist())
    return ObjectColumn(list(leaf)) if leaf.dtype.kind in "OSU" else ArrayColumn(leaf)
