"""What the workers of the tests run: handlers, and programs for the handler ``call_program``.

Programs that must be met at a certain point call ``need``: the test's ``grant`` is the meeting place.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Self

from asyncdata.workers.whereabouts import Mark

Need = Callable[[int], tuple[int, int]]


def call_program(arena: memoryview, program: Any, payload: bytes, need: Need, mark: Mark) -> bytes:
    """Runs a program that takes all there is."""
    reply: bytes = program(arena, payload, need)
    return reply


def echo(arena: memoryview, program: Any, payload: bytes, need: Need, mark: Mark) -> bytes:
    """Does nothing."""
    return payload


def call_marked(arena: memoryview, program: Any, payload: bytes, need: Need, mark: Mark) -> bytes:
    """Runs a program as if for row 42, with the limit that the payload begins with, if any."""
    limit, colon, rest = payload.partition(b":")
    if colon:
        mark.enter(42, int(limit))
    reply: bytes = program(arena, rest if colon else payload, need)
    mark.leave()
    return reply


not_a_function = 3

# --- programs


def same(arena: memoryview, payload: bytes, need: Need) -> bytes:
    return payload


def twice(arena: memoryview, payload: bytes, need: Need) -> bytes:
    return payload + payload


def not_bytes(arena: memoryview, payload: bytes, need: Need) -> Any:
    return 3


def my_pid(arena: memoryview, payload: bytes, need: Need) -> bytes:
    return str(os.getpid()).encode()


def write_payload(arena: memoryview, payload: bytes, need: Need) -> bytes:
    """Writes the payload into as many grants as it has bytes."""
    places = []
    for i in range(len(payload)):
        offset, _ = need(1)
        arena[offset] = payload[i]
        places.append(offset)
    return json.dumps(places).encode()


def write_at(arena: memoryview, payload: bytes, need: Need) -> bytes:
    offset, size = need(len(payload))
    arena[offset : offset + size] = payload
    return str(offset).encode()


def keep_on_after_refusal(arena: memoryview, payload: bytes, need: Need) -> bytes:
    try:
        need(10)
    except Exception as exc:  # noqa: BLE001 -- what a handler may do
        return type(exc).__name__.encode()
    return b"granted"


def meet_and_wait(arena: memoryview, payload: bytes, need: Need) -> bytes:
    """Runs until it gets what it asks for."""
    need(1)
    return b""


def meet_and_block(arena: memoryview, payload: bytes, need: Need) -> bytes:
    need(1)
    threading.Event().wait()
    return b"unreachable"


def meet_and_hold_the_gil(arena: memoryview, payload: bytes, need: Need) -> bytes:
    need(1)
    ctypes.PyDLL(None).pause()
    return b"unreachable"


def meet_and_read_fifo(arena: memoryview, payload: bytes, need: Need) -> bytes:
    """Runs until the test writes into the named pipe."""
    need(1)
    return Path(os.fsdecode(payload)).read_bytes()


def meet_and_fill(arena: memoryview, payload: bytes, need: Need) -> bytes:
    """Writes into its grant as long as it lives."""
    offset, size = need(64)
    while True:
        arena[offset : offset + size] = b"\xff" * size


def kill_me(arena: memoryview, payload: bytes, need: Need) -> bytes:
    os.kill(os.getpid(), int(payload))
    threading.Event().wait()
    return b"unreachable"


def kill_me_once(arena: memoryview, payload: bytes, need: Need) -> bytes:
    offset, _ = need(4)
    arena[offset : offset + 4] = b"dead"
    mark = Path(os.fsdecode(payload))
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    arena[offset : offset + 4] = b"live"
    return str(offset).encode()


def ignore_abort_and_block(arena: memoryview, payload: bytes, need: Need) -> bytes:
    signal.signal(signal.SIGABRT, signal.SIG_IGN)
    threading.Event().wait()
    return b"unreachable"


def touch(arena: memoryview, payload: bytes, need: Need) -> bytes:
    """Leaves a trace of having run."""
    Path(os.fsdecode(payload)).touch()
    return b""


def crash(arena: memoryview, payload: bytes, need: Need) -> bytes:
    faulthandler._sigsegv()  # type: ignore[attr-defined]  # there for tests
    return b"unreachable"


def exit_now(arena: memoryview, payload: bytes, need: Need) -> bytes:
    os._exit(int(payload))


def close_everything(arena: memoryview, payload: bytes, need: Need) -> bytes:
    os.closerange(3, 1000)
    threading.Event().wait()
    return b"unreachable"


def fork_and_return(arena: memoryview, payload: bytes, need: Need) -> bytes:
    pid = os.fork()
    if pid == 0:
        return b"the copy"
    os.waitpid(pid, 0)
    return b"the original"


def leave_a_descendant(arena: memoryview, payload: bytes, need: Need) -> bytes:
    """Dies while a process it started holds copies of all its descriptors; the copy reads a named pipe, then ends."""
    subprocess.Popen(["cat", os.fsdecode(payload)], close_fds=False, stdout=subprocess.DEVNULL)
    need(1)
    os.kill(os.getpid(), signal.SIGKILL)
    return b"unreachable"


class PlainError(Exception):
    pass


class TwoArgumentsError(ValueError):
    """Cannot be pickled by the usual way: its constructor wants what its args do not hold."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} is {number}")
        self.number = number


class HoldsALockError(LookupError):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class SlottedError(Exception):
    __slots__ = ("number",)

    def __init__(self, *, number: int) -> None:
        self.number = number

    def __str__(self) -> str:
        return f"number {self.number}"


class MadeOtherwiseError(Exception):
    def __new__(cls, *, kind: str) -> Self:
        made = super().__new__(cls)
        made.kind = kind
        return made

    def __init__(self, *, kind: str) -> None:
        self.kind = kind

    def __str__(self) -> str:
        return f"of kind {self.kind}"


class EvilError(OSError):
    def __reduce__(self) -> NoReturn:
        raise SystemExit("in __reduce__")


class ExplodesWhenLoadedError(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoAttributesError(KeyError):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


def raise_plain(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise PlainError(payload.decode(), 7)  # the line a user must see


def raise_noted(arena: memoryview, payload: bytes, need: Need) -> bytes:
    exc = PlainError("with a note")
    exc.add_note("the user's note")
    raise exc


def raise_two_arguments(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise TwoArgumentsError("x", 3)


def raise_holding_a_lock(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise HoldsALockError("locked")


def raise_evil(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise EvilError("evil")


def raise_exploding(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise ExplodesWhenLoadedError("bang")


def raise_without_text(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise NoTextError


def raise_without_attributes(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise NoAttributesError("key")


def raise_huge(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise ValueError("begin" + "x" * 10_000_000 + "end")


def raise_deep(arena: memoryview, payload: bytes, need: Need) -> bytes:
    def dive(depth: int, *rest: int) -> int:
        return dive(depth + 1, *rest) + rise(depth)

    def rise(depth: int) -> int:
        return depth

    return str(dive(0)).encode()


def raise_chained(arena: memoryview, payload: bytes, need: Need) -> bytes:
    try:
        raise_plain(arena, b"the first", need)
    except PlainError as exc:
        raise RuntimeError("the second") from exc
    return b""


def raise_stop_iteration(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise StopIteration(5)


def raise_cancelled(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise asyncio.CancelledError


def raise_keyboard_interrupt(arena: memoryview, payload: bytes, need: Need) -> bytes:
    raise KeyboardInterrupt


def call_sys_exit(arena: memoryview, payload: bytes, need: Need) -> bytes:
    sys.exit(payload.decode())


def describe_process(arena: memoryview, payload: bytes, need: Need) -> bytes:
    """What a worker process is like, as JSON."""
    return json.dumps(
        {
            "modules": sorted(sys.modules),
            "path": sys.path,
            "argv": sys.argv,
            "cwd": str(Path.cwd()),
            "main_file": getattr(sys.modules["__main__"], "__file__", None),
            "omp": os.environ.get("OMP_NUM_THREADS"),
            "sigint_ignored": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, set())],
            "comm": Path("/proc/self/comm").read_text().strip(),
            "stdin": sys.stdin.read(),
            "optimize": sys.flags.optimize,
            "warnoptions": sys.warnoptions,
            "descriptors": [_target(number) for number in sorted(os.listdir("/proc/self/fd"), key=int)],
        }
    ).encode()


def opencv_threads(arena: memoryview, payload: bytes, need: Need) -> bytes:
    """How many threads OpenCV would use."""
    import cv2  # noqa: PLC0415 -- only here

    return str(cv2.getNumThreads()).encode()


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return "the listing"


def say(arena: memoryview, payload: bytes, need: Need) -> bytes:
    print("printed:", payload.decode())  # noqa: T201 -- what user code does
    print("complained:", payload.decode(), file=sys.stderr)  # noqa: T201 -- likewise
    return b""


def fill_descriptor_table(arena: memoryview, payload: bytes, need: Need) -> bytes:
    """Leaves no descriptor for a long reply."""
    import resource  # noqa: PLC0415 -- only here

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    return b"x" * 10_000
