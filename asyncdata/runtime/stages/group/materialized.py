"""What a window holds: elements that a running pipeline has collected, to be read as a dataset of their own.

* *Private*: arrays and Python objects in ordinary memory, for as long as anybody refers to them. The elements of
  `window` are such: user code may keep them, and iterate over them when the pipeline is gone.
* *Attached*: rows of the pipeline's arena, which belong to the stage that collected them (`group_by_window`). They are
  read while that stage makes a dataset of them. `detach` makes them private if somebody still refers to them.

Reading takes nothing away: contents can be read several times, and at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from asyncdata.memory.advance import EMPTY, NO_ORIGINS, Mark, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.own import own
from asyncdata.memory.slabs import Slabs
from asyncdata.memory.structure import LEAF, Structure
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.sources.arrays import source_advance
from asyncdata.runtime.state.marker import Marker
from asyncdata.types import Element
from asyncdata.wording import counted

_ROWS_AT_A_TIME: Final = 64
"""Rows that iteration copies before it gives them out."""


class Materialized:
    """See the module's docstring.

    Args:
        structure: How the leaves nest.
        columns: The rows; not given back by this object.
        origin: Their provenance.
        attached: Whether they belong to the stage that collected them.
    """

    __slots__ = ("__weakref__", "_attached", "_columns", "_origin", "_structure")

    def __init__(
        self, structure: Structure, columns: tuple[Column, ...], origin: Rows, *, attached: bool = False
    ) -> None:
        self._structure = structure
        self._columns = columns
        self._origin = origin
        self._attached = attached

    def __len__(self) -> int:
        return len(self._origin)

    def __iter__(self) -> Iterator[Element]:
        for start in range(0, len(self), _ROWS_AT_A_TIME):
            part = self._block(slice(start, min(start + _ROWS_AT_A_TIME, len(self))))
            yield from Block(part.structure, tuple(map(private, part.columns)), part.origin, part.advance).elements()

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'element')}>"

    def __reduce__(self) -> tuple[Any, ...]:
        columns = tuple(private(column) for column in self._columns)
        return _restored, (self._structure, columns, self._origin)

    def _block(self, rows: slice) -> Block:
        columns = tuple(rows_of(column, rows) for column in self._columns)
        return Block(self._structure, columns, self._origin[rows], EMPTY)

    @property
    def copied_bytes(self) -> int:
        """What copies of all rows take that reading makes."""
        return 0 if self._attached else sum(column.nbytes for column in self._columns)

    def read(self, start: int, count: int, slabs: Slabs) -> Block:
        """Some rows as a block of its own, for a pipeline with this arena. The advance is the caller's business."""
        part = self._block(slice(start, start + count))
        columns: list[Column] = []
        for column in part.columns:
            if isinstance(column, RefColumn) and column.slabs is slabs:
                # Whoever moves rows writes where they are now: what is read twice may not share that.
                owned = column.owned()
                owned.hold()
                columns.append(owned)
            else:
                columns.append(private(column))
        return Block(part.structure, tuple(columns), part.origin, part.advance)

    def detach(self) -> None:
        """From now on the rows are private; called before they are released."""
        self._columns = tuple(private(column) for column in self._columns)
        self._attached = False


def _restored(structure: Structure, columns: tuple[Column, ...], origin: Rows) -> Materialized:
    return Materialized(structure, columns, origin)


def rows_of(column: Column, rows: slice) -> Column:
    """Some rows for reading only; whoever owns the column keeps owning them."""
    if isinstance(column, RefColumn):
        return column.pick(rows)
    if isinstance(column, ArrayColumn):
        return ArrayColumn(column.array[rows])
    return ObjectColumn(column.items[rows])


def private(column: Column) -> Column:
    """A copy in ordinary memory, which a user may write to; what the column holds stays held."""
    if isinstance(column, ArrayColumn):
        return ArrayColumn(column.array.copy())
    if isinstance(column, RefColumn):
        return ObjectColumn([column.element(row) for row in range(len(column))])
    return ObjectColumn(list(map(own, column.items)))


_NOTHING: Final = Materialized(LEAF, (), NO_ORIGINS)


class ContentsStage(Stage):
    """Elements that were collected before.

    Args:
        context: What every stage is given.
        contents: The elements.
    """

    def __init__(self, context: StageContext, contents: Materialized) -> None:
        super().__init__(context)
        self._contents = contents
        self._most = max(1, context.block_bytes * len(contents) // max(contents.copied_bytes, 1))
        self._marker = Marker()

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._marker.begin(mark["at"])

    async def _pull(self, limit: int) -> Block | None:
        start = self._marker.rows
        count = min(limit, self._most, len(self._contents) - start)
        if count <= 0:
            return None
        block = self._contents.read(start, count, self.context.budget.slabs)
        block.advance = source_advance(count, self._marker)
        return block

    @property
    def draining(self) -> bool:
        """Nothing to prepare."""
        return True

    async def aclose(self) -> None:
        self._contents = _NOTHING
        await super().aclose()
