"""`check` without worker processes: payload checksums, verified on the stage loop.

Handing a block to a thread and back costs more than the checksums of small records, and the thread would compete for
the same interpreter. Large payloads are checked piece by piece, so that the loop is left to others in between. Rows of
slabs that their reader vouches for were verified with their neighbours, and are not looked at again.
"""

from __future__ import annotations

from typing import Any, Final

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.tfrecord import check_payloads
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column, RefColumn
from asyncdata.memory.unverified import holds, unverified_rows, verified
from asyncdata.runtime.stages.rows.rowwise import RowwiseStage
from asyncdata.types import Element

_PIECE_BYTES: Final = 8 << 20
"""About a millisecond's work."""


class CheckStage(RowwiseStage):
    """Passes on what holds; a payload that does not is an error, or left out."""

    def _call(self, element: Element, origin: Rows) -> None:
        raise NotImplementedError  # rows are looked at together

    def _look(self, block: Block, limit: int) -> tuple[list[Any], Exception | None]:
        rows = min(limit, len(block))
        unsure = [(column, found) for column in block.columns if len(found := _not_vouched_for(column, rows))]
        if not unsure:
            return [None] * rows, None
        if (nbytes := block.nbytes) > _PIECE_BYTES:
            rows = max(1, min(rows, len(block) * _PIECE_BYTES // nbytes))
        bad = min((row for column, found in unsure for row in _first_bad(column, found[found < rows])), default=None)
        if bad is None:
            return [None] * rows, None
        return [None] * bad, CorruptRecordError(
            "the checksum of a record's payload does not match: the file is damaged",
            stage=self.label,
            **self.context.sources.place(block.origin[bad]),
        )

    def _made(self, block: Block, values: list[Any]) -> Block:
        del values
        block.columns = tuple(map(verified, block.columns))
        return block


def _not_vouched_for(column: Column, rows: int) -> Rows:
    """Those of the first `rows` rows that nobody has verified."""
    found = unverified_rows(column)
    found = found[found < rows]
    if isinstance(column, RefColumn) and len(found):
        found = found[~column.slabs.are_vouched(column.rows[found, 0])]
    return found


def _first_bad(column: Column, rows: Rows) -> list[int]:
    """The first of these rows that does not hold, if there is one."""
    bad: list[int]
    if isinstance(column, RefColumn):
        bad = rows[check_payloads(column.slabs.arena.array, column.rows[rows])[:1]].tolist()
    else:
        bad = [row for row in rows.tolist() if not holds(column.element(row), check_payloads)][:1]
    return bad
