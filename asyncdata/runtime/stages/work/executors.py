"""Where a worker stage's tasks run: worker processes, or threads of this process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable

from asyncdata.errors import CloseTimeoutError, FunctionTransferError
from asyncdata.memory.arena import Arena
from asyncdata.observe.parts import Runs
from asyncdata.runtime.life.threads import Offload
from asyncdata.runtime.memory.activity import Outside
from asyncdata.storage.blocking_jobs import until_done
from asyncdata.workers.child import GrantDeniedError
from asyncdata.workers.pool import Grant, WorkerPool
from asyncdata.workers.program import OtherProgram, Program, execute
from asyncdata.workers.transfer import dump_program


class ProcessExecutor:
    """Tasks of one program in the worker processes.

    Args:
        pool: The worker processes.
        start: Starts them; called before the first task.
        program: What to do with every element; see `dump`.
        limit_s: The longest that one call of a function may take; see `WorkerPool.register`.
        label: What traces call its tasks.

    Attributes:
        ready: Tasks need not wait until workers have started.
    """

    runs: Runs = "process"

    def __init__(
        self,
        pool: WorkerPool,
        start: Callable[[], Awaitable[None]],
        program: bytes,
        *,
        limit_s: float | None = None,
        label: str = "",
    ) -> None:
        self._pool = pool
        self._start = start
        self._started = False
        self.ready = False
        self._program_id = pool.register(program, limit_s=limit_s, label=label)

    async def warm(self) -> None:
        """Starts the worker processes before the first task; what goes wrong is raised by that one."""
        with contextlib.suppress(Exception):
            await self._start()
            await self._pool.ready()
            self.ready = True

    def close(self) -> None:
        """Lets the workers forget the program."""
        self._pool.unregister(self._program_id)

    async def run(self, payload: bytes, grant: Grant) -> bytes:
        """See `WorkerPool.run`."""
        with Outside():
            if not self._started:
                await self._start()
                self._started = True
            return await self._pool.run(self._program_id, payload, grant=grant)


def dump(program: Program | OtherProgram) -> bytes:
    """The program's bytes. An error names the user's function that is in the way, not what it is wrapped in."""
    try:
        return dump_program(program)
    except FunctionTransferError:
        for function in program.functions:
            dump_program(function)
        raise


class ThreadExecutor:
    """Tasks of one program in threads, for functions that release the GIL.

    Args:
        threads: The threads.
        arena: Where rows and results lie.
        program: What to do with every element.
    """

    runs: Runs = "thread"
    ready = True

    def __init__(self, threads: Offload, arena: Arena, program: Program) -> None:
        self._threads = threads
        self._arena = arena
        self._program = program

    async def run(self, payload: bytes, grant: Grant) -> bytes:
        """Runs one task in a thread; memory is granted on the loop that called.

        Cancelled, it returns when the thread is done.
        """
        asking = _Asking(asyncio.get_running_loop(), grant)
        work = asyncio.ensure_future(self._threads.run(execute, self._arena.view, self._program, payload, asking.need))
        try:
            # Unlike a shield, this reports nothing to the loop when the call fails after this task was cancelled.
            await asyncio.wait((work,))
            return work.result()
        except asyncio.CancelledError:
            work.cancel()
            await until_done(work)
            if not work.cancelled() and isinstance(stuck := work.exception(), CloseTimeoutError):
                raise stuck from None
            raise
        except GrantDeniedError:
            assert asking.refusal is not None
            raise asking.refusal from None
        finally:
            asking.end()


class _Asking:
    """A thread's questions for memory, answered on the loop, which may end while the thread is stuck in user code.

    Args:
        loop: That loop.
        grant: Answers.

    Attributes:
        refusal: Why there was none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, grant: Grant) -> None:
        self._loop = loop
        self._grant = grant
        self._lock = threading.Lock()
        self._question: concurrent.futures.Future[tuple[int, int]] | None = None
        self._ended = False
        self.refusal: Exception | None = None

    def end(self) -> None:
        """Nobody waits for the task any more; a thread that was left behind gets errors from now on."""
        with self._lock:
            self._ended = True
        if self._question is not None:
            self._question.cancel()

    def need(self, nbytes: int, slot: int) -> tuple[int, int]:
        """Asks and waits; in the thread.

        Raises:
            GrantDeniedError: There is none, or nobody waits for the task any more.
        """
        with self._lock:
            if self._ended:
                raise GrantDeniedError("the Runtime was closed")
            self._question = asyncio.run_coroutine_threadsafe(self._answer(nbytes, slot), self._loop)
        try:
            return self._question.result()
        except Exception as error:  # noqa: BLE001 -- raised by `run`
            self.refusal = error
            raise GrantDeniedError(f"{nbytes} bytes of output space were not granted") from None

    async def _answer(self, nbytes: int, slot: int) -> tuple[int, int]:
        return await self._grant(nbytes, slot)
