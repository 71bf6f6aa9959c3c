"""Where a worker stage's tasks run: worker processes, or threads of this process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Awaitable, Callable

from asyncdata.errors import CloseTimeoutError, FunctionTransferError, PipelineClosedError
from asyncdata.memory.arena import Arena
from asyncdata.runtime.life.threads import Offload
from asyncdata.storage.threads import until_done
from asyncdata.workers.child import GrantDeniedError
from asyncdata.workers.pool import WorkerPool
from asyncdata.workers.program import Program, execute
from asyncdata.workers.transfer import dump_program

Grant = Callable[[int], Awaitable[tuple[int, int]]]


class ProcessExecutor:
    """Tasks of one program in the worker processes.

    Args:
        pool: The worker processes.
        start: Starts them; called before the first task.
        program: What to do with every element; see `dump`.
        owner: Of the pipeline; see `WorkerPool.register`.
        limit_s: The longest that one call of a function may take; likewise.
    """

    def __init__(
        self,
        pool: WorkerPool,
        start: Callable[[], Awaitable[None]],
        program: bytes,
        *,
        owner: int = 0,
        limit_s: float | None = None,
    ) -> None:
        self._pool = pool
        self._start = start
        self._started = False
        self._program_id = pool.register(program, owner=owner, limit_s=limit_s)

    async def warm(self) -> None:
        """Starts the worker processes before the first task; what goes wrong is raised by that one."""
        with contextlib.suppress(Exception):
            await self._start()

    def close(self) -> None:
        """Lets the workers forget the program."""
        self._pool.unregister(self._program_id)

    async def run(self, payload: bytes, grant: Grant, restart: Callable[[], None]) -> bytes:
        """See `WorkerPool.run`."""
        if not self._started:
            await self._start()
            self._started = True
        return await self._pool.run(self._program_id, payload, grant=grant, restart=restart)


def dump(program: Program) -> bytes:
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

    def __init__(self, threads: Offload, arena: Arena, program: Program) -> None:
        self._threads = threads
        self._arena = arena
        self._program = program

    async def run(self, payload: bytes, grant: Grant, restart: Callable[[], None]) -> bytes:
        """Runs one task in a thread; memory is granted on the loop that called.

        Cancelled, it denies what the thread waits for, and returns when the thread is done.
        """
        del restart  # a thread does not die
        asking = _Asking(asyncio.get_running_loop(), grant)
        work = asyncio.ensure_future(self._threads.run(execute, self._arena.view, self._program, payload, asking.need))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            asking.deny()
            work.cancel()
            await until_done(work)
            if not work.cancelled() and isinstance(stuck := work.exception(), CloseTimeoutError):
                raise stuck from None
            raise


class _Asking:
    """A thread's questions for memory, answered on the loop.

    Args:
        loop: That loop.
        grant: Answers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, grant: Grant) -> None:
        self._loop = loop
        self._grant = grant
        self._open: set[concurrent.futures.Future[tuple[int, int]]] = set()
        self._denied = False

    def need(self, nbytes: int) -> tuple[int, int]:
        """Asks and waits; in the thread.

        Raises:
            GrantDeniedError: Nobody wants the results any more.
        """
        question = self._answer(nbytes)
        try:
            answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:
            question.close()  # the loop has ended: this thread was left behind in the user's function
            raise PipelineClosedError("the Runtime was closed") from None
        self._open.add(answer)
        # First added, then looked: whoever denies does it the other way round.
        if self._denied:
            answer.cancel()
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise GrantDeniedError(f"{nbytes} bytes of output space were not granted") from None
        finally:
            self._open.discard(answer)

    def deny(self) -> None:
        """Ends every question, and those that come; on the loop."""
        self._denied = True
        for answer in tuple(self._open):
            answer.cancel()

    async def _answer(self, nbytes: int) -> tuple[int, int]:
        return await self._grant(nbytes)
