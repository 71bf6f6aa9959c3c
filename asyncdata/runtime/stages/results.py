"""What functions return, as elements: a Python number becomes the NumPy number that workers make of it.

So it makes no difference to what follows where a function runs: ``int`` gives ``int64`` (``uint64`` where it is too
large for that), ``float`` gives ``float64``, ``bool`` and ``complex`` theirs. Integers of more than 64 bits, and
everything else, stay what they are. Numbers of a block are converted together, each as it would be alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from asyncdata.memory.advance import Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn
from asyncdata.memory.structure import LEAF, flatten, unflatten
from asyncdata.runtime.stages.arrays import block_of_elements

_NUMBERS: Final = frozenset({bool, int, float, complex})


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
            return ObjectColumn([_number(item) for item in items])
    if kinds & _NUMBERS or (tuple in kinds or dict in kinds):
        return ObjectColumn([_element(item) for item in items])
    return column


def _element(item: Any) -> Any:
    """One element of a column in which they are not alike; it may be a nest."""
    leaves, structure = flatten(item)
    if structure is LEAF:
        return _number(item)
    return unflatten(structure, iter([_number(leaf) for leaf in leaves]))


def _number(leaf: Any) -> Any:
    if type(leaf) not in _NUMBERS:
        return leaf
    array = np.asarray(leaf)
    if array.dtype == object:
        return leaf
    # NumPy calls its unsigned type for large integers by another name of the same kind.
    return array[()] if array.dtype.kind != "u" else np.uint64(leaf)
