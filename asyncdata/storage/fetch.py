"""Whole ranges: retries, resume, order and limits on top of single attempts.

::

    read(info, start, buffer) ─▶ slot (soonest needed first) ─▶ one attempt ─▶ done
                                   ▲                               │ transient failure, n bytes filled
                                   └──── delay (full jitter) ◀─────┘ resume at byte n

Each Runtime has one Fetcher, on its I/O loop. It opens a reader when a URL scheme with certain options is first needed,
and closes all readers. A cancelled read leaves no trace and nothing that writes into its buffer. The attempts of one
read follow one another and never share the buffer. A second attempt at a silent read has memory of its own (see
``hedge``).
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from asyncdata.errors import (
    ObjectNotFoundError,
    PipelineClosedError,
    StorageError,
    TransientStorageError,
    UnsupportedURLError,
)
from asyncdata.observe.trace_ring import TraceRing
from asyncdata.options import SCHEME_ALIASES, Environment, Options, Storage
from asyncdata.redaction import mask, redact_url
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.backends import spec_for
from asyncdata.storage.counters import FetchStats
from asyncdata.storage.failures import ReadFailedError
from asyncdata.storage.globs import has_wildcard, numbered
from asyncdata.storage.groups import gather_bounded
from asyncdata.storage.policy.attempts import Attempts
from asyncdata.storage.policy.hedge import Again, Racing, hedge_bytes
from asyncdata.storage.policy.retry import next_delay_s
from asyncdata.storage.policy.slots import Priority
from asyncdata.storage.reader import ObjectWriter, RangeReader, ReaderSpec, RunOfFiles, RunReader
from asyncdata.storage.reader_promises import check_filled, check_info, check_listing, check_opened
from asyncdata.storage.receivers import BodyReader, Receivers
from asyncdata.storage.urls import scheme_of
from asyncdata.types import ObjectInfo

T = TypeVar("T")

_LOOKS: Final = 16
"""Names of a range that are looked at at a time; a longer range is listed, where the backend lists well."""
_LIST_WELL: Final = frozenset({"gs", "gcs", "s3", "s3a", "az", "abfs", "abfss", "hdfs"})


class Fetcher:
    """See the module's text.

    Args:
        options: ``storage``, ``retry``, and what ``Attempts`` uses.
        environment: What was read of the environment when the Runtime started.
        hedge_memory: Bytes that second attempts may hold together; what ``hedge_bytes`` says of the options unless
            given.
        receivers: Processes that receive; None: this one does. Closed with this.
    """

    def __init__(
        self,
        options: Options,
        environment: Environment,
        *,
        hedge_memory: int | None = None,
        receivers: Receivers | None = None,
    ) -> None:
        self._options = options
        self._environment = environment
        self._attempts = Attempts(options, hedge_bytes(options) if hedge_memory is None else hedge_memory)
        self._opened = _Opened(receivers)
        self._readers: dict[str, _Reader] = {}
        self._scheme_of = lru_cache(maxsize=1024)(scheme_of)
        self._random = random.Random()

    def __repr__(self) -> str:
        return f"<Fetcher {self._attempts!r} {[reader.own for reader in self._opened.readers]!r}>"

    def beside(self, storage: Storage) -> Fetcher:
        """What reads with other storage options, under the same limits; closed with this."""
        other = copy.copy(self)
        other._options = dataclasses.replace(self._options, storage=storage)  # noqa: SLF001 -- a copy of this
        other._readers = {}  # noqa: SLF001 -- likewise
        return other

    async def stat(self, url: str) -> ObjectInfo:
        """Size and version of one object, with retries."""
        reader = self._reader(url).own
        try:
            return await self._retried(lambda: _stat(reader, url), url)
        except ObjectNotFoundError as error:
            _say_about_wildcards(error, url)
            raise

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The objects that match, sorted by URL, with retries; empty where none does.

        Raises:
            ObjectNotFoundError: A range in braces (``{0000..0127}``) names an object that does not exist.
        """
        ranges = numbered(pattern)
        if ranges is None:
            reader = self._reader(pattern).own
            return await self._retried(lambda: _glob(reader, pattern), pattern)
        listed: dict[str, ObjectInfo] = {}
        if ranges.covering is not None and len(ranges.patterns) > _LOOKS and scheme_of(pattern) in _LIST_WELL:
            # One listing instead of a request per name. A name that it lacks is looked for by itself.
            found = await self.glob(ranges.covering)
            listed = {info.url[-ranges.tail :]: info for info in found}
        groups = await gather_bounded(
            lambda name: self._numbered(name, listed.get(name[-ranges.tail :])), ranges.patterns, _LOOKS
        )
        missing = [name for name, infos in zip(ranges.patterns, groups, strict=True) if not infos]
        if missing:
            raise ObjectNotFoundError(
                f"{len(missing)} of the {len(ranges.patterns)} names in {redact_url(pattern)} do not exist; this is "
                "the first of them. Correct the range, or use * where any number will do",
                url=missing[0],
            )
        return sorted({info.url: info for infos in groups for info in infos}.values(), key=lambda info: info.url)

    async def _numbered(self, name: str, listed: ObjectInfo | None) -> list[ObjectInfo]:
        return await self.glob(name) if listed is None else [listed]

    async def write(self, url: str, data: bytes) -> None:
        """Writes a whole object, with retries; the object is the old one or the new one at any time.

        Raises:
            UnsupportedURLError: The backend of the URL's scheme only reads.
        """
        reader = self._reader(url).own
        if not isinstance(reader, ObjectWriter):
            raise UnsupportedURLError("asyncdata writes to local paths and to gs:// only", url=url)
        write = reader.write
        await self._retried(lambda: write(url, data), url)

    def read(
        self, info: ObjectInfo, start: int, buffer: memoryview, *, priority: Priority = 0
    ) -> Coroutine[Any, Any, None]:
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
        whole = buffer if not buffer.readonly and buffer.format == "B" and buffer.ndim == 1 else _bytes_view(buffer)
        if start < 0 or (info.size >= 0 and start + len(whole) > info.size):
            raise ValueError(
                f"[{start}, {start + len(whole)}) lies outside of {redact_url(info.url)} ({info.size} bytes)"
            )
        return self._read_rest(info, start, whole, filled=0, priority=priority)

    async def open_read(self, url: str, buffer: memoryview, *, priority: Priority = 0) -> tuple[ObjectInfo, int]:
        """Reads the beginning of an object about which nothing is known, without asking for its metadata first.

        Returns:
            What the object is, and how many bytes were written: ``min(size, len(buffer))``.
        """
        reader = self._reader(url).bodies
        whole = _bytes_view(buffer)
        tries: _Tries | None = None
        while True:
            info: ObjectInfo | None = None
            filled = 0
            slot = await self._attempts.slots.enter(priority, len(whole))
            now = self._loop_time()
            tries = tries or _Tries(now)  # waiting for the first slot is no part of the first attempt
            racing = self._attempts.begin(len(whole), _open_again(reader, url), now)
            racing.opens = True
            try:
                info, filled = check_opened(await reader.open_read(url, whole, racing), len(whole))
                self._attempts.ended_well(racing, filled)
                return info, filled
            except TransientStorageError as error:
                filled = self._attempts.failed(error, racing)
                if isinstance(error, ReadFailedError):
                    info = error.info
                if racing.info is not None and not racing.won_at:
                    # The second attempt opened it as well. Nothing of the first is kept, which may be of another
                    # version and need not have told which; it counts as wasted since it was overtaken.
                    self._attempts.counters.bytes -= filled
                    info, filled = racing.info, self._attempts.take_won(racing, whole, 0)
                elif racing.info is not None and (info is None or info.version == racing.info.version):
                    info, filled = racing.info, self._attempts.take_won(racing, whole, filled)
                if info is None:
                    self._attempts.counters.wasted(filled)
                delay = self._delay_s(error, url, racing, tries)
            except StorageError as error:
                error.attempts = tries.made + 1
                _say_about_wildcards(error, url)
                raise self._told(error, url) from None
            finally:
                self._attempts.end(racing, slot)
                if self._attempts.ring is not None:
                    self._attempts.note(url, 0, racing)
            await asyncio.sleep(delay)
            if info is not None:
                # The head was seen: what follows is a resume, pinned to the version that it named.
                size = min(info.size, len(whole))
                await self._read_rest(info, 0, whole[:size], filled=filled, priority=priority, tries=tries)
                return info, size

    async def read_run(
        self, urls: Sequence[str], versions: Sequence[str | None], buffer: memoryview, *, priority: Priority = 0
    ) -> RunOfFiles:
        """Reads small files into one buffer, see `RunReader`; none where the backend cannot.

        What is not read is to be read by itself, which says what is wrong with it.
        """
        reader, attempts = self._reader(urls[0]), self._attempts
        if not isinstance(reader.own, RunReader):
            return RunOfFiles((), 0, 0.0)
        slot = await attempts.slots.enter(priority, len(buffer))
        racing = attempts.begin(len(buffer), _open_again(reader.bodies, urls[0]), self._loop_time())
        try:
            run = await reader.own.read_run(urls, versions, buffer)
            attempts.ended_well(racing, sum(info.size for info in run.infos))
            return run
        finally:
            attempts.end(racing, slot)
            if attempts.ring is not None:
                attempts.note(urls[0], 0, racing)

    @property
    def window(self) -> int:
        """The limit of requests in flight, as it is now."""
        return self._attempts.slots.limit

    @property
    def received_bytes(self) -> int:
        """Bytes of bodies that were kept so far."""
        return self._attempts.counters.bytes

    def note_restart(self) -> None:
        """A file is begun again, for its object was replaced."""
        self._attempts.counters.restarted()

    def trace(self, ring: TraceRing | None) -> None:
        """Notes reads from now on, or no longer; from any thread."""
        self._attempts.ring = ring

    def stats(self) -> FetchStats:
        """What was done so far."""
        fallbacks: Counter[str] = Counter()
        for fallen in self._opened.fallbacks():
            fallbacks.update(fallen)
        receivers = self._opened.receivers
        return dataclasses.replace(
            self._attempts.stats(),
            fallbacks=MappingProxyType(dict(fallbacks)),
            receivers=1 if receivers is None else receivers.count,
            receivers_s=0.0 if receivers is None else receivers.cpu_s(),
        )

    async def aclose(self) -> None:
        """Refuses waiting reads and closes every reader; running reads should have been cancelled before."""
        self._opened.closed = True
        await self._attempts.aclose()
        errors = [
            error
            for error in await asyncio.gather(*self._opened.closings(), return_exceptions=True)
            if isinstance(error, BaseException)
        ]
        if errors:
            raise errors[0]

    def _reader(self, url: str) -> _Reader:
        if self._opened.closed:
            raise PipelineClosedError("the storage layer was closed", url=url)
        scheme = self._scheme_of(url)
        reader = self._readers.get(scheme)
        if reader is None:
            try:
                reader = self._readers[scheme] = self._opened.reader(spec_for(url, self._options, self._environment))
            except StorageError as error:
                raise self._told(error, url) from None
        return reader

    def _told(self, error: StorageError, url: str) -> StorageError:
        """An error that leaves the storage layer: with the URL, and without what foreign ones and options may hold."""
        error.__cause__ = error.__context__ = None
        error.complete(url=url)
        if isinstance(error, ReadFailedError):
            error.info = None  # it has the URL as it was given
        scheme = self._scheme_of(url)
        options = self._options.storage.get(SCHEME_ALIASES.get(scheme, scheme))
        if options:
            error.message = mask(error.message, options)
            error.args = (error.message,)
        return error

    async def _read_rest(
        self,
        info: ObjectInfo,
        start: int,
        buffer: memoryview,
        *,
        filled: int,
        priority: Priority,
        tries: _Tries | None = None,
    ) -> None:
        size = len(buffer)
        if filled >= size:
            return
        attempts = self._attempts
        reader = self._reader(info.url).bodies
        loop = asyncio.get_running_loop()
        now = began = loop.time()
        while filled < size:
            left = buffer[filled:] if filled else buffer
            slot = attempts.slots.enter_at_once(size - filled)
            if slot is None:
                slot = await attempts.slots.enter(priority, size - filled)
                now = loop.time()
                if tries is None:
                    began = now  # waiting for the first slot is no part of the first attempt
            again = partial(_read_again, reader, info, start + filled)
            racing = attempts.begin(size - filled, again, now, filled > 0)
            try:
                check_filled(await reader.read_into(info, start + filled, left, racing), size - filled)
                attempts.ended_well(racing, size - filled)
                return
            except TransientStorageError as error:
                got = attempts.failed(error, racing)
                filled += attempts.take_won(racing, left, got)
                error.complete(version=info.version, offset=start + filled)
                tries = tries or _Tries(began)
                delay = self._delay_s(error, info.url, racing, tries)
            except StorageError as error:
                error.attempts = (0 if tries is None else tries.made) + 1
                error.complete(version=info.version, offset=start + filled)
                raise self._told(error, info.url) from None
            finally:
                attempts.end(racing, slot)
                if attempts.ring is not None:
                    attempts.note(info.url, start + size - racing.size, racing, resumed=racing.size < size)
            if delay:
                await asyncio.sleep(delay)
            now = loop.time()

    async def _retried(self, ask: Callable[[], Awaitable[T]], url: str) -> T:
        tries = _Tries(self._loop_time())
        while True:
            try:
                self._attempts.counters.asked()
                return await ask()
            except TransientStorageError as error:
                self._attempts.counters.failed(error)
                delay = self._delay_s(error, url, None, tries)
            except StorageError as error:
                if not isinstance(error, ObjectNotFoundError):
                    error.attempts = tries.made + 1
                raise self._told(error, url) from None
            await asyncio.sleep(delay)

    def _delay_s(self, error: TransientStorageError, url: str, racing: Racing | None, tries: _Tries) -> float:
        """Seconds until the next attempt; raises the error when there is none."""
        tries.made += 1
        if racing is not None and racing.won_at >= 0:
            # Overtaken by an attempt that runs well: there is nothing to wait for, and no failure to give up after.
            self._attempts.counters.retried(0.0)
            return 0.0
        delay = next_delay_s(
            error,
            attempt=tries.made,
            elapsed_s=self._loop_time() - tries.began,
            options=self._options.retry,
            draw=self._random.random,
        )
        if delay is None:
            error.attempts = tries.made
            wish = error.retry_after_s
            if wish is not None and wish >= 1 and tries.made < self._options.retry.max_attempts:
                error.message += f"; it asks to wait {wish:.0f} s, longer than RetryOptions.deadline_s allows"
            raise self._told(error, url) from None
        self._attempts.counters.retried(delay)
        return delay

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()


def _say_about_wildcards(error: StorageError, url: str) -> None:
    """Readers take a name as it is written: says so where a pattern was meant."""
    if isinstance(error, ObjectNotFoundError) and not url.startswith("http") and has_wildcard(url):
        error.message += "; a reader takes wildcards literally: use Dataset.list_files(pattern)"


class _Tries:
    """How often one operation was tried, and since when."""

    __slots__ = ("began", "made")

    def __init__(self, began: float) -> None:
        self.began = began
        self.made = 0


class _Reader(NamedTuple):
    """What serves a recipe.

    Attributes:
        spec: The recipe.
        own: Of this loop.
        bodies: What reads bodies: the same, or one that has its like on other loops.
    """

    spec: ReaderSpec
    own: RangeReader
    bodies: BodyReader


class _Opened:
    """The readers that were opened so far, one for each recipe."""

    def __init__(self, receivers: Receivers | None) -> None:
        self.closed = False
        self.readers: list[_Reader] = []
        self.receivers = receivers

    def reader(self, spec: ReaderSpec) -> _Reader:
        """The reader of a recipe."""
        for reader in self.readers:
            if reader.spec == spec:
                return reader
        if self.receivers is None:
            own = spec.open()
            opened = _Reader(spec, own, own)
        else:
            opened = _Reader(spec, *self.receivers.open(spec))
        self.readers.append(opened)
        return opened

    def fallbacks(self) -> list[Mapping[str, int]]:
        """Bodies that took aiohttp's path, by reason, of each reader."""
        far = [] if self.receivers is None else self.receivers.fallbacks()
        return [*(getattr(reader.own, "fallbacks", {}) for reader in self.readers), *far]

    def closings(self) -> list[Coroutine[Any, Any, None]]:
        """What closes them, once."""
        readers, self.readers = self.readers, []
        far = [] if self.receivers is None else [self.receivers.aclose()]
        return [*(_close(reader.own) for reader in readers), *far]


async def _close(reader: RangeReader) -> None:
    await reader.aclose()  # whatever is wrong with it, the others are closed as well


def _bytes_view(buffer: memoryview) -> memoryview:
    if buffer.readonly:
        raise ValueError("the buffer is read-only")
    return buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")


async def _stat(reader: RangeReader, url: str) -> ObjectInfo:
    return check_info(await reader.stat(url), "stat")


async def _glob(reader: RangeReader, pattern: str) -> list[ObjectInfo]:
    return check_listing(await reader.glob(pattern))


async def _read_again(
    reader: BodyReader, info: ObjectInfo, start: int, offset: int, buffer: memoryview, attempt: Attempt
) -> ObjectInfo | None:
    check_filled(await reader.read_into(info, start + offset, buffer, attempt), len(buffer))
    return None


def _open_again(reader: BodyReader, url: str) -> Again:
    async def read(offset: int, buffer: memoryview, attempt: Attempt) -> ObjectInfo | None:
        if not offset:
            return check_opened(await reader.open_read(url, buffer, attempt), len(buffer))[0]
        assert attempt.opened is not None
        check_filled(await reader.read_into(attempt.opened, offset, buffer, attempt), len(buffer))
        return attempt.opened

    return read
