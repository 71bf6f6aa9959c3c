"""Which worker gets which call: the least loaded worker with room, in order of arrival.

Plain bookkeeping on one loop, without await or clock; the worker does the sending. Invariants: a call is in the queue,
or in exactly one worker's ``flight``, or has an event to report; no worker holds more than ``depth`` calls; no call
waits while a worker has room. There is one exception: if a worker's first call is slow, the calls behind it are taken
back and given to other workers (`relieve`), so that a slow task delays only itself. A process whose code keeps the
interpreter's lock answers nothing meanwhile, so what it holds waits for it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable

from asyncdata.workers import messages
from asyncdata.workers.call import DIED, STOPPED, Call, Death
from asyncdata.workers.worker import Worker


class Dispatcher:
    """See the module.

    Args:
        depth: Calls a worker may hold, the running one included.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._by_load: list[dict[Worker, None]] = [{} for _ in range(depth)]
        self._queue: deque[Call] = deque()
        self._tickets = itertools.count(1)

    @property
    def waiting(self) -> int:
        """Calls that no worker has room for."""
        return sum(not call.withdrawn for call in list(self._queue))  # any thread may ask

    def submit(self, call: Call, *, again: bool = False) -> None:
        """Gives a call to a worker, or queues it: at the end, or in front if its worker died."""
        if again or not self._queue:
            for workers in self._by_load:
                if workers:
                    self._assign(next(iter(workers)), call)
                    return
        if again:
            self._queue.appendleft(call)
        else:
            self._queue.append(call)

    def supply(self, worker: Worker) -> None:
        """Gives a worker that is ready and has room what has waited longest."""
        queue = self._queue
        while queue and len(worker.flight) < self._depth and self._serves(worker):
            call = queue.popleft()
            if not call.withdrawn:
                self._assign(worker, call)
        self._place(worker)

    def finish(self, worker: Worker, ticket: int) -> Call | None:
        """Takes the call out of its worker, which gets the next one at once; None if it holds no such call."""
        call = worker.flight.pop(ticket, None)
        if call is not None:
            call.worker = None
            if ticket == worker.head:
                worker.slow = False
                worker.head = next(iter(worker.flight), 0)
            self.supply(worker)
        return call

    def relieve(self, workers: Iterable[Worker]) -> bool:
        """Takes back what waits in workers that are still in the call they were in the last time; others get it.

        To be called now and then while calls wait behind others.

        Returns:
            Whether any do.
        """
        behind = [worker for worker in workers if len(worker.flight) > 1]
        slow = [worker for worker in behind if worker.head == worker.seen]
        for worker in workers:
            worker.seen = worker.head
        if any(worker.load >= 0 and worker not in slow for worker in workers) or len(slow) < len(behind):
            for worker in slow:
                self.retire(worker)
                worker.slow = True
                for ticket in itertools.islice(worker.flight, 1, None):
                    worker.withdraw(ticket)
        return bool(behind)

    def withdraw(self, call: Call) -> bool:
        """Takes a call back, once; returns whether its worker must be waited for."""
        if call.event is not None or call.withdrawn:
            return False
        call.withdrawn = True
        if call.worker is None:
            call.payload = b""  # it stays in the queue until its turn would have come
            call.post(messages.WITHDRAWN, None)
            return False
        call.worker.withdraw(call.ticket)
        return True

    def retire(self, worker: Worker) -> None:
        """Gives a worker nothing any more."""
        if worker.load >= 0:
            del self._by_load[worker.load][worker]
            worker.load = -1

    def bury(self, worker: Worker, death: Death) -> None:
        """Tells the calls of a worker that is gone; the oldest of them, which it was running, all about its death."""
        self.retire(worker)
        calls = list(worker.flight.values())
        worker.flight.clear()
        for i, call in enumerate(calls):
            call.worker = None
            call.post(DIED, death if i == 0 else Death(death.text, blamed=False))

    def stop(self, make_error: Callable[[], Exception]) -> None:
        """Ends every call that waits, each with an exception of its own."""
        for call in self._queue:
            if not call.withdrawn:
                call.post(STOPPED, make_error())
        self._queue.clear()

    def _assign(self, worker: Worker, call: Call) -> None:
        call.ticket = next(self._tickets)
        call.worker = worker
        worker.flight[call.ticket] = call
        if len(worker.flight) == 1:
            worker.head = call.ticket
        try:
            worker.send_task(call)
        except OSError as exc:
            del worker.flight[call.ticket]
            call.worker = None
            call.post(STOPPED, exc)
        self._place(worker)

    def _place(self, worker: Worker) -> None:
        """Puts a worker where ``submit`` finds it by its load."""
        load = len(worker.flight)
        if load == worker.load:
            return
        self.retire(worker)
        if load < self._depth and self._serves(worker):
            self._by_load[load][worker] = None
            worker.load = load

    @staticmethod
    def _serves(worker: Worker) -> bool:
        """Whether it may get calls."""
        return worker.takes_more and not worker.closing and not worker.slow
