"""Laws of exceptions that travel between processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import traceback
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import (
    AccessDeniedError,
    AsyncdataError,
    CorruptRecordError,
    ObjectNotFoundError,
    PipelineError,
    UnbatchableError,
)
from asyncdata.workers import failure
from asyncdata.workers.failure import (
    LIMIT_BYTES,
    UserFunctionError,
    annotate,
    as_raisable,
    cut_middle,
    decode_failure,
    encode_failure,
    stack_of,
)
from tests.workers import handlers


def travel(exc: BaseException) -> Exception:
    """There and back."""
    return decode_failure(encode_failure(exc), where="worker 1")


def raised(exc: BaseException) -> BaseException:
    """The exception after it was raised here."""
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001 -- the exception is what the tests look at
        return caught


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("text", 3),
        KeyError("key"),
        FileNotFoundError(2, "No such file", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        ExceptionGroup("group", [ValueError(1), TypeError(2)]),
        CorruptRecordError("bad", url="gs://b/o", version="7", offset=12, record=3, stage="map", attempts=2),
        ObjectNotFoundError("gone", url="gs://b/o"),
        AccessDeniedError("no"),
        UnbatchableError("shapes"),
        handlers.PlainError("a", 1),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_a_picklable_exception_arrives_as_itself(exc: Exception) -> None:
    """Type, args, text and place are the same."""
    arrived = travel(raised(exc))
    assert type(arrived) is type(exc)
    assert arrived.args == exc.args or isinstance(exc, ExceptionGroup)
    assert str(arrived) == str(exc)
    if isinstance(exc, AsyncdataError):
        assert isinstance(arrived, AsyncdataError)
        assert arrived.place() == exc.place()


def test_the_traceback_is_the_cause_and_the_place_is_a_note() -> None:
    """Whoever prints the exception sees the worker's traceback and one line with the place."""
    arrived = travel(raised(ValueError("x")))
    shown = "".join(traceback.format_exception(arrived))
    assert "in raised" in shown
    assert f"raised in worker 1 at {__file__}" in shown


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    """No traceback is no obstacle."""
    arrived = travel(ValueError("x"))
    assert arrived.__notes__ == ["raised in worker 1"]


def test_stand_ins_keep_the_name_and_the_nearest_types() -> None:
    """except LookupError catches a stand-in for a LookupError, also after another journey."""

    class HoldsALockError(LookupError):
        lock = threading.Lock()

    arrived = travel(HoldsALockError("locked"))
    assert isinstance(arrived, LookupError)
    assert isinstance(arrived, UserFunctionError)
    assert isinstance(arrived, PipelineError)
    assert type(arrived).__name__ == "HoldsALockError"
    again = pickle.loads(pickle.dumps(arrived))
    assert isinstance(again, LookupError)
    assert isinstance(again, UserFunctionError)
    assert str(again) == str(arrived)


@pytest.mark.parametrize(
    "exc",
    [handlers.HoldsALockError("locked"), handlers.SlottedError(number=4), handlers.MadeOtherwiseError(kind="odd")],
    ids=lambda exc: type(exc).__name__,
)
def test_what_an_exception_holds_does_not_change_its_type(exc: Exception) -> None:
    """Neither a lock, nor slots, nor constructors with arguments of their own."""
    arrived = travel(raised(exc))
    assert type(arrived) is type(exc)
    assert str(arrived) == str(exc)


def test_arguments_that_cannot_be_pickled_look_the_same() -> None:
    """The text of the exception is made of them."""
    exc = ValueError(threading.Lock(), 1)
    arrived = travel(exc)
    assert type(arrived) is ValueError
    assert str(arrived) == str(exc)
    assert arrived.args[1] == 1


def test_types_that_cannot_be_joined_become_the_plain_stand_in() -> None:
    """A base with a constructor of its own is left out."""

    class HeldDecodeError(UnicodeDecodeError):
        def __reduce__(self) -> tuple[object, ...]:
            raise TypeError

        def __str__(self) -> str:
            raise RuntimeError

    arrived = travel(HeldDecodeError("utf-8", b"\xff", 0, 1, "invalid"))
    assert isinstance(arrived, ValueError)  # the next base that can be joined
    assert "its text cannot be shown" in str(arrived)


def test_sizes_are_bounded() -> None:
    """Message, notes and traceback together stay below a few times the limit, whatever the exception holds."""
    exc = ValueError("m" * 5_000_000)
    for i in range(1000):
        exc.add_note(f"{i}" * 10_000)
    packed = encode_failure(raised(exc))
    assert len(packed) < 4 * LIMIT_BYTES
    assert isinstance(decode_failure(packed, where="w"), ValueError)


@given(st.text(), st.integers(0, 200))
def test_cutting_keeps_both_ends_and_says_what_is_missing(text: str, limit: int) -> None:
    """A text within the limit is unchanged; a longer one has its ends, and a marker between them."""
    data = text.encode("utf-8", "backslashreplace")
    cut = cut_middle(text, limit)
    if len(data) <= limit:
        assert cut == data.decode()
    else:
        assert "characters omitted" in cut
        assert len(cut.encode()) <= limit + 60


def test_annotate_never_fails() -> None:
    """Also an exception that refuses attributes gets its note."""
    for exc in (ValueError("x"), handlers.NoAttributesError("x")):
        annotate(exc, "note")
        assert exc.__notes__ == ["note"]


def test_ordinary_exceptions_are_raised_as_they_are() -> None:
    """Only what the pipeline cannot carry is wrapped."""
    error = ValueError("x")
    assert as_raisable(error) is error
    wrapped = as_raisable(SystemExit(3))
    assert isinstance(wrapped, UserFunctionError)
    assert str(wrapped) == "SystemExit: 3"


def test_what_is_long_is_cut_where_it_is() -> None:
    """Arguments and notes of the exception and of those it came from; short ones stay, and so does a refusing class."""
    inner, exc = ValueError("i" * 100_000), ValueError("short", "m" * 100_000, 3)
    exc.__cause__ = ExceptionGroup("several", [inner])
    exc.add_note("n" * 100_000)
    assert as_raisable(exc) is exc
    assert exc.args[0::2] == ("short", 3)
    for text in (exc.args[1], inner.args[0], exc.__notes__[0]):
        assert len(text) < 10_000
        assert "omitted" in text
    syntax = SyntaxError("m" * 100_000, ("f.py", 1, 1, "t" * 100_000))
    assert len("".join(traceback.format_exception_only(as_raisable(syntax)))) < 40_000
    refusing = handlers.NoAttributesError("x" * 100_000)
    assert len(str(as_raisable(refusing))) < 10_000


def test_a_text_made_when_it_is_asked_for_is_cut() -> None:
    """A stand-in of the nearest type takes the exception's place."""

    class EndlessError(KeyError):
        def __str__(self) -> str:
            return "<" + "x" * 1_000_000

    found = as_raisable(raised(EndlessError()))
    assert isinstance(found, KeyError)
    assert len("".join(traceback.format_exception(found))) < 2 * LIMIT_BYTES


def test_a_chain_of_a_thousand_causes_is_packed() -> None:
    """A long chain neither overflows the stack nor the limit."""
    exc: Exception = ValueError(0)
    for i in range(1000):
        following = ValueError(i)
        following.__cause__ = exc
        exc = following
    assert len(encode_failure(exc)) < 4 * LIMIT_BYTES


def test_the_stack_of_a_hang_is_that_of_the_user_and_begins_with_the_task() -> None:
    """Without our own frames and threads; the place is the deepest line that is no library's."""
    own = Path(failure.__file__).parent
    stacks = f"""Fatal Python error: Aborted

Thread 0x1 (most recent call first):
  File "{own}/channel.py", line 195 in receive
  File "{own}/child.py", line 218 in watch

Thread 0x2 (most recent call first):
  File "/home/me/loader.py", line 1 in fetch

Current thread 0x3 (most recent call first):
  File "{threading.__file__}", line 629 in wait
  File "/home/me/train me.py", line 12 in <lambda>
  File "{own}/program.py", line 169 in _call_each
  File "{own}/child.py", line 304 in main

Extension modules: numpy._core._multiarray_umath (total: 1)"""
    trace = stack_of(stacks)
    assert trace.place == "/home/me/train me.py:12 in <lambda>"
    assert trace.args[0] == (
        "Current thread 0x3 (most recent call first):\n"
        f'  File "{threading.__file__}", line 629 in wait\n'
        '  File "/home/me/train me.py", line 12 in <lambda>\n\n'
        'Thread 0x2 (most recent call first):\n  File "/home/me/loader.py", line 1 in fetch'
    )


def test_a_process_that_left_no_stack_is_said_so() -> None:
    """An empty or foreign text is no reason to fail."""
    for text in ("", "Killed", "Fatal Python error: Aborted\n\n<no Python frame>"):
        trace = stack_of(text)
        assert (trace.place, trace.args) == ("", ("the process left no stack",))
    only_library = f'Current thread 0x3 (most recent call first):\n  File "{threading.__file__}", line 1 in wait'
    assert stack_of(only_library).place == f"{threading.__file__}:1 in wait"


def test_the_encoder_imports_no_asyncio() -> None:
    """Worker processes load it; it must stay light."""
    code = "import sys, asyncdata.workers.failure; print('asyncio' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=".")
    assert shown.stdout == "False\n"


LARGE = np.zeros(1 << 25, np.uint8)


@pytest.mark.parametrize("held", [LARGE, LARGE.tobytes(), {"deep": [LARGE]}], ids=["array", "bytes", "deep"])
def test_what_an_exception_holds_is_not_copied_to_be_left_out(held: Any) -> None:
    """A decoder may attach its whole input; the type, the text and what is small arrive."""
    exc = ValueError("bad")
    exc.held, exc.small = held, [1, 2]  # type: ignore[attr-defined]  # as functions do
    tracemalloc.start()
    try:
        blob = encode_failure(exc)
        assert tracemalloc.get_traced_memory()[1] < (1 << 25) * 5 // 2
    finally:
        tracemalloc.stop()
    assert len(blob) < 1 << 17
    found: Any = decode_failure(blob, where="worker")
    assert type(found) is ValueError
    assert str(found) == "bad"
    assert vars(found)["small"] == [1, 2]
