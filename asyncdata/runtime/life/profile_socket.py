"""`ProfileSocket`: records a profile of a running program when another program of the same user asks for it.

    asyncdata profile --pid N ──▶ <temporary directory>/asyncdata-<user>/<pid>.<number>.sock
        {"seconds": 5}                                       │
        {"version": 1, "document", "text", "html", "stacks"} ◀─ records for so long

The directory belongs to the user alone, and the system says which user is at the other end. What comes is a line of
JSON, what goes is JSON. One request is served at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import struct
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from asyncdata import arguments
from asyncdata.observe.plain import finite
from asyncdata.observe.profile import Profile, WatchedPipeline
from asyncdata.observe.thread_stacks import stack_of
from asyncdata.options import Options

VERSION: Final = 1
_MOST_REQUEST_BYTES: Final = 4096
MOST_S: Final = 3600
"""The longest profile."""
_PATIENCE_S: Final = 10.0
_CREDENTIALS: Final = struct.Struct("3i")
_ERROR_LENGTH: Final = 1000


def socket_directory() -> Path:
    """Where the sockets of this user's programs are."""
    return Path(tempfile.gettempdir()) / f"asyncdata-{os.getuid()}"


def sockets_of(pid: int) -> list[Path]:
    """The sockets of a program, one for each of its Runtimes.

    Raises:
        PermissionError: The directory belongs to somebody else, who could have put anything there.
    """
    folder = socket_directory()
    if not folder.is_dir():
        return []
    _check_private(folder)
    return sorted(folder.glob(f"{pid}.*.sock"))


def ask(path: Path, seconds: float) -> dict[str, Any]:
    """Has a program record a profile, and returns its answer.

    Raises:
        OSError: The program is gone, or does not answer.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds + 3 * _PATIENCE_S)
        connection.connect(str(path))
        connection.sendall(json.dumps({"seconds": seconds}).encode() + b"\n")
        parts = []
        try:
            while part := connection.recv(1 << 20):
                parts.append(part)
        except TimeoutError:
            raise TimeoutError(
                f"the program has not answered {3 * _PATIENCE_S:.0f} s after the profile's end: it is stopped, or "
                "serves somebody else"
            ) from None
    try:
        answer: dict[str, Any] = json.loads(b"".join(parts))
    except ValueError:
        raise ConnectionAbortedError("the program ended before it answered") from None
    return answer


class ProfileSocket:
    """See the module.

    Raises:
        OSError: The socket cannot be made; nothing is left behind.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._live: list[tuple[WatchedPipeline, str, int, Options]] = []
        self._lock = threading.RLock()  # a handler of signals may iterate over a pipeline in the middle of anything
        self._recorder: Profile | None = None
        self._connection: socket.socket | None = None
        self._closed = threading.Event()
        folder = socket_directory()
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder)
        _remove_left_behind(folder)
        self._path = folder / f"{self._pid}.{secrets.token_hex(3)}.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(self._path))
            self._path.chmod(0o600)
            self._listener.listen(4)
            self._thread = threading.Thread(target=self._serve, name="asyncdata-profile-socket", daemon=True)
            self._thread.start()
        except BaseException:
            self._listener.close()
            self._path.unlink(missing_ok=True)
            raise

    def descriptors(self) -> list[int]:
        """What a forked child must not listen on."""
        return [each.fileno() for each in (self._listener, self._connection) if each is not None and each.fileno() >= 0]

    def watch(self, watched: WatchedPipeline, steps: str, epoch: int, options: Options) -> None:
        """Notes one more pipeline; see `Profile.watch`."""
        with self._lock:
            self._live = [each for each in self._live if not each[0].is_over]
            self._live.append((watched, steps, epoch, options))
            recorder = self._recorder
        if recorder is not None:
            recorder.watch(watched, steps, epoch, options)

    def close(self) -> None:
        """Ends the thread and removes the socket. Idempotent."""
        if self._closed.is_set() or os.getpid() != self._pid:
            return
        self._closed.set()
        for end in (self._listener, self._connection):
            if end is not None:
                with contextlib.suppress(OSError):  # not connected any more
                    end.shutdown(socket.SHUT_RDWR)  # which wakes the thread
        self._thread.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        self._live.clear()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closed.wait(0.1):  # no descriptors, for example
                    return
                continue
            with connection, contextlib.suppress(OSError):  # whoever asked is gone
                self._connection = connection
                connection.settimeout(_PATIENCE_S)
                # `close` wakes whoever reads here, but may have looked for a connection before there was one.
                if not self._closed.is_set() and _is_same_user(connection):
                    connection.sendall(json.dumps(self._answer(connection)).encode())
            self._connection = None

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        try:
            request = json.loads(_line(connection))
            seconds = arguments.number("seconds", request["seconds"], least=0, most=MOST_S)
        except (ValueError, TypeError, KeyError) as error:
            return {"version": VERSION, "error": f"not a request: {error}"[:_ERROR_LENGTH]}
        recorder = Profile(sample_hz=0)
        try:
            with recorder:
                with self._lock:
                    self._recorder = recorder
                    live = list(self._live)
                for each in live:
                    recorder.watch(*each)
                self._closed.wait(seconds)
                self._recorder = None
        except RuntimeError as error:  # the system has no thread for it; the next one may be luckier
            return {"version": VERSION, "error": f"no profile can be recorded: {error}"[:_ERROR_LENGTH]}
        report = recorder.report()
        return {
            "version": VERSION,
            "document": finite(report.document()),
            "text": str(report),
            "html": report.to_html(),
            "stacks": _stacks(),
        }


def _line(connection: socket.socket) -> bytes:
    data = b""
    while b"\n" not in data and len(data) < _MOST_REQUEST_BYTES:
        part = connection.recv(_MOST_REQUEST_BYTES)
        if not part:
            break
        data += part
    return data.partition(b"\n")[0]


def _stacks() -> dict[str, str]:
    """Where each thread is, by name, the innermost line last; neither values nor source code, which may be secret."""
    own = threading.get_ident()
    return {
        f"{thread.name} ({thread.ident})": "\n".join(
            f"  {code.co_filename}:{line} in {code.co_qualname}" for code, line in reversed(stack_of(thread.ident))
        )
        for thread in threading.enumerate()
        if thread.ident is not None and thread.ident != own
    }


def _is_same_user(connection: socket.socket) -> bool:
    """Whether the other end is a program of this user or of the administrator; elsewhere the directory decides."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return user in (os.getuid(), 0)


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is open to other users: remove it, or set TMPDIR to a directory of your own")


def _remove_left_behind(folder: Path) -> None:
    """Sockets of programs that were killed."""
    for path in folder.glob("*.sock"):
        pid = path.name.partition(".")[0]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (ValueError, OSError):
            continue
