"""Chunks of a compressed object after decompression, with the same interface as `ChunkReader`.

Each object has one decoder, which runs in a thread one slab at a time, so that a file that expands a thousandfold
disturbs neither the loop nor the memory limit.

    next():  chunk 0 ────────▶ chunk 1 ────────▶ chunk 2
    thread:  … 0 │ chunk 1 ───────▶ │ chunk 2 ──────▶ │      as far as stored bytes, and memory to spare, are there

While one chunk is used, the next one is decompressed. Files that are read in turn, which all need their next chunk at
the same time, thus have it at the same time.
"""

from __future__ import annotations

import asyncio

from asyncdata.errors import CompressionError
from asyncdata.formats.compression import Decompressor
from asyncdata.memory.accounts import Account
from asyncdata.memory.slabs import Slab
from asyncdata.observe.stopwatch import Stopwatch
from asyncdata.runtime.life.threads import Offload
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.reading.chunks import Chunk, ChunkReader, copy_chunk, headroom
from asyncdata.runtime.stage import Spawn
from asyncdata.types import ObjectInfo


class InflatedChunks:
    """See the module's docstring.

    Args:
        compressed: The stored bytes.
        compression: ``GZIP`` or ``ZLIB``.
        budget: For slabs.
        account: The source's account.
        threads: Where the decoder runs.
        waits: Runs while it is awaited.
        spawn: Starts a task of the pipeline.
        slab_bytes: Size of a slab: headroom and data.
    """

    def __init__(
        self,
        compressed: ChunkReader,
        compression: str,
        budget: Budget,
        account: Account,
        threads: Offload,
        *,
        waits: Stopwatch,
        spawn: Spawn,
        url: str,
        slab_bytes: int,
    ) -> None:
        self._compressed = compressed
        self._budget = budget
        self._account = account
        self._threads = threads
        self._waits = waits
        self._spawn = spawn
        self._url = url
        self._compression = compression
        self._slab_bytes = slab_bytes
        self.room = headroom(slab_bytes)
        self.data_bytes = slab_bytes - self.room
        self._decoder: Decompressor | None = None
        self._input: Chunk | None = None
        self._output: Slab | None = None
        self._start = self._filled = 0
        """Where in the output the chunk begins, and how far it is filled."""
        self._ahead: asyncio.Task[None] | None = None
        self._is_spare = False
        self._error: Exception | None = None
        self._closed = False
        self._rest: Chunk | None = None
        self._position = 0
        self._begin = 0
        self._ended = False

    def begin(self, position: int) -> None:
        """See `Chunks`; what lies in front is decompressed and dropped."""
        self._begin = position

    @property
    def info(self) -> ObjectInfo | None:
        """The stored object."""
        return self._compressed.info

    @property
    def draining(self) -> bool:
        """Whether the last stored chunk has been asked for."""
        return self._compressed.draining

    def prepare(self) -> None:
        """Asks for the first stored bytes."""
        self._compressed.prepare()

    async def next(self) -> Chunk | None:
        """The next decompressed chunk, or None at the end."""
        # A loop, because any number of chunks may lie in front of the place where reading begins.
        while (chunk := await self._next()) is not None and chunk.position < self._begin:
            passed = min(self._begin - chunk.position, chunk.stop - chunk.start)
            if passed < chunk.stop - chunk.start:
                return Chunk(chunk.slab, chunk.start + passed, chunk.stop, chunk.position + passed, chunk.room)
            self._budget.slabs.drop(chunk.slab)
        return chunk

    async def _next(self) -> Chunk | None:
        """The same, wherever reading begins."""
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        if self._ended:
            return None
        if self._ahead is not None:
            with self._waits:
                await asyncio.wait([self._ahead])
            self._ahead = None
        if self._error is not None:
            raise self._error
        room = self.room if self._position else 0
        if self._output is None:
            self._enter(await self._budget.take(self._account, self._slab_bytes), room)
        elif self._is_spare:
            self._is_spare = False
            self._budget.hurry(self._output)
        await self._fill()
        slab, start, filled = self._output, self._start, self._filled
        assert slab is not None
        self._output = None
        if filled == start:
            self._ended = True
            self._budget.slabs.drop(slab)
            if self._decoder is not None:
                self._decoder.finish()
            return None
        chunk = Chunk(slab, start, filled, self._position, room)
        self._position += filled - start
        self._look_ahead()
        return chunk

    def _enter(self, slab: Slab, room: int) -> None:
        """The next chunk goes to this slab."""
        self._output = slab
        self._start = self._filled = slab.offset + room

    async def _fill(self) -> None:
        """Decompresses until the output is full, or the object or what is sound of it has ended."""
        assert self._output is not None
        stop = self._output.offset + self._slab_bytes
        while self._filled < stop:
            if (self._decoder is None or self._decoder.wants_input) and not await self._feed():
                return
            assert self._decoder is not None
            if self._decoder.is_damaged and self._filled > self._start:
                return  # raised by the next call, once what lies in front of it is delivered
            view = self._budget.slabs.arena.view[self._filled : stop]
            with self._waits:
                self._filled += await self._threads.run(self._decoder.read_into, view)

    def _look_ahead(self) -> None:
        """Begins with the next chunk, if there are memory to spare and stored bytes."""
        decoder = self._decoder
        if decoder is None or decoder.is_damaged or self._output is not None or self._closed:
            return
        if decoder.wants_input and not self._feed_ready():
            return
        slab = self._budget.take_spare(self._account, self._slab_bytes)
        if slab is None:
            return
        self._enter(slab, self.room)
        self._is_spare = True
        self._ahead = self._spawn(self._fill_ahead(decoder))
        # Also called for a task that is cancelled before its first step.
        self._ahead.add_done_callback(lambda _task: self._give_back() if self._closed else None)

    async def _fill_ahead(self, decoder: Decompressor) -> None:
        """The same as `_fill`, as far as nothing has to be waited for but the decoder."""
        assert self._output is not None
        stop = self._output.offset + self._slab_bytes
        try:
            while self._filled < stop and not decoder.is_damaged and (not decoder.wants_input or self._feed_ready()):
                view = self._budget.slabs.arena.view[self._filled : stop]
                self._filled += await self._threads.run(decoder.read_into, view)
        except CompressionError:
            pass  # which the decoder raises again
        except Exception as error:  # noqa: BLE001 -- raised by `next`
            self._error = error

    def _feed_ready(self) -> bool:
        """Feeds the decoder with stored bytes that have arrived."""
        assert self._decoder is not None
        self._drop_input()
        if self._closed or (chunk := self._compressed.take_ready()) is None:
            return False
        self._input = chunk
        self._decoder.feed(self._budget.slabs.arena.view[chunk.start : chunk.stop])
        return True

    async def _feed(self) -> bool:
        self._drop_input()
        self._input = await self._compressed.next()
        if self._decoder is None:
            info = self.info
            version = info.version if info is not None else None
            self._decoder = Decompressor(self._compression, url=self._url, version=version)
        if self._input is None:
            return False
        self._decoder.feed(self._budget.slabs.arena.view[self._input.start : self._input.stop])
        return True

    def _drop_input(self) -> None:
        if self._input is not None:
            self._budget.slabs.drop(self._input.slab)
            self._input = None

    def take_ready(self) -> Chunk | None:
        """Nothing: decompressing takes its time."""
        return None

    async def fill(self, slab: Slab, start: int, length: int) -> int:
        """Decompresses the next `length` bytes into another slab; returns how many there were."""
        filled = 0
        while filled < length:
            chunk = await self.next()
            if chunk is None:
                break
            count, self._rest = copy_chunk(self._budget.slabs, chunk, slab.offset + start + filled, length - filled)
            filled += count
        return filled

    def close(self) -> None:
        """Gives every slab back; those that a thread works on when it has ended."""
        self._closed = True
        self._compressed.close()
        if self._ahead is None or self._ahead.done():
            self._give_back()
        else:
            self._ahead.cancel()

    def _give_back(self) -> None:
        self._drop_input()
        if self._output is not None:
            self._budget.slabs.drop(self._output)
            self._output = None
        if self._rest is not None:
            self._budget.slabs.drop(self._rest.slab)
            self._rest = None
