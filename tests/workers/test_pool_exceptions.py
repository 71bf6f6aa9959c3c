"""Laws of what user code raises in a worker: it arrives as what it was, and shows the user's line."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from asyncdata.workers.failure import UserFunctionError
from tests.workers import handlers
from tests.workers.conftest import MakeKit


async def test_an_exception_keeps_type_args_and_shows_the_users_line(make_kit: MakeKit) -> None:
    """The parent raises the user's own exception; its traceback text names the user's file, line and function."""
    kit = await make_kit(num_workers=1)
    with pytest.raises(handlers.PlainError) as caught:
        await kit.run(handlers.raise_plain, b"message")
    assert type(caught.value) is handlers.PlainError
    assert caught.value.args == ("message", 7)
    shown = "".join(traceback.format_exception(caught.value))
    assert "raise PlainError(payload.decode(), 7)  # the line a user must see" in shown
    assert f'File "{handlers.__file__}"' in shown
    assert "in raise_plain" in shown
    assert "child.py" not in shown
    (note,) = caught.value.__notes__
    assert handlers.__file__ in note
    assert f"pid {kit.pids()[0]}" in note


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("program", "kind", "text"),
    [
        (handlers.raise_two_arguments, handlers.TwoArgumentsError, "x is 3"),
        (handlers.raise_holding_a_lock, handlers.HoldsALockError, "locked"),
        (handlers.raise_evil, handlers.EvilError, "evil"),
        (handlers.raise_exploding, handlers.ExplodesWhenLoadedError, "bang"),
        (handlers.raise_without_text, Exception, ""),
        (handlers.raise_without_attributes, KeyError, "key"),
        (handlers.raise_deep, RecursionError, "maximum recursion depth"),
        (handlers.raise_chained, RuntimeError, "the second"),
        (handlers.raise_stop_iteration, UserFunctionError, "StopIteration: 5"),
        (handlers.raise_cancelled, UserFunctionError, "CancelledError"),
        (handlers.raise_keyboard_interrupt, UserFunctionError, "KeyboardInterrupt"),
        (handlers.call_sys_exit, UserFunctionError, "SystemExit: told to"),
        (handlers.not_bytes, TypeError, "returned int, not bytes"),
    ],
)
async def test_any_exception_becomes_one_the_parent_can_raise(
    make_kit: MakeKit, program: Any, kind: type[Exception], text: str
) -> None:
    """Whatever user code raises, run raises an Exception of the nearest type, and the worker lives on."""
    kit = await make_kit(num_workers=1)
    pid = kit.pids()
    with pytest.raises(kind) as caught:
        await kit.run(program, b"told to")
    if program is not handlers.raise_without_text:
        assert text in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value.__cause__)) if caught.value.__cause__ else ""
    if program is not handlers.not_bytes:
        assert handlers.__file__ in shown
    assert await kit.run(handlers.same, b"on") == b"on"
    assert kit.pids() == pid


async def test_a_chained_exception_shows_both_tracebacks(make_kit: MakeKit) -> None:
    """The cause inside the worker is part of the text."""
    kit = await make_kit(num_workers=1)
    with pytest.raises(RuntimeError) as caught:
        await kit.run(handlers.raise_chained)
    assert "PlainError: ('the first', 7)" in str(caught.value.__cause__)
    assert "direct cause" in str(caught.value.__cause__)


async def test_notes_of_the_user_arrive_once(make_kit: MakeKit) -> None:
    """add_note in the worker is seen in the parent."""
    kit = await make_kit(num_workers=1)
    with pytest.raises(handlers.PlainError) as caught:
        await kit.run(handlers.raise_noted)
    assert caught.value.__notes__.count("the user's note") == 1


async def test_a_huge_message_is_cut_and_says_so(make_kit: MakeKit) -> None:
    """Ten megabytes of message keep their type and both ends."""
    kit = await make_kit(num_workers=1)
    with pytest.raises(ValueError, match="characters omitted") as caught:
        await kit.run(handlers.raise_huge)
    assert "begin" in str(caught.value)
    assert str(caught.value).endswith("end")
    assert len("".join(traceback.format_exception(caught.value))) < 200_000
