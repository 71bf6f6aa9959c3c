"""The loader process as its parent sees it: starting it, talking to it, waiting for it, reporting its end.

It owns one thread, which starts the process and then sleeps in ``wait`` until the process has ended (the kernel ends
the process when this thread ends, so the thread lives as long). The thread then wakes all waiters and closes
everything. Everything else happens in the consumers' own threads.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import marshal
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import CloseTimeoutError, PipelineClosedError, WorkerDiedError
from asyncdata.memory.arena import Arena
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.options import Options
from asyncdata.runtime.isolate import protocol
from asyncdata.runtime.isolate.inquiry import Inquiry
from asyncdata.runtime.isolate.intake import Intake
from asyncdata.runtime.isolate.outbox import Outbox
from asyncdata.runtime.life.interrupt_safe import Gate, GuardedThread
from asyncdata.storage.backends import registered_backends
from asyncdata.workers.channel import Channel, has_seqpacket, open_nameless_file
from asyncdata.workers.failure import decode_failure
from asyncdata.workers.process import Process, describe_exit
from asyncdata.workers.spawn import absolute_path, interpreter_flags, stderr_descriptor
from asyncdata.workers.transfer import LOADER, dump_program

_CRASH_BYTES: Final = 1 << 16
_KILL_S: Final = 20.0
"""How long past its own time limit a loader process may take to end before it is ended by force."""
_BOOTSTRAP: Final = (
    "import sys,marshal\n"
    "with open({fd},'rb') as f: s=marshal.load(f)\n"
    "sys.path[:]=s['path']\n"
    "from asyncdata.runtime.isolate.loader_process import main\n"
    "main(s)\n"
)


class Loader:
    """See the module's docstring.

    Args:
        options: Of the Runtime in the process.
        pipelines: How many may be open at a time.
        gone: Called by the loader's thread as its last act.
        stream: Use SOCK_STREAM sockets although there are better ones.
    """

    def __init__(
        self, options: Options, pipelines: int, gone: Callable[[], None], *, stream: bool | None = None
    ) -> None:
        self._options = options
        self._pipelines = pipelines
        self._tell_gone = gone
        self._stream = not has_seqpacket() if stream is None else stream
        self._numbers = itertools.count(1)
        self._intakes: dict[int, Intake] = {}
        # No lock: a handler of signals may close in the middle of what a consumer does here, and waits for the thread.
        self._arenas: list[Arena] = []  # one, unless two consumers have mapped it in the same moment
        self._memory: npt.NDArray[np.uint8] | None = None
        self._process: Process | None = None
        self._started = Gate()
        self._gone = Gate()
        self._start_error: BaseException | None = None
        self._overdue: str | None = None
        self._stacks = ""
        self._exit = ""
        self._closing = False
        self.farewell: Exception | None = None
        self.name = "the loader process"
        self.outbox: Outbox
        self._thread = GuardedThread(self._live, "asyncdata-loader", self._fail)

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the process; returns when there is one, long before it works.

        Raises:
            OSError: The interpreter cannot be started, or descriptors have run out.
        """
        self._pickled_options = dump_program((self._options, registered_backends()), LOADER)
        try:
            self._control, self._their_control = Channel.pair(stream=self._stream, message_bytes=protocol.MESSAGE_BYTES)
            self._life, self._their_life = Channel.pair(stream=self._stream)
            self._crash_fd = open_nameless_file("asyncdata-crash")
            self.outbox = Outbox(self._control)
            self._inquiry = Inquiry(self._control, self.outbox)
            self._thread.start()
            self._started.wait()
        except BaseException:
            if self._thread.was_started:
                self.begin_close()  # interrupted: the thread goes on, and puts everything back
            else:
                self._close_channels()
            raise
        if self._start_error is not None:
            self._thread.join()
            raise self._start_error

    def _fail(self, error: BaseException) -> None:
        self._start_error = error
        self._close_channels()
        self._started.open()

    def _close_channels(self) -> None:
        for name in ("_control", "_their_control", "_life", "_their_life"):
            if (channel := getattr(self, name, None)) is not None:
                channel.close()
        if hasattr(self, "_crash_fd"):
            os.close(self._crash_fd)

    def _live(self) -> None:
        # A new process inherits the mask: Ctrl-C finds it deaf until it has said that it ignores SIGINT.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            popen = self._popen()
        except BaseException as error:  # noqa: BLE001 -- raised by `start`
            self._start_error = error
            self._close_all()
            self._started.open()
            return
        finally:
            self._their_control.close()
            self._their_life.close()
        self._process = Process(popen)
        self.name = f"the loader process (pid {popen.pid})"
        self._started.open()
        popen.wait()
        self._process.gone = True
        self._mourn(popen.returncode)

    def _popen(self) -> subprocess.Popen[bytes]:
        if not sys.executable:
            raise FileNotFoundError("sys.executable is empty: this interpreter does not know how to start another")
        setup_fd = open_nameless_file("asyncdata-setup")
        try:
            setup = {
                "path": list(absolute_path(sys.path, os.getcwd())),
                "argv": list(sys.argv),
                "parent_pid": os.getpid(),
                "control_fd": self._their_control.fileno(),
                "life_fd": self._their_life.fileno(),
                "stream": self._stream,
                "crash_fd": self._crash_fd,
                "options": self._pickled_options,
                "pipelines": self._pipelines,
            }
            os.write(setup_fd, marshal.dumps(setup))
            os.lseek(setup_fd, 0, os.SEEK_SET)
            return subprocess.Popen(  # noqa: S603 -- this interpreter
                [sys.executable, *interpreter_flags(), "-c", _BOOTSTRAP.format(fd=setup_fd)],
                stdin=subprocess.DEVNULL,
                stdout=stderr_descriptor(),
                pass_fds=(self._their_control.fileno(), self._their_life.fileno(), self._crash_fd, setup_fd),
            )
        finally:
            os.close(setup_fd)

    def _mourn(self, code: int) -> None:
        """The process is gone: finds out why, wakes everybody, closes everything."""
        crash = os.pread(self._crash_fd, _CRASH_BYTES, 0).decode("utf-8", "replace").strip()
        farewell = self._inquiry.last_words()
        if farewell:
            self.farewell = decode_failure(farewell, where=self.name)
        self._exit = describe_exit(code) + (f"; its stacks:\n{crash}" if crash else "")
        self._stacks = crash
        self._gone.open()
        for intake in list(self._intakes.values()):
            intake.cut()
        self._close_all()
        self._tell_gone()

    def _close_all(self) -> None:
        self.outbox.close()
        self._life.close()
        os.close(self._crash_fd)
        if self._process is not None:
            self._process.close()
        self._close_arenas()

    # --- pipelines ---------------------------------------------------------------------------------------------

    def open(self, plan_fd: int, size: int, keep: Callable[[Intake], None], *, trace_fd: int | None = None) -> None:
        """Has a pipeline run that `cargo.load_up` has written down; the descriptor stays the caller's.

        Args:
            plan_fd: Where it is written.
            size: In how many bytes.
            keep: Takes the intake before anybody else knows of it.
            trace_fd: Where it notes what it does; also the caller's.

        Raises:
            OSError: Descriptors have run out, or a signal has ended the sending in another thread.
        """
        number = next(self._numbers)
        ours, theirs = Channel.pair(stream=self._stream, message_bytes=protocol.MESSAGE_BYTES)
        intake = Intake(number, ours, self, close_timeout_s=self._options.close_timeout_s)
        keep(intake)
        # First listed, then looked: the thread that notices the end does it in the reverse order.
        self._intakes[number] = intake
        if self._gone.is_open:
            intake.cut()
        done = False
        with theirs:

            def send() -> bool:
                nonlocal done
                self._control.hand_over(protocol.OPEN, number, fd=theirs.fileno())
                if trace_fd is not None:
                    self._control.hand_over(protocol.TRACE, number, fd=trace_fd)
                sent = self._control.hand_over(protocol.RUN, number, size, fd=plan_fd)
                done = True
                return sent

            try:
                if not self._gone.is_open:
                    self.outbox.post(send)
                    self.outbox.flush_all()
            finally:
                # Interrupted: soon its descriptors are closed, and their numbers others'.
                self.outbox.withdraw(send)
        if not done and not self._gone.is_open:
            # Taken over by another thread, which was interrupted in the middle of it; nobody sends the rest.
            raise OSError(errno.EINTR, "the pipeline was not sent to the loader process")

    def left(self, intake: Intake) -> None:
        """An intake's socket is closed; takes no lock."""
        self._intakes.pop(intake.number, None)

    def memory(self, fd: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """The arena, mapped once and kept as long as the process lives; takes over the descriptor."""
        memory = self._memory
        if memory is not None:
            os.close(fd)
            return memory
        arena = Arena.attach(fd, nbytes)
        memory = self._memory = arena.array
        self._arenas.append(arena)
        if self._gone.is_open:
            self._close_arenas()  # what views them keeps the mapping
        return memory

    def _close_arenas(self) -> None:
        self._memory = None
        for arena in self._arenas:
            arena.close()

    def stats(self, intake: Intake) -> PipelineStats | None:
        """Returns the state of a pipeline; None if the process does not answer in time."""
        return None if self._gone.is_open else self._inquiry.ask(intake.number)

    # --- the end -----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The process, if it was started."""
        return None if self._process is None else self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self._gone.is_open

    def death(self) -> BaseException:
        """The error of a pipeline whose process is gone."""
        if self.farewell is not None:
            return self.farewell
        if self._closing:
            return PipelineClosedError("the Runtime was closed while the pipeline was running")
        return WorkerDiedError(
            f"{self.name} {self._exit}; the pipelines it ran are lost with it. Make a new iterator (and a new Runtime)"
        )

    def await_end(self) -> BaseException:
        """Returns when the process is gone: the error to raise."""
        if not self._gone.wait(self._options.close_timeout_s + _KILL_S) and self._process is not None:
            self._process.kill()  # it has closed what connects us, and goes on
            self._gone.wait()
        return self.death()

    def begin_close(self) -> None:
        """Has the process put everything back and end; from any thread, without a lock."""
        self._closing = True
        if not self._thread.was_started:
            return
        with contextlib.suppress(OSError):  # it has ended, and all was closed
            self._life.send(protocol.CLOSE)

    def close(self) -> None:
        """Returns when the process has ended, and everything of it here; after `begin_close`.

        Raises:
            CloseTimeoutError: User code was stuck there; it was ended with its process.
            RuntimeError: This is a handler of signals, which has interrupted a message to the process.
        """
        self.outbox.check_not_interrupted()
        limit_s = self._options.close_timeout_s + _KILL_S
        begun_s = time.monotonic()
        overdue = False
        if not self._gone.wait(limit_s) and self._process is not None:
            overdue = True
            self._process.abort()
            if not self._gone.wait(limit_s):
                self._process.kill()
        self._thread.join()
        for intake in list(self._intakes.values()):
            intake.end(self.death())  # its iterator may not be closed for long, or ever
        if overdue:
            raise CloseTimeoutError(
                f"{self.name} was still in user code {time.monotonic() - begun_s:.1f} s after it was asked to end, and "
                f"was killed. Its stacks:\n{self._stacks}"
            )
        if isinstance(self.farewell, CloseTimeoutError):
            farewell, self.farewell = self.farewell, None
            raise farewell

    def drop_inherited(self, nowhere: int) -> None:
        """In a forked child: points the parent's descriptors nowhere."""
        descriptors = [self._control.fileno(), self._life.fileno()]
        descriptors += [intake.descriptor() for intake in list(self._intakes.values())]
        if self._process is not None:
            descriptors.append(self._process.descriptor)
        for descriptor in descriptors:
            if descriptor >= 0:
                os.dup2(nowhere, descriptor, inheritable=False)
        self._close_arenas()
