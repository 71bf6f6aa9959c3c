"""One child process: reports its end, signals no other process by mistake, and is reaped without a SIGCHLD handler.

Linux provides a descriptor for the process (pidfd), which the loop watches like a socket. On other systems a thread
waits for the process. Both work with a host program that handles SIGCHLD, ignores it, or reaps every child itself: then
the exit status is unknown, but the end is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable


class Process:
    """See the module.

    Args:
        popen: The started process; this object takes over waiting for it.
        use_pidfd: False takes the way of systems without pidfd.
    """

    def __init__(self, popen: subprocess.Popen[bytes], *, use_pidfd: bool = True) -> None:
        self._popen = popen
        self._pidfd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: threading.Thread | None = None
        self._known = False
        self.gone = False
        if use_pidfd and hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            try:
                self._pidfd = os.pidfd_open(popen.pid)
            except OSError:
                self._pidfd = -1  # an old kernel, a filter on system calls, or gone and reaped already

    @property
    def pid(self) -> int:
        """Its process id; may belong to somebody else once ``gone``."""
        return self._popen.pid

    @property
    def descriptor(self) -> int:
        """The pidfd; -1 where there is none."""
        return self._pidfd

    @property
    def exit_code(self) -> int | None:
        """Exit code, or minus the signal's number; None while it runs or when somebody else took the status."""
        return self._popen.returncode if self._known else None

    def watch(self, loop: asyncio.AbstractEventLoop, gone: Callable[[], None]) -> None:
        """Calls ``gone`` on ``loop``, once, when the process has ended and was reaped.

        Raises:
            RuntimeError: The system has no thread left that would wait for it, where there are no pidfds.
        """
        self._loop = loop
        if self._pidfd >= 0:
            loop.add_reader(self._pidfd, self._reap, gone)
            return

        def wait() -> None:
            self._popen.wait()
            with contextlib.suppress(RuntimeError):  # the loop was closed; nobody asks any more
                loop.call_soon_threadsafe(self._waited, gone)

        waiter = threading.Thread(target=wait, name=f"asyncdata-wait-{self.pid}", daemon=True)
        waiter.start()
        self._waiter = waiter

    def _reap(self, gone: Callable[[], None]) -> None:
        try:
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            self._popen.returncode = 0  # taken by the host program: unknown; keeps Popen from asking again
        else:
            if result is None:
                return
            code = result.si_status
            self._popen.returncode = code if result.si_code == os.CLD_EXITED else -code
            self._known = True
        if self._loop is not None:
            self._loop.remove_reader(self._pidfd)
        self._tell(gone)

    def _waited(self, gone: Callable[[], None]) -> None:
        self._known = True
        self._tell(gone)

    def _tell(self, gone: Callable[[], None]) -> None:
        if not self.gone:
            self.gone = True
            gone()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal; nothing happens when the process is gone."""
        if self.gone:
            return
        try:
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                self._popen.send_signal(number)
        except ProcessLookupError:
            pass

    def abort(self) -> None:
        """Ends the process by SIGABRT, on which it writes its stacks to its crash file; leaves no core file."""
        if self.gone:
            return
        if hasattr(resource, "prlimit"):
            with contextlib.suppress(OSError, ValueError):
                _, hard = resource.prlimit(self.pid, resource.RLIMIT_CORE)
                resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, hard))
        self.kill(signal.SIGABRT)

    def discard(self) -> None:
        """Kills the process and waits until it is reaped; for one that nobody watches. Blocks for milliseconds."""
        self.kill()
        self._popen.wait()
        self.gone = True

    def close(self) -> None:
        """Closes the pidfd, joins the waiting thread; for a process that is gone or no longer of interest."""
        if self._pidfd >= 0:
            if self._loop is not None and not self.gone and not self._loop.is_closed():
                self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._waiter is not None and self.gone:
            self._waiter.join()


def describe_exit(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "ended; another part of the program took its exit status"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (often the kernel's out-of-memory killer)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
