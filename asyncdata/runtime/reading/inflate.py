"""Chunks of a compressed object after decompression, with the same interface as `ChunkReader`.

Each object has one decoder, which runs in a thread one slab at a time, so that a file that expands a thousandfold
disturbs neither the loop nor the memory limit.
"""

from __future__ import annotations

from asyncdata.formats.compression import Decompressor
from asyncdata.memory.accounts import Account
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.life.threads import Offload
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.reading.chunks import Chunk, ChunkReader, copy_chunk, headroom
from asyncdata.types import ObjectInfo


class InflatedChunks:
    """See the module's docstring.

    Args:
        compressed: The stored bytes.
        compression: ``GZIP`` or ``ZLIB``.
        budget: For slabs.
        account: The source's account.
        threads: Where the decoder runs.
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
        url: str,
        slab_bytes: int,
    ) -> None:
        self._compressed = compressed
        self._budget = budget
        self._account = account
        self._threads = threads
        self._url = url
        self._compression = compression
        self._slab_bytes = slab_bytes
        self.room = headroom(slab_bytes)
        self.data_bytes = slab_bytes - self.room
        self._decoder: Decompressor | None = None
        self._input: Chunk | None = None
        self._output: Slab | None = None
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
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        if self._ended:
            return None
        room = self.room if self._position else 0
        if self._output is None:
            self._output = await self._budget.take(self._account, self._slab_bytes)
        start = self._output.offset + room
        stop = self._output.offset + self._slab_bytes
        filled = start
        while filled < stop:
            if (self._decoder is None or self._decoder.wants_input) and not await self._feed():
                break
            assert self._decoder is not None
            if self._decoder.is_damaged and filled > start:
                break  # raised by the next call, once what lies in front of it is delivered
            view = self._budget.slabs.arena.view[filled:stop]
            filled += await self._threads.run(self._decoder.read_into, view)
        slab, self._output = self._output, None
        if filled == start:
            self._ended = True
            self._budget.slabs.drop(slab)
            if self._decoder is not None:
                self._decoder.finish()
            return None
        chunk = Chunk(slab, start, filled, self._position, room)
        self._position += filled - start
        if chunk.position < self._begin:
            return await self._behind(chunk)
        return chunk

    async def _behind(self, chunk: Chunk) -> Chunk | None:
        """The part of a chunk that is wanted, or of the next one where none is."""
        passed = min(self._begin - chunk.position, chunk.stop - chunk.start)
        if passed < chunk.stop - chunk.start:
            return Chunk(chunk.slab, chunk.start + passed, chunk.stop, chunk.position + passed, chunk.room)
        self._budget.slabs.drop(chunk.slab)
        return await self.next()

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
        """Gives every slab back."""
        self._drop_input()
        if self._output is not None:
            self._budget.slabs.drop(self._output)
            self._output = None
        if self._rest is not None:
            self._budget.slabs.drop(self._rest.slab)
            self._rest = None
        self._compressed.close()
