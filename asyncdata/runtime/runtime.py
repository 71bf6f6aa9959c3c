"""`Runtime`: what outlives a single iteration: loops, connections, the arena and its limit, workers, threads.

    consumer's thread        stage loop (thread)                      I/O loop (thread)        worker processes
    for batch in ds  ◀──edge── stages, budget, slabs ──two hops a chunk── Fetcher, sockets
                                     └────────────── references ──────────────────────────────▶ decode in place

Iterators borrow it. Everything is started when it is first needed and closed by one call; nothing outlives it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, TypeVar

from asyncdata.errors import CloseTimeoutError, ForkedProcessError, PipelineClosedError
from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.lease import Returns
from asyncdata.options import AUTOTUNE, Options, read_environment, usable_cpus
from asyncdata.runtime.budget import Budget
from asyncdata.runtime.io import Io
from asyncdata.runtime.loops import LoopThread
from asyncdata.workers.pool import WorkerPool
from asyncdata.workers.threads import ThreadPool

T = TypeVar("T")

_LOGGER: Final = logging.getLogger(__name__)
_SPACE_FACTOR: Final = 16
_LEAST_SPACE: Final = 1 << 34

_active: contextvars.ContextVar[Runtime | None] = contextvars.ContextVar("asyncdata_runtime", default=None)
_alive: weakref.WeakSet[Runtime] = weakref.WeakSet()


class Runtime:
    """Loops, connections, memory and workers that several iterations share.

    Without one every iterator makes its own. Inside ``with ad.Runtime():`` the next epoch starts no process and opens
    no connection, and all pipelines together stay inside one memory limit.

    Example:
        >>> import asyncdata as ad
        >>> with ad.Runtime(ad.Options(memory_limit_bytes=64 * 2**20)):
        ...     for epoch in range(2):
        ...         total = sum(int(x) for x in ad.Dataset.range(5))
        >>> total
        10

    Args:
        options: In force for every pipeline that does not bring its own.
    """

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._state = "new"
        self._token: contextvars.Token[Runtime | None] | None = None
        self._closed = threading.Event()
        self._pool: WorkerPool | None = None
        self._pool_started: asyncio.Task[None] | None = None
        self._threads: Threads | None = None
        self._pipelines: set[asyncio.Task[None]] = set()
        self._close_error: BaseException | None = None

    # --- life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Runtime:
        self.start()
        self._token = _active.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self.close()

    async def __aenter__(self) -> Runtime:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        await self.aclose()

    def _leave(self) -> None:
        if self._token is not None:
            _active.reset(self._token)
            self._token = None

    def start(self) -> None:
        """Starts the loops; what else is needed starts when it is."""
        with self._lock:
            self.check_process()
            if self._state == "open":
                return
            if self._state != "new":
                raise PipelineClosedError("the Runtime was closed; make a new one")
            self._stage = LoopThread("asyncdata-stages")
            self._io_thread = LoopThread("asyncdata-io")
            space = max(_LEAST_SPACE, _SPACE_FACTOR * self.options.memory_limit_bytes)
            self.arena = Arena(-(-space // GRANULE) * GRANULE)
            self._stage.start()
            self._io_thread.start()
            self.budget = Budget(self.arena, self.options.memory_limit_bytes)
            self.returns = Returns(self._stage.loop.call_soon_threadsafe)
            self.io = self._stage.submit(self._make_io()).result()
            self._state = "open"
            _alive.add(self)

    async def _make_io(self) -> Io:
        return Io(self._io_thread, self._stage.loop, self.options, read_environment())

    def check_process(self) -> None:
        """Raises in a process that inherited the Runtime through fork."""
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                "this iterator or Runtime was made before a fork; its threads and workers exist in the parent process "
                "only. Make a new iterator from the Dataset in this process"
            )

    @property
    def stage_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that stages run on."""
        return self._stage.loop

    def on_stage_thread(self) -> bool:
        """Whether the caller runs on the stage loop."""
        return self._stage.is_current()

    def close(self) -> None:
        """Ends everything; returns when it is gone.

        Raises:
            CloseTimeoutError: User code is stuck in a thread; the message holds its stack.
        """
        if os.getpid() != self._pid:
            return
        if self.on_own_thread():
            raise RuntimeError("a Runtime cannot be closed from code that it runs")
        self.begin_close()
        self._closed.wait()
        self._join()
        if self._close_error is not None:
            error, self._close_error = self._close_error, None
            raise error

    async def aclose(self) -> None:
        """As `close`, for asyncio programs: does not block the loop."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(_Joiner(), self.close)

    def on_own_thread(self) -> bool:
        """Whether the caller runs on one of the Runtime's loops."""
        return self._state != "new" and (self._stage.is_current() or self._io_thread.is_current())

    def begin_close(self) -> None:
        """Starts closing, from any thread, and returns at once; idempotent."""
        with self._lock:
            if self._state == "new":
                self._state = "closed"
                self._closed.set()
            if self._state != "open":
                return
            self._state = "closing"
        self._io_thread.after_end(self._gone)
        self._stage.after_end(self._io_thread.stop)
        self._stage.call(lambda: self._stage.spawn(self._shut_down()) and None)

    async def _shut_down(self) -> None:
        try:
            for task in list(self._pipelines):
                task.cancel()
            await asyncio.gather(*self._pipelines, return_exceptions=True)
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(self.io.aclose)
                if self._pool is not None:
                    if self._pool_started is not None:
                        await asyncio.gather(self._pool_started, return_exceptions=True)
                    stack.push_async_callback(self._pool.aclose)
                if self._threads is not None:
                    stack.push_async_callback(self._threads.aclose)
        except BaseException as error:  # noqa: BLE001 -- raised by close()
            self._close_error = error
            if isinstance(error, CloseTimeoutError):
                _LOGGER.warning("%s", error)
        finally:
            self.returns.close()
            self._stage.stop()

    def _gone(self) -> None:
        """The last thread's last act."""
        self.arena.close()
        self.budget.end()
        # What views the arena keeps it; the Runtime, which may be kept for long, does not.
        del self.arena, self.budget, self.io, self.returns
        self._pool = self._threads = self._pool_started = None
        self._state = "closed"
        _alive.discard(self)
        self._closed.set()

    def _join(self) -> None:
        if self._state != "new" and hasattr(self, "_stage"):
            self._stage.join()
            self._io_thread.join()

    # --- what pipelines use ------------------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a pipeline on the stage loop until it ends or the Runtime is closed; from any thread."""

        def start() -> None:
            if self._state != "open":
                coroutine.close()
                return
            task = self._stage.spawn(coroutine)
            self._pipelines.add(task)
            task.add_done_callback(self._pipelines.discard)

        self._stage.call(start)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs a coroutine on the stage loop, from any other thread."""
        return self._stage.submit(coroutine)

    def spawn_on_stage(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that belongs to the Runtime; on the stage loop."""
        return self._stage.spawn(coroutine)

    @property
    def num_workers(self) -> int:
        """Worker processes there are, or will be."""
        chosen = self.options.num_workers
        return usable_cpus() if chosen == AUTOTUNE else chosen

    @property
    def pool(self) -> WorkerPool:
        """The worker processes; made, not started, by the first use."""
        if self._pool is None:
            self._pool = WorkerPool(
                arena_fd=self.arena.fd,
                arena_bytes=self.arena.nbytes,
                num_workers=self.num_workers,
                close_timeout_s=self.options.close_timeout_s,
            )
        return self._pool

    async def start_pool(self) -> None:
        """Starts the worker processes once; returns when they are started."""
        if self._pool_started is None:
            pool = self.pool
            self._pool_error: BaseException | None = None

            async def start() -> None:
                try:
                    await pool.start()
                except Exception as error:  # noqa: BLE001 -- raised by whoever waits for the pool
                    self._pool_error = error

            self._pool_started = self._stage.spawn(start())
        await asyncio.shield(self._pool_started)
        if self._pool_error is not None:
            raise self._pool_error

    @property
    def threads(self) -> Threads:
        """Threads for user functions, generators and decompression; started by the first call."""
        if self._threads is None:
            chosen = self.options.num_threads
            count = 2 * usable_cpus() if chosen == AUTOTUNE else chosen
            self._threads = Threads(ThreadPool(count, close_timeout_s=self.options.close_timeout_s))
        return self._threads

    def descriptors(self) -> list[int]:
        """Descriptors that a forked child should close."""
        return [self.arena.fd] if self._state in ("open", "closing") and self.arena.fd >= 0 else []


class Threads:
    """A `ThreadPool` that starts with its first call."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._started = False

    async def run(self, fn: Callable[..., T], /, *args: Any) -> T:
        """See `ThreadPool.run`."""
        if not self._started:
            self._started = True
            await self._pool.start()
        return await self._pool.run(fn, *args)

    async def aclose(self) -> None:
        """Ends the threads."""
        await self._pool.aclose()


class _Joiner(concurrent.futures.Executor):
    """Runs one blocking call in a thread that ends with it."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Starts the thread."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 -- handed over through the future
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="asyncdata-close", daemon=True).start()
        return future


def active_runtime() -> Runtime | None:
    """The Runtime of the innermost ``with`` around the caller."""
    runtime = _active.get()
    return runtime if runtime is not None and runtime._state in ("new", "open") else None  # noqa: SLF001 -- same module


def _close_all() -> None:
    for runtime in list(_alive):
        try:
            runtime.close()
        except Exception as error:  # noqa: BLE001 -- the interpreter ends; nobody could catch it
            _LOGGER.warning("%s", error)


def _drop_inherited() -> None:
    """In a forked child: closes the descriptors that belong to the parent's Runtimes."""
    for runtime in list(_alive):
        for descriptor in runtime.descriptors():
            with contextlib.suppress(OSError):
                os.close(descriptor)
    _alive.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
