"""`map` of a vectorized function: called for a block of elements at once, with an array per leaf.

How many elements a block holds depends on how the data arrived, so the function must treat every row alike and by
itself; then any blocking gives the same elements. Elements that make no array together (of different types, dtypes or
shapes) are given to it in calls of their own, since NumPy would convert what arrived together. If a call fails, half of
its elements are given to it again, until the element that fails is alone: then those before it were delivered, and it
is left out, if a policy says so, or its error is raised.

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
from asyncdata.memory.own import own, settled
from asyncdata.memory.returned import returned
from asyncdata.memory.structure import LEAF, Structure, flatten, leaf_names, unflatten
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.sources.arrays import columns_of
from asyncdata.runtime.user_code import leave_out
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
        self._few: int | None = None  # elements of the next call, where one before it has failed

    async def _pull(self, limit: int) -> Block | None:
        while True:
            await self._pause()
            most = min(limit, self._rows if self._few is None else self._few)
            if self._block is None:
                self._block = await self._upstream.pull(most)
            block = self._block
            if block is None or not len(block):
                self._block = None
                return block
            structure, columns = _regular(block)
            alike = list(map(_alike, columns))
            count = min([most, len(block), *(found for found, _ in alike)])
            arrays = unflatten(structure, iter([array_of(count) for _, array_of in alike]))
            arguments = arrays if type(arrays) is tuple else (arrays,)
            try:
                value = self._function(*arguments)
                value = settled(value)
            except BaseException as error:  # noqa: BLE001 -- raised if it is that of one element
                if count > 1:
                    self._few = count // 2
                    continue
                self._few = 1
                return self._leave_out(error, arguments)
            return self._made(value, arguments, count)

    def _leave_out(self, error: BaseException, arguments: tuple[Any, ...]) -> Block:
        """Goes on without the next element, for which the function failed, or raises its error."""
        assert self._block is not None
        explain_call(error, self._function, arguments)
        raised = as_raisable(error)
        self.context.sources.locate(raised, self.label, self._block.origin[0])
        news, self._block = leave_out(self._block, raised, self.context.guard)
        return Block.empty(news.advance)

    def _made(self, value: Any, arguments: tuple[Any, ...], count: int) -> Block:
        """What the function returned for the next elements."""
        block, self._block = self._block, None
        assert block is not None
        if count < len(block):
            block, self._block = block.split(count)
        try:
            structure, columns = self._columns(value, arguments, block.origin)
        finally:
            block.release()
        made = Block(structure, columns, block.origin, block.advance)
        self._rows = max(1, self.context.block_bytes * count // max(made.nbytes, 1))
        if self._few is not None:
            self._few = 2 * count if 2 * count < self._rows else None
        if self.context.guard is not None:
            self.context.guard.passed(count)
        return made

    def _columns(self, value: Any, arguments: tuple[Any, ...], origin: Rows) -> tuple[Structure, tuple[Column, ...]]:
        """What it returned must be arrays. If it is not, the function is wrong, and no element: nothing is left out."""
        try:
            leaves, structure = flatten(no_coroutine(value))
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
    if type(item) is list and type(item := returned(item)) is list:  # NumPy would convert what is in it
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
        stacked[row] = own(item) if dtype.kind == "O" else item
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
    if isinstance(leaf, np.ma.MaskedArray) or leaf.dtype.kind in "OSUT":
        return ObjectColumn(list(leaf))
    return ArrayColumn(leaf)
