"""Whole ranges, whatever it takes: retries, resume, order and limits over one attempt at a time.

::

    read(info, start, buffer) ─▶ gate (soonest needed first) ─▶ one attempt ─▶ done
                                   ▲                               │ transient failure, n bytes filled
                                   └──── delay (full jitter) ◀─────┘ resume at byte n

One Fetcher per Runtime, on its I/O loop. It opens one reader per URL scheme when it is first needed, and closes all.
A cancelled read leaves no trace and nothing that writes into its buffer. Attempts of one read follow one another;
they never share the buffer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import Final, TypeVar

from asyncdata.errors import ObjectNotFoundError, PipelineClosedError, StorageError, TransientStorageError
from asyncdata.options import AUTOTUNE, Environment, Options
from asyncdata.storage.counters import FetchCounters, FetchStats
from asyncdata.storage.failures import ReadFailedError
from asyncdata.storage.gate import Gate
from asyncdata.storage.reader import RangeReader
from asyncdata.storage.registry import spec_for
from asyncdata.storage.retry import next_delay_s
from asyncdata.storage.schedule import Priority
from asyncdata.storage.urls import redact, scheme_of
from asyncdata.types import ObjectInfo

T = TypeVar("T")

FIRST_WINDOW: Final = 32


class Fetcher:
    """See the module's text.

    Args:
        options: ``retry``, ``timeouts``, ``max_requests_in_flight`` and ``storage`` are used.
        environment: What was read of the environment when the Runtime started.
    """

    def __init__(self, options: Options, environment: Environment) -> None:
        self._options = options
        self._environment = environment
        limit = options.max_requests_in_flight
        self._gate = Gate(FIRST_WINDOW if limit == AUTOTUNE else limit)
        self._readers: dict[str, RangeReader] = {}
        self._counters = FetchCounters()
        self._random = random.Random()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Fetcher {self._gate!r} {list(self._readers.values())!r}>"

    async def stat(self, url: str) -> ObjectInfo:
        """Size and version of one object, with retries."""
        reader = self._reader(url)
        return await self._retried(lambda: reader.stat(url), url)

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The objects that match, sorted by URL, with retries; empty where none does."""
        reader = self._reader(pattern)
        return await self._retried(lambda: reader.glob(pattern), pattern)

    async def read(self, info: ObjectInfo, start: int, buffer: memoryview, *, priority: Priority = 0) -> None:
        """Fills ``buffer`` with the bytes ``[start, start + len(buffer))`` of the version in ``info``.

        Args:
            info: The object, from ``stat``, ``glob`` or ``open_read``.
            start: Offset of the first byte.
            buffer: Writable and contiguous; on return, raise or cancellation nothing writes into it any more.
            priority: Smaller is sooner needed.

        Raises:
            ObjectChangedError: The object is not the listed version any more.
            StorageError: Anything else; ``attempts`` says how often it was tried.
        """
        whole = _bytes_view(buffer)
        if start < 0 or (info.size >= 0 and start + len(whole) > info.size):
            raise ValueError(f"[{start}, {start + len(whole)}) lies outside of {info.url} ({info.size} bytes)")
        if whole:
            await self._read_rest(
                info, start, whole, filled=0, priority=priority, attempts=_Attempts(self._loop_time())
            )

    async def open_read(self, url: str, buffer: memoryview, *, priority: Priority = 0) -> tuple[ObjectInfo, int]:
        """Reads the beginning of an object about which nothing is known, without asking for its metadata first.

        Returns:
            What the object is, and how many bytes were written: ``min(size, len(buffer))``.
        """
        reader = self._reader(url)
        whole = _bytes_view(buffer)
        attempts = _Attempts(self._loop_time())
        while True:
            info, filled = None, 0
            ticket = await self._gate.enter(priority)
            self._counters.began()
            try:
                info, filled = await reader.open_read(url, whole)
                self._counters.received(filled)
                return info, filled
            except TransientStorageError as error:
                filled = self._failed(error)
                if isinstance(error, ReadFailedError) and error.info is not None:
                    info = error.info
                else:
                    self._counters.wasted(filled)
                delay = self._delay_s(error, attempts)
            except StorageError as error:
                error.attempts = attempts.made + 1
                raise
            finally:
                self._counters.ended()
                self._gate.leave(ticket)
            await asyncio.sleep(delay)
            if info is not None:
                # The head was seen: what follows is a resume, pinned to the version that it named.
                size = min(info.size, len(whole))
                await self._read_rest(info, 0, whole[:size], filled=filled, priority=priority, attempts=attempts)
                return info, size

    @property
    def window(self) -> int:
        """The limit of requests in flight, as it is now."""
        return self._gate.limit

    def note_restart(self) -> None:
        """A file is begun again, for its object was replaced."""
        self._counters.restarted()

    def stats(self) -> FetchStats:
        """What was done so far."""
        fallbacks: Counter[str] = Counter()
        for reader in self._readers.values():
            fallbacks.update(getattr(reader, "fallbacks", {}))
        return dataclasses.replace(
            self._counters.snapshot(waiting=self._gate.waiting, limit=self._gate.limit),
            fallbacks=MappingProxyType(dict(fallbacks)),
        )

    async def aclose(self) -> None:
        """Refuses waiting reads and closes every reader; running reads should have been cancelled before."""
        self._closed = True
        self._gate.close()
        readers, self._readers = list(self._readers.values()), {}
        errors = [
            error
            for error in await asyncio.gather(*(reader.aclose() for reader in readers), return_exceptions=True)
            if isinstance(error, BaseException)
        ]
        if errors:
            raise errors[0]

    def _reader(self, url: str) -> RangeReader:
        if self._closed:
            raise PipelineClosedError("the storage layer was closed", url=url)
        scheme = scheme_of(url)
        reader = self._readers.get(scheme)
        if reader is None:
            try:
                reader = self._readers[scheme] = spec_for(url, self._options, self._environment).open()
            except StorageError as error:
                error.complete(url=redact(url))
                raise
        return reader

    async def _read_rest(
        self,
        info: ObjectInfo,
        start: int,
        buffer: memoryview,
        *,
        filled: int,
        priority: Priority,
        attempts: _Attempts,
    ) -> None:
        reader = self._reader(info.url)
        size = len(buffer)
        while filled < size:
            ticket = await self._gate.enter(priority)
            self._counters.began(resumed=filled > 0)
            try:
                await reader.read_into(info, start + filled, buffer[filled:] if filled else buffer)
                self._counters.received(size - filled)
                return
            except TransientStorageError as error:
                filled += self._failed(error)
                delay = self._delay_s(error, attempts)
            except StorageError as error:
                error.attempts = attempts.made + 1
                raise
            finally:
                self._counters.ended()
                self._gate.leave(ticket)
            await asyncio.sleep(delay)

    async def _retried(self, ask: Callable[[], Awaitable[T]], url: str) -> T:
        attempts = _Attempts(self._loop_time())
        while True:
            try:
                self._counters.asked()
                return await ask()
            except TransientStorageError as error:
                if error.url is None:
                    error.url = url
                self._counters.failed(error)
                delay = self._delay_s(error, attempts)
            except StorageError as error:
                if not isinstance(error, ObjectNotFoundError):
                    error.attempts = attempts.made + 1
                raise
            await asyncio.sleep(delay)

    def _failed(self, error: TransientStorageError) -> int:
        """Books a failed attempt; returns how many bytes it left."""
        self._counters.failed(error)
        filled = error.filled if isinstance(error, ReadFailedError) else 0
        self._counters.received(filled)
        return filled

    def _delay_s(self, error: TransientStorageError, attempts: _Attempts) -> float:
        """Seconds until the next attempt; raises the error when there is none."""
        attempts.made += 1
        delay = next_delay_s(
            error,
            attempt=attempts.made,
            elapsed_s=self._loop_time() - attempts.began,
            options=self._options.retry,
            draw=self._random.random,
        )
        if delay is None:
            error.attempts = attempts.made
            raise error
        self._counters.retried(delay)
        return delay

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()


class _Attempts:
    """How often one operation was tried, and since when."""

    __slots__ = ("began", "made")

    def __init__(self, began: float) -> None:
        self.began = began
        self.made = 0


def _bytes_view(buffer: memoryview) -> memoryview:
    if buffer.readonly:
        raise ValueError("the buffer is read-only")
    return buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
