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
from asyncdata.runtime.stage import Pause, Stage
from asyncdata.runtime.usercode import leave_out

_PIECE_BYTES: Final = 8 << 20
"""About a millisecond's work."""


class CheckStage(Stage):
    """Passes on what holds; a payload that does not is an error, or left out.

    Args:
        label: The stage's name.
        upstream: The input.
        sources: For naming a record that is damaged.
        guard: Says whether a record may be left out; None lets none.
    """

    def __init__(self, label: str, upstream: Stage, sources: SourceTable, guard: Guard | None) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._sources = sources
        self._guard = guard
        self._block: Block | None = None
        self._error: CorruptRecordError | None = None
        self._pause = Pause()

    async def pull(self, limit: int) -> Block | None:
        await self._pause()
        if self._error is not None:
            assert self._block is not None
            news, self._block = leave_out(self._block, self._error, self._guard)
            self._error = None
            return news
        if self._block is None:
            self._block = await self._upstream.pull(limit)
        if self._block is None:
            return None
        block, self._block = self._block, None
        rows = self._rows(block, limit)
        if rows < len(block):
            block, self._block = block.split(rows)
        bad = self._first_bad(block)
        if bad is not None:
            self._error = CorruptRecordError(
                "the checksum of a record's payload does not match: the file is damaged",
                stage=self.label,
                **self._sources.place(block.origin[bad]),
            )
            block, rest = block.split(bad)
            self._block = rest if self._block is None else Block.concat([rest, self._block])
        for column in block.columns:
            if isinstance(column, RefColumn) and column.leaf == UNCHECKED_BYTES:
                column.leaf = BYTES
        if self._guard is not None:
            self._guard.passed(len(block))
        return block

    @staticmethod
    def _rows(block: Block, limit: int) -> int:
        """How many rows are checked in one go."""
        rows = min(limit, len(block))
        nbytes = block.nbytes
        return rows if nbytes <= _PIECE_BYTES else max(1, min(rows, len(block) * _PIECE_BYTES // nbytes))

    @staticmethod
    def _first_bad(block: Block) -> int | None:
        found = []
        for column in block.columns:
            if isinstance(column, RefColumn) and column.leaf == UNCHECKED_BYTES:
                rows = column.rows
                unsure = np.flatnonzero(~column.slabs.are_vouched(rows[:, 0]))
                if len(unsure):
                    found += unsure[check_payloads(column.slabs.arena.array, rows[unsure])[:1]].tolist()
        return min(found, default=None)

    @property
    def draining(self) -> bool:
        """When nothing is left over, and the input drains."""
        return self._block is None and super().draining

    async def aclose(self) -> None:
        if self._block is not None:
            self._block.release()
            self._block = None
        await super().aclose()
