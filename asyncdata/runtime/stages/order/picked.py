"""The rows of files that lie at some places, as they arrive; see `asyncdata.runtime.state.places`.

    names of files ─▶ those that are wanted        first, all of them
    spans ─▶ piece: a slab of several spans, each by a request of its own ─▶ framed ─▶ the wanted rows
             next pieces: on their way

A span contains rows between the wanted ones. They are framed and dropped, or passed over if framing decodes them. If
the last row turns out to be longer than was thought, the span goes on as another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from asyncdata.errors import AsyncdataError, StateError
from asyncdata.formats.framing import Framer, Frames, Place
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import SUB_INDEX, Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.reading.io import Io, Read
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.stages.sources.file import refuse_changed
from asyncdata.runtime.stages.sources.framed import column_of
from asyncdata.runtime.state.places import Places, RowSpan
from asyncdata.types import Element, ObjectInfo
from asyncdata.wording import counted

_LONGER: Final = 4
"""If a row is longer than was thought, it is read again with this many times the bytes."""

_HEADER_BYTES: Final = 1 << 12
"""Of a file whose beginning says how it is read: so many first."""

_PIECES: Final = 2
_LARGE_PIECES: Final = 16
"""Slabs on their way: those with many rows, and those with one row that is longer than others are together."""


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
        at_once: Whether it is one row, of which all is read.
        by_header: Whether its beginning says how it is read.
    """

    number: int
    url: str
    path: tuple[int, ...]
    framer: Framer
    io: Io
    info: ObjectInfo | None
    at_once: bool = False
    by_header: bool = False


Opened: TypeAlias = Callable[[Element, Rows], PickedFile | None]
"""What a file is, by the element that names it, and its provenance; None where nothing of it is wanted."""


@dataclass(slots=True)
class _Known:
    """A file that is open: what it is, and what its beginning says."""

    file: PickedFile
    info: ObjectInfo | None = None
    columns: tuple[int, ...] | None = None


@dataclass(slots=True)
class _Piece:
    """Spans on their way into one slab: where each begins in it, how many bytes are read of it, and unless none are."""

    slab: Slab
    parts: deque[tuple[RowSpan, int, int, Read | None]]


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
        is_part: Whether some of the rows are in other files, which another stage reads.

    Attributes:
        asked: Set when the first rows were asked for.
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
        is_part: bool = False,
    ) -> None:
        super().__init__(context, (names,))
        self._places = places
        self._names = names
        self._opened = opened
        self._budget = context.budget
        self._account = account
        self._downstream = downstream
        self._piece_bytes = piece_bytes
        self._files: dict[int, _Known] = {}
        self._begun = False
        self._is_part = is_part
        self._left: deque[RowSpan] = deque()
        self._pieces: deque[_Piece] = deque()
        self.asked = asyncio.Event()

    async def _pull(self, limit: int) -> Block | None:
        await self.begin()
        self._budget.wait(self._account)
        try:
            while self._block is None:
                await self._pause()
                while self._left and await self._ask():
                    pass
                self.asked.set()
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
        return self._begun and not self._left

    async def begin(self) -> None:
        """Finds the files, unless that was done before."""
        if self._begun:
            return
        files = await self._find()
        if files:
            self._budget.reserve(self._account, 2 * self._budget.charge(self._piece_bytes))
        self._budget.wait(self._account)
        try:
            # One after the other would be as many times the latency.
            entered = await asyncio.gather(*map(self._enter, files), return_exceptions=True)
        finally:
            self._budget.wait(self._account, False)
        for error in filter(None, entered):
            raise error
        self._left.extend(span for span in self._places.spans(self._piece_bytes) if span.file in self._files)
        self._begun = True

    async def _find(self) -> list[PickedFile]:
        """The files that are wanted."""
        wanted = self._places.files
        found: dict[int, PickedFile] = {}
        while len(found) < len(wanted):
            await self._pause()
            block = await self._names.pull(BLOCK_ROWS)
            if block is None and self._is_part:
                break
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
                    found[file.number] = file
        return list(found.values())

    async def _enter(self, file: PickedFile) -> None:
        """What must be known of a file before its rows can be read; reading one that is one row says what it is."""
        known = self._files[file.number] = _Known(file)
        info = file.info
        if info is None and not file.at_once:
            info = await file.io.stat(file.url)
        if info is not None:
            self._check(known, info)
        if info is not None and info.size and file.by_header:
            known.columns = await self._columns(file, info)

    async def _columns(self, file: PickedFile, info: ObjectInfo) -> tuple[int, ...] | None:
        """What the beginning of a file says about all of it."""
        nbytes, slabs = _HEADER_BYTES, self._budget.slabs
        while True:
            nbytes = min(nbytes, info.size)
            slab = await self._budget.take(self._account, max(nbytes, 1))
            read = file.io.read(slabs, slab, 0, nbytes, info, 0, (0, 0, 0))
            try:
                await read.wait()
                begin, is_all = slab.offset, nbytes == info.size
                place = Place(url=file.url, version=info.version)
                frames = file.framer.frame(
                    slabs.arena.view, begin, begin + nbytes, limit=1, remaining=info.size, last=is_all, place=place
                )
            finally:
                read.cancel()
                slabs.drop(slab)
            if frames.columns is not None:
                return frames.columns  # even if the first row is damaged: an error policy may have left it out
            if frames.error is not None:
                raise frames.error
            if is_all:
                return None
            nbytes *= _LONGER

    def _check(self, known: _Known, info: ObjectInfo) -> None:
        file, known.info = known.file, info
        refuse_changed(file.url, info.version, self._places.version(file.number))
        self.context.sources.add(file.path, file.url, info.version, is_file=True)

    async def _ask(self) -> bool:
        """Asks for the next spans, as many as one slab has room for; one that is longer has a slab of its own.

        Returns:
            False if enough is on its way, or more would have to wait for memory.
        """
        ahead = len(self._pieces)
        asked: list[tuple[RowSpan, int, int]] = []
        total = 0
        for span in self._left:
            nbytes = self._length(span)
            if asked and total + nbytes > self._piece_bytes:
                break
            asked.append((span, total, nbytes))
            total += nbytes
        if ahead >= (_PIECES if total <= self._piece_bytes else _LARGE_PIECES):
            return False
        if ahead and total > self._piece_bytes:
            # Nothing is reserved for it.
            spare = self._budget.take_spare(self._account, total)
            if spare is None:
                return False
            slab = spare
        else:
            slab = await self._budget.take(self._account, max(total, 1))
        piece = _Piece(slab, deque())
        for order, (span, at, nbytes) in enumerate(asked):
            self._left.popleft()
            known = self._files[span.file]
            io, source = known.file.io, known.info or known.file.url
            priority = (0, 2 * ahead, order)
            read = io.read(self._budget.slabs, slab, at, nbytes, source, span.offset, priority) if nbytes else None
            piece.parts.append((span, slab.offset + at, nbytes, read))
        self._pieces.append(piece)
        return True

    def _length(self, span: RowSpan) -> int:
        """How many bytes of a span to ask for."""
        known = self._files[span.file]
        if known.info is None:
            return span.nbytes
        nbytes = known.info.size - span.offset
        if nbytes < 0:
            raise self._ends(span)
        return nbytes if known.file.at_once else min(span.nbytes, nbytes)

    def _ends(self, span: RowSpan) -> StateError:
        return StateError(
            f"the file ends in front of record {span.first}; when the state was taken it had at least "
            f"{counted(int(span.records[-1]) + 1, 'record')}",
            stage=self.label,
        )

    async def _receive(self, piece: _Piece) -> None:
        """Frames what has arrived of a piece, and waits if nothing has."""
        blocks: list[Block] = []
        try:
            while piece.parts and (not blocks or (read := piece.parts[0][3]) is None or read.arrived):
                span, at, nbytes, read = piece.parts[0]
                if read is not None:
                    await read.wait()
                piece.parts.popleft()
                blocks += await self._rows(span, at, nbytes, read)
        finally:
            if blocks:
                self._block = Block.concat(blocks)
        if not piece.parts:
            self._pieces.popleft()
            if self._budget.slabs.holds(piece.slab) > 1:
                self._budget.move(piece.slab, self._downstream)
            self._budget.slabs.drop(piece.slab)

    async def _rows(self, span: RowSpan, start: int, nbytes: int, read: Read | None) -> list[Block]:
        """The wanted rows of a span; the rest of a row that is not whole will be read, too."""
        known = self._files[span.file]
        if known.info is None:
            assert read is not None
            assert read.info is not None
            nbytes = read.filled
            self._check(known, read.info)
        await self._pause()
        framing = partial(self._framed, span, known, start, start + nbytes)
        in_thread = known.file.framer.in_thread
        try:
            found, record, offset = await self.context.threads.run(framing) if in_thread else framing()
        except AsyncdataError as error:
            error.complete(stage=self.label, url=known.file.url)
            raise
        if record <= int(span.records[-1]):
            assert known.info is not None
            behind = span.offset + nbytes
            if behind == known.info.size:
                raise self._ends(span._replace(first=record))
            self._left.append(span.rest(record, offset, max(_LONGER * (behind - offset), behind - offset + 1)))
        return [self._wanted(span, frames, first, span.offset - start) for first, frames in found]

    def _framed(self, span: RowSpan, known: _Known, start: int, stop: int) -> tuple[list[tuple[int, Frames]], int, int]:
        """What is framed of a span, with the number of the first record each; and number and offset of what is not.

        Rows between the wanted ones are framed with them, unless that is more than to look for where they end.
        """
        assert known.info is not None
        framer, size = known.file.framer, known.info.size
        shift = span.offset - start
        record, last, at = span.first, int(span.records[-1]), start
        found: list[tuple[int, Frames]] = []
        while record <= last:
            limit = last + 1 - record
            if framer.in_thread:
                record, offset, limit = self._next_run(span, record)
                at = offset - shift
            frames = framer.frame(
                *(self._budget.slabs.arena.view, at, stop),
                limit=limit,
                remaining=size - at - shift,
                last=stop + shift == size,
                place=Place(
                    url=known.file.url,
                    version=known.info.version,
                    offset=at + shift,
                    record=record,
                    columns=known.columns,
                ),
            )
            if len(frames.starts):
                found.append((record, frames))
                record += len(frames.starts)
            behind = frames.stop
            if frames.error is not None:
                if frames.resume < 0 or record in span.records:
                    raise frames.error
                # A damaged one between those that are wanted, which an error policy has left out before.
                record, behind = record + 1, frames.resume
            if behind == at:
                break
            at = behind
        return found, record, at + shift

    def _next_run(self, span: RowSpan, record: int) -> tuple[int, int, int]:
        """The first wanted row from a record on, where it begins, and how many follow one another from there."""
        index = int(np.searchsorted(span.records, record))
        left = span.records[index:]
        run = int(np.searchsorted(left - np.arange(len(left)), left[0], side="right"))
        return int(left[0]), int(self._places.origin[span.rows[index], 3]), run

    def _wanted(self, span: RowSpan, frames: Frames, record: int, shift: int) -> Block:
        """Of rows that were framed, those at the places; positions in memory are offsets in the file less `shift`."""
        columns = tuple(column_of(values, self._budget.slabs) for values in frames.values)
        count = len(frames.starts)
        origin = np.zeros((count, 4), np.int64)
        origin[:, 0] = span.file
        origin[:, 1] = np.arange(record, record + count)
        origin[:, 3] = frames.starts + shift
        structure = frames.structure or self._files[span.file].file.framer.structure
        block = Block(structure, columns, origin, Advance(count))
        here = slice(*np.searchsorted(span.records, (record, record + count)))
        wanted = span.records[here] - record
        if len(wanted) < count:
            block = block.select(wanted)
        block.origin[:, SUB_INDEX] = self._places.origin[span.rows[here], SUB_INDEX]
        if self._places.used is not None:
            block.advance = Advance(len(block), (), self._places.used.pick(span.rows[here]))
        return block

    async def aclose(self) -> None:
        for piece in self._pieces:
            for *_, read in piece.parts:
                if read is not None:
                    read.cancel()
            self._budget.slabs.drop(piece.slab)
        self._pieces.clear()
        self._left.clear()
        await super().aclose()
        self._budget.close(self._account)


class PickedInnerStage(Stage):
    """What the functions of inner datasets make of rows, which is known when the first dataset is.

    Args:
        context: What every stage is given.
        picked: Reads the rows.
        make: Makes the stage that gives what becomes of them, which may be `picked`; called when the files are known.
    """

    def __init__(self, context: StageContext, picked: PickedStage, make: Callable[[], Stage]) -> None:
        super().__init__(context, (picked,))
        self._picked = picked
        self._make = make
        self._made: Stage | None = None

    async def _pull(self, limit: int) -> Block | None:
        if self._made is None:
            await self._picked.begin()
            self._made = self._make()
            self.inputs = (self._made,)
        return await self._made.pull(limit)


class TurnsStage(Stage):
    """Rows of several inputs, in turn, until all of them have ended.

    Args:
        context: What every stage is given.
        inputs: Each ends by itself.
    """

    def __init__(self, context: StageContext, inputs: Sequence[Stage]) -> None:
        super().__init__(context, tuple(inputs))
        self._left = deque(inputs)

    async def _pull(self, limit: int) -> Block | None:
        while self._left:
            await self._pause()
            block = await self._left[0].pull(limit)
            if block is not None:
                self._left.rotate(-1)
                return block
            self._left.popleft()
        return None
