"""The conformance suite for range readers: subclass it, say how to make a store, and pytest runs the laws.

::

    class TestMyReader(RangeReaderSuite):
        @asynccontextmanager
        async def store(self):
            reader = MySpec(...).open()
            yield MyStore(reader)          # a Store: url, put, delete beside the reader
            await reader.aclose()

Every law is an ``async def test_…``; run them with a plugin that awaits them (pytest-asyncio in auto mode).
"""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import random
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol

from asyncdata.errors import ObjectChangedError, ObjectNotFoundError, StorageError
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.types import ObjectInfo

_POISON = 0xA5
_SIZES = (0, 1, 7, 4096, 100_003, 1_500_000)
_NAMES = (
    "a.rec",
    "a.rec.gz",
    "b.rec",
    "deep/a.rec",
    "deep/deeper/a.rec",
    "deep/deeper/c.txt",
    "deep/x-1.rec",
    "odd/a b+c%20d.rec",
    "odd/ä€😀.rec",
    "train-00000-of-00002",
    "train-00001-of-00002",
)
_PATTERNS = {
    "*.rec": ["a.rec", "b.rec"],
    "a.*": ["a.rec", "a.rec.gz"],
    "?.rec": ["a.rec", "b.rec"],
    "[!a].rec": ["b.rec"],
    "{a,b}.rec": ["a.rec", "b.rec"],
    "{a,deep/x-1,missing}.rec": ["a.rec", "deep/x-1.rec"],
    "train-0000[0-9]-of-*": ["train-00000-of-00002", "train-00001-of-00002"],
    "*/a.rec": ["deep/a.rec"],
    "deep/*/*.rec": ["deep/deeper/a.rec"],
    "deep/**": ["deep/a.rec", "deep/deeper/a.rec", "deep/deeper/c.txt", "deep/x-1.rec"],
    "**/a.rec": ["a.rec", "deep/a.rec", "deep/deeper/a.rec"],
    "d**1.rec": ["deep/x-1.rec"],
    "deep/**r/*.rec": ["deep/deeper/a.rec"],
    "odd/*": ["odd/a b+c%20d.rec", "odd/ä€😀.rec"],
    "a.rec": ["a.rec"],
    "missing": [],
    "missing/*.rec": [],
    "a.rec/*": [],
}


class Store(Protocol):
    """A place of objects for one test, and the reader under test.

    Attributes:
        reader: What is tested.
        spec: The recipe it was opened from; None where it has none.
    """

    reader: RangeReader
    spec: ReaderSpec | None

    def url(self, name: str) -> str:
        """The URL of a name; joins by plain concatenation, so that names with wildcards make patterns."""
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Writes or replaces an object by other means than the reader."""
        ...

    async def delete(self, name: str) -> None:
        """Deletes an object."""
        ...


class LawBrokenError(AssertionError):
    """A reader does not do what ``RangeReader`` promises."""


def _require(condition: object, law: str) -> None:
    if not condition:
        raise LawBrokenError(law)


def _noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


async def _raised(awaitable: Any, kinds: tuple[type[BaseException], ...]) -> BaseException:
    """The error an awaitable ends with, which must be one of these kinds."""
    try:
        outcome = await awaitable
    except kinds as error:
        return error
    raise LawBrokenError(f"expected {' or '.join(kind.__name__ for kind in kinds)}, got {outcome!r}")


class RangeReaderSuite:
    """The laws of ``RangeReader``.

    Attributes:
        can_list: ``glob`` understands wildcards.
        pins: A replaced object of the same size is noticed.
        odd_names: Names with spaces, percent signs and letters beyond ASCII can be used.
    """

    can_list: ClassVar[bool] = True
    pins: ClassVar[bool] = True
    odd_names: ClassVar[bool] = True

    def store(self) -> AbstractAsyncContextManager[Store]:
        """An empty store and its reader; both end with the context."""
        raise NotImplementedError

    async def test_stat_tells_size_and_a_version_that_follows_the_content(self) -> None:
        """The size is exact for every size, and a replaced object has another version."""
        async with self.store() as store:
            for size in _SIZES:
                await store.put("x", _noise(size, size))
                info = await store.reader.stat(store.url("x"))
                _require(info.size == size and info.url == store.url("x"), f"stat of {size} bytes says {info}")
            if self.pins:
                before = await store.reader.stat(store.url("x"))
                await store.put("x", _noise(before.size, 99))
                again = await store.reader.stat(store.url("x"))
                _require(again.version != before.version, "a replaced object has its old version")
                _require(again == await store.reader.stat(store.url("x")), "two looks at one object differ")

    async def test_missing_objects_are_not_found(self) -> None:
        """``stat`` and ``open_read`` name the URL; a folder is no object."""
        async with self.store() as store:
            await store.put("folder/x", b"1")
            for name in ("missing", "folder", "folder/x/y"):
                url = store.url(name)
                for attempt in (store.reader.stat(url), store.reader.open_read(url, memoryview(bytearray(4)))):
                    error = await _raised(attempt, (ObjectNotFoundError,))
                    _require(url in str(error), f"the message does not name {url}: {error}")

    async def test_globs_find_exactly_what_matches_sorted_by_url(self) -> None:
        """Each wildcard, and none; sizes and versions are those of ``stat``."""
        if not self.can_list:
            return
        async with self.store() as store:
            names = [name for name in _NAMES if self.odd_names or not name.startswith("odd/")]
            for name in names:
                await store.put(name, name.encode())
            for pattern, expected in _PATTERNS.items():
                found = await store.reader.glob(store.url(pattern))
                wanted = sorted(store.url(name) for name in expected if name in names)
                _require([info.url for info in found] == wanted, f"{pattern}: {found} instead of {wanted}")
                for info in found:
                    _require(info == await store.reader.stat(info.url), f"glob and stat disagree about {info}")

    async def test_any_range_is_read_exactly_and_nothing_around_it_is_touched(self) -> None:
        """First and last byte, empty ranges, random ranges, the whole; the bytes beside the buffer stay."""
        draw = random.Random(5)
        async with self.store() as store:
            for size in _SIZES:
                data = _noise(size, size)
                await store.put("x", data)
                info = await store.reader.stat(store.url("x"))
                cuts = [(0, size), (0, 0), (size, size), (max(0, size - 1), size), (0, min(1, size))]
                for _ in range(6):
                    start = draw.randint(0, size)
                    cuts.append((start, draw.randint(start, size)))
                for start, stop in cuts:
                    await self._read_exactly(store.reader, info, data, start, stop)

    async def test_names_are_used_as_they_are_written(self) -> None:
        """Nothing in a name is decoded or lost."""
        if not self.odd_names:
            return
        async with self.store() as store:
            for name in ("a b+c%20d", "ä€😀", "a&b=c", "100%", "~x'()!"):
                await store.put(name, name.encode())
                data = name.encode()
                info = await store.reader.stat(store.url(name))
                await self._read_exactly(store.reader, info, data, 0, len(data))

    async def test_an_opening_read_tells_what_the_object_is(self) -> None:
        """Its bytes and its info are those of ``stat`` and ``read_into``, for buffers smaller, equal and larger."""
        async with self.store() as store:
            for size in _SIZES:
                data = _noise(size, size)
                await store.put("x", data)
                for room in sorted({0, 1, size // 2, size, size + 10}):
                    buffer = bytearray([_POISON]) * room
                    info, filled = await store.reader.open_read(store.url("x"), memoryview(buffer))
                    _require(filled == min(size, room), f"{filled} bytes of {size} in {room}")
                    _require(buffer[:filled] == data[:filled], "the bytes differ")
                    _require(buffer[filled:].count(_POISON) == room - filled, "bytes beyond the object were touched")
                    _require(info == await store.reader.stat(store.url("x")), f"not what stat says: {info}")

    async def test_a_read_beyond_the_end_is_an_error(self) -> None:
        """It neither hangs nor returns fewer bytes than asked for."""
        async with self.store() as store:
            await store.put("x", b"0123456789")
            info = await store.reader.stat(store.url("x"))
            for start, size in ((5, 10), (10, 1), (20, 5)):
                await _raised(store.reader.read_into(info, start, memoryview(bytearray(size))), (StorageError,))

    async def test_a_replaced_object_is_an_error_and_never_a_mixture(self) -> None:
        """Whoever reads a listed version gets its bytes or ``ObjectChangedError``."""
        if not self.pins:
            return
        async with self.store() as store:
            old, new = _noise(50_000, 1), _noise(50_000, 2)
            await store.put("x", old)
            info = await store.reader.stat(store.url("x"))
            await self._read_exactly(store.reader, info, old, 0, 100)
            await store.put("x", new)
            buffer = bytearray(1000)
            try:
                await store.reader.read_into(info, 0, memoryview(buffer))
            except ObjectChangedError as error:
                _require(info.version is not None and info.version in str(error), f"no version in {error}")
            else:
                _require(buffer == old[:1000], "bytes of another version were delivered")

    async def test_a_size_that_is_not_true_is_an_error(self) -> None:
        """If the caller knows a wrong size, from a manifest for example, the first read is an error."""
        if not self.pins:
            return
        async with self.store() as store:
            await store.put("x", _noise(50_000, 1))
            info = await store.reader.stat(store.url("x"))
            for size in (info.size - 1, info.size + 1):
                wrong = dataclasses.replace(info, size=size)
                await _raised(store.reader.read_into(wrong, 0, memoryview(bytearray(100))), (ObjectChangedError,))

    async def test_a_deleted_object_is_an_error(self) -> None:
        """It is gone: changed, for who had listed it, or not found. An open file may still be readable."""
        async with self.store() as store:
            await store.put("x", b"0123456789")
            info = await store.reader.stat(store.url("x"))
            await store.delete("x")
            await _raised(
                store.reader.read_into(info, 0, memoryview(bytearray(5))), (ObjectChangedError, ObjectNotFoundError)
            )

    async def test_many_reads_at_a_time(self) -> None:
        """Reads do not disturb one another."""
        draw = random.Random(7)
        data = _noise(1_000_000, 3)
        async with self.store() as store:
            await store.put("x", data)
            info = await store.reader.stat(store.url("x"))
            cuts = [sorted((draw.randint(0, len(data)), draw.randint(0, len(data)))) for _ in range(40)]
            await asyncio.gather(*(self._read_exactly(store.reader, info, data, a, b) for a, b in cuts))

    async def test_a_cancelled_read_lets_go_of_its_buffer(self) -> None:
        """Whenever it is cancelled, nothing writes into the buffer afterwards, and the reader goes on working."""
        data = _noise(1_200_000, 4)
        async with self.store() as store:
            await store.put("x", data)
            info = await store.reader.stat(store.url("x"))
            for turns in range(12):
                buffer = bytearray(len(data))
                task = asyncio.ensure_future(store.reader.read_into(info, 0, memoryview(buffer)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                buffer[:] = bytes([_POISON]) * len(buffer)
                # Whoever still wrote would do so within a few rounds of the loop, or of another thread.
                for _ in range(50):
                    await asyncio.sleep(0)
                _require(buffer.count(_POISON) == len(buffer), "a cancelled read wrote into its buffer")
            await self._read_exactly(store.reader, info, data, 0, len(data))

    async def test_the_recipe_travels(self) -> None:
        """A spec survives pickling, and its repr shows no option's value."""
        async with self.store() as store:
            if store.spec is None:
                return
            _require(pickle.loads(pickle.dumps(store.spec)) == store.spec, "another spec came out")  # noqa: S301 -- made here
            shown = repr(store.spec)
            for value in store.spec.options.values():
                _require(repr(value) not in shown, f"an option's value is in {shown}")

    async def _read_exactly(self, reader: RangeReader, info: ObjectInfo, data: bytes, start: int, stop: int) -> None:
        whole = bytearray([_POISON]) * (stop - start + 16)
        inner = memoryview(whole)[8 : 8 + stop - start]
        count = await reader.read_into(info, start, inner)
        _require(count == stop - start, f"returned {count} for [{start}, {stop})")
        _require(inner == data[start:stop], f"other bytes than [{start}, {stop})")
        _require(_only(whole[:8]) and _only(whole[-8:]), "bytes outside of the buffer were touched")


def _only(edge: Iterable[int]) -> bool:
    return all(byte == _POISON for byte in edge)
