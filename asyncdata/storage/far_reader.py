"""A reader on another event loop, used like one of this loop.

::

    I/O loop                                      receiver
    read_into(buffer, attempt) ──────────▶ its reader: read_into(buffer, noted)
      attempt.first_byte_at, .wire … ◀──── noted: copies what is noted there
      wire.fail(), .nudge()      ─────────▶ if this exchange still runs
    returns when that has ended  ◀───────── bytes in buffer

Bytes and observations need no message, because both loops run in one process. Calls do: a connection belongs to its
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from asyncdata.errors import PipelineClosedError, StorageError
from asyncdata.storage.attempt import Attempt, Wire
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.types import ObjectInfo

T = TypeVar("T")


class Loop(Protocol):
    """A loop in a thread of its own; see `asyncdata.runtime.life.loops.LoopThread`."""

    def call(self, function: Callable[[], object], refused: Callable[[], object] = ...) -> None:
        """Calls a function on the loop, or the other one if it has ended; from any thread."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task; on the loop."""
        ...

    @property
    def identifier(self) -> int:
        """Of the thread."""
        ...


class FarReader:
    """See the module's text. Lives on the loop that awaits it.

    Args:
        loop: Of the reader.
        spec: Opens it, on that loop, when it is first needed.
    """

    def __init__(self, loop: Loop, spec: ReaderSpec) -> None:
        self._loop = loop
        self._spec = spec
        self._reader: RangeReader | None = None

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt) -> int:
        """See `RangeReader.read_into`."""
        noted = _NotedAttempt(attempt, self._loop)
        return await _Errand(self._loop, lambda: self._opened().read_into(info, start, buffer, noted)).done()

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt) -> tuple[ObjectInfo, int]:
        """See `RangeReader.open_read`."""
        noted = _NotedAttempt(attempt, self._loop)
        return await _Errand(self._loop, lambda: self._opened().open_read(url, buffer, noted)).done()

    def _opened(self) -> RangeReader:
        if self._reader is None:
            self._reader = self._spec.open()
        return self._reader

    @property
    def fallbacks(self) -> dict[str, int]:
        """Bodies that took aiohttp's path, by reason."""
        return dict(getattr(self._reader, "fallbacks", {}))

    async def aclose(self) -> None:
        """Closes the reader."""
        if self._reader is not None:
            await _Errand(self._loop, self._reader.aclose).done()


class _Errand(Generic[T]):
    """A coroutine on another loop. When `done` has returned, raised or was cancelled, nothing of it is left there."""

    def __init__(self, loop: Loop, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self._result: list[T] = []
        self._error: BaseException | None = None

    async def done(self) -> T:
        """Its result."""
        home = asyncio.get_running_loop()
        ended: asyncio.Future[None] = home.create_future()
        self._loop.call(partial(self._begin, home, ended), partial(self._settle, ended))
        was_cancelled = False
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                # The buffer is the caller's again only when the other loop has let it go.
                was_cancelled = True
                self._loop.call(self._cancel)
        if was_cancelled:
            raise asyncio.CancelledError
        if self._result:
            return self._result[0]
        error, self._error = self._error, None
        raise error or PipelineClosedError("the storage layer was closed")

    def _begin(self, home: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        if self._is_cancelled:
            self._report(home, ended)
            return
        work = self._run()
        try:
            self._task = self._loop.spawn(work)
        except RuntimeError:  # the loop is about to end
            work.close()
            self._report(home, ended)
            return
        # Also called for a task that is cancelled before its first step.
        self._task.add_done_callback(lambda _task: self._report(home, ended))

    async def _run(self) -> None:
        try:
            self._result.append(await self._work())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- raised on the other loop
            self._error = error

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _report(self, home: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        self._task = None
        with contextlib.suppress(RuntimeError):  # that loop was closed, and nobody waits
            home.call_soon_threadsafe(self._settle, ended)

    @staticmethod
    def _settle(ended: asyncio.Future[None]) -> None:
        if not ended.done():
            ended.set_result(None)


class _NotedAttempt(Attempt):
    """What a reader notes of an attempt, passed on to the attempt of another loop.

    Args:
        near: That attempt.
        loop: Of the reader.
    """

    def __init__(self, near: Attempt, loop: Loop) -> None:
        self.__dict__.update(_near=near, _loop=loop, limits=near.limits, opened=near.opened, detour=near.detour)

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = value
        if name == "wire" and value is not None:
            value = _FarWire(cast("Wire", value), self, self.__dict__["_loop"])
        setattr(self.__dict__["_near"], name, value)


class _FarWire:
    """Who receives the answer, on another loop; see `Wire`."""

    def __init__(self, wire: Wire, attempt: Attempt, loop: Loop) -> None:
        self._wire = wire
        self._attempt = attempt
        self._loop = loop
        self._had_input: bool | None = None

    @property
    def filled(self) -> int:
        """See `Wire.filled`."""
        return self._wire.filled if self._is_current() else self._attempt.received

    def _is_current(self) -> bool:
        """Whether the connection, which is used again, still receives this answer."""
        return self._attempt.wire is self._wire

    def has_input(self) -> bool:
        """What was so when it was last asked; True before, so that what may be there is looked at first."""
        known, self._had_input = self._had_input, None
        self._loop.call(self._ask)
        return known is not False

    def _ask(self) -> None:
        if self._is_current():
            self._had_input = self._wire.has_input()

    def nudge(self) -> None:
        """See `Wire.nudge`."""
        self._loop.call(partial(self._if_current, self._wire.nudge))

    def fail(self, error: StorageError) -> None:
        """See `Wire.fail`; an answer that is complete by then stays."""
        self._loop.call(partial(self._if_current, partial(self._wire.fail, error)))

    def _if_current(self, function: Callable[[], None]) -> None:
        if self._is_current():
            function()
