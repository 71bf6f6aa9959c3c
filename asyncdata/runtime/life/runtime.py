"""`Runtime`: what outlives a single iteration: loops, connections, the arena and its limit, workers, threads.

    consumer's thread        stage loop (thread)                      I/O loop (thread)        worker processes
    for batch in ds  ◀──edge── stages, budget, slabs ──two hops a chunk── Fetcher, sockets
                                     └────────────── references ──────────────────────────────▶ decode in place

Iterators borrow it. Everything is started when it is first needed and closed by one call; nothing outlives it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from asyncdata import arguments
from asyncdata.errors import AsyncdataError, CloseTimeoutError, ForkedProcessError, PipelineClosedError, refused
from asyncdata.memory.arena import GRANULE, Arena, memory_files
from asyncdata.memory.lease import Returns
from asyncdata.options import AUTOTUNE, MIB, Options, read_environment, usable_cpus
from asyncdata.runtime.isolate.loader import Loader
from asyncdata.runtime.life.close_wait import wait_for_end
from asyncdata.runtime.life.exit_hooks import discharge, enlist
from asyncdata.runtime.life.interrupt_safe import Gate
from asyncdata.runtime.life.loops import LoopThread, describe_tasks
from asyncdata.runtime.life.threads import Threads, in_thread
from asyncdata.runtime.memory.budgets import Budgets
from asyncdata.runtime.reading.io import Io
from asyncdata.runtime.settings import IdleOptions
from asyncdata.storage.backends import check_storage
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.policy.hedge import hedge_bytes
from asyncdata.workers.pool import WorkerPool
from asyncdata.workers.stats import PoolStats
from asyncdata.workers.thread_pool import ThreadPool

T = TypeVar("T")

_LOGGER: Final = logging.getLogger(__name__)
_SPACE_FACTOR: Final = 16
_LEAST_SPACE: Final = 1 << 34

_active: contextvars.ContextVar[Runtime | None] = contextvars.ContextVar("asyncdata_runtime", default=None)


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
        options: In force for every pipeline. A dataset's own options count for how it is run (`deterministic`,
            `chunk_bytes`, `check_crc`), and for the storage of URL schemes that the Runtime's do not name; memory,
            workers, threads, retries and time limits are the Runtime's. A warning names options without effect.
        pipelines: How many may be open at a time (a training and an evaluation set, say); each may use its part of
            ``memory_limit_bytes``.
    """

    def __init__(self, options: Options | None = None, *, pipelines: int = 2) -> None:
        arguments.integer("pipelines", pipelines, least=1)
        self.options = Options() if options is None else arguments.instance("options", options, Options, "Options")
        check_storage(self.options.storage)
        if self.options.memory_limit_bytes < pipelines * MIB:
            raise ValueError(
                f"memory_limit_bytes={self.options.memory_limit_bytes} leaves less than 1 MiB to each of "
                f"{pipelines} pipelines"
            )
        self._parts = pipelines
        self._limit_s = self.options.close_timeout_s
        self._new_loops()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._state = "new"
        self._token: contextvars.Token[Runtime | None] | None = None
        self._closing = [None]  # empty once it is closing
        self._closed = Gate()
        self._pool: WorkerPool | None = None
        self._pool_started: asyncio.Task[None] | None = None
        self._threads: Threads | None = None
        self._pipelines: set[asyncio.Task[None]] = set()
        self._close_error: BaseException | None = None
        self._abandoned = False
        self.idle_options = IdleOptions()
        self.loader: Loader | None = None

    # --- life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
            self._token = _active.set(self)
            return self
        except BaseException:
            self.abandon()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave()
            self.close()
        except BaseException:
            self.abandon()
            raise

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        await self.aclose()

    def _leave(self) -> None:
        if self._token is not None:
            # Another context than that of the entering (fixtures, generators) keeps a closed Runtime, which is passed
            # over by `active_runtime`.
            with contextlib.suppress(ValueError):
                _active.reset(self._token)
            self._token = None

    def start(self) -> None:
        """Starts the loops; what else is needed starts when it is."""
        self.check_process()
        with self._lock:
            if self._state == "open":
                return
            if self._state != "new":
                raise PipelineClosedError("the Runtime was closed; make a new one")
            self._state = "starting"
            try:
                if self.options.isolate:
                    self._start_loader()
                else:
                    self._start_loops()
                enlist(self)
                self._state = "open"
            except BaseException as error:
                # Ctrl-C may come at any moment.
                self._undo_start()
                if isinstance(error, OSError | RuntimeError) and not isinstance(error, AsyncdataError):
                    raise refused("the pipeline cannot start", error, stage="Runtime") from error
                raise

    def _start_loader(self) -> None:
        inside = dataclasses.replace(self.options, isolate=False)
        self.loader = Loader(inside, self._parts, gone=lambda: discharge(self))
        self.loader.start()

    def _start_loops(self) -> None:
        # The I/O loop ends when the stage loop has: ending that one ends both.
        self._io_thread.after_end(self._gone)
        self._stage.after_end(self._io_thread.stop)
        self._stage.start()
        self._io_thread.start()
        self._stage.perform(self._furnish)

    async def _furnish(self) -> None:
        """Makes what has no thread of its own; on the stage loop, where nothing interrupts it."""
        space = max(_LEAST_SPACE, _SPACE_FACTOR * self.options.memory_limit_bytes)
        aside = hedge_bytes(self.options)
        self.arena = Arena(-(-space // GRANULE) * GRANULE)
        self.budgets = Budgets(self.arena, self.options.memory_limit_bytes, self._parts, aside_bytes=aside)
        self.returns = Returns(self._stage.loop.call_soon_threadsafe)
        fetcher = Fetcher(self.options, read_environment(), hedge_memory=aside)
        self.io = Io(self._io_thread, self._stage.loop, fetcher, check_object_crc=self.options.check_object_crc)

    def _undo_start(self) -> None:
        self.abandon()
        discharge(self)
        if self.loader is None:
            self._join()
            self._new_loops()
        self.loader = None
        self._state = "new"

    def _new_loops(self) -> None:
        self._io_thread = LoopThread("asyncdata-io")
        self._stage = LoopThread("asyncdata-stages")

    def abandon(self) -> None:
        """Whoever started it was interrupted and will not close it: it ends by itself. Takes no lock."""
        if self._state == "starting":
            if self.loader is None:
                self._stage.stop()
            else:
                self.loader.begin_close()
        elif self._state != "new":
            self.begin_close()

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
            CloseTimeoutError: User code is stuck in a thread, which is left behind; the message holds its stack.
        """
        if os.getpid() != self._pid:
            return
        if self.runs_caller():
            raise RuntimeError("a Runtime cannot be closed from code that it runs")
        with self._lock:
            if self._state == "starting":  # and whoever started it was interrupted more than once
                self._undo_start()
            if self._state == "new":
                self._state = "closed"
                self._closed.open()
                return
        self.begin_close()
        if self.loader is not None:
            self._close_loader(self.loader)
            return
        # It reports threads by itself.
        wait_for_end(self._closed, "the Runtime", self._stage, None, self._limit_s, lambda: discharge(self))
        if not self._abandoned:
            self._join()
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def _close_loader(self, loader: Loader) -> None:
        try:
            loader.close()
        finally:
            self._state = "closed"
            self._closed.open()

    def wait_for_pipeline(self, gone: Gate) -> None:
        """Returns when a pipeline that was told to end has ended.

        Raises:
            CloseTimeoutError: User code is stuck; the message holds its stack.
        """
        if os.getpid() == self._pid and not self.runs_caller():
            wait_for_end(gone, "the pipeline", self._stage, self._threads, self._limit_s, lambda: discharge(self))

    async def aclose(self) -> None:
        """As `close`, for asyncio programs: does not block the loop. Cancelled, it goes on all the same."""
        await in_thread(self.close)

    def is_usable(self) -> bool:
        """Whether pipelines can be started on it, from this process."""
        return self._state in ("new", "starting", "open") and os.getpid() == self._pid

    def on_own_loop(self) -> bool:
        """Whether the caller runs on one of the Runtime's loops."""
        return self.loader is None and (self._stage.is_current() or self._io_thread.is_current())

    def runs_caller(self) -> bool:
        """Whether the caller runs on one of the Runtime's loops, or in one of its threads: it cannot wait then."""
        threads = self._threads
        return self.on_own_loop() or (threads is not None and threads.is_current())

    def begin_close(self) -> None:
        """Starts closing a Runtime that was started, from any thread, and returns at once; idempotent.

        Takes no lock: a finalizer calls it, in whatever code the garbage collector happens to run.
        """
        if os.getpid() != self._pid:
            return
        if not self._closing:
            return
        self._state = "closing"
        # Done is noted last: whoever is interrupted in between leaves it to the next one.
        if self.loader is not None:
            self.loader.begin_close()
            self._closing.clear()
            return
        self._stage.call(self._begin_shut_down)

    def _begin_shut_down(self) -> None:
        if self._closing:
            self._closing.clear()
            self._stage.spawn(self._shut_down())

    async def _shut_down(self) -> None:
        errors: list[BaseException] = []
        try:
            await self._end_pipelines(errors)
            async with asyncio.timeout(self._limit_s):
                await self.io.aclose()
        except TimeoutError:
            errors.append(CloseTimeoutError("reads, or the connections they use, do not end"))
        except BaseException as error:  # noqa: BLE001 -- raised by close()
            errors.append(error)
        finally:
            if errors:
                self._close_error = errors[0]
                for each in errors:
                    _LOGGER.warning("while closing: %s", each)
            self.returns.close()
            if self._abandoned:
                # The thread lives on as long as the task that does not end; whoever closes does not wait for it.
                discharge(self)
                self._closed.open()
            self._stage.stop()

    async def _end_pipelines(self, errors: list[BaseException]) -> None:
        """Cancels the pipelines; then ends workers and threads, which lets go of pipelines that wait for them."""
        limit_s = self._limit_s
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limit_s
        pipelines = set(self._pipelines)
        for task in pipelines:
            task.cancel()
        if pipelines:
            # Long enough for every pipeline that can end at all: closing a user's generator needs the threads.
            await asyncio.wait(pipelines, timeout=min(1.0, limit_s / 2))
        if self._pool_started is not None:
            await asyncio.gather(self._pool_started, return_exceptions=True)
        closing = [owner.aclose() for owner in (self._threads, self._pool) if owner is not None]
        errors.extend(error for error in await asyncio.gather(*closing, return_exceptions=True) if error is not None)
        pipelines = {task for task in pipelines if not task.done()}
        if pipelines:
            _, pipelines = await asyncio.wait(pipelines, timeout=max(1.0, until_s - loop.time()))
        if pipelines:
            self._abandoned = True
            own = asyncio.current_task()
            errors.append(
                CloseTimeoutError(
                    f"an async function goes on {limit_s:.1f} s after it was cancelled; thread {self._stage.name!r} is "
                    "left as a daemon with it. What still runs:\n"
                    + describe_tasks(loop, {own} if own is not None else set())
                )
            )

    def _gone(self) -> None:
        """The last thread's last act, unless it never was of use."""
        if self._state == "starting":
            if hasattr(self, "arena"):
                self.arena.close()
            return
        self.arena.close()
        self.budgets.end()
        # What views the arena keeps it; the Runtime, which may be kept for long, does not.
        del self.arena, self.budgets, self.io, self.returns
        self._pool = self._threads = self._pool_started = None
        self._state = "closed"
        discharge(self)
        self._closed.open()

    def _join(self) -> None:
        self._stage.join()
        self._io_thread.join()

    # --- what pipelines use ------------------------------------------------------------------------------------

    def run(self, pipeline: Callable[[], Coroutine[Any, Any, None]], refused: Callable[[], None]) -> None:
        """Runs a pipeline on the stage loop until it ends or the Runtime is closed; from any thread.

        Args:
            pipeline: Called on the loop: a coroutine that Ctrl-C kept from getting there would never be awaited.
            refused: Called instead when the Runtime is closed before the pipeline could start.
        """

        def start() -> None:
            if self._state != "open":
                refused()
                return
            task = self._stage.spawn(pipeline())
            self._pipelines.add(task)
            task.add_done_callback(self._pipelines.discard)

        self._stage.call(start, refused)

    def post(self, function: Callable[[], object]) -> None:
        """Calls a function on the stage loop soon, if that still runs; from any thread, takes no lock."""
        if os.getpid() == self._pid and self._state not in ("new", "starting"):
            self._stage.call(function)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs a coroutine on the stage loop, from any other thread."""
        return self._stage.submit(coroutine)

    def spawn_on_stage(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that belongs to the Runtime; on the stage loop."""
        return self._stage.spawn(coroutine)

    @property
    def num_workers(self) -> int:
        """Worker processes there are, or will be."""
        return usable_cpus() if self.options.num_workers == AUTOTUNE else self.options.num_workers

    @property
    def num_threads(self) -> int:
        """Threads for user functions there are, or will be."""
        return 2 * usable_cpus() if self.options.num_threads == AUTOTUNE else self.options.num_threads

    @property
    def pool(self) -> WorkerPool:
        """The worker processes; made, not started, by the first use."""
        if self._pool is None:
            arena, limit_s = self.arena, self.options.close_timeout_s
            self._pool = WorkerPool(
                arena_fd=arena.fd, arena_bytes=arena.nbytes, num_workers=self.num_workers, close_timeout_s=limit_s
            )
        return self._pool

    def pool_stats(self) -> PoolStats | None:
        """Counters of the worker processes; None when there are none yet."""
        return None if self._pool is None else self._pool.stats()

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
            self._threads = Threads(ThreadPool(self.num_threads, close_timeout_s=self._limit_s))
        return self._threads

    def drop_inherited(self, nowhere: int) -> None:
        """In a forked child: lets go of the parent's descriptors, and of the arena unless views hold it.

        They are not closed but pointed nowhere, for the objects that own them will close these numbers once more; and
        the parent's polling, which the child shares, must not hear of it.
        """
        if self._state not in ("open", "closing"):
            return
        if self.loader is not None:
            self.loader.drop_inherited(nowhere)
            for descriptor in memory_files():
                os.dup2(nowhere, descriptor, inheritable=False)
            return
        for descriptor in (*self._stage.descriptors(), *self._io_thread.descriptors(), *memory_files()):
            with contextlib.suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=False)
        self.arena.close()


def active_runtime() -> Runtime | None:
    """The Runtime of the innermost ``with`` around the caller, if it can run something for the caller.

    User code on the Runtime's own loop cannot wait for a pipeline of that loop; and what was inherited through a fork
    has no threads. Both get a Runtime of their own.
    """
    runtime = _active.get()
    if runtime is None or not runtime.is_usable() or runtime.on_own_loop():
        return None
    return runtime
