"""Memory that running tasks ask for, and tasks that make way for those of others while they wait for it.

    task ──NEED──▶ grant(…) ──▶ GRANT
                       └─ it takes long, every worker waits like that, and tasks of somebody else wait behind:
                          DENY ──▶ the newest is parked; it runs again, from the start, when its memory is there

A worker that waits for memory runs nothing. The memory may be held by results that a program takes only when another
pipeline of the same pool has gone on; without making way, both would wait for ever. Tasks of one owner do not make way
for each other, for their order is the owner's business; but for one that had made way, and has its memory now, they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from asyncdata.workers.call import Call
from asyncdata.workers.worker import Worker

Grant = Callable[[int], Awaitable[tuple[int, int]]]


class Grants:
    """See the module; on the pool's loop.

    Args:
        arena_bytes: What is granted lies below.
    """

    def __init__(self, arena_bytes: int) -> None:
        self._arena_bytes = arena_bytes
        self._asking: set[Call] = set()

    async def answer(
        self,
        call: Call,
        nbytes: int,
        grant: Grant,
        restart: Callable[[], None] | None,
        abandon: Callable[[Call, asyncio.CancelledError], None],
    ) -> None:
        """Answers NEED; a call that was parked gets at once what it was granted meanwhile."""
        worker, ticket = call.worker, call.ticket
        granted = call.stored(nbytes, restart)
        if granted is None and call.abandoned is None:
            granted = await self._ask(call, nbytes, grant, abandon)
        if worker is None or call.worker is not worker or call.parked:
            return  # it died meanwhile, or was told no already; the event says so
        if granted is None or call.abandoned is not None:
            worker.send_denial(ticket)
        else:
            call.used += 1
            worker.send_grant(ticket, *granted)

    async def _ask(
        self, call: Call, nbytes: int, grant: Grant, abandon: Callable[[Call, asyncio.CancelledError], None]
    ) -> tuple[int, int] | None:
        self._asking.add(call)
        try:
            offset, size = await grant(nbytes)
            if size < nbytes or offset < 0 or offset + size > self._arena_bytes:
                raise ValueError(f"granted {size} bytes at {offset} for {nbytes} in {self._arena_bytes}")
        except asyncio.CancelledError as exc:
            abandon(call, exc)
        except Exception as exc:  # noqa: BLE001 -- raised from run as soon as the worker has let go
            call.refusal = exc
        else:
            call.granted.append((nbytes, offset, size))
            return offset, size
        finally:
            self._asking.discard(call)
        return None

    def make_way(self, workers: Iterable[Worker], behind: Sequence[Call]) -> None:
        """Parks a task, if every worker waits for memory and somebody else's task is behind; to be asked now and then.

        Args:
            workers: Those that are ready.
            behind: Calls that wait for a worker.
        """
        running = [worker.flight.get(worker.head) for worker in workers]
        heads = [call for call in running if call is not None and call in self._asking and not call.parked]
        if not heads or len(heads) < len(running):
            return
        owners = {None if call.granted else call.program.owner for call in behind}
        for call in sorted(heads, key=_ticket, reverse=True):
            if owners - {call.program.owner} and call.worker is not None:
                call.parked = True
                call.worker.send_denial(call.ticket)
                return


def _ticket(call: Call) -> int:
    return call.ticket
