"""The rows of files that lie at some places, as they arrive; see `asyncdata.runtime.state.places`.

    names of files ─▶ those that are wanted        first, all of them
    spans ─▶ piece: a slab of several spans, each by a request of its own ─▶ framed ─▶ the wanted rows
             next piece: on its way

A span contains rows between the wanted ones, which are framed and dropped. If its last row turns out to be longer than
was thought, the span goes on as another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from asyncdata.errors import AsyncdataError, StateError
from asyncdata.formats.framing import Framer, Frames, Place, Refs
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.reading.io import Io, Read
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.stages.sources.file import refuse_changed
from asyncdata.runtime.state.places import Places, RowSpan
from asyncdata.types import Element, ObjectInfo

_LONGER: Final = 4
"""If a row is longer than was thought, it is read again with this many times the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedFile:
    """A file with wanted rows.

    Attributes:
        number: Of the source.
        url: The file.
        path: Provenance of the elements that made the datasets around it.
        framer: Of its format.
        io: Storage.
        info: What it is, if that is known.
    """

    number: int
    url: str
    path: tuple[int, ...]
    framer: Framer
    io: Io
    info: ObjectInfo | None


Opened: TypeAlias = Callable[[Element, Rows], PickedFile | None]
"""What a file is, by the element that names it, and its provenance; None where nothing of it is wanted."""


@dataclass(slots=True)
class _Piece:
    """Spans on their way into one slab: where each begins in it, and how many bytes are read of it."""

    slab: Slab
    parts: deque[tuple[RowSpan, int, int, Read]]


class PickedStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        places: Of the rows.
        names: Gives the elements that files are named by.
        opened: Says what they are.
        account: Charged with what is received, until it is handed on.
        downstream: The account that is charged then.
        piece_bytes: Bytes that are received together.
    """

    def __init__(
        self,
        context: StageContext,
        places: Places,
        names: Stage,
        opened: Opened,
        *,
        account: Account,
        downstream: Account,
        piece_bytes: int,
    ) -> None:
        super().__init__(context, (names,))
        self._places = places
        self._names = names
        self._opened = opened
        self._budget = context.budget
        self._account = account
        self._downstream = downstream
        self._piece_bytes = piece_bytes
        self._files: dict[int, tuple[PickedFile, ObjectInfo]] | None = None
        self._left = deque(places.spans(piece_bytes))
        self._pieces: deque[_Piece] = deque()

    async def _pull(self, limit: int) -> Block | None:
        if self._files is None:
            self._files = await self._find()
            self._budget.reserve(self._account, 2 * self._budget.charge(self._piece_bytes))
        self._budget.wait(self._account)
        try:
            while self._block is None:
                await self._pause()
                while self._left and len(self._pieces) < 2:
                    self._pieces.append(await self._ask())
                if not self._pieces:
                    return None
                await self._receive(self._pieces[0])
        finally:
            self._budget.wait(self._account, False)
        block, self._block = self._block.split(limit) if len(self._block) > limit else (self._block, None)
        return block

    @property
    def draining(self) -> bool:
        """Whether everything has been asked for."""
        return self._files is not None and not self._left

    async def _find(self) -> dict[int, tuple[PickedFile, ObjectInfo]]:
        """The files that are wanted."""
        wanted = self._places.files
        found: dict[int, tuple[PickedFile, ObjectInfo]] = {}
        while len(found) < len(wanted):
            await self._pause()
            block = await self._names.pull(BLOCK_ROWS)
            if block is None:
                missing = len(wanted) - len(found)
                raise StateError(
                    f"{missing} of {len(wanted)} files that the buffer had elements of are not among the files now",
                    stage=self.label,
                )
            try:
                named = list(zip(map(block.private, range(len(block))), block.origin, strict=True))
            finally:
                block.release()
            for element, origin in named:
                file = self._opened(element, origin)
                if file is not None:
                    found[file.number] = file, await self._enter(file)
        return found

    async def _enter(self, file: PickedFile) -> ObjectInfo:
        info = file.info or await file.io.stat(file.url)
        refuse_changed(file.url, info.version, self._places.version(file.number))
        self.context.sources.add(file.path, file.url, info.version, is_file=True)
        return info

    async def _ask(self) -> _Piece:
        """Asks for the next spans, as many as one slab has room for; one that is longer has a slab of its own."""
        assert self._files is not None
        asked: list[tuple[RowSpan, int, int]] = []
        total = 0
        while self._left:
            span = self._left[0]
            info = self._files[span.file][1]
            nbytes = min(span.nbytes, info.size - span.offset)
            if nbytes <= 0:
                raise self._ends(span)
            if asked and total + nbytes > self._piece_bytes:
                break
            asked.append((self._left.popleft(), total, nbytes))
            total += nbytes
        slab = await self._budget.take(self._account, total)
        piece = _Piece(slab, deque())
        for order, (span, at, nbytes) in enumerate(asked):
            file, info = self._files[span.file]
            read = file.io.read(
                self._budget.slabs, slab, at, nbytes, info, span.offset, (0, 2 * len(self._pieces), order)
            )
            piece.parts.append((span, slab.offset + at, nbytes, read))
        return piece

    def _ends(self, span: RowSpan) -> StateError:
        return StateError(
            f"the file ends in front of record {span.first}; when the state was taken it had at least "
            f"{int(span.records[-1]) + 1} records",
            stage=self.label,
        )

    async def _receive(self, piece: _Piece) -> None:
        """Frames what has arrived of a piece, and waits if nothing has."""
        blocks: list[Block] = []
        try:
            while piece.parts and (not blocks or piece.parts[0][3].arrived):
                span, at, nbytes, read = piece.parts[0]
                await read.wait()
                piece.parts.popleft()
                blocks += await self._rows(span, at, nbytes)
        finally:
            if blocks:
                self._block = Block.concat(blocks)
        if not piece.parts:
            self._pieces.popleft()
            if self._budget.slabs.holds(piece.slab) > 1:
                self._budget.move(piece.slab, self._downstream)
            self._budget.slabs.drop(piece.slab)

    async def _rows(self, span: RowSpan, start: int, nbytes: int) -> list[Block]:
        """The wanted rows of a span; the rest of a row that is not whole will be read, too."""
        assert self._files is not None
        file, info = self._files[span.file]
        record, last = span.first, int(span.records[-1])
        offset, stop = span.offset, start + nbytes
        blocks: list[Block] = []
        is_end = span.offset + nbytes == info.size
        try:
            while record <= last:
                await self._pause()
                place = Place(url=file.url, version=info.version, offset=offset, record=record)
                frames = file.framer.frame(
                    *(self._budget.slabs.arena.view, start, stop),
                    limit=last + 1 - record,
                    remaining=info.size - offset,
                    last=is_end,
                    place=place,
                )
                if len(frames.starts):
                    blocks.append(self._wanted(span, frames, record, offset - start))
                    record += len(frames.starts)
                behind = frames.stop
                if frames.error is not None:
                    if frames.resume < 0 or record in span.records:
                        raise frames.error
                    # A damaged one between those that are wanted, which an error policy has left out before.
                    record, behind = record + 1, frames.resume
                if behind == start:
                    break
                start, offset = behind, offset + behind - start
        except AsyncdataError as error:
            for block in blocks:
                block.release()
            error.complete(stage=self.label, url=file.url)
            raise
        if record <= last:
            if is_end:
                raise self._ends(span._replace(first=record))
            longer = max(_LONGER * (stop - start), span.offset + nbytes - offset + 1)
            self._left.append(span.rest(record, offset, longer))
        return blocks

    def _wanted(self, span: RowSpan, frames: Frames, record: int, shift: int) -> Block:
        """Of rows that were framed, those at the places; positions in memory are offsets in the file less `shift`."""
        (values,) = frames.values
        assert isinstance(values, Refs), "records are bytes of their file"
        column = RefColumn(self._budget.slabs, values.rows, values.leaf)
        column.hold()
        count = len(frames.starts)
        origin = np.zeros((count, 4), np.int64)
        origin[:, 0] = span.file
        origin[:, 1] = np.arange(record, record + count)
        origin[:, 3] = frames.starts + shift
        block = Block(self._files[span.file][0].framer.structure, (column,), origin, Advance(count))  # type: ignore[index]  # `_find` was called
        here = slice(*np.searchsorted(span.records, (record, record + count)))
        wanted = span.records[here] - record
        if len(wanted) < count:
            block = block.select(wanted)
        if self._places.used is not None:
            block.advance = Advance(len(block), (), self._places.used.pick(span.rows[here]))
        return block

    async def aclose(self) -> None:
        for piece in self._pieces:
            for *_, read in piece.parts:
                read.cancel()
            self._budget.slabs.drop(piece.slab)
        self._pieces.clear()
        self._left.clear()
        await super().aclose()
        self._budget.close(self._account)
