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
        rows = self._rows(block, limit)
        bad = self._first_bad(block, rows)
        if bad is None:
            return rows, None
        return bad, CorruptRecordError(
            "the checksum of a record's payload does not match: the file is damaged",
            stage=self.label,
            **self._sources.place(block.origin[bad]),
        )

    def _outcome(self, block: Block) -> Block:
        for column in block.columns:
            if isinstance(column, RefColumn) and column.leaf == UNCHECKED_BYTES:
                column.leaf = BYTES
        return block

    @staticmethod
    def _rows(block: Block, limit: int) -> int:
        """How many rows are checked in one go."""
        rows = min(limit, len(block))
        nbytes = block.nbytes
        return rows if nbytes <= _PIECE_BYTES else max(1, min(rows, len(block) * _PIECE_BYTES // nbytes))

    @staticmethod
    def _first_bad(block: Block, count: int) -> int | None:
        """The first of so many rows that does not hold."""
        found = []
        for column in block.columns:
            if isinstance(column, RefColumn) and column.leaf == UNCHECKED_BYTES:
                rows = column.rows[:count]
                unsure = np.flatnonzero(~column.slabs.are_vouched(rows[:, 0]))
                if len(unsure):
                    found += unsure[check_payloads(column.slabs.arena.array, rows[unsure])[:1]].tolist()
        return min(found, default=None)
