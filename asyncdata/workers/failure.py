"""An exception of user code, transferred from a worker process to its parent.

Invariant: the parent gets an exception that it can raise, whatever the worker's exception was. Its type is the user's
own if possible: rebuilt with pickle, also by value for classes of ``__main__``; if the constructor prevents this,
rebuilt without it. Arguments and attributes that cannot be pickled are replaced by objects that only look like them. Or
else it is a ``UserFunctionError`` that also derives from the nearest standard type, so that ``except ValueError`` still
catches it. The worker's traceback is its cause, a note names the user's file and line, and nothing is longer than
``LIMIT_BYTES``: longer texts lose their middle and say so, even in exceptions that never left their process.
"""

from __future__ import annotations

import builtins
import io
import os
import pickle
import re
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple

from asyncdata import errors
from asyncdata.errors import AsyncdataError, PipelineError
from asyncdata.redaction import redact

LIMIT_BYTES: Final = 64 << 10
_MESSAGE_LIMIT_BYTES: Final = 8 << 10
_NOTE_LIMIT_BYTES: Final = 4 << 10
_SHOWN_ITEMS: Final = 100
_MAX_NOTES: Final = 16
_LINE_LIMIT: Final = 500
_ARGUMENT_LIMIT: Final = 32 << 10
_MOST_LINKS: Final = 100
_TEXTS: Final = ((OSError, "strerror"), (SyntaxError, "msg"), (SyntaxError, "text"))
"""Attributes with texts that are shown besides the arguments."""

_READ: Final = ("args", "__cause__", "__context__", "__traceback__", "__notes__", "__class__", "__dict__")
"""Attributes of an exception that are read on its way to the consumer."""

_OWN_DIRECTORY: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGE_DIRECTORY: Final = os.path.dirname(os.path.dirname(_OWN_DIRECTORY)) + os.sep
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', re.MULTILINE)
_TASK_FRAMES: Final = re.compile(rf'\n  File "{re.escape(_OWN_DIRECTORY)}program\.py", .*', re.DOTALL)
_WATCHDOG: Final = re.compile(rf'File "{re.escape(_OWN_DIRECTORY)}child\.py", line \d+ in watch$', re.MULTILINE)
_LIBRARY_DIRECTORY: Final = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


class UserFunctionError(PipelineError):
    """A user function failed with an exception that cannot be raised here as it is.

    Either the exception does not survive pickling, or it would mean something else here (``SystemExit``,
    ``KeyboardInterrupt``, ``StopIteration``, ``CancelledError``). The message begins with its type.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        bases = [base.__name__ for base in type(self).__mro__ if base.__module__ in {"builtins", errors.__name__}]
        state = {name: value for name, value in vars(self).items() if name != "message"}
        return _make_stand_in, (type(self).__name__, bases, self.message), state


class RemoteTraceback(Exception):  # noqa: N818 -- it is the cause of an error, shown as a text, never raised
    """The traceback of a worker process, as text; the cause of the exception that the parent raises.

    Attributes:
        place: The user's line that raised; empty if unknown.
        ends_program: Whether it was an exception such as ``SystemExit``, which no policy leaves out.
    """

    place: str = ""
    ends_program: bool = False

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""' if self.args else ""


class _Record(NamedTuple):
    """What travels: plain values only, so that unpickling the record itself cannot fail."""

    blob: bytes | None
    name: str
    bases: list[str]
    message: str
    notes: list[str]
    trace: str
    place: str
    ends_program: bool


def stack_of(stacks: str) -> RemoteTraceback:
    """Where a task was, from what ``faulthandler`` wrote: the task's thread first, then those that user code has."""
    threads = [part for part in stacks.split("\n\n") if part.startswith(("Thread ", "Current thread "))]
    threads = [part for part in threads if not _WATCHDOG.search(part)]
    threads.sort(key=lambda part: _TASK_FRAMES.search(part) is None)
    if not threads:
        return RemoteTraceback("the process left no stack")
    threads[0] = _TASK_FRAMES.sub("", threads[0])
    trace = RemoteTraceback(cut_middle("\n\n".join(threads), LIMIT_BYTES))
    lines = _FRAME.findall(threads[0])
    chosen = next((line for line in lines if not _is_library(line[0])), lines[0] if lines else None)
    if chosen is not None:
        trace.place = "{}:{} in {}".format(*chosen)
    return trace


def cut_middle(text: str, limit_bytes: int) -> str:
    """Shortens a text to about ``limit_bytes`` of UTF-8, keeping both ends and saying what is missing."""
    half = limit_bytes // 2
    if len(text) <= limit_bytes:
        data = text.encode("utf-8", "backslashreplace")
        if len(data) <= limit_bytes:
            return data.decode()
    head = text[:half].encode("utf-8", "backslashreplace")[:half].decode("utf-8", "ignore")
    end = text[len(text) - half :].encode("utf-8", "backslashreplace")
    tail = end[len(end) - half :].decode("utf-8", "ignore") if half < len(end) else end.decode()
    return f"{head}\n[... {max(len(text) - len(head) - len(tail), 1)} characters omitted ...]\n{tail}"


def in_a_line(exc: BaseException) -> str:
    """An exception's type and the beginning of its text; never raises."""
    text = redact(f"{type(exc).__name__}: {_text_of(exc)}")
    return text if len(text) <= _LINE_LIMIT else f"{text[:_LINE_LIMIT]}…"


def annotate(exc: BaseException, note: str) -> None:
    """Adds a note to an exception, also to one that forbids setting attributes; never raises."""
    try:
        exc.add_note(note)
    except Exception:  # noqa: BLE001 -- a user's exception class may refuse in any way it likes
        try:
            notes = [*getattr(exc, "__notes__", ()), note]
            BaseException.__setattr__(exc, "__notes__", notes)
        except Exception:  # noqa: BLE001, S110 -- a note is a courtesy: the exception itself must get through
            pass


def is_raisable(exc: BaseException) -> bool:
    """Whether an exception of user code can be raised in the pipeline without meaning something else there."""
    return isinstance(exc, Exception) and not isinstance(exc, StopIteration | StopAsyncIteration)


def as_raisable(exc: BaseException) -> Exception:
    """The exception itself where it can be raised in the pipeline, else a ``UserFunctionError`` caused by it."""
    exc = _readable(exc)
    _shorten(exc)
    if isinstance(exc, Exception) and is_raisable(exc):
        if _has_text(exc):
            return exc
        return decode_failure(encode_failure(exc), where=f"thread {threading.current_thread().name}")
    stand_in = _make_stand_in(type(exc).__name__, _nearest_bases(exc), f"{type(exc).__name__}: {_text_of(exc)}")
    stand_in.__cause__ = exc
    return stand_in


def user_place(exc: BaseException) -> str:
    """The deepest line of the traceback that belongs to the user: ``file:line in function``; empty if unknown.

    Where none does, the deepest line of a library; a line of this package says nothing to the user.
    """
    chosen = ""
    deepest = ""
    for frame, line in traceback.walk_tb(exc.__traceback__):
        code = frame.f_code
        if code.co_filename.startswith(_PACKAGE_DIRECTORY):
            continue
        deepest = f"{code.co_filename}:{line} in {code.co_name}"
        if not _is_library(code.co_filename):
            chosen = deepest
    return chosen or deepest


def raised_at(exc: BaseException) -> str:
    """As `user_place`, also for an exception that came from a worker process; never raises."""
    cause = exc.__cause__
    return cause.place if isinstance(cause, RemoteTraceback) else _place_of(exc)


def ends_program(exc: BaseException) -> bool:
    """Returns whether this represents an exception such as ``SystemExit``, which means more than a failed function."""
    cause = exc.__cause__ if isinstance(exc, UserFunctionError) else None
    if isinstance(cause, RemoteTraceback):
        return cause.ends_program
    return cause is not None and not isinstance(cause, Exception)


def encode_failure(exc: BaseException, *, brief: bool = False) -> bytes:
    """Packs an exception for the parent; never raises and never exceeds a few times ``LIMIT_BYTES``.

    Args:
        exc: The exception.
        brief: Leaves out what is long: the exception's own content and its traceback.
    """
    exc = _readable(exc)
    _shorten(exc)
    notes = [cut_middle(str(note), _NOTE_LIMIT_BYTES) for note in _notes_of(exc)[:_MAX_NOTES]]
    record = _Record(
        blob=_dump(exc) if is_raisable(exc) and not brief else None,
        name=type(exc).__name__,
        bases=_nearest_bases(exc),
        message=cut_middle(f"{type(exc).__qualname__}: {_text_of(exc)}", 256 if brief else _MESSAGE_LIMIT_BYTES),
        notes=notes,
        trace="" if brief else cut_middle(_trace_of(exc), LIMIT_BYTES),
        place=cut_middle(_place_of(exc), _NOTE_LIMIT_BYTES),
        ends_program=not isinstance(exc, Exception),
    )
    return pickle.dumps(tuple(record), protocol=5)


def decode_failure(data: bytes, *, where: str) -> Exception:
    """Rebuilds an exception that ``encode_failure`` packed; never raises.

    Args:
        data: The packed exception, from a process this process started.
        where: Names the worker, for the note.
    """
    record = _Record(*pickle.loads(data))  # noqa: S301 -- from a process this process started, never from storage
    exc: Exception | None = None
    if record.blob is not None:
        try:
            exc = pickle.loads(record.blob)  # noqa: S301 -- likewise
        except (Exception, SystemExit):  # noqa: BLE001 -- the class's own code runs here; the stand-in replaces it
            exc = None
    if not isinstance(exc, Exception):
        exc = _make_stand_in(record.name, record.bases, record.message)
    cause = RemoteTraceback(record.trace)
    cause.place, cause.ends_program = record.place, record.ends_program
    BaseException.__setattr__(exc, "__cause__", cause)
    present = set(_notes_of(exc))
    for note in record.notes:
        if note not in present:
            annotate(exc, note)
    annotate(exc, f"raised in {where}" + (f" at {record.place}" if record.place else ""))
    return exc


# --- packing -----------------------------------------------------------------------------------------------------


def _readable(exc: BaseException) -> BaseException:
    """The exception, or a stand-in with its traceback if reading its attributes raises."""
    try:
        for name in _READ:
            getattr(exc, name, None)
    except BaseException as failure:  # noqa: BLE001 -- a property or __getattribute__ of the user may do anything
        kind = type(exc)
        text = f"{kind.__name__}: <its attributes cannot be read: {type(failure).__name__}>"
        stand_in = _make_stand_in(kind.__name__, _nearest_bases(exc), text)
        return stand_in.with_traceback(_slot("__traceback__", exc))
    return exc


def _slot(name: str, exc: BaseException) -> Any:
    """An attribute as the interpreter keeps it, whatever the exception's class makes of the name."""
    return vars(BaseException)[name].__get__(exc)


def _shorten(exc: BaseException) -> None:
    """Cuts long arguments and notes of an exception and of those it came from, where they can be set."""
    links: list[BaseException | None] = [exc]
    for _ in range(_MOST_LINKS):
        if not links:
            return
        link = links.pop()
        if link is None:
            continue
        links += (_slot("__cause__", link), _slot("__context__", link))
        try:
            if isinstance(link, BaseExceptionGroup):
                links += link.exceptions
            if any(map(_is_long, link.args)):
                link.args = tuple(map(_short, link.args))
            for kind, name in _TEXTS:
                if isinstance(link, kind) and _is_long(getattr(link, name)):
                    setattr(link, name, _short(getattr(link, name)))
            if any(map(_is_long, _notes_of(link))):
                link.__notes__ = list(map(_short, _notes_of(link)))
        except Exception:  # noqa: BLE001, S112 -- a user's exception class may refuse in any way it likes
            continue


def _is_long(value: Any) -> bool:
    return isinstance(value, str | bytes) and len(value) > _ARGUMENT_LIMIT


def _short(value: Any) -> Any:
    if isinstance(value, bytes):
        return value[:_MESSAGE_LIMIT_BYTES] + b"..." if _is_long(value) else value
    return cut_middle(value, _MESSAGE_LIMIT_BYTES) if _is_long(value) else value


def _dump(exc: BaseException) -> bytes | None:
    """The pickled exception, proven to load again as the same; None where there is no such thing."""
    picklers: list[Any] = [pickle.Pickler]
    by_value = sys.modules.get("cloudpickle")  # loaded where a class or function came by value, and useful only there
    if by_value is not None:
        picklers.append(by_value.Pickler)
    bare, shown = _Bare(exc), _Bare(exc, _shown)
    subjects = (shown,) if _holds_much(exc) else (exc, bare, shown)
    for pickler in picklers:
        for subject in subjects:
            try:
                blob = _dumped(subject, pickler)
                again = pickle.loads(blob)  # noqa: S301 -- made in the line above
                if type(again) is type(exc) and _has_text(exc) and str(again) == str(exc):
                    return blob
            except BaseException:  # noqa: BLE001, S112 -- the user's __reduce__ and constructor may do anything
                continue
    return None


class _Bare:
    """Pickles as the exception itself, to be rebuilt without running its constructor.

    Args:
        exc: The exception.
        sent: What is sent of an argument or attribute.
    """

    def __init__(self, exc: BaseException, sent: Callable[[Any], Any] = lambda value: value) -> None:
        self._exc = exc
        self._sent = sent

    def __reduce__(self) -> tuple[Any, ...]:
        found: Any = object.__getstate__(self._exc)
        attributes, slots = found if isinstance(found, tuple) else (found, None)
        state = {n: self._sent(value) for n, value in ((attributes or {}) | (slots or {})).items() if n != "__notes__"}
        return _rebuild_bare, (type(self._exc), tuple(map(self._sent, self._exc.args)), state)


class _Shown:
    """Stands for an object that cannot be pickled; looks like it."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


def _shown(value: Any) -> Any:
    """A value that can be sent, or what stands for it."""
    if _is_large(value) and isinstance(value, bytes | bytearray | memoryview | str):
        return _Shown(f"{value[:_SHOWN_ITEMS]!r}… ({len(value):,} in all)")
    try:
        if not _is_large(value):
            _dumped(value, pickle.Pickler)
            return value
    except Exception:  # noqa: BLE001, S110 -- any __reduce__ may run here
        pass
    return _Shown(cut_middle(repr(value), _NOTE_LIMIT_BYTES))


def _is_large(value: Any) -> bool:
    """Whether it is known beforehand to take too much to be sent, so that it need not be copied to find out."""
    nbytes = len(value) if isinstance(value, bytes | bytearray | str) else getattr(value, "nbytes", 0)
    return isinstance(nbytes, int) and nbytes > LIMIT_BYTES


def _holds_much(exc: BaseException) -> bool:
    try:
        return any(map(_is_large, (*exc.args, *vars(exc).values())))
    except Exception:  # noqa: BLE001 -- any __getattr__ may run here
        return False


def _dumped(value: Any, pickler: Any) -> bytes:
    """The pickled value.

    Raises:
        ValueError: It takes more than `LIMIT_BYTES`; what comes behind these is not made.
    """
    file = _ShortFile()
    pickler(file, 5).dump(value)
    return file.getvalue()


class _ShortFile(io.BytesIO):
    """Refuses more than `LIMIT_BYTES`."""

    def write(self, data: Any) -> int:
        """As a file does.

        Raises:
            ValueError: It is too much.
        """
        if self.tell() + memoryview(data).nbytes > LIMIT_BYTES:
            raise ValueError("the pickle is too long")
        return super().write(data)


def _rebuild_bare(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    try:
        exc = kind.__new__(kind, *args)
    except TypeError:  # one of its own, that takes something else
        exc = Exception.__new__(kind, *args)
    BaseException.__setattr__(exc, "args", args)
    for name, value in state.items():
        try:
            BaseException.__setattr__(exc, name, value)
        except AttributeError:  # there is a property of that name
            vars(exc)[name] = value
    return exc


def _make_stand_in(name: str, bases: list[str], message: str) -> UserFunctionError:
    for base_name in bases:
        base = getattr(errors, base_name, None) or getattr(builtins, base_name, None)
        if not (isinstance(base, type) and issubclass(base, Exception)) or issubclass(UserFunctionError, base):
            continue
        try:
            made: UserFunctionError = type(name, (UserFunctionError, base), {"__module__": __name__})(message)
        except Exception:  # noqa: BLE001, S112 -- layouts or constructors that do not go together
            continue
        return made
    return UserFunctionError(message)


def _nearest_bases(exc: BaseException) -> list[str]:
    return [
        kind.__name__
        for kind in type(exc).__mro__
        if kind.__module__ in {"builtins", errors.__name__}
        and kind not in {Exception, BaseException, object, AsyncdataError}
        and not issubclass(kind, StopIteration | StopAsyncIteration)
    ]


def _notes_of(exc: BaseException) -> list[str]:
    notes = getattr(exc, "__notes__", None)
    return list(notes) if isinstance(notes, list | tuple) else []


def _has_text(exc: BaseException) -> bool:
    """Whether an exception has a text, and one of reasonable length."""
    try:
        return len(str(exc)) <= LIMIT_BYTES
    except BaseException:  # noqa: BLE001 -- the user's __str__ may do anything
        return False


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except BaseException as failure:  # noqa: BLE001 -- the user's __str__ may do anything
        return f"<its text cannot be shown: {type(failure).__name__}>"


def _place_of(exc: BaseException) -> str:
    try:
        return user_place(exc)
    except Exception:  # noqa: BLE001 -- a place is a courtesy
        return ""


def _trace_of(exc: BaseException) -> str:
    try:
        shown = traceback.TracebackException(type(exc), exc, _without_own_frames(exc), compact=True)
        return "".join(shown.format())
    except BaseException as failure:  # noqa: BLE001 -- the user's __str__, __repr__ or source loader may do anything
        return f"{type(exc).__qualname__}: {_text_of(exc)}\n<its traceback cannot be shown: {type(failure).__name__}>\n"


def _without_own_frames(exc: BaseException) -> TracebackType | None:
    """The traceback without the frames of this package at its top; whole if there are no others."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_DIRECTORY):
        trace = trace.tb_next
    return trace if trace is not None else exc.__traceback__


def _is_library(filename: str) -> bool:
    return (
        filename.startswith((_PACKAGE_DIRECTORY, _LIBRARY_DIRECTORY, "<frozen"))
        or f"{os.sep}site-packages{os.sep}" in filename
    )
