"""`Runtime` owns what outlives a single iteration: loops, connections, the arena and its limit, workers, threads.

    consumer's thread        stage loop (thread)                      I/O loops (threads)      worker processes
    for batch in ds  ◀──edge── stages, budget, slabs ──two hops a chunk── Fetcher, sockets
                                     └────────────── references ──────────────────────────────▶ decode in place

Iterators share a Runtime. It starts each part when it is first needed, and one call closes all of them; nothing
outlives it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from itertools import chain
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from asyncdata import arguments
from asyncdata.errors import AsyncdataError, CloseTimeoutError, ForkedProcessError, PipelineClosedError, refused
from asyncdata.machine import usable_cpus
from asyncdata.memory.arena import GRANULE, Arena, memory_files
from asyncdata.memory.lease import Returns
from asyncdata.observe.trace_ring import TraceRing
from asyncdata.options import AUTOTUNE, MIB, Options, read_environment
from asyncdata.runtime.isolate.loader import Loader
from asyncdata.runtime.life.close_wait import KILL_S, wait_for_end
from asyncdata.runtime.life.exit_hooks import discharge, enlist
from asyncdata.runtime.life.interrupt_safe import Gate
from asyncdata.runtime.life.line_sampling import LineSampling
from asyncdata.runtime.life.loops import LoopThread, describe_tasks
from asyncdata.runtime.life.profile_socket import ProfileSocket
from asyncdata.runtime.life.threads import Threads, in_thread
from asyncdata.runtime.memory.budgets import Budgets
from asyncdata.runtime.reading.io import Io
from asyncdata.runtime.receiving.starter import ReceiverStarter
from asyncdata.runtime.settings import IdleOptions
from asyncdata.storage.backends import check_storage
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.policy.hedge import hedge_bytes
from asyncdata.storage.receivers import Receivers
from asyncdata.workers.pool import WorkerPool
from asyncdata.workers.stats import PoolLoad, PoolStats
from asyncdata.workers.thread_pool import ThreadPool

T = TypeVar("T")

_LOGGER: Final = logging.getLogger(__name__)
_SPACE_FACTOR: Final = 16
_LEAST_SPACE: Final = 1 << 34
_FIRST_WORKERS: Final = 2
"""Worker processes that start before there are tasks; a task that finds all of them taken starts the next one."""
_MOST_FOUND: Final = 64
"""Plans whose settings are kept for their next iteration."""

_active: contextvars.ContextVar[Runtime | None] = contextvars.ContextVar("asyncdata_runtime", default=None)


class Runtime:
    """Loops, connections, memory and workers that several iterations share.

    Without one every iterator makes its own. Inside ``with ad.Runtime():`` the next epoch starts no process and opens
    no connection, and all pipelines together stay within one memory limit.

    Example:
        >>> import asyncdata as ad
        >>> with ad.Runtime(ad.Options(memory_limit_bytes=64 * 2**20)):
        ...     for epoch in range(2):
        ...         total = sum(int(x) for x in ad.Dataset.range(5))
        >>> total
        10

    Args:
        options: Options of every pipeline. A dataset's own options decide how it runs (`deterministic`, `chunk_bytes`,
            `check_crc`) and the storage of URL schemes that the Runtime's options do not name. Memory, workers,
            threads, retries and time limits are the Runtime's. A warning names options without effect.
        pipelines: How many pipelines may be open at a time, such as training and evaluation; each may use its part of
            ``memory_limit_bytes``.
    """

    @arguments.suggests
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
        self._lock = threading.RLock()  # a handler of signals may iterate and close in the middle of anything
        self._starting_in: threading.Thread | None = None
        self._state = "new"
        self._token: contextvars.Token[Runtime | None] | None = None
        self._closing = [None]  # empty when it is closing
        self._closed = Gate()
        self._pool: WorkerPool | None = None
        self._workers_asked: dict[object, int] = {}
        self._receivers_asked: dict[object, int] = {}
        self._pool_started: asyncio.Task[None] | None = None
        self._threads: Threads | None = None
        self._pipelines: set[asyncio.Task[None]] = set()
        self._close_error: BaseException | None = None
        self._abandoned = False
        self._found: dict[tuple[str, ...], dict[str, int]] = {}
        self.idle_options = IdleOptions()
        self.sampling = LineSampling(self._sampled_threads, self._trace_reads)
        self.loader: Loader | None = None
        self.profile_socket: ProfileSocket | None = None

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
            # If the block was entered in another context (fixtures, generators), that context keeps the closed Runtime;
            # `active_runtime` skips it.
            with contextlib.suppress(ValueError):
                _active.reset(self._token)
            self._token = None

    def start(self) -> None:
        """Starts the loops; other parts start when they are needed."""
        self.check_process()
        with self._lock:
            if self._state == "open":
                return
            self._check_not_starting()
            if self._state != "new":
                raise PipelineClosedError("the Runtime was closed; make a new one")
            self._starting_in = threading.current_thread()
            self._state = "starting"
            try:
                if self.options.isolate:
                    self._start_loader()
                else:
                    self._start_loops()
                if self.options.profile_socket:
                    self.profile_socket = ProfileSocket()
                enlist(self)
                self._state = "open"
            except BaseException as error:
                # Ctrl-C may come at any moment.
                self._undo_start()
                if isinstance(error, OSError | RuntimeError) and not isinstance(error, AsyncdataError):
                    raise refused("the pipeline cannot start", error, stage="Runtime") from error
                raise
            finally:
                self._starting_in = None

    def _check_not_starting(self) -> None:
        """Raises an error in a handler of signals that has interrupted the start."""
        if self._starting_in is threading.current_thread():
            raise RuntimeError(
                "a handler of signals has interrupted the start of this Runtime, and can neither use nor close it: let "
                "the handler raise an exception instead, or set a flag that the loop looks at"
            )

    def _start_loader(self) -> None:
        inside = dataclasses.replace(self.options, isolate=False, profile_socket=False)
        self.loader = Loader(inside, self._parts, gone=self._loader_gone)
        self.loader.start()

    def _loader_gone(self) -> None:
        self._end_socket()
        discharge(self)

    def _end_socket(self) -> None:
        if self.profile_socket is not None:
            self.profile_socket.close()

    def _start_loops(self) -> None:
        # The I/O loop ends after the stage loop, so ending the stage loop ends both.
        self._io_thread.after_end(self._gone)
        self._stage.after_end(self._io_thread.stop)
        self._stage.start()
        self._io_thread.start()
        self._stage.perform(self._furnish)

    async def _furnish(self) -> None:
        """Makes the parts without a thread of their own; runs on the stage loop, where nothing interrupts it."""
        space = max(_LEAST_SPACE, _SPACE_FACTOR * self.options.memory_limit_bytes)
        aside = hedge_bytes(self.options)
        self.arena = Arena(-(-space // GRANULE) * GRANULE)
        self.budgets = Budgets(
            self.arena,
            self.options.memory_limit_bytes,
            self._parts,
            aside_bytes=aside,
            # Functions have this long, and the processes that they are in are ended then.
            patience_s=self._limit_s + KILL_S,
        )
        self.returns = Returns(self._stage.loop.call_soon_threadsafe)
        self._starter = ReceiverStarter(self.arena)
        self.receivers = Receivers(self.options.receivers, self._starter.begin)
        fetcher = Fetcher(self.options, read_environment(), hedge_memory=aside, receivers=self.receivers)
        self.io = Io(self._io_thread, self._stage.loop, fetcher, check_object_crc=self.options.check_object_crc)

    def _undo_start(self) -> None:
        self._end_socket()
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
        """Ends a Runtime whose starter was interrupted and will not close it. Takes no lock."""
        if self._state == "starting":
            if self.loader is None:
                self._stage.stop()
            else:
                self.loader.begin_close()
        elif self._state != "new":
            self.begin_close()

    def check_process(self) -> None:
        """Raises an error in a process that inherited the Runtime through fork."""
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                "this iterator or Runtime was made before a fork; its threads and workers exist in the parent process "
                "only. Make a new iterator from the Dataset in this process"
            )

    @property
    def stage_loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which stages run."""
        return self._stage.loop

    def close(self) -> None:
        """Ends everything; returns when nothing is left.

        Raises:
            CloseTimeoutError: User code is stuck in a thread, which is left behind; the message contains its stack.
        """
        if os.getpid() != self._pid:
            return
        if self.runs_caller():
            raise RuntimeError("a Runtime cannot be closed from code that it runs")
        with self._lock:
            self._check_not_starting()
            if self._state == "starting":  # and its starter was interrupted more than once
                self._undo_start()
            if self._state == "new":
                self._state = "closed"
                self._closing.clear()
                self._closed.open()
                return
        self.begin_close()
        if self.loader is not None:
            self._close_loader(self.loader)
            return
        # The Runtime reports its threads itself.
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
        """Waits until a pipeline that was asked to end has ended.

        Raises:
            CloseTimeoutError: User code is stuck; the message contains its stack.
        """
        if os.getpid() == self._pid and not self.runs_caller():
            wait_for_end(gone, "the pipeline", self._stage, self._threads, self._limit_s, lambda: discharge(self))

    async def aclose(self) -> None:
        """Like `close`, but does not block the loop. Cancelling it does not stop the closing."""
        await in_thread(self.close)

    def is_usable(self) -> bool:
        """Returns whether this process can start pipelines on it."""
        return self._state in ("new", "starting", "open") and os.getpid() == self._pid

    def on_own_loop(self) -> bool:
        """Returns whether the caller runs on one of the Runtime's loops."""
        return self.loader is None and (self._stage.is_current() or self._io_thread.is_current())

    def runs_caller(self) -> bool:
        """Returns whether the caller runs on one of the Runtime's loops or threads, and so cannot wait for it."""
        threads = self._threads
        return self.on_own_loop() or (threads is not None and threads.is_current())

    def begin_close(self) -> None:
        """Starts closing a Runtime that was started, from any thread, and returns at once; idempotent.

        Takes no lock, because finalizers call it, inside any code that the garbage collector interrupts.
        """
        if os.getpid() != self._pid:
            return
        if not self._closing:
            return
        self._state = "closing"
        # `_closing` is cleared last, so that an interrupted call leaves the work to the next one.
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
            errors.append(CloseTimeoutError("reads or their connections do not end"))
        except BaseException as error:  # noqa: BLE001 -- raised by close()
            errors.append(error)
        finally:
            if errors:
                self._close_error = errors[0]
                for each in errors:
                    _LOGGER.warning("while closing: %s", each)
            self.sampling.close()
            self.returns.close()
            self._starter.kill()
            self._starter.close()
            if self._abandoned:
                # The thread lives as long as the task that does not end; closing does not wait for it.
                discharge(self)
                self._closed.open()
            self._stage.stop()

    async def _end_pipelines(self, errors: list[BaseException]) -> None:
        """Cancels the pipelines, then ends workers and threads, which releases pipelines that wait for them."""
        limit_s = self._limit_s
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limit_s
        pipelines = set(self._pipelines)
        for task in pipelines:
            task.cancel()
        if pipelines:
            # Long enough for every pipeline that can end, because closing a user's generator needs the threads.
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
                    f"an async function is still running {limit_s:.1f} s after it was cancelled; thread "
                    f"{self._stage.name!r} is left behind as a daemon. Still running:\n"
                    + describe_tasks(loop, {own} if own is not None else set())
                )
            )

    def _gone(self) -> None:
        """Runs as the last step of the last thread, unless the start failed."""
        self._end_socket()
        if self._state == "starting":
            if hasattr(self, "arena"):
                self.arena.close()
            return
        self.arena.close()
        self.budgets.end()
        # Views keep the arena alive; the Runtime, which may be kept for long, does not.
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
        """Runs a pipeline on the stage loop until it ends or the Runtime is closed. Any thread may call it.

        Args:
            pipeline: Called on the loop, because Ctrl-C could prevent a coroutine from getting there and being awaited.
            refused: Called instead if the Runtime is closed before the pipeline could start.
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
        """Calls a function on the stage loop soon, if the loop still runs. Any thread may call it; takes no lock."""
        if os.getpid() == self._pid and self._state not in ("new", "starting"):
            self._stage.call(function)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs a coroutine on the stage loop, from any other thread."""
        return self._stage.submit(coroutine)

    def spawn_on_stage(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that belongs to the Runtime. Call it on the stage loop."""
        return self._stage.spawn(coroutine)

    def found(self, fingerprint: Sequence[str]) -> dict[str, int]:
        """The settings that iterations of a plan have found, to be read and changed. Call it on the stage loop.

        Args:
            fingerprint: Of the plan.
        """
        found = self._found.setdefault(tuple(fingerprint), {})
        if len(self._found) > _MOST_FOUND:
            del self._found[next(iter(self._found))]
        return found

    @property
    def num_workers(self) -> int:
        """The most worker processes that there may be."""
        return usable_cpus() if self.options.num_workers == AUTOTUNE else self.options.num_workers

    @property
    def num_threads(self) -> int:
        """The number of threads for user functions that exist or will exist."""
        return 2 * usable_cpus() if self.options.num_threads == AUTOTUNE else self.options.num_threads

    @property
    def pool(self) -> WorkerPool:
        """The pool of worker processes; the first use makes it but does not start it."""
        if self._pool is None:
            arena = self.arena
            self._pool = WorkerPool(
                arena_fd=arena.fd,
                arena_bytes=arena.nbytes,
                num_workers=self.num_workers,
                close_timeout_s=self.options.close_timeout_s,
            )
            self.sampling.include(self._pool)
        return self._pool

    def _sampled_threads(self) -> dict[int, str]:
        """Threads that may run user code."""
        threads = self._threads
        found = {} if threads is None else dict.fromkeys(threads.identifiers(), "threads")
        return {self._stage.identifier: "stage loop", **found}

    def _trace_reads(self, ring: TraceRing | None) -> None:
        self.io.fetcher.trace(ring)

    def pool_stats(self) -> PoolStats | None:
        """Returns counters of the worker processes; None if there are none yet."""
        return None if self._pool is None else self._pool.stats()

    def pool_load(self) -> PoolLoad:
        """What the worker processes have done."""
        return PoolLoad() if self._pool is None else self._pool.load()

    @property
    def pipeline_limit_bytes(self) -> int:
        """The part of the memory limit that one pipeline may use."""
        return self.options.memory_limit_bytes // self._parts

    def ask_for_workers(self, pipeline: object, count: int) -> None:
        """Says how many worker processes a pipeline needs; there may be as many as all pipelines need together.

        Args:
            pipeline: Whatever is equal to nothing else.
            count: 0: it has ended. What the last one needed stays, for the next iteration.
        """
        _note(self._workers_asked, pipeline, count)
        if self._workers_asked:
            self.pool.limit(min(self.num_workers, sum(self._workers_asked.values())))

    def ask_for_receivers(self, pipeline: object, count: int) -> None:
        """Says in how many places a pipeline wants bodies received; all pipelines share them.

        Args:
            pipeline: Whatever is equal to nothing else.
            count: 0: it has ended. What the last one wanted stays, for the next iteration.
        """
        _note(self._receivers_asked, pipeline, count)
        if self._receivers_asked:
            self._io_thread.call(functools.partial(self.receivers.ask, max(self._receivers_asked.values())))

    async def start_pool(self) -> None:
        """Starts the worker processes once; returns when they have started."""
        if self._pool_started is None:
            pool = self.pool
            first = _FIRST_WORKERS if self.options.num_workers == AUTOTUNE else None
            self._pool_error: BaseException | None = None

            async def start() -> None:
                try:
                    await pool.start(first)
                except Exception as error:  # noqa: BLE001 -- raised by whoever waits for the pool
                    self._pool_error = error

            self._pool_started = self._stage.spawn(start())
        await asyncio.shield(self._pool_started)
        if self._pool_error is not None:
            raise self._pool_error

    @property
    def threads(self) -> Threads:
        """The threads for user functions, generators and decompression; the first call starts them."""
        if self._threads is None:
            self._threads = Threads(ThreadPool(self.num_threads, close_timeout_s=self._limit_s))
        return self._threads

    def drop_inherited(self, nowhere: int) -> None:
        """In a forked child: releases the parent's descriptors, and the arena unless views hold it.

        The descriptors are pointed to the null device, not closed, because the objects that own them will close these
        numbers once more, and because the parent's polling, which the child shares, must not notice.
        """
        if self._state not in ("open", "closing"):
            return
        if self.profile_socket is not None:
            for descriptor in self.profile_socket.descriptors():
                os.dup2(nowhere, descriptor, inheritable=False)
        if self.loader is not None:
            self.loader.drop_inherited(nowhere)
            for descriptor in memory_files():
                os.dup2(nowhere, descriptor, inheritable=False)
            return
        loops = (self._stage, self._io_thread)
        own = chain.from_iterable(loop.descriptors() for loop in loops)
        for descriptor in (*own, *self._starter.descriptors(), *memory_files()):
            with contextlib.suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=False)
        self.arena.close()


def _note(asked: dict[object, int], pipeline: object, count: int) -> None:
    """What a pipeline asks for; 0: nothing any more."""
    if count:
        asked[pipeline] = count
    else:
        asked.pop(pipeline, None)


def active_runtime() -> Runtime | None:
    """Returns the Runtime of the innermost ``with`` around the caller, if it can run pipelines for the caller.

    User code on the Runtime's own loop cannot wait for a pipeline of that loop, and a Runtime inherited through a fork
    has no threads. In both cases the caller needs a Runtime of its own.
    """
    runtime = _active.get()
    if runtime is None or not runtime.is_usable() or runtime.on_own_loop():
        return None
    return runtime
