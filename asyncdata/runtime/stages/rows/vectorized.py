"""`map` of a vectorized function: called for a block of elements at once, with an array per leaf.

How many elements a block holds depends on how the data arrived, so the function must treat every row alike and by
itself; then any blocking gives the same elements.

    rows of the block      [3, 1, 4]        one array per leaf, a copy that the function may write to
    function               lambda x: 2 * x
    rows of its result     [6, 2, 8]        one array (or `BytesArray`) per leaf, as many rows
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.own import own
from asyncdata.memory.structure import Structure, flatten, leaf_names, unflatten
from asyncdata.runtime.stage import Stage, StageContext
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
        block = await self._upstream.pull(min(limit, self._rows))
        if block is None or not len(block):
            return block
        try:
            element = unflatten(block.structure, iter([_array_of(column) for column in block.columns]))
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
            annotate(raised, f"in {self.label}, called for {len(origin)} elements from {first} to {last}")
            if raised is error:
                raise
            raise raised from raised.__cause__


def _array_of(column: Column) -> Any:
    """A leaf of all rows, in private memory; byte strings and texts as a BytesArray."""
    if isinstance(column, ArrayColumn):
        return own(column.array)
    if isinstance(column, RefColumn) and column.leaf is not None and column.leaf.kind in ("bytes", "str"):
        return BytesArray.copied(column.slabs.arena.array, column.rows, text=column.leaf.kind == "str")
    items = [column.element(row) for row in range(len(column))]
    if all(isinstance(item, bytes) for item in items) or all(isinstance(item, str) for item in items):
        return BytesArray.from_items(items)
    return np.array(items)


def _column_of(leaf: Any, name: str, rows: int) -> Column:
    where = f"leaf {name!r} of what it returned" if name else "what it returned"
    if not isinstance(leaf, np.ndarray | BytesArray) or np.shape(leaf)[:1] != (rows,):
        shown = f"an array of shape {leaf.shape}" if isinstance(leaf, np.ndarray) else f"a {type(leaf).__name__}"
        raise TypeError(
            f"a vectorized function was called with {rows} elements and must return arrays of {rows} rows, "
            f"but {where} is {shown}"
        )
    if isinstance(leaf, BytesArray):
        return ObjectColumn(leaf.tolist())
    return ObjectColumn(list(leaf)) if leaf.dtype.kind in "OSU" else ArrayColumn(leaf)
