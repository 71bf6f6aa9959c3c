"""TFRecord files over bytes cut into chunks at will: records are contiguous, counted and given back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from asyncdata.errors import BrokenFrameError
from asyncdata.formats.tfrecord import TFRecordFramer, encode, encode_many
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.reading.chunks import Chunk
from asyncdata.runtime.stage import BLOCK_ROWS, Stage
from asyncdata.runtime.stages.sources.framed import FramedStage
from asyncdata.types import ObjectInfo
from tests.runtime.stages.framing_ways import away
from tests.runtime.stages.laws import Bench, Make, Trace, check_any_blocking, check_cancelling, check_closing, whole
from tests.samples import samples

URL = "memory://b/o"
pytestmark = pytest.mark.usefixtures("way")


class CutChunks:
    """The bytes of an object in chunks that end where the test says.

    Args:
        bench: Whose memory the chunks lie in.
        data: All bytes.
        cuts: Where chunks end.
        room: Free bytes in front of every chunk but the first; a header's length at least.
    """

    def __init__(self, bench: Bench, data: bytes, cuts: Sequence[int], *, room: int) -> None:
        self._bench = bench
        self._data = data
        self._cuts = [*sorted(cut for cut in set(cuts) if 0 < cut < len(data)), len(data)]
        self._at = 0
        self._rest: Chunk | None = None
        self._following: Chunk | None = None
        self.room = room
        self.data_bytes = max((b - a for a, b in zip([0, *self._cuts[:-1]], self._cuts, strict=True)), default=1)
        self.info = ObjectInfo(url=URL, size=len(data), version="1")
        self.draining = False

    def begin(self, position: int) -> None:
        """Leaves out what lies in front."""
        self._at = position

    def prepare(self) -> None:
        """Nothing to prepare."""

    async def next(self) -> Chunk | None:
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        found = self.take_ready() or await self._make()
        if self._bench.cuts is not None and self._bench.cuts.random() < 0.5:
            try:
                self._following = await self._make()
            except BaseException:
                if found is not None:
                    self._bench.budget.slabs.drop(found.slab)
                raise
        return found

    def take_ready(self) -> Chunk | None:
        if self._rest is not None:
            return None
        following, self._following = self._following, None
        return following

    async def _make(self) -> Chunk | None:
        if self._at >= len(self._data):
            self.draining = True
            return None
        if self._bench.cuts is not None and self._bench.cuts.random() < 0.5:
            await asyncio.sleep(0)
        stop = next(cut for cut in self._cuts if cut > self._at)
        room = self.room if self._at else 0
        slab = await self._bench.budget.take(self._bench.read, room + stop - self._at)
        start = slab.offset + room
        self._bench.arena.view[start : start + stop - self._at] = self._data[self._at : stop]
        chunk = Chunk(slab, start, start + stop - self._at, self._at, room)
        self._at = stop
        return chunk

    async def fill(self, slab: Slab, start: int, length: int) -> int:
        filled = 0
        while filled < length:
            chunk = await self.next()
            if chunk is None:
                break
            count = min(length - filled, chunk.stop - chunk.start)
            view = self._bench.arena.view
            at = slab.offset + start + filled
            view[at : at + count] = view[chunk.start : chunk.start + count]
            filled += count
            if count < chunk.stop - chunk.start:
                self._rest = Chunk(chunk.slab, chunk.start + count, chunk.stop, chunk.position + count, count)
            else:
                self._bench.budget.slabs.drop(chunk.slab)
        return filled

    def close(self) -> None:
        for chunk in (self._rest, self._following):
            if chunk is not None:
                self._bench.budget.slabs.drop(chunk.slab)
        self._rest = self._following = None


def reading(data: bytes, cuts: Sequence[int], *, room: int = 64, compressed: bool = False) -> Make:
    """A stage that reads an object cut into chunks."""

    def make(bench: Bench) -> Stage:
        return FramedStage(
            bench.context("TFRecordDataset"),
            bench.file(URL),
            CutChunks(bench, data, cuts, room=room),
            framer := TFRecordFramer(verify=True),
            compressed=compressed,
            reserve_bytes=0,
            away=away(bench, framer),
        )

    return make


def records(*sizes: int) -> list[bytes]:
    """Payloads of these sizes that tell each other apart."""
    return [bytes([65 + i % 26]) * size for i, size in enumerate(sizes)]


def check(trace: Trace, payloads: list[bytes]) -> None:
    """The elements and their provenance are those of the payloads."""
    assert trace.elements == payloads
    assert trace.error is None
    offsets = [0]
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload) + 16)
    assert [row[1:] for row in trace.origins] == [[i, 0, offset] for i, offset in enumerate(offsets[:-1])]


@pytest.mark.sampled
@pytest.mark.parametrize("room", [12, 13, 20, 64])
def test_a_record_is_whole_wherever_the_bytes_are_cut(room: int) -> None:
    """Cut in two at every position of header, payload and footer, the records and their places are the same."""
    payloads = records(5, 0, 1, 40, 0, 7)
    data = encode_many(payloads)
    for cut in range(len(data) + 1):
        check(whole(reading(data, [cut], room=room)), payloads)


@pytest.mark.parametrize("size", [1, 2, 7, 12, 13, 20])
def test_records_in_chunks_of_a_few_bytes(size: int) -> None:
    """Chunks smaller than a header still make whole records."""
    payloads = records(5, 0, 30, 2)
    data = encode_many(payloads)
    check(whole(reading(data, range(size, len(data), size), room=12)), payloads)


def test_random_cuts_and_limits() -> None:
    """Any blocking: cuts of the bytes, headroom and limits change neither records nor marks nor provenance."""
    payloads = records(*[7 * i % 50 for i in range(60)])
    data = encode_many(payloads)
    expected = whole(reading(data, []))
    check(expected, payloads)
    for seed in range(samples(10, 500)):
        draw = random.Random(seed)
        cuts = draw.sample(range(len(data)), draw.randint(0, 30))
        found = check_any_blocking(reading(data, cuts, room=draw.choice([12, 30, 100])), seeds=range(seed, seed + 1))
        found.check_same(expected)


def test_many_records_in_a_chunk_are_framed_block_by_block() -> None:
    """A chunk of thousands of records gives blocks of at most what is asked for."""
    payloads = records(*[3] * 3 * BLOCK_ROWS)
    trace = whole(reading(encode_many(payloads), []))
    check(trace, payloads)
    assert trace.pulls >= 3


@pytest.mark.sampled
@pytest.mark.slow
def test_a_record_of_50_mb_in_chunks_of_1_mib() -> None:
    """A record far larger than a chunk gets a slab of its own, and is given back."""
    payloads = [b"first", random.Random(1).randbytes(50_000_000), b"last"]
    data = encode_many(payloads)
    trace = whole(reading(data, range(1 << 20, len(data), 1 << 20), room=1 << 16))
    assert [len(element) for element in trace.elements] == [5, 50_000_000, 4]
    assert trace.elements == payloads


@pytest.mark.sampled
def test_closing_and_cancelling_give_everything_back() -> None:
    """Leases: chunks, records of their own and what was cut off are given back at any step."""
    data = encode_many(records(5, 300, 0, 80, 2000, 1))
    make = reading(data, range(50, len(data), 50), room=16)
    check_closing(make)
    check_cancelling(make, steps=range(80))


@pytest.mark.parametrize("keep", [0, 1, 11, 12, 13, 21, 22, 25, 26, 27, 40, 61, 62, 63, 82, 83])
def test_an_object_that_ends_early_is_an_error_behind_its_whole_records(keep: int) -> None:
    """Truncation: the whole records come first, then one error that names the place; everything is given back."""
    payloads = records(10, 20, 5)
    data = encode_many(payloads)[:keep]
    ends = [0, 26, 62, 83]
    complete = sum(end <= keep for end in ends) - 1
    for cuts in ([], [3], [14], [25], range(1, keep)):
        trace = whole(reading(data, cuts, room=12, compressed=True))
        assert trace.elements == payloads[:complete]
        assert (trace.error is None) == (keep in ends)
        if trace.error is not None:
            assert "BrokenFrameError" in trace.error


def test_an_error_names_record_offset_and_version() -> None:
    """A broken length names the record's number, its offset and the object's version."""
    data = bytearray(encode_many(records(10, 20, 5)))
    data[26] ^= 1

    async def pull_to_error() -> BrokenFrameError:
        errors: list[BrokenFrameError] = []

        def make(bench: Bench) -> Stage:
            stage = reading(bytes(data), [30], room=12)(bench)
            pull = stage.pull

            async def noting(limit: int) -> object:
                try:
                    return await pull(limit)
                except BrokenFrameError as error:
                    errors.append(error)
                    raise

            stage.pull = noting  # type: ignore[method-assign, assignment]  # looks at what passes
            return stage

        await Bench().observe(make)
        return errors[0]

    error = asyncio.run(pull_to_error())
    assert (error.url, error.version, error.record, error.offset) == (URL, "1", 1, 26)


def test_no_record_at_all() -> None:
    """An empty object is an empty dataset."""
    check(whole(reading(b"", [])), [])
    check(whole(reading(encode(b""), [])), [b""])
