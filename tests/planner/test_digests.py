"""Digests: the same for the same thing, another one for another, and none for what cannot be taken apart."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import fractions
import functools
import importlib
import itertools
import json
import pathlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest

import asyncdata as ad
from asyncdata.planner.digests import Parts, parts_of
from asyncdata.planner.recipe import Recipe, first_difference

Point = collections.namedtuple("Point", ["x", "y"])  # noqa: PYI024 -- users write it so


class Color(enum.Enum):
    """An enumeration."""

    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    """Without a dict."""

    size: int


class Rich:
    """A class with one of everything."""

    rate = 3

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def area(self) -> int:
        """A property."""
        return self.size * self.rate

    @functools.cached_property
    def volume(self) -> int:
        """A cached one."""
        return self.area * self.size

    @classmethod
    def make(cls) -> Rich:
        """A method of the class."""
        return cls(1)

    @staticmethod
    def double(x: int) -> int:
        """A function."""
        return 2 * x


class Times:
    """A decorator that is a class."""

    def __init__(self, function: Callable[[int], Any], factor: int) -> None:
        functools.update_wrapper(self, function)
        self.factor = factor

    def __call__(self, x: int) -> Any:
        """The multiple of the result."""
        return self.__wrapped__(x) * self.factor  # type: ignore[attr-defined]  # set by update_wrapper


def digest(value: Any) -> Parts:
    """The parts of one value."""
    return parts_of([("value", value)], lambda node: repr(type(node)))


def odd(n: int) -> bool:
    """Two functions that call one another."""
    return n != 0 and even(n - 1)


def even(n: int) -> bool:
    """The other one."""
    return n == 0 or odd(n - 1)


def closing(value: Any) -> Callable[[], Any]:
    """A function that refers to a value."""
    return lambda: value


def cyclic() -> list[Any]:
    """A list that holds itself."""
    items: list[Any] = [1]
    items.append(items)
    return items


VALUES: list[Callable[[], Any]] = [
    *(lambda value=value: value for value in (None, True, 1, 1.0, 1j, "1", b"1", ..., range(1), slice(1), 10**400)),
    *(lambda: [1], lambda: (1,), lambda: {1}, lambda: {1: 1}, list, lambda: (), lambda: {"1"}, lambda: [1, 1]),
    lambda: [[1], 1],
    cyclic,
    lambda: {f"{i}": {i} for i in range(20)},
    lambda: np.arange(3),
    lambda: np.arange(3, dtype=np.int32),
    lambda: np.arange(4).reshape(2, 2),
    lambda: np.array(3),
    lambda: np.array(["a", None], object),
    lambda: np.zeros((0, 3)),
    lambda: np.array(["2020-01-01"], "datetime64[D]"),
    lambda: np.float32(1),
    lambda: np.dtype([("a", "i4")]),
    lambda: np.dtype(("i4", 2)),
    lambda: np.dtype(("f4", 2)),
    *(lambda fields=fields: np.zeros(2, fields) for fields in ("i4,f4", "f4,i4")),
    *(lambda fields=fields: np.zeros((), fields)[()] for fields in ("i4,f4", "f4,i4")),
    lambda: np.dtype("i4"),
    lambda: bytearray(b"1"),
    lambda: Point(1, 2),
    lambda: Point(1, 3),
    lambda: Color.RED,
    lambda: Color.BLUE,
    lambda: Slotted(1),
    lambda: Slotted(2),
    lambda: Rich(1),
    lambda: Rich(2),
    lambda: Rich,
    lambda: Rich(1).make,
    lambda: collections.OrderedDict(a=1),
    lambda: collections.deque([1]),
    lambda: re.compile("a"),
    lambda: re.compile("b"),
    lambda: datetime.date(2020, 1, 1),
    lambda: fractions.Fraction(1, 3),
    lambda: pathlib.PurePath("a"),
    lambda: functools.partial(int, base=2),
    lambda: functools.partial(int, base=3),
    lambda: functools.update_wrapper(functools.partial(odd), odd),
    lambda: functools.update_wrapper(functools.partial(odd, n=1), odd),
    lambda: functools.update_wrapper(functools.partial(odd, n=2), odd),
    lambda: Times(odd, 1),
    lambda: Times(odd, 2),
    lambda: Times(even, 2),
    lambda: [Times(odd, 1)],
    lambda: [Times(odd, 2)],
    lambda: [Times(even, 2)],
    lambda: odd,
    lambda: even,
    lambda: closing(1),
    lambda: closing(2),
    lambda: closing(closing(2)),
    lambda: closing({"a": closing(3)}),
    np.random.default_rng,
    lambda: np.sqrt,
    lambda: np.stack,
    lambda: [].append,
    lambda: "a".join,
    lambda: len,
    lambda: str.upper,
    lambda: ad.parse_example({"a": ad.FixedLenFeature((), np.int64)}),
    lambda: ad.parse_example({"b": ad.FixedLenFeature((), np.int64)}),
    lambda: ad.Dataset.range(3),
    lambda: list[int],
    lambda: np,
]


def test_same_and_other_values() -> None:
    """Made twice, or sent to another process, a value has the same digest; no two of these have one."""
    found = [digest(make()) for make in VALUES]
    assert [digest(make()) for make in VALUES] == found
    assert [n for n, parts in enumerate(found) if None in parts.values()] == []
    for one, two in itertools.combinations(range(len(found)), 2):
        assert found[one] != found[two], (one, two, VALUES[one](), VALUES[two]())
    for make, parts in zip(VALUES, found, strict=True):
        if not isinstance(make(), type(np)):
            assert digest(cloudpickle.loads(cloudpickle.dumps(make()))) == parts


@pytest.mark.parametrize("value", [threading.Lock(), threading.local(), memoryview(b"")], ids=type)
def test_what_cannot_be_taken_apart(value: Any) -> None:
    """It has no digest, by itself or inside of something; what stands beside it has one."""
    assert digest(value) == {"value": None}
    assert digest([value]) == {"value": None}
    parts = digest(closing(value))
    assert [name for name, part in parts.items() if part is None] == ["value in <lambda>"]
    assert parts["code of <lambda>"] == digest(closing(1))["code of <lambda>"]
    one = Rich(1)
    one.other = value  # type: ignore[attr-defined]  # as users do
    assert [name for name, part in digest(one).items() if part is None] == ["value.other"]


def named_as_another(factor: int) -> Callable[[Any], Any]:
    """A function that says that it is one of the standard library's."""

    @functools.wraps(json.loads)
    def loads(text: Any) -> Any:
        return json.loads(text) * factor

    return loads


def test_functions_that_are_named_as_installed_ones() -> None:
    """They are told apart by their code and what they refer to."""
    found = [digest([function]) for function in (json.loads, named_as_another(1), named_as_another(2))]
    assert found[0] != found[1] != found[2] != found[0]
    assert digest([named_as_another(1)]) == found[1]
    assert "factor in loads" in found[1]


class Lazy:
    """A descriptor of the user's."""

    def __init__(self, func: Callable[..., Any], unit: int) -> None:
        self.func = func
        self.unit = unit


def with_methods(number: int) -> type:
    """A class whose methods have a number beside their functions."""

    class Many:
        def scale(self, x: int, factor: int) -> int:
            return x * factor

        scaled = functools.partialmethod(scale, factor=number)
        lazy = Lazy(scale, number)

        @functools.singledispatchmethod
        def shown(self, x: Any) -> Any:
            return x

        @shown.register
        def _(self, x: int) -> int:
            return x + number

    return Many


def test_what_methods_have_beside_their_functions() -> None:
    """Arguments of partial methods, attributes of descriptors and other functions of a generic method count."""
    one, two = digest(with_methods(1)), digest(with_methods(2))
    assert digest(with_methods(1)) == one
    assert None not in one.values()
    changed = {name for name in one if one[name] != two.get(name)}
    assert changed == {"scaled.keywords of Many", "lazy.unit of Many", "number in Many._"}


def test_settings_of_other_types() -> None:
    """A number, its text and a truth value are no settings of one kind."""
    values = (1.5, "1.5", 1, True, "1", float("nan"), "nan")
    found = [
        Recipe(ad.Dataset.from_generator(iter, args=(value,), output_types=object)._node, ad.Options()).steps()
        for value in values
    ]
    stored = [json.loads(json.dumps(steps)) for steps in found]
    for one, two in itertools.product(range(len(values)), repeat=2):
        assert (first_difference(stored[one], found[two], functions=True) is None) == (one == two), (one, two)


def test_equal_names_are_told_apart() -> None:
    """Several functions of one name have parts of their own."""
    parts = digest([lambda: 1, lambda: 2, closing(lambda: 3)])
    assert {"code of <lambda>", "code of <lambda> (2)", "code of <lambda> (3)", "value in <lambda> (3)"} <= parts.keys()


def test_classes_are_their_functions_and_values() -> None:
    """Methods, properties and values of a class of the user's are followed, under the class's name."""
    assert {
        "rate of Rich",
        "code of Rich.area",
        "code of Rich.volume",
        "code of Rich.make",
        "code of Rich.double",
        "value.size",
    } <= digest(Rich(1)).keys()


IMPORTING = {
    "module": "import kit.helper; return kit.helper.f(x)",
    "module as": "import kit.helper as h; return h.f(x)",
    "from a package": "from kit import helper; return helper.f(x)",
    "from a module": "from kit.helper import f; return f(x)",
    "from a module as": "from kit.helper import f as g; return g(x)",
    "several": "from kit.helper import FACTOR, f as g; return g(x) + 0 * FACTOR",
    "through another": "from kit.other import f; return f(x)",
    "in a package": "import kit; return kit.rate(x)",
    "relative to a package": "from . import helper; return helper.f(x)",
    "relative to a module": "from .helper import f as g; return g(x)",
    "in a branch": "if x: import kit.helper as h; return h.f(x)",
    "in a lambda": "return (lambda y: __name__ and inner(y))(x)",
    "in a comprehension": "return [inner(y) for y in [x]][0]",
    "in a class": "class C:\n        from kit.helper import f\n    return C.f(x)",
    "in a function": "def g(y):\n        import kit.helper as h\n        return h.f(y)\n    return g(x)",
    "in a generator": "def g():\n        from kit import helper\n        yield helper.f(x)\n    return next(g())",
}
"""Bodies of functions that call one in another module."""


@pytest.fixture
def kit(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A package of the user's, of which nothing is loaded."""
    folder = tmp_path / "kit"
    folder.mkdir()
    (folder / "__init__.py").write_text("def rate(x):\n    from .helper import f\n    return f(x)\n")
    (folder / "helper.py").write_text("FACTOR = 2\n\ndef f(x):\n    return x * FACTOR\n")
    (folder / "other.py").write_text("from .helper import f\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    unload()
    yield folder
    unload()


def unload() -> None:
    """As in another process."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "kit"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def importing(body: str) -> Callable[[int], int]:
    """A function of the package's, as its source would have it."""
    names: dict[str, Any] = {"__name__": "kit.main", "__package__": "kit"}
    helper = "def inner(x):\n    from kit.helper import f\n    return f(x)\n"
    exec(f"{helper}def function(x):\n    {body}\n", names)
    return names["function"]  # type: ignore[no-any-return]  # made by exec


@pytest.mark.parametrize("body", IMPORTING.values(), ids=IMPORTING)
def test_modules_imported_inside(body: str, kit: pathlib.Path) -> None:
    """What a function imports while it runs is followed without being imported, and the same when it is loaded."""
    function = importing(body)
    before = digest(function)
    assert not [name for name in sys.modules if name.startswith("kit")]
    assert None not in before.values()
    assert function(3) == 6
    assert digest(function) == before
    for old, new in (("FACTOR = 2", "FACTOR = 3"), ("x * FACTOR", "x + FACTOR")):
        unload()
        text = (kit / "helper.py").read_text()
        (kit / "helper.py").write_text(text.replace(old, new))
        changed = digest(function)
        assert [name for name in before if changed[name] != before[name]] == ["module kit.helper"]
        before = changed
    (kit / "helper.py").write_text("# Moved.\n" + (kit / "helper.py").read_text())
    assert digest(function) == before


@pytest.mark.parametrize("value", ["getattr(h, 'f')(x)", "vars(h)['f'](x)", "[h][0].f(x)", "(lambda m: m.f(x))(h)"])
@pytest.mark.parametrize("where", ["global", "closure", "default", "argument"])
def test_modules_as_values(value: str, where: str, kit: pathlib.Path) -> None:
    """All of a module counts that is not only looked into by plain names."""
    names: dict[str, Any] = {}
    sources = {
        "global": f"import kit.helper as h\nfunction = lambda x: {value}",
        "closure": f"def make():\n    import kit.helper as h\n    return lambda x: {value}\nfunction = make()",
        "default": f"import kit.helper as m\nfunction = lambda x, h=m: {value}",
        "argument": f"import functools, kit.helper\nfunction = functools.partial(lambda h, x: {value}, kit.helper)",
    }
    exec(sources[where], names)
    before = digest(names["function"])
    assert names["function"](3) == 6
    (kit / "helper.py").write_text("FACTOR = 3\n\ndef f(x):\n    return x * FACTOR\n")
    after = digest(names["function"])
    assert [name for name in before if after[name] != before[name]] == ["module kit.helper"]


@pytest.mark.parametrize(
    ("body", "unknown"),
    [
        ("import kit_elsewhere", "module kit_elsewhere"),
        ("from ... import helper", "imports of function"),
        ("import importlib; importlib.import_module('kit.' + x)", "modules that function imports by name"),
        ("return [__import__(y) for y in x]", "modules that function imports by name"),
        ("import kit.broken", "modules that module kit.broken imports by name"),
    ],
)
def test_modules_that_cannot_be_told(body: str, unknown: str, kit: pathlib.Path) -> None:
    """They have a part without a digest, of which is warned."""
    (kit / "broken.py").write_text("plugins = __import__('a' + 'b')\n")
    parts = digest(importing(body))
    assert [name for name, part in parts.items() if part is None] == [unknown]


def test_modules_of_packages_inside(kit: pathlib.Path) -> None:
    """Installed modules are names, as outside of functions; sources that cannot be compiled are bytes."""
    known = digest(importing("import numpy.linalg, json.decoder, asyncdata as ad; from pytest import raises"))
    assert not [name for name in known if name.startswith("module ")]
    (kit / "helper.py").write_text("this is no source")
    before = digest(importing("import kit.helper"))
    (kit / "helper.py").write_text("nor is this one")
    assert digest(importing("import kit.helper"))["module kit.helper"] != before["module kit.helper"]
