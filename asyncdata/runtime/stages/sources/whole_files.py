"""Whole files, one element each, in the order of their names: small local ones in runs, any other by itself.

    names ─▶ pieces, made ahead ─▶ rows
             run     small files of this machine, read by one job into one slab, without a gap
             single  any other file, by the stage that reads one

A run is cut off in front of a file that it cannot read: one that is empty, large, changed, missing. This file becomes a
single, whose stage says what is wrong with it, and the files behind it a run again. So a run changes what an element
costs and nothing else. Its elements have the origins that those of singles have, and the marks are those of
`interleave`, which reads the same files where their order is not fixed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from asyncdata.errors import AsyncdataError, PipelineClosedError
from asyncdata.formats.framing import whole_structure
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import BEGINNING, ORIGIN_WIDTH, SUB_INDEX, Advance, Mark, Rows, State
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, ObjectColumn, RefColumn
from asyncdata.memory.leaf import BYTES
from asyncdata.memory.slabs import Slab
from asyncdata.memory.used import NO_PAIRS
from asyncdata.plan.files import WholeFile
from asyncdata.runtime.reading.io import Io, Read
from asyncdata.runtime.reading.manifest import Manifest
from asyncdata.runtime.stage import BLOCK_ROWS, Ahead, Stage, StageContext, close_all
from asyncdata.runtime.stages.order.interleave import MakeInner
from asyncdata.runtime.state.history import InputHistory
from asyncdata.runtime.state.marker import Marker
from asyncdata.types import Element, ObjectInfo

_RUN_S: Final = 0.002
"""What a run takes: long beside what it costs to ask for it, short beside what the first batch may wait."""

_FIRST_FILES: Final = 8
_MOST_FILES: Final = 64

_LEAST_BYTES: Final = 1 << 16
_SPARE: Final = 8
"""Where sizes are not known a run has room for so much more, as a part of what the mean says."""

_MARK_EVERY: Final = 16
"""Files between two marks: where elements are counted behind those that are left out, so many are read again."""

_AHEAD_BYTES: Final = 16 << 20
"""Two pieces are made ahead, and more of them as long as they have no more bytes together."""


class FileName(NamedTuple):
    """An element of the input.

    Attributes:
        row: Its number there.
        origin: Its provenance.
        element: What it is.
        near: The file, where it may be in a run.
    """

    row: int
    origin: Rows
    element: Element
    near: WholeFile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What reading in runs takes.

    Attributes:
        near: The file that an element names, where it may be in a run.
        inside: Of the step that reads files.
        account: Charged with runs, until their rows are handed on.
        downstream: The account that is charged then.
        io: Reads.
        manifest: What is known about the files.
        most_bytes: Of a run.
        order: Place among other sources, for who is served first.
        enter: ``enter(info, origin)`` names the source that a file is which an element named; returns its number, and
            the sub-index of its element.
    """

    near: Callable[[Element], WholeFile | None]
    inside: StageContext
    account: Account
    downstream: Account
    io: Io
    manifest: Manifest
    most_bytes: int
    order: int
    enter: Callable[[ObjectInfo, Rows], tuple[int, int]]


class RunSize:
    """How many files a run has, and room for how many bytes; learned from those before it.

    Attributes:
        files: The most files.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._mean = 1.0
        self._is_known = False
        self.files = _FIRST_FILES

    def learn(self, files: int, nbytes: int, seconds: float) -> None:
        """A run had so many files and took so long."""
        mean = nbytes / files
        self._mean = (self._mean + mean) / 2 if self._is_known else mean
        self._is_known = True
        self.files = max(1, min(_MOST_FILES, int(files * _RUN_S / max(seconds, 1e-6))))

    def choose(self, sizes: Iterable[int | None]) -> tuple[int, int]:
        """How many of the next files make a run, and the bytes that it has room for; none if the first is too large.

        Args:
            sizes: Of the files; None where nobody knows.
        """
        count, total, is_guessed = 0, 0.0, False
        for size in sizes:
            more = self._mean if size is None else size
            if count == self.files or (total + more > self._most_bytes and (count or size is not None)):
                break
            is_guessed = is_guessed or size is None
            count, total = count + 1, total + more
        nbytes = max(total + total / _SPARE, _LEAST_BYTES) if is_guessed else max(total, 1)
        return count, min(int(nbytes), self._most_bytes)


class _Run:
    """Files of one slab; nothing was asked for yet where there is no read."""

    __slots__ = ("names", "nbytes", "read")

    def __init__(self, names: Sequence[FileName], nbytes: int) -> None:
        self.names = names
        self.nbytes = nbytes
        self.read: Read | None = None


class _Single(NamedTuple):
    """One file by itself; no stage, but why there is none, where it could not be made."""

    name: FileName
    stage: Stage | None
    error: Exception | None = None


class WholeFilesStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: Gives the names.
        make_inner: Makes the stage of one file, see `InterleaveStage`.
        ahead: Pieces made ahead.
        runs: None: every file is read by itself.
    """

    def __init__(
        self, context: StageContext, upstream: Stage, make_inner: MakeInner, *, ahead: int, runs: Runs | None
    ) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._make_inner = make_inner
        self._most_ahead = ahead
        self._runs = runs
        self._budget = context.budget
        self._names: deque[FileName] = deque()
        self._ahead: Ahead[_Run | _Single] = Ahead(context, self._fill)
        self._awaits_room = False
        self._history = InputHistory()
        self._marker = Marker(_MARK_EVERY)
        self._next = 0
        self._left: set[int] = set()
        self._single: tuple[int, Stage] | None = None
        self._closed = False
        self._has_run = False
        if runs is not None:
            self._size = RunSize(runs.most_bytes)

    def restore(self, mark: Mark) -> None:
        """See `Stage`; files that had a slot of an `interleave`, and were delivered, are passed over."""
        self._history.begin(mark["row"], mark["input"])
        self._next = mark["next"]
        self._left = {slot["row"] for slot in mark["slots"] if slot is not None and not _is_delivered(slot["state"])}

    def prepare(self) -> None:
        """Input elements are asked for at the first pull."""

    @property
    def draining(self) -> bool:
        """Whether the last piece has been asked for."""
        single = self._single is None or self._single[1].draining
        return self._block is None and self._ahead.ended and single and all(map(_is_draining, self._ahead.items))

    # --- ahead -------------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Makes pieces of the names, as far ahead as may be."""
        while True:
            await self._ahead.room(self._is_full, lambda: True)
            if self._names:
                await self._pause()
                piece = self._piece(self._names)
                self._ahead.put(piece)
                self._start(piece)
                continue
            block = await self._upstream.pull(_MOST_FILES)
            if block is not None:
                self._take_names(block)
            elif self._history.rows < self._next:
                raise self._history.too_short(self._next, self.label)
            else:
                return

    def _is_full(self) -> bool:
        pieces = self._ahead.items
        nbytes = sum(piece.nbytes for piece in pieces if isinstance(piece, _Run))
        return len(pieces) >= min(2, self._most_ahead) and (len(pieces) >= self._most_ahead or nbytes >= _AHEAD_BYTES)

    def _take_names(self, block: Block) -> None:
        first = self._history.rows
        self._history.feed(block.advance)
        try:
            near = _nothing if self._runs is None else self._runs.near
            for number, row in enumerate(range(first, first + len(block))):
                if row >= self._next or row in self._left:
                    element = block.private(number)
                    self._names.append(FileName(row, block.origin[number], element, near(element)))
        finally:
            block.release()

    def _piece(self, names: deque[FileName]) -> _Run | _Single:
        """The next one; takes its names, of which there must be some."""
        runs = self._runs
        if runs is not None:
            nearby = itertools.takewhile(bool, (name.near for name in names))
            infos = (runs.manifest.get(file.url, None) for file in nearby if file is not None)
            count, nbytes = self._size.choose(None if info is None else info.size for info in infos)
            if count:
                self._begin_runs(runs)
                return _Run([names.popleft() for _ in range(count)], nbytes)
        return self._alone(names.popleft())

    def _begin_runs(self, runs: Runs) -> None:
        if not self._has_run:
            self._budget.reserve(runs.account, self._budget.charge(runs.most_bytes))
            self._has_run = True
            runs.inside.meter.alive.begin()

    def _alone(self, name: FileName) -> _Single:
        try:
            return _Single(name, self._make_inner(name.element, name.origin, NO_PAIRS))
        except Exception as error:  # noqa: BLE001 -- raised when its turn comes
            return _Single(name, None, error)

    def _start(self, piece: _Run | _Single) -> None:
        """Reads ahead, if memory is to be had."""
        if isinstance(piece, _Single):
            if piece.stage is not None:
                piece.stage.prepare()
        elif piece.read is None and not self._awaits_room and not self._closed:
            assert self._runs is not None
            urgency = self._ahead.items.index(piece) + 1
            slab = self._budget.take_ahead(self._runs.account, piece.nbytes, urgency=urgency, reader=self)
            if slab is not None:
                self._ask(piece, slab, urgency)
            else:
                self._awaits_room = True
                self._budget.on_room(self._refill)

    def _refill(self) -> None:
        """Reads ahead again after memory was short."""
        self._awaits_room = False
        for piece in self._ahead.items:
            if isinstance(piece, _Run):
                self._start(piece)

    def _ask(self, run: _Run, slab: Slab, urgency: int) -> None:
        runs = self._runs
        assert runs is not None
        urls = [name.near.url for name in run.names if name.near is not None]
        infos = [runs.manifest.get(url, None) for url in urls]
        versions = [None if info is None else info.version for info in infos]
        run.read = runs.io.read_run(self._budget.slabs, slab, run.nbytes, urls, versions, (0, 2 * urgency, runs.order))

    def recall(self, slab: Slab) -> None:
        """Gives back what was read ahead; it is read again when it is needed."""
        for piece in self._ahead.items:
            if isinstance(piece, _Run) and piece.read is not None and piece.read.slab is slab:
                self._drop(piece)

    def _drop(self, run: _Run) -> None:
        read, run.read = run.read, None
        if read is not None:
            read.cancel()
            self._budget.slabs.drop(read.slab)

    # --- output ------------------------------------------------------------------------------------------------

    async def _pull(self, limit: int) -> Block | None:
        if self._block is None:
            self._block = await self._next_block()
        block = self._block
        if block is None or len(block) <= limit:
            self._block = None
            return block
        block, self._block = block.split(limit)
        return block

    async def _next_block(self) -> Block | None:
        """The rows of the first piece, and of runs behind it that have arrived; None at the end."""
        while True:
            await self._pause()
            if self._single is not None:
                row, stage = self._single
                block = await stage.pull(1)
                if block is None:
                    await stage.aclose()
                    self._single = None
                elif len(block):
                    return self._marked(block, [row])
                continue
            if not await self._ahead.wait():
                return None
            piece = self._ahead.items[0]
            if isinstance(piece, _Single):
                self._single = self._take_single(piece)
            elif await self._arrives(piece) and (block := self._take_arrived()) is not None:
                return block

    def _take_single(self, piece: _Single) -> tuple[int, Stage]:
        self._ahead.take()
        for other in self._ahead.items:
            if isinstance(other, _Single) and other.stage is not None:
                other.stage.prepare()  # by now more may be known about it
        if piece.stage is None:
            assert piece.error is not None
            raise piece.error
        return piece.name.row, piece.stage

    async def _arrives(self, run: _Run) -> bool:
        """Waits for a run; False if it was recalled meanwhile."""
        runs = self._runs
        assert runs is not None
        pulls = runs.inside.meter.pulls
        pulls.begin()
        self._budget.wait(runs.account)
        try:
            if run.read is None:
                slab = await self._budget.take(runs.account, run.nbytes)
                if run.read is None:
                    self._ask(run, slab, 0)
                else:
                    self._budget.slabs.drop(slab)  # there was memory to read it ahead, meanwhile
            read = run.read
            assert read is not None
            self._budget.keep(read.slab)
            with contextlib.suppress(PipelineClosedError):
                await read.wait()
            if run.read is read and not read.arrived:
                await read.wait()  # raises: nobody recalled it
            return run.read is read
        finally:
            self._budget.wait(runs.account, False)
            pulls.end()

    def _take_arrived(self) -> Block | None:
        """The rows of the runs that have arrived, up to the first piece that has not; None if there are none."""
        blocks: list[Block] = []
        rows: list[int] = []
        while len(rows) < BLOCK_ROWS and self._ahead.items:
            run = self._ahead.items[0]
            if not isinstance(run, _Run) or run.read is None or not run.read.arrived:
                break
            self._budget.keep(run.read.slab)
            count = self._accept(run, blocks)
            rows += [name.row for name in run.names[:count]]
        return self._marked(Block.concat(blocks), rows) if blocks else None

    def _accept(self, run: _Run, blocks: list[Block]) -> int:
        """Takes over the files that were read, and puts the others back in front; returns how many were."""
        runs, read = self._runs, run.read
        assert runs is not None
        assert read is not None
        assert read.run is not None
        infos, need, seconds = read.run
        entered: list[tuple[int, int]] = []
        for info, name in zip(infos, run.names, strict=False):
            try:
                entered.append(runs.enter(info, name.origin))
            except AsyncdataError:
                infos, need = infos[: len(entered)], 0  # it is read by itself, and its own stage says what is wrong
                break
        self._ahead.take()
        pulls = runs.inside.meter.pulls
        began_s = pulls.begin()
        if infos:
            blocks.append(self._rows(read.slab, infos, run.names[: len(infos)], entered))
            self._size.learn(len(infos), sum(info.size for info in infos), seconds)
            self._budget.move(read.slab, runs.downstream)
        self._budget.slabs.drop(read.slab)
        ended_s = pulls.end()
        if infos:
            runs.inside.meter.note(blocks[-1], began_s, ended_s)
            if runs.inside.guard is not None:
                runs.inside.guard.passed(len(infos))
        self._put_back(run.names[len(infos) :], need)
        return len(infos)

    def _rows(
        self, slab: Slab, infos: Sequence[ObjectInfo], names: Sequence[FileName], entered: list[tuple[int, int]]
    ) -> Block:
        origin = np.zeros((len(infos), ORIGIN_WIDTH), np.int64)
        origin[:, [0, SUB_INDEX]] = entered
        places = np.empty((len(infos), 2), np.int64)
        places[:, 1] = [info.size for info in infos]
        places[:, 0] = slab.offset + np.cumsum(places[:, 1]) - places[:, 1]
        content = RefColumn(self._budget.slabs, places, BYTES)
        content.hold()
        files = [name.near for name in names if name.near is not None]
        before = [ObjectColumn([file.url for file in files])] if files[0].with_url else []
        behind = [ArrayColumn(np.stack(values)) for values in zip(*(file.beside for file in files), strict=True)]
        structure = whole_structure(len(before) + len(behind))
        return Block(structure, (*before, content, *behind), origin, Advance(len(infos)))

    def _put_back(self, names: Sequence[FileName], need: int | None) -> None:
        """Files that were not read, in front of the others; the first one needs so many bytes."""
        assert self._runs is not None
        left, pieces = deque(names), list[_Run | _Single]()
        if left and need is not None and not 0 < need <= self._runs.most_bytes:
            pieces.append(self._alone(left.popleft()))
            need = None
        while left:
            pieces.append(self._piece(left))
            if need is not None and isinstance(pieces[-1], _Run):
                pieces[-1].nbytes = max(pieces[-1].nbytes, need)
            need = None
        self._ahead.items.extendleft(reversed(pieces))
        for piece in pieces:
            self._start(piece)

    def _marked(self, block: Block, rows: Sequence[int]) -> Block:
        """With marks, in front of files by their numbers in the input."""

        def mark(row: int) -> Mark:
            number = rows[row]
            slot = {"row": number, "state": BEGINNING}
            before = self._history.before(number)
            return {"slot": 0, "taken": 0, "slots": [slot], "next": number + 1, "row": number, "input": before}

        ordered = self.ordered
        marks = self._marker.marks(len(rows), mark, ordered=ordered)
        block.advance = Advance(len(rows), marks) if ordered else Advance(len(rows)).unordered()
        self._history.forget(rows[-1])
        return block

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._retire()
        await self._ahead.aclose()
        if self._block is not None:
            self._block.release()
            self._block = None
        stages = [] if self._single is None else [self._single[1]]
        for piece in self._ahead.items:
            if isinstance(piece, _Run):
                self._drop(piece)
            elif piece.stage is not None:
                stages.append(piece.stage)
        self._ahead.items.clear()
        await close_all([*stages, *self.inputs])
        if self._runs is not None:
            self._budget.close(self._runs.account)
            if self._has_run:
                self._runs.inside.meter.alive.end()


def _is_draining(piece: _Run | _Single) -> bool:
    return piece.read is not None if isinstance(piece, _Run) else piece.stage is None or piece.stage.draining


def _nothing(element: Element) -> None:
    """No file may be in a run."""


def _is_delivered(state: State) -> bool:
    """Whether a file that had a slot of an `interleave` has nothing left."""
    return state.skip > 0 or (state.mark is not None and state.mark["record"] > 0)
