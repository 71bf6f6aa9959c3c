"""The samples of one tar file: members grouped by key, each a reference to where its content was received.

    members  a.jpg  a.cls │ b.jpg  b.cls │ c.jpg …      TarFramer, one chunk after the other
    samples  {a: jpg cls}   {b: jpg cls}   (pending)    whole once another key, or the end, has been seen

A member is contiguous; the members of a sample may lie in different slabs. Samples of one kind (the same extensions)
that follow one another make a block.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.framing import Frames
from asyncdata.formats.tar import KEY, Members
from asyncdata.memory.advance import Advance
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column, ObjectColumn, RefColumn
from asyncdata.memory.leaf import BYTES
from asyncdata.memory.structure import LEAF, DictOf
from asyncdata.runtime.stages.sources.framed import FramedStage


@dataclass(slots=True)
class _Sample:
    """One sample; its rows hold their slabs.

    Attributes:
        key: Of all its members.
        offset: Of the first header in the file.
        parts: Position and length of each member's content, by extension.
    """

    key: str
    offset: int
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)


class TarStage(FramedStage):
    """See the module's docstring; the arguments are those of `FramedStage`, with a `TarFramer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pending: _Sample | None = None
        self._samples: deque[_Sample] = deque()
        self._extensions: tuple[str, ...] = ()

    def _accept(self, frames: Frames, start: int) -> None:
        assert isinstance(frames, Members)
        for part, at, row in frames.parts():
            if self._pending is None or part.key != self._pending.key:
                self._finish()
                self._pending = _Sample(part.key, self._bytes.offset + at - start)
            sample = self._pending
            if part.extension in sample.parts or part.extension == KEY:
                self._error = CorruptRecordError(
                    f"the sample {sample.key!r} has two members with the extension {part.extension!r}",
                    version=self._place().version,
                    offset=self._bytes.offset + at - start,
                    record=self._index + len(self._samples),
                )
                break
            self._budget.slabs.hold(self._budget.slabs.at(row[0]))
            sample.parts[part.extension] = row
        if self._error is not None:
            # Whether the sample was whole is not known.
            self._drop_pending()
            if self._error.record is None:
                self._error.record = self._index + len(self._samples)
        elif self._ended or frames.over:
            self._finish()

    def _finish(self) -> None:
        if self._pending is not None:
            self._samples.append(self._pending)
            self._pending = None

    def _next_ready(self, limit: int) -> Block | None:
        samples = self._samples
        if not samples:
            return None
        kind = samples[0].parts.keys()
        if kind != set(self._extensions):
            self._extensions = tuple(kind)
        run: list[_Sample] = []
        while samples and len(run) < limit and samples[0].parts.keys() == kind:
            run.append(samples.popleft())
        columns: list[Column] = [ObjectColumn([sample.key for sample in run])]
        for extension in self._extensions:
            rows = np.array([sample.parts[extension] for sample in run], np.int64)
            columns.append(RefColumn(self._budget.slabs, rows, BYTES))
        origin = self._origin(self._index, np.array([sample.offset for sample in run], np.int64))
        marks = self._marks(origin, None)
        self._index += len(run)
        structure = DictOf((KEY, *self._extensions), (LEAF,) * len(columns))
        return Block(structure, tuple(columns), origin, Advance(len(run), marks))

    def _drop_pending(self) -> None:
        if self._pending is not None:
            self._drop(self._pending)
            self._pending = None

    def _drop(self, sample: _Sample) -> None:
        for row, _ in sample.parts.values():
            self._budget.slabs.drop(self._budget.slabs.at(row))

    async def aclose(self) -> None:
        self._drop_pending()
        while self._samples:
            self._drop(self._samples.popleft())
        await super().aclose()
