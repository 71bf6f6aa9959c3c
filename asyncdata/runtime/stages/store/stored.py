"""Where kept elements lie: in memory or in a file; how images get there, and come back as blocks.

An image in memory lies outside of the arena and is charged to the pipeline that uses it, as bytes without a slab, until
the pipeline ends; the next pipeline that reads it is charged anew. Both kinds are read into a slab, image by image,
which is charged as a finished batch is: the block's references point there.

A store is filled by a `StoreWriter`, which ends as a whole: nothing can be read before `finish`, and what is given up
leaves no trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from asyncdata.errors import (
    BrokenFrameError,
    DataError,
    ObjectNotFoundError,
    PipelineError,
    SystemResourceError,
    refused,
)
from asyncdata.formats.block_file import (
    MAGIC,
    TRAILER_BYTES,
    ImagePlace,
    UnwritableError,
    frame,
    index,
    read_image,
    read_index,
    read_trailer,
)
from asyncdata.formats.block_image import Image, check_image, load
from asyncdata.memory.accounts import Foreseen, Ticket
from asyncdata.memory.advance import State
from asyncdata.memory.block import Block
from asyncdata.plan.node import is_made_inside
from asyncdata.replacing import check_replaceable, open_partial, remove_left_behind
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.reading.io import Io
from asyncdata.runtime.reading.manifest import Manifest
from asyncdata.runtime.stage import StageContext
from asyncdata.runtime.stages.store.freshness import Freshness, Reads, Remembered
from asyncdata.runtime.state.filling import Filling, Told
from asyncdata.types import Json, ObjectInfo

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""Some file systems have no second name for a file."""


class StoreWriter(Protocol):
    """Elements on their way into a store.

    Attributes:
        keeps_objects: Whether any Python object can be kept, as it is.
    """

    keeps_objects: bool

    async def add(self, image: Image) -> None:
        """Takes an image over."""

    async def finish(self) -> None:
        """That was all: from now on the store can be read."""

    async def discard(self) -> None:
        """Gives everything up. Idempotent; nothing after `finish`."""


class ElementStore(Protocol):
    """See the module's docstring."""

    async def open(self) -> int | None:
        """How many images there are; None while the store is not complete."""

    def fill(self) -> StoreWriter:
        """Begins to fill it."""

    async def load(self, number: int) -> Block:
        """The elements of one image; without an advance."""

    def begins(self, state: State | None) -> None:
        """What is filled in began at a state of its input, which says what was kept there; None: it says nothing."""

    def told(self) -> Told | None:
        """The run that has filled it, or fills it, for marks; None where nobody can fill it again."""


# --- memory --------------------------------------------------------------------------------------------------------


class MemoryCell:
    """What `cache()` keeps in memory: shared by all runs of one dataset, and gone with it. Pickled, it is empty.

    Attributes:
        images: The elements; None until a run was complete.
        filling: The run that has filled it; of an empty cell the one in which it must be filled, because there are
            states of runs that read what was in it then. None: whichever comes first.
        inside: Whether it belongs to a dataset that was made of an element.
        made_of: What the elements were made of, for what keeps them in files.
    """

    def __init__(self, filling: Filling | None = None, *, inside: bool | None = None) -> None:
        self.images: list[Image] | None = None
        self.filling = filling
        self.inside = is_made_inside() if inside is None else inside
        self.made_of: Remembered | None = None

    def empty(self, filling: Filling | None = None) -> MemoryCell:
        """One of the same dataset, which another run fills."""
        return MemoryCell(filling, inside=self.inside)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(MemoryCell, inside=self.inside), (self.filling,)


class Charges:
    """What one pipeline is charged with for one cell.

    Attributes:
        tickets: Held until the pipeline ends.
        lock: Held while they are asked for.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.lock = asyncio.Lock()

    def give(self, budget: Budget) -> None:
        """The pipeline ends."""
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            budget.give(ticket)


class MemoryStore:
    """A cell, as one pipeline sees it.

    Args:
        context: Of the stage; its accounts are charged with the cell, and with blocks made of it.
        cell: What is kept.
        charges: Of this pipeline for the cell.
        elements: How many there will be; negative where that is not known.
        filling: The run in which an empty cell is filled.
        is_named: Whether a state names this run: what another one has kept by the first pull is not read then.
        reads: Filled while the input runs, or with what is read of the cell; and what knows the files.
    """

    def __init__(
        self,
        context: StageContext,
        cell: MemoryCell,
        charges: Charges,
        elements: int,
        filling: Filling | None = None,
        *,
        is_named: bool = False,
        reads: tuple[Reads, Manifest] | None = None,
    ) -> None:
        self._reads = reads
        self._elements = elements
        self._is_named = is_named
        self._filling = filling
        self._is_read = False
        self._cell = cell
        self._charges = charges
        self._budget = context.budget
        self._account = context.kept
        self._blocks_account = context.tasks

    async def open(self) -> int | None:
        """See `ElementStore`; charges the pipeline if it was not yet."""
        images = self._cell.images
        if images is None or (self._is_named and self._cell.filling != self._filling):
            return None
        self._is_read = True
        if self._reads is not None and self._cell.made_of is not None:
            reads, manifest = self._reads
            reads.recall(self._cell.made_of, manifest)
        async with self._charges.lock:
            if not self._charges.tickets:
                nbytes = sum(map(_kept_bytes, images))
                self._charges.tickets.append(await self.charge(nbytes))
        return len(images)

    async def charge(self, nbytes: int) -> Ticket:
        """Charges the cell's account."""
        return await self._budget.charge_only(self._account, nbytes)

    def fill(self) -> StoreWriter:
        """See `ElementStore`."""
        writer = _MemoryWriter(self, self._cell, self._charges, self._budget)
        self._account.foresee = lambda: writer.foresee(self._elements)
        return writer

    def begins(self, state: State | None) -> None:
        """See `ElementStore`."""
        self._filling = self._filling and self._filling.beginning(state)

    def told(self) -> Told:
        """See `ElementStore`; another run may have filled the cell while this one made its own elements."""
        return Told(self._cell.filling, kept=True) if self._is_read else Told(self._filling, kept=False)

    async def made_of(self) -> Remembered | None:
        """What the elements were made of that were filled in."""
        if self._reads is None:
            return None
        reads, manifest = self._reads
        return await reads.remember(manifest)

    async def load(self, number: int) -> Block:
        """See `ElementStore`."""
        images = self._cell.images
        assert images is not None
        image = images[number]
        assert image.body is not None
        if not image.has_references:
            return load(image, image.body, 0, None)
        slabs = self._budget.slabs
        slab = await self._budget.take(self._blocks_account, image.nbytes)
        try:
            slabs.arena.array[slab.offset : slab.offset + image.nbytes] = image.body
            return load(image, slabs.arena.array, slab.offset, slabs)
        finally:
            slabs.drop(slab)


class _MemoryWriter:
    keeps_objects = True

    def __init__(self, store: MemoryStore, cell: MemoryCell, charges: Charges, budget: Budget) -> None:
        self._store = store
        self._cell = cell
        self._charges = charges
        self._budget = budget
        self._images: list[Image] = []
        self._tickets: list[Ticket] = []

    def foresee(self, elements: int) -> Foreseen:
        """What the whole cell is going to take; twice as much as there is where nobody knows."""
        rows = sum(image.rows for image in self._images)
        nbytes = sum(map(_kept_bytes, self._images))
        return Foreseen(elements if elements >= 0 else 2 * rows, rows, nbytes, is_guess=elements < 0)

    async def add(self, image: Image) -> None:
        self._tickets.append(await self._store.charge(_kept_bytes(image)))
        self._images.append(image)

    async def finish(self) -> None:
        made_of = await self._store.made_of()
        if self._cell.images is None:
            self._cell.made_of = made_of
            self._cell.filling, self._cell.images = self._store.told().filling, self._images
            self._charges.tickets += self._tickets
            self._tickets = []
        await self.discard()

    async def discard(self) -> None:
        tickets, self._tickets = self._tickets, []
        self._images = []
        for ticket in tickets:
            self._budget.give(ticket)


def _kept_bytes(image: Image) -> int:
    return image.nbytes + image.object_bytes


# --- files ---------------------------------------------------------------------------------------------------------


class FileStore:
    """One file on a local file system.

    Args:
        context: Of the stage.
        path: The file; its directory is made when it is filled.
        io: Reads it.
        order: Place among the sources, for the order of reads.
        freshness: Of a cache: compares what the file is made of. None: somebody else does.
    """

    def __init__(
        self, context: StageContext, path: str, io: Io, order: int, freshness: Freshness | None = None
    ) -> None:
        self._context = context
        self._path = path
        self._label = context.label
        self._io = io
        self._threads = context.threads
        self._budget = context.budget
        self._account = context.tasks
        self._order = order
        self._freshness = freshness
        self._info: ObjectInfo | None = None
        self._places: list[ImagePlace] = []
        self._is_complete = False
        self._fits = True

    async def open(self) -> int | None:
        """See `ElementStore`.

        Raises:
            DataError: There is a file, but it is none of ours, or damaged.
            SystemResourceError: There is something else, such as a directory.
            StaleDataError: It was made of something else than it would be now.
        """
        try:
            self._info = await self._io.stat(self._path)
        except ObjectNotFoundError:
            try:
                await self._threads.run(_make_ready, Path(self._path))
            except OSError as error:
                raise refused("the file cannot be written", error, url=self._path, stage=self._label) from error
            if self._freshness is not None:
                await self._freshness.begin()
            return None
        try:
            self._places, made_of = await self._read_places(self._info)
        except DataError as error:
            error.complete(url=self._path, stage=self._label)
            raise
        if self._freshness is not None:
            await self._freshness.check(made_of)
            if not self._freshness.fits():
                self._fits = False
                return None
        self._is_complete = True
        return len(self._places)

    async def _read_places(self, info: ObjectInfo) -> tuple[list[ImagePlace], Any]:
        if info.size < len(MAGIC) + TRAILER_BYTES:
            raise BrokenFrameError("the file is too short to be one of ours")
        trailer = await self._read(info, info.size - TRAILER_BYTES, TRAILER_BYTES, _as_bytes)
        offset, length, crc = read_trailer(trailer, info.size)
        entries = await self._read(info, offset, length, _as_bytes) if length else b""
        return read_index(entries, crc, offset)

    async def _read(self, info: ObjectInfo, position: int, length: int, use: Callable[[Any], Any]) -> Any:
        """Reads a range into a slab and makes something of it in a thread."""
        slabs = self._budget.slabs
        slab = await self._budget.take(self._account, length)
        try:
            read = self._io.read(slabs, slab, 0, length, info, position, (self._order, position))
            try:
                await read.wait()
            except asyncio.CancelledError:
                read.cancel()
                raise
            return await self._threads.run(use, slabs.arena.array[slab.offset : slab.offset + length])
        finally:
            slabs.drop(slab)

    def begins(self, state: State | None) -> None:
        """See `ElementStore`."""
        if self._freshness is not None:
            self._freshness.begins(state)

    def told(self) -> Told | None:
        """See `ElementStore`."""
        return None if self._freshness is None else Told(self._freshness.filling, self._is_complete)

    def fill(self) -> StoreWriter:
        """See `ElementStore`."""
        if not self._fits:
            return _NoWriter()
        return FileWriter(self._context, Path(self._path), freshness=self._freshness)

    async def load(self, number: int) -> Block:
        """See `ElementStore`."""
        info = self._info
        assert info is not None
        place = self._places[number]
        slabs = self._budget.slabs
        slab = await self._budget.take(self._account, place.nbytes)
        try:
            read = self._io.read(slabs, slab, 0, place.nbytes, info, place.offset, (self._order, place.offset))
            try:
                await read.wait()
            except asyncio.CancelledError:
                read.cancel()
                raise
            memory = slabs.arena.array[slab.offset : slab.offset + place.nbytes]
            try:
                image, start = await self._threads.run(_checked, memory, place, self._budget.limit)
            except DataError as error:
                error.complete(url=self._path, offset=place.offset, stage=self._label)
                raise
            if image.body is None:
                return load(image, slabs.arena.array, slab.offset + start, slabs)
        finally:
            slabs.drop(slab)
        # Unpacked outside of the arena: nothing waits here for one slab while it holds another.
        slab = await self._budget.take(self._account, image.nbytes)
        try:
            slabs.arena.array[slab.offset : slab.offset + image.nbytes] = image.body
            return load(image, slabs.arena.array, slab.offset, slabs)
        finally:
            slabs.drop(slab)


class _NoWriter:
    """Keeps nothing, because there is a complete file."""

    keeps_objects = True

    async def add(self, image: Image) -> None:
        """See `StoreWriter`."""

    async def finish(self) -> None:
        """See `StoreWriter`."""

    async def discard(self) -> None:
        """See `StoreWriter`."""


def _as_bytes(memory: Any) -> bytes:
    data: bytes = memory.tobytes()
    return data


def _checked(memory: Any, place: ImagePlace, most: int) -> tuple[Image, int]:
    image, start = read_image(memory, place, most)
    check_image(image, memory if image.body is None else image.body, start)
    return image, start


class FileWriter:
    """Writes a file beside its place, and puts it there when it is complete, unless another run was first.

    What another run has put there stays as it is, because others read it by now.

    Args:
        context: Of the stage.
        path: Where it goes.
        codec: What images are packed by, or None.
        freshness: Says what the elements are made of; None leaves that out.
    """

    keeps_objects = False

    def __init__(
        self, context: StageContext, path: Path, codec: str | None = None, freshness: Freshness | None = None
    ) -> None:
        self._path = path
        self._codec = codec
        self._freshness = freshness
        self._label = context.label
        self._threads = context.threads
        self._place = self._partial = path
        self._file: BinaryIO | None = None
        self._places: list[ImagePlace] = []
        self._at = len(MAGIC)

    async def add(self, image: Image) -> None:
        """See `StoreWriter`.

        Raises:
            PipelineError: It holds Python objects that cannot be written.
        """
        try:
            await self._threads.run(self._write, image)
        except UnwritableError as error:
            raise PipelineError(str(error), stage=self._label) from error
        except OSError as error:
            raise self._refused(error) from error

    def _write(self, image: Image) -> None:
        pieces = frame(image, self._codec)
        if self._file is None:
            self._open()
        assert self._file is not None
        for piece in pieces:
            self._file.write(piece)
        nbytes = sum(map(len, pieces))
        self._places.append(ImagePlace(self._at, nbytes, image.rows))
        self._at += nbytes

    def _open(self) -> None:
        self._place = _place_of(self._path)
        self._place.parent.mkdir(parents=True, exist_ok=True)
        self._partial, self._file = open_partial(self._place)
        self._file.write(MAGIC)

    async def finish(self) -> None:
        """See `StoreWriter`."""
        made_of = None if self._freshness is None else await self._freshness.finish()
        try:
            await self._threads.run(self._finish, made_of)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> SystemResourceError:
        return refused("the file cannot be written", error, url=str(self._path), stage=self._label)

    def _finish(self, made_of: Json) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        self._file.write(index(self._places, self._at, made_of))
        self._file.flush()
        os.fsync(self._file.fileno())
        _put(self._partial, self._place)
        file, self._file = self._file, None
        file.close()

    async def discard(self) -> None:
        """See `StoreWriter`."""
        if self._file is not None:
            # Not in a thread: called when everything ends, and quick.
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # what is left to write may not be written any more
                file.close()
            self._partial.unlink(missing_ok=True)


def _place_of(path: Path) -> Path:
    """Where the file is to be: a link stays, and leads to it."""
    return Path(os.path.realpath(path))


def _make_ready(path: Path) -> None:
    """Looks whether a file may take the path, and removes what killed runs left of it."""
    check_replaceable(path)
    place = _place_of(path)
    with contextlib.suppress(OSError):  # the folder is made later, or cannot be listed
        remove_left_behind(place.parent, re.escape(place.name))


def _put(partial: Path, path: Path) -> None:
    try:
        os.link(partial, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not path.exists():
            partial.replace(path)
            return
    partial.unlink()
