"""`zip`: one element of every input makes an element, until one of the inputs ends.

Inputs are asked in their order. When one has ended, so has the stage: those before it have given one element more by
then, and those behind it are asked for one, so that all inputs are read equally far and a cache in front of one is
completed. These elements are used up and go nowhere. An error behind the end is nobody's, nor is one of an input where
another one ends, as in tf.data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from asyncdata.memory.advance import Advance, Mark
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column
from asyncdata.memory.structure import Structure, graft
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.order.inputs import Input
from asyncdata.runtime.state.marker import Marker
from asyncdata.runtime.state.tracks import Track


class ZipStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        stages: The inputs.
        structure: How they nest; a leaf for each.
        track: Of its elements, where they have no fixed order.
    """

    def __init__(
        self, context: StageContext, stages: Sequence[Stage], structure: Structure, track: Track | None = None
    ) -> None:
        super().__init__(context, tuple(stages))
        self._structure = structure
        self._inputs = [Input(stage) for stage in stages]
        self._begun = False
        self._ended = False
        self._marker = Marker()
        self._track = track
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
        marks = self._marker.marks(
            rows,
            lambda row: {"inputs": [source.at(row) for source in self._inputs]},
            ordered=self.ordered,
        )
        heads = [source.take(rows) for source in self._inputs]
        structure = graft(self._structure, iter([head.structure for head in heads]))
        columns = tuple(column for head in heads for column in head.columns)
        advance = Advance.side_by_side([head.advance for head in heads], marks)
        if self._track is not None:
            advance = self._track.counted(advance)
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
