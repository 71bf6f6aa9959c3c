"""`check` without worker processes: payload checksums, verified on the stage loop.

Handing a block to a thread and back costs more than the checksums of small records, and the thread would compete for
the same interpreter. Large payloads are checked piece by piece, so that the loop is left to others in between. Rows of
slabs that their reader vouches for were verified with their neighbours, and are not looked at again.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.tfrecord import check_payloads
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.leaf import BYTES, UNCHECKED_BYTES
from asyncdata.runtime.policy import Guard
from asyncdata.runtime.sourcetable import SourceTable
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.rowwise import RowByRowStage

_PIECE_BYTES: Final = 8 << 20
"""About a millisecond's work."""


class CheckStage(RowByRowStage):
    """Passes on what holds; a payload that does not is an error, or left out.

    Args:
        label: The stage's name.
        upstream: The input.
        sources: For naming a record that is damaged.
        guard: Says whether a record may be left out; None lets none.
    """

    def __init__(self, label: str, upstream: Stage, sources: SourceTable, guard: Guard | None) -> None:
        super().__init__(label, upstream, guard)
        self._sources = sources

    def _look(self, block: Block, limit: int) -> tuple[int, Exception | None]:
        rows = min(limit, len(block))
        unsure = [(column, found) for column in _unchecked(block) if len(found := _not_vouched_for(column, rows))]
        if not unsure:
            return rows, None
        if (nbytes := block.nbytes) > _PIECE_BYTES:
            rows = max(1, min(rows, len(block) * _PIECE_BYTES // nbytes))
        bad = min((row for column, found in unsure for row in _first_bad(column, found[found < rows])), default=None)
        if bad is None:
            return rows, None
        return bad, CorruptRecordError(
            "the checksum of a record's payload does not match: the file is damaged",
            stage=self.label,
            **self._sources.place(block.origin[bad]),
        )

    def _outcome(self, block: Block) -> Block:
        for column in _unchecked(block):
            column.leaf = BYTES
        return block


def _unchecked(block: Block) -> list[RefColumn]:
    return [column for column in block.columns if isinstance(column, RefColumn) and column.leaf == UNCHECKED_BYTES]


def _not_vouched_for(column: RefColumn, rows: int) -> Rows:
    """Those of the first `rows` rows that nobody has verified."""
    return np.flatnonzero(~column.slabs.are_vouched(column.rows[:rows, 0]))


def _first_bad(column: RefColumn, rows: Rows) -> list[int]:
    """The first of these rows that does not hold, if there is one."""
    bad: list[int] = rows[check_payloads(column.slabs.arena.array, column.rows[rows])[:1]].tolist()
    return bad
