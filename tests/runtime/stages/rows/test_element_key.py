"""Elements have one key exactly when they are equal, and stable keys are the same in every process."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import fractions
import hashlib
import itertools
import math
import pathlib
import subprocess
import sys
import uuid
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray
from asyncdata.runtime.stages.rows.element_key import element_key, stable_key

LONG = b"x" * 100
EASTERN = datetime.timezone(datetime.timedelta(hours=2))


@dataclasses.dataclass(frozen=True)
class Sample:
    """Equal by its fields; its repr does not show them all."""

    name: str
    payload: bytes = dataclasses.field(repr=False, default=b"")
    note: str = dataclasses.field(compare=False, default="")


@dataclasses.dataclass(frozen=True)
class Written:
    """A dataclass that says itself what it equals."""

    x: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Written) and self.x % 2 == other.x % 2

    def __hash__(self) -> int:
        return self.x % 2


class Named:
    """Equal by its name; its repr shows something else, such as an address."""

    def __init__(self, name: str, shown: str) -> None:
        self.name = name
        self.shown = shown

    def __repr__(self) -> str:
        return self.shown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class Table:
    """Numbers with names, as those of other packages."""

    columns = property(lambda self: list(self.named))

    def __init__(self, **named: list[int]) -> None:
        self.named = named

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(list(self.named.values()), dtype)

    def __hash__(self) -> int:
        raise TypeError("not hashable")


def masked(values: Any, mask: list[int]) -> Any:
    """An array of which not all values count."""
    return np.ma.masked_array(values, np.array(mask, bool))


def fields(a: Any, b: Any, kinds: str, dirt: int = 0) -> Any:
    """One record of two fields, with a gap between them."""
    array = np.full(16, dirt, np.uint8).view(np.dtype(list(zip("ab", kinds.split(), strict=True)), align=True))
    array["a"], array["b"] = a, b
    return array


def texts(*items: str) -> Any:
    """An array of texts of any length."""
    kind: Any = getattr(np.dtypes, "StringDType", lambda: object)  # NumPy 1 has none
    return np.array(items, kind())


def long_double(dirt: int) -> Any:
    """One value whose padding is not always the same."""
    array = np.array([1.5], np.longdouble)
    raw = array.view(np.uint8)
    raw[10:] = dirt
    return array


CLASSES: dict[str, list[list[Any]]] = {
    "bytes": [[b"", bytearray()], [b"a"], [b"a\0"], [LONG], [hashlib.blake2b(LONG, digest_size=16).digest()]],
    "texts": [[""], ["a"], ["a\0"], ["ä" * 100], ["\udc80"]],
    "numbers": [[1], [True], [1.0], [0.0, -0.0], [math.nan, float("nan")], [2**63], [None]],
    "numpy": [[np.int64(1)], [np.int32(1)], [np.float32(1)], [np.array([1])], [np.array([[1]])], [np.array([1.0])]],
    "zeros": [[np.array([0.0, np.nan]), np.array([-0.0, -np.nan])], [np.array([0.0, 1.0])]],
    "long doubles": [[long_double(0), long_double(255)], [np.array([2.5], np.longdouble)]],
    "lists of numbers": [[[1, 2], np.array([1, 2])], [[1, 2.0]], [[1.0, 2.0]], [[True, 2]], [[[1], [2]]], [[[1, 2]]]],
    "lists of large numbers": [[[2**53 + 1, 1.5]], [[2**53, 1.5]], [[2**63, -1]], [[2**63 + 1, -1]]],
    "lists of bytes": [[[b"a\0", b"bb"]], [[b"a", b"bb"]], [[b"a", "bb"]], [["a", "bb"]], [["a\0", "bb"]]],
    "mixed lists": [[[1, "x" * 21]], [["1", "x" * 21]], [[True, "x"]], [["True", "x"]]],
    "nested lists": [[[[None, 1], [None, 2]]], [[None, 1, None, 2]], [[[1], [2, 3]]], [[[1, 2], [3]]], [[]], [[[]]]],
    "object arrays": [[np.array([["a", "b"]], object)], [np.array([["a"], ["b"]], object)], [np.array("a", object)]],
    "masked arrays": [
        [masked([1, 2], [0, 1]), masked([1, 3], [0, 1])],
        [masked([1, 2], [1, 0])],
        [masked([1, 2], [0, 0])],
        [np.array([1, 2])],
        [masked([1.0, np.nan], [0, 1]), masked([1.0, 5.0], [0, 1])],
        [np.ma.masked],
    ],
    "arrays of texts": [[texts("a" * 40, "b"), texts("a" * 40, "b")], [texts("c" * 40, "b")], [texts("a", "b")]],
    "records": [
        [fields(1, 2, "i4 i8"), fields(1, 2, "i4 i8", 255)],
        [fields(1, 3, "i4 i8")],
        [fields(1, 2, "u4 i8")],
    ],
    "records with objects": [
        [np.array([(1, [1000])], "i8, O"), np.array([(1, [int("1000")])], "i8, O")],
        [np.array([(1, [2000])], "i8, O")],
    ],
    "tables": [[Table(a=[1, 2]), Table(a=[1, 2])], [Table(b=[1, 2])], [Table(a=[1, 3])]],
    "nests": [[{"a": 1, "b": 2}], [{"a": 1, "c": 2}], [(1, 2)], [((1,), 2)], [{"a": (1, 2)}]],
    "orders of keys": [
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{"a": 2, "b": 1}, {"b": 1, "a": 2}],
        [({"a": 1, 5: {"x": 1, "y": 2}},), ({5: {"y": 2, "x": 1}, "a": 1},)],
        [({"a": 1, 5: {"x": 2, "y": 1}},)],
    ],
    "dicts in lists": [[[{"a": 1, "b": 2}], [{"b": 2, "a": 1}]], [[{"a": 2, "b": 1}]], [[{"a": 1}]]],
    "sets": [[{1, 2}, {2, 1}, frozenset((1, 2))], [{1, "2"}], [{1}]],
    "arrays of strings": [[BytesArray.from_items([b"a", b"b"])], [BytesArray.from_items([b"ab", b""])]],
    "ragged": [
        [RaggedArray.from_rows([np.array([1]), np.array([2, 3])])],
        [RaggedArray.from_rows([np.array([1, 2]), np.array([3])])],
    ],
    "samples": [[Sample("a", b"1"), Sample("a", b"1", "x")], [Sample("a", b"2")], [Sample("b", b"1")]],
    "decimals": [
        [decimal.Decimal("1.0"), decimal.Decimal("1.00")],
        [decimal.Decimal("1.1")],
        [fractions.Fraction(1, 3)],
    ],
    "times": [
        [datetime.datetime(2020, 1, 1, 12, tzinfo=EASTERN), datetime.datetime(2020, 1, 1, 10, tzinfo=datetime.UTC)],
        [datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)],
        [datetime.date(2020, 1, 1)],
        [datetime.timedelta(1)],
    ],
    "others": [[uuid.UUID(int=1)], [uuid.UUID(int=2)], [pathlib.PurePosixPath("a")], [range(3)], [1 + 2j], [1 - 2j]],
}


@pytest.mark.parametrize("key", [element_key, lambda element: repr(stable_key(element))], ids=["in process", "stable"])
@pytest.mark.parametrize("name", CLASSES)
def test_keys_are_equal_exactly_where_elements_are(name: str, key: Callable[[Any], Hashable]) -> None:
    """Each inner list holds elements that are equal; those of two lists are not, as elements and inside of others."""
    wraps: list[Callable[[Any], Any]] = [lambda x: x, lambda x: {"a": x, "b": [x, "y"]}]
    for wrap in wraps:
        classes = [{key(wrap(element)) for element in equal} for equal in CLASSES[name]]
        assert all(len(keys) == 1 for keys in classes), classes
        for one, other in itertools.combinations(classes, 2):
            assert one != other


def test_an_object_whose_equality_nobody_knows_has_no_stable_key() -> None:
    """In one process it says itself what it equals."""
    assert element_key(Written(1)) == element_key(Written(3)) != element_key(Written(2))
    for element in (Written(1), [Written(1)], {"a": Written(1)}):
        with pytest.raises(TypeError, match=r"class Written has no key.*map\(\)"):
            stable_key(element)


def test_sets_of_objects_are_equal_whatever_these_look_like() -> None:
    """In one process; there is no stable key."""
    one = [Named("a", "0x1"), Named("b", "0x2")]
    other = [Named("a", "0x2"), Named("b", "0x1")]
    for make in (set, frozenset, dict.fromkeys):
        assert element_key([make(one)]) == element_key([make(other)]) != element_key([make(one[:1])])


def test_stable_keys_are_the_same_in_another_process() -> None:
    """Whatever its hashes are seeded with."""
    code = (
        "from tests.runtime.stages.rows.test_element_key import CLASSES, stable_key\n"
        "print([[repr(stable_key(element)) for element in equal] for all in CLASSES.values() for equal in all])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
