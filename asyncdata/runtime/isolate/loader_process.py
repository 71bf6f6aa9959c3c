"""The main program of a loader process: a Runtime, and the pipelines that it is asked to run.

    main thread                      stage loop (of the Runtime)                    watchdog thread
    ───────────                      ───────────────────────────                    ───────────────
    unpickle plans, start pipelines  control: OPEN RUN NOTES ASK → outlets          life: CLOSE → main thread
    close the Runtime, leave                                                        EOF → the parent is gone: exit

The process ignores SIGINT, dies with the thread that started it if the kernel supports that, and takes its workers with
it. As in worker processes, output of user code goes to the parent's stderr.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import queue
import socket
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TypedDict

from asyncdata.errors import CloseTimeoutError, PipelineClosedError, refused
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.trace_ring import RING_BYTES, PipelineTrace, Profiled, TraceRing
from asyncdata.runtime.consumer.pipeline import Pipeline
from asyncdata.runtime.isolate import protocol
from asyncdata.runtime.isolate.outlet import Loans, Outlet
from asyncdata.runtime.isolate.plan_transfer import unload
from asyncdata.runtime.life.interrupt_safe import Gate
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.runtime.life.threads import in_thread
from asyncdata.storage.backends import adopt_backends
from asyncdata.workers.channel import Channel
from asyncdata.workers.child import begin_process, leave
from asyncdata.workers.drain import Drain
from asyncdata.workers.failure import encode_failure
from asyncdata.workers.messages import Message

PROCESS_NAME = "asyncdata-load"


class LoaderSetup(TypedDict):
    """What the parent hands to a new loader process, as plain values.

    Attributes:
        path: ``sys.path``, absolute.
        argv: ``sys.argv``.
        parent_pid: Who started it.
        control_fd: The control channel's socket.
        life_fd: The socket whose end is the parent's.
        stream: Whether these are SOCK_STREAM sockets.
        crash_fd: Where ``faulthandler`` writes the stacks of a crash.
        options: The Runtime's options and the backends that were registered, pickled.
        pipelines: How many may be open at a time.
    """

    path: list[str]
    argv: list[str]
    parent_pid: int
    control_fd: int
    life_fd: int
    stream: bool
    crash_fd: int
    options: bytes
    pipelines: int


class _Run:
    """One pipeline, from OPEN until it is put back and its consumer has said so.

    Attributes:
        outlet: Where its deliveries go.
        pipeline: None until the plan is unpickled.
        gone: Open when everything of it has ended.
        is_due: Its plan has come.
        has_left: Its consumer has said that it is gone.
        ring: Where it notes what it does; None: nowhere.
    """

    def __init__(self) -> None:
        self.outlet: Outlet
        self.pipeline: Pipeline | None = None
        self.gone = Gate()
        self.is_due = False
        self.has_left = False
        self.ring: TraceRing | None = None


class Host:
    """See the module's docstring.

    Args:
        runtime: Started.
        control: The control channel, non-blocking.
        stream: What kind of sockets there are.
    """

    def __init__(self, runtime: Runtime, control: Channel, *, stream: bool) -> None:
        self._runtime = runtime
        self._control = control
        self._stream = stream
        self._loans = Loans()
        self._runs: dict[int, _Run] = {}
        self._loop = runtime.stage_loop
        self._drain = Drain(control, self._loop)
        self._closing = False
        self._broken: Exception | None = None
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        runtime.post(self._listen)

    # --- main thread -------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Starts pipelines until it is asked to close; rejects later ones.

        Raises:
            SystemResourceError: A message from the parent could not be received; nobody knows what it said.
        """
        while (job := self.jobs.get()) is not None:
            job()
        if self._broken is not None:
            raise self._broken
        self._runtime.post(self._stop)

    def _start(self, run: _Run, fd: int, size: int) -> None:
        """Unpickles a plan, which may import the user's modules, and runs it."""
        try:
            cargo = unload(fd, size)
            trace = None if run.ring is None else PipelineTrace(run.ring, cargo.traced)
            run.pipeline = pipeline = Pipeline(
                self._runtime,
                cargo.plan,
                cargo.options,
                seed=cargo.seed,
                epoch=cargo.epoch,
                start=cargo.start,
                edge=run.outlet,
                ended=lambda: self._put_back(run),
                remote=True,
                profiled=Profiled(cargo.sample_hz, trace),
            )
        except BaseException as error:  # noqa: BLE001 -- importing the user's modules may raise anything
            failure = error
            self._runtime.post(lambda: self._refuse(run, failure))
            return
        self._runtime.run(pipeline.run, refused=lambda: self._runtime.post(lambda: self._refuse(run, _too_late())))

    # --- stage loop --------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._closing = True
        for run in list(self._runs.values()):
            if run.is_due and run.pipeline is None and not run.gone.is_open:
                self._refuse(run, _too_late())

    def _listen(self) -> None:
        self._loop.add_reader(self._control.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            received = self._control.receive()
        except BlockingIOError:
            return
        except EOFError:
            self._loop.remove_reader(self._control.fileno())  # the watchdog knows more
            return
        except OSError as error:
            self._loop.remove_reader(self._control.fileno())
            self._broken = refused("the loader process cannot go on", error, stage="Runtime")
            self.jobs.put(None)
            return
        for message in received:
            self._accept(message)

    def _accept(self, message: Message) -> None:
        if message.kind == protocol.NOTES:
            for note in protocol.unpack_notes(message.body):
                self._take(note)
        elif message.kind == protocol.OPEN:
            self._open(message.ticket, message.fd)
        elif message.kind == protocol.TRACE:
            with contextlib.suppress(OSError), open(message.fd, "rb+", buffering=0) as file:  # no memory: no trace
                self._runs[message.ticket].ring = TraceRing(memoryview(mmap.mmap(file.fileno(), RING_BYTES)))
        elif message.kind == protocol.RUN:
            run, fd, size = self._runs[message.ticket], message.fd, message.first
            run.is_due = True
            if self._closing:
                os.close(fd)
                self._refuse(run, _too_late())
            else:
                self.jobs.put(lambda: self._start(run, fd, size))
        elif message.kind == protocol.ASK:
            stats = self._stats(self._runs.get(message.first))
            self._drain.begin_unless(self._control.send(protocol.ANSWER, message.ticket, body=pickle.dumps(stats, 5)))

    def _open(self, number: int, fd: int) -> None:
        run = _Run()
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        arena = self._runtime.arena
        run.outlet = Outlet(
            Channel(sock, stream=self._stream, message_bytes=protocol.MESSAGE_BYTES),
            self._loop,
            (arena.fd, arena.nbytes),
            self._loans,
            left=lambda: self._watch_end(run),
        )
        self._runs[number] = run

    def _take(self, note: protocol.Note) -> None:
        if note.kind == protocol.RELEASED:
            self._loans.end(note.concerns)
            return
        run = self._runs.get(note.concerns)
        if run is None:
            return  # said twice
        if note.kind == protocol.TAKEN:
            run.outlet.taken(note.value)
        elif note.kind == protocol.WAITING:
            run.outlet.waiting(note.value)
        elif note.kind == protocol.LEFT:
            run.outlet.leave(note.value)
            run.has_left = True
            if not run.is_due and not run.gone.is_open:  # interrupted before it could send its plan
                self._put_back(run)
            self._forget(note.concerns, run)

    def _forget(self, number: int, run: _Run) -> None:
        if run.has_left and run.gone.is_open:
            self._runs.pop(number, None)

    def _refuse(self, run: _Run, error: BaseException) -> None:
        run.outlet.finish(error)
        self._put_back(run)

    def _put_back(self, run: _Run) -> None:
        """Everything of a pipeline has ended."""
        run.outlet.put_back(self._stats(run))
        run.gone.open()
        for number, each in list(self._runs.items()):
            if each is run:
                self._forget(number, run)

    def _watch_end(self, run: _Run) -> None:
        """The consumer has left. If user code prevents the pipeline from ending, the consumer is informed."""
        if run.pipeline is not None and not run.gone.is_open:
            self._runtime.spawn_on_stage(self._report_end(run))

    async def _report_end(self, run: _Run) -> None:
        try:
            await in_thread(lambda: self._runtime.wait_for_pipeline(run.gone))
        except CloseTimeoutError as stuck:
            if not run.gone.is_open:
                run.outlet.report(stuck)

    def _stats(self, run: _Run | None) -> PipelineStats | None:
        return None if run is None or run.pipeline is None else run.pipeline.stats()


def _too_late() -> PipelineClosedError:
    return PipelineClosedError("the Runtime was closed before the pipeline could start")


def _watch(life: Channel, close: Callable[[], None]) -> None:
    """Ends the process when the parent is gone; before that, passes on that it should close."""
    while True:
        try:
            if life.receive():
                close()
        except (EOFError, OSError):
            leave(0)


def main(setup: LoaderSetup) -> NoReturn:
    """The whole life of a loader process."""
    begin_process(PROCESS_NAME, setup["parent_pid"], setup["crash_fd"])
    sys.argv[:] = setup["argv"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    for fd in (setup["control_fd"], setup["life_fd"], setup["crash_fd"]):
        os.set_inheritable(fd, False)
    life = Channel(socket.socket(fileno=setup["life_fd"]), stream=setup["stream"])
    sock = socket.socket(fileno=setup["control_fd"])
    sock.setblocking(False)
    control = Channel(sock, stream=setup["stream"], message_bytes=protocol.MESSAGE_BYTES)
    code, farewell = 0, b""
    try:
        options, backends = pickle.loads(setup["options"])  # noqa: S301 -- from the parent process
        adopt_backends(backends)
        runtime = Runtime(options, pipelines=setup["pipelines"])
        runtime.start()
        host = Host(runtime, control, stream=setup["stream"])
        watchdog = threading.Thread(
            target=_watch, args=(life, lambda: host.jobs.put(None)), name="asyncdata-watchdog", daemon=True
        )
        watchdog.start()
        host.work()
        runtime.close()
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the parent must hear of it
        code, farewell = 1, encode_failure(error)
    sock.setblocking(True)
    control.flush()
    control.send(protocol.FAREWELL, body=farewell)
    leave(code)
