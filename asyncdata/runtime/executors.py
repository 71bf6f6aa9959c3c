"""Where a worker stage's tasks run: worker processes, or threads of this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from asyncdata.errors import FunctionTransferError, PipelineClosedError
from asyncdata.memory.arena import Arena
from asyncdata.runtime.offload import Offload
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
    """

    def __init__(self, pool: WorkerPool, start: Callable[[], Awaitable[None]], program: bytes) -> None:
        self._pool = pool
        self._start = start
        self._started = False
        self._program_id = pool.register(program)

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
        """Runs one task in a thread; memory is granted on the loop that called."""
        del restart  # a thread does not die
        loop = asyncio.get_running_loop()

        async def granted(nbytes: int) -> tuple[int, int]:
            return await grant(nbytes)

        def need(nbytes: int) -> tuple[int, int]:
            asking = granted(nbytes)
            try:
                return asyncio.run_coroutine_threadsafe(asking, loop).result()
            except RuntimeError:
                asking.close()  # the loop has ended: this thread was left behind in the user's function
                raise PipelineClosedError("the Runtime was closed") from None

        return await self._threads.run(execute, self._arena.view, self._program, payload, need)
