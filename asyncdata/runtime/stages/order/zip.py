"""`zip`: one element of every input makes an element, until one of the inputs ends.

Inputs are asked in their order. When one has ended, so has the stage: those before it have given one element more by
then, and those behind it are asked for one, so that all inputs are read equally far and a cache in front of one is
completed. These elements are used up and go nowhere. An error behind the end is nobody's, nor is one of an input where
another one ends, as in tf.data.

Behind a state, a shuffle may need only some of the first rows again. The inputs leave the others out, in front of their
functions; what all of them mean for a state is put together when they have passed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from asyncdata.memory.advance import Advance, Fold, Mark
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column
from asyncdata.memory.structure import Structure, graft
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.order.inputs import Input
from asyncdata.runtime.state.marker import Marker
from asyncdata.runtime.state.restored import KeptSideBySide
from asyncdata.runtime.state.tracks import Track


class ZipStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        stages: The inputs.
        structure: How they nest; a leaf for each.
        track: Of its elements, where they have no fixed order.
        kept: Which of the first rows the inputs give; never where there is a track.
    """

    def __init__(
        self,
        context: StageContext,
        stages: Sequence[Stage],
        structure: Structure,
        track: Track | None = None,
        kept: KeptSideBySide | None = None,
    ) -> None:
        super().__init__(context, tuple(stages))
        self._structure = structure
        self._inputs = [Input(stage) for stage in stages]
        self._begun = False
        self._ended = False
        self._marker = Marker()
        self._track = track
        self._kept = kept
        self._left_to_keep = 0 if kept is None else len(kept.whole.rows)
        self._begins: list[Fold] = []
        if track is not None:
            self._marker.begin(track.saved.delivered)
            self._ended = track.is_over
        context.budget.holders[self] = None

    def movable(self) -> Iterable[Column]:
        """See `runtime.memory.budget.Holder`."""
        return [column for source in self._inputs if source.rows for column in source.peek().columns]

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        for source, state in zip(self._inputs, mark["inputs"], strict=True):
            source.begin(state)
        self._marker.begin(mark["skip"])

    async def _pull(self, limit: int) -> Block | None:
        if self._ended:
            return None
        if not self._begun:
            self._begun = True
            self.prepare()
        failure: Exception | None = None
        for number, source in enumerate(self._inputs):
            try:
                if not await source.more(limit, self._pause):
                    return await self._finish(number)
            except Exception as error:  # noqa: BLE001 -- raised unless another input has ended there
                failure = failure or error
        if failure is not None:
            raise failure
        rows = min(limit, *(source.rows for source in self._inputs))
        if self._left_to_keep:
            rows = min(rows, self._left_to_keep)
            return self._joined(self._take_kept(rows), Advance(rows))
        marks = self._marker.marks(
            rows,
            lambda row: {"inputs": [source.at(row) for source in self._inputs]},
            ordered=self.ordered,
        )
        heads = [source.take(rows) for source in self._inputs]
        advance = Advance.side_by_side([head.advance for head in heads], marks)
        return self._joined(heads, advance if self._track is None else self._track.counted(advance))

    def _take_kept(self, rows: int) -> list[Block]:
        """The next rows that are kept; with the last of them, enters what those in front of and between them mean."""
        kept = self._kept
        assert kept is not None
        if self._left_to_keep == len(kept.whole.rows):
            self._begins = [Fold(source.at(0)) for source in self._inputs]
        heads = [source.take(rows) for source in self._inputs]
        self._left_to_keep -= rows
        if not self._left_to_keep:
            advances = [Advance.concat(part.advances) for part in kept.parts]
            taken = list(zip(self._begins, advances, strict=True))
            marks = self._marker.marks(
                kept.whole.until,
                lambda row: {"inputs": [begin.in_front_of(advance, row) for begin, advance in taken]},
                ordered=self.ordered,
            )
            kept.whole.advances.append(Advance.side_by_side(advances, marks))
            for source, (begin, advance) in zip(self._inputs, taken, strict=True):
                begin.feed(advance)
                source.begin(begin.state)
        return heads

    def _joined(self, heads: Sequence[Block], advance: Advance) -> Block:
        """One block of the rows of all inputs."""
        structure = graft(self._structure, iter([head.structure for head in heads]))
        columns = tuple(column for head in heads for column in head.columns)
        made = Block(structure, columns, heads[0].origin, advance)
        return made.as_objects() if any(head.has_nests for head in heads) else made

    async def _finish(self, ended: int) -> Block | None:
        for source in self._inputs[ended + 1 :]:
            with contextlib.suppress(Exception):
                await source.more(1, self._pause)
        self._ended = True
        if self._track is not None:
            self._track.ends(self._marker.rows)
        tail = Advance.concat([source.skip(1) if source.rows else source.left_over() for source in self._inputs])
        for source in self._inputs:
            source.release()
        return Block.empty(tail) if tail.has_news else None

    @property
    def draining(self) -> bool:
        """When one of the inputs has nothing left to begin: the others will not be read much further."""
        return self._ended or any(source.stage.draining for source in self._inputs)

    async def aclose(self) -> None:
        for source in self._inputs:
            source.release()
        await super().aclose()
