"""What travels by name, what by value, and what not at all."""

from __future__ import annotations

import importlib
import pickle
import sys
import threading
import types
from pathlib import Path

import pytest

from asyncdata.memory.pickling import dumps

SCRIPT = """
import functools

class Point:
    x = 1

    @functools.cached_property
    def twice(self):
        return 2 * self.x

    @functools.cache
    def times(self, n):
        return n * self.x
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A ``__main__`` with a class, in a process that sends things by value."""
    importlib.import_module("cloudpickle")
    module = types.ModuleType("__main__")
    exec(SCRIPT, module.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_what_can_be_found_by_name_travels_by_name() -> None:
    """The same bytes as pickle's own."""
    for value in ({"a": [1, b"x"]}, Path("a"), types.SimpleNamespace(x=1)):
        assert dumps(value) == pickle.dumps(value, 5)


def test_a_class_of_a_script_travels_by_value(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the script is unknown, too; and it is the script's own class again where it is known."""
    pickled = dumps([script.Point()])
    assert type(pickle.loads(pickled)[0]) is script.Point
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    (point,) = pickle.loads(pickled)
    assert (point.x, point.twice, point.times(3)) == (1, 2, 3)
    again = dumps(point)
    assert type(pickle.loads(again)) is script.Point


def test_the_word_alone_changes_nothing() -> None:
    """What only mentions ``__main__`` comes back as it was."""
    assert pickle.loads(dumps("__main__")) == "__main__"


def test_what_cannot_travel_is_the_error_of_pickle(script: types.ModuleType) -> None:
    """By value or by name."""
    with pytest.raises(TypeError, match="lock"):
        dumps((threading.Lock(), script.Point()))
