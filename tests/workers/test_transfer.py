"""Laws of sending functions to the worker processes."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
import typing
from typing import Any

import pytest

from asyncdata.errors import FunctionTransferError
from asyncdata.workers.transfer import dump_program
from tests.workers import handlers

LOCK = threading.Lock()


class Decoder:
    def __init__(self) -> None:
        self.options = {"deep": [1, {"handle": threading.Lock()}]}

    def decode(self, record: bytes) -> bytes:
        return record


class Slotted:
    __slots__ = ("handle",)

    def __init__(self) -> None:
        self.handle = threading.Lock()

    def __call__(self, record: bytes) -> bytes:
        return record


def uses_a_global(record: bytes) -> bytes:
    with LOCK:
        return record


uses_a_global.__module__ = "__main__"  # a function of the user's script travels by value, with its globals


def test_what_can_be_pickled_comes_back_as_it_was() -> None:
    """Functions of modules by name, lambdas and closures by value."""
    assert pickle.loads(dump_program(handlers.same)) is handlers.same
    number = 3
    assert pickle.loads(dump_program(lambda x: x + number))(4) == 7
    assert pickle.loads(dump_program(functools.partial(divmod, 7)))(2) == (3, 1)


def make_closure() -> Any:
    lock = threading.Lock()

    def guarded(record: bytes) -> bytes:
        with lock:
            return record

    return guarded


def with_default(record: bytes, lock: Any = LOCK) -> bytes:
    return record


def with_keyword_default(record: bytes, *, lock: Any = LOCK) -> bytes:
    return record


with_default.__module__ = with_keyword_default.__module__ = "__main__"


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (make_closure(), ["'make_closure.<locals>.guarded'", "captured variable 'lock'"]),
        (uses_a_global, ["'uses_a_global'", "global 'LOCK'"]),
        (with_default, ["default of argument 'lock'"]),
        (with_keyword_default, ["default of argument 'lock'"]),
        (Decoder().decode, ["method 'decode'", "'options'", "'deep'", "item 1", "'handle'"]),
        (Slotted(), ["Slotted", "attribute 'handle'"]),
        (functools.partial(divmod, LOCK), ["argument 0"]),
        (functools.partial(divmod, key=LOCK), ["argument 'key'"]),
        ([handlers.same, {"f": make_closure()}], ["item 1", "item 'f'", "captured variable 'lock'"]),
        (LOCK, ["lock object"]),
    ],
)
def test_the_error_names_the_way_to_the_object_that_cannot_be_pickled(program: Any, names: list[str]) -> None:
    """Every step from the function to the culprit, its type, and what to do."""
    with pytest.raises(FunctionTransferError) as caught:
        dump_program(program)
    message = str(caught.value)
    positions = [message.find(name) for name in names]
    assert -1 not in positions, message
    assert positions == sorted(positions)
    assert "_thread.lock" in message
    assert 'executor="thread"' in message
    assert caught.value.__cause__ is not None


def test_an_object_whose_pickling_fails_by_itself_is_named() -> None:
    """The culprit's own failure is part of the message."""

    class Stubborn:
        def __reduce__(self) -> Any:
            raise ValueError("I stay here")

    stubborn = Stubborn()
    with pytest.raises(FunctionTransferError, match=r"captured variable 'stubborn'.*ValueError: I stay here"):
        dump_program(lambda: stubborn)


def test_what_refers_to_itself_is_no_obstacle() -> None:
    """The search ends on cycles and on deep nesting."""
    ring: list[Any] = [LOCK]
    ring.append(ring)
    with pytest.raises(FunctionTransferError, match="item 0"):
        dump_program(lambda: ring)
    nest: Any = LOCK
    for _ in range(50):
        nest = [nest]
    with pytest.raises(FunctionTransferError, match="captured variable 'nest'"):
        dump_program(lambda: nest)


def test_functions_know_where_they_lie() -> None:
    """Tracebacks from another process name the file, also of what is defined inside of a function."""

    def outer() -> Any:
        return lambda: None

    loaded = pickle.loads(dump_program(outer))
    assert loaded.__code__.co_filename == __file__
    assert loaded().__code__.co_filename == __file__


class Script:
    """A class of a script, with what decorators of the standard library make."""

    @functools.cached_property
    def squares(self) -> dict[int, int]:
        return {n: n * n for n in range(5)}

    @functools.lru_cache(maxsize=3)  # noqa: B019 -- what users write
    def double(self, number: int) -> int:
        return 2 * number


@functools.lru_cache(maxsize=7, typed=True)
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


Name = typing.NewType("Name", str)


def of_the_script(number: int) -> Any:
    script = Script()
    return Name("x"), fibonacci(number), script.squares[number], script.double(number)


for _defined in (Script, fibonacci, fibonacci.__wrapped__, Name, of_the_script):
    _defined.__module__ = "__main__"


def test_what_the_standard_library_makes_in_a_script_travels_by_value() -> None:
    """Caches (also recursive ones, and of methods), cached properties and new types, which pickle sends by name."""
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())(3))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=dump_program(of_the_script), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == str(("x", 2, 9, 6))
    again = pickle.loads(dump_program(fibonacci))
    assert (again(9), again.cache_parameters()) == (34, {"maxsize": 7, "typed": True})
    assert (again.__name__, again.__module__, again.__qualname__) == ("fibonacci", "__main__", "fibonacci")
    new = pickle.loads(dump_program(Name))
    assert (new.__name__, new.__module__, new.__supertype__) == ("Name", "__main__", str)


def test_caches_of_modules_travel_by_name() -> None:
    """The worker fills the one that it imports."""
    assert pickle.loads(dump_program(remembered)) is remembered


@functools.cache
def remembered(number: int) -> int:
    return number
