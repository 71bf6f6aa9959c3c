"""What functions returned, as blocks. Numbers of a block are converted together, each as it would be alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from asyncdata.memory.advance import Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn
from asyncdata.memory.returned import returned_nest
from asyncdata.runtime.stages.sources.arrays import block_of_elements

_NUMBERS: Final = frozenset({bool, int, float, complex})
_SETTLED: Final = frozenset({bytes, str, np.int64, np.float32, np.float64})


def block_of_results(results: list[Any], origin: Rows, advance: Advance) -> Block:
    """As `block_of_elements`, for what a function returned."""
    block = block_of_elements(results, origin, advance)
    columns = tuple(_converted(column) if isinstance(column, ObjectColumn) else column for column in block.columns)
    return Block(block.structure, columns, block.origin, block.advance)


def _converted(column: ObjectColumn) -> Column:
    items = column.items
    kinds = set(map(type, items))
    if len(kinds) == 1 and kinds <= _NUMBERS:
        try:
            return ArrayColumn(np.array(items, np.int64 if int in kinds else kinds.pop()))
        except OverflowError:
            pass
    # Where elements are not alike, each may be a nest.
    return column if kinds <= _SETTLED else ObjectColumn([returned_nest(item) for item in items])
