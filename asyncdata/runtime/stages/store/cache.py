"""`cache`: passes the first run of its input on and keeps it; later runs read what was kept.

Only a run that came to the input's end is kept, as in tf.data; until then every run reads the input again. Elements are
copied into images of about a megabyte. Read back, they have the provenance that they had, so random numbers keyed by
it do not change. Each use of the dataset in a pipeline moves it by a number of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncdata.memory.advance import Mark
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.sources.arrays import source_advance
from asyncdata.runtime.stages.store.recording import Recorder
from asyncdata.runtime.stages.store.stored import ElementStore
from asyncdata.runtime.state.marker import FirstMark, Marker


class CacheStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        store: Where elements are kept.
        make_input: Makes the input's last stage; called when it is needed.
        image_bytes: Size at which an image is complete.
        moved: What the sources of the elements are moved by for this use of the dataset.
    """

    def __init__(
        self,
        context: StageContext,
        store: ElementStore,
        make_input: Callable[[], Stage],
        *,
        image_bytes: int,
        moved: int = 0,
    ) -> None:
        super().__init__(context)
        self._moved = moved
        self._store = store
        self._make_input = make_input
        self._image_bytes = image_bytes
        self._images: int | None = None
        self._opened = False
        self._next = 0
        self._rest: Block | None = None
        self._upstream: Stage | None = None
        self._recorder: Recorder | None = None
        self._marker = Marker()
        self._first = FirstMark()
        self._ended = False

    async def _pull(self, limit: int) -> Block | None:
        if self._ended:
            return None
        if not self._opened:
            self._images = await self._store.open()
            self._opened = True
            if self._images is None:
                self._upstream = self._make_input()
                self.inputs = (self._upstream,)
                self._recorder = Recorder(self._store.fill(), self._image_bytes)
        return await (self._read(limit) if self._images is not None else self._pass_on(limit))

    # --- the first run -----------------------------------------------------------------------------------------

    async def _pass_on(self, limit: int) -> Block | None:
        assert self._upstream is not None
        assert self._recorder is not None
        block = await self._upstream.pull(limit)
        if block is None:
            await self._recorder.finish()
            self._recorder = None
            self._ended = True
            return None
        self._block = block
        if block.advance.ordered:
            self._first.feed(block.advance)
            self._store.begins(self._first.begins)
        if len(block):
            await self._recorder.keep(block)
        self._block = None
        block.move(self._moved)
        passed = self._marker.rows
        return self._marker.mark(block, lambda row, _: self._mark(passed + row))

    def _mark(self, row: int) -> Mark:
        """It is filled again in the run that has filled it, because other runs may have other orders."""
        told = self._store.told()
        return {"at": row} if told is None else {"at": row, **told.to_mark()}

    # --- later runs --------------------------------------------------------------------------------------------

    async def _read(self, limit: int) -> Block | None:
        assert self._images is not None
        while self._rest is None:
            await self._pause()
            if self._next == self._images:
                self._ended = True
                return None
            block = await self._store.load(self._next)
            block.move(self._moved)
            block.advance = source_advance(len(block), self._marker, self._mark)
            self._next += 1
            self._rest = block if len(block) else None
        block, self._rest = self._rest, None
        if len(block) > limit:
            block, self._rest = block.split(limit)
        return block

    # --- the rest ----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Whether the input is needed is known at the first pull."""

    @property
    def draining(self) -> bool:
        """When the last image was begun, or the input drains."""
        if self._upstream is not None:
            return self._ended or self._upstream.draining
        return self._images is not None and self._next == self._images

    async def aclose(self) -> None:
        if self._rest is not None:
            self._rest.release()
            self._rest = None
        self._ended = True
        try:
            if self._recorder is not None:
                await self._recorder.discard()
                self._recorder = None
        finally:
            await super().aclose()
