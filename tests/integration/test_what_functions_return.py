"""What a function returns arrives as it is, wherever the function ran; what cannot be batched is refused, not bent."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from tests.faults.programs import run

PLACES = ["inline", "thread", "process"]

FIELDS = np.dtype([("a", "<i4"), ("b", ">f8"), ("c", "<u1", (3,))])
Pair = collections.namedtuple("Pair", ["number", "name"])  # noqa: PYI024 -- the kind that has no annotations

ALIKE: dict[str, Callable[[int], Any]] = {
    "part of an array": lambda x: np.arange(24).reshape(4, 6)[1:3, ::2] + x,
    "backwards": lambda x: np.arange(12)[::-1] + x,
    "columns first": lambda x: np.asfortranarray(np.arange(12.0).reshape(3, 4) + x),
    "one number many times": lambda x: np.broadcast_to(np.int16(x), (3, 4)),
    "at an odd address": lambda x: np.frombuffer(bytes([x]) * 17, np.uint8)[1:].view(np.int64),
    "no rows": lambda _: np.zeros((0, 3)),
    "no columns": lambda _: np.zeros((3, 0), np.int8),
    "other byte order": lambda x: np.arange(5, dtype=">i4") * np.array(x, ">i4"),
    "bools": lambda x: np.array([x % 2 == 0, True]),
    "dates": lambda x: np.array(["2020-01-01", "NaT"], "M8[ns]") + x,
    "durations": lambda x: np.timedelta64(int(x), "s"),
    "half": np.float16,
    "complex": lambda x: complex(x, 1),
    "text with zeros": lambda x: f"{x}\0\0",
    "bytes with zeros": lambda x: b"%d\0\0" % x,
    "nested": lambda x: {"a": (x, {"b": np.arange(2) + x}), "c": b"x" * int(x)},
    "empty tuple": lambda _: (),
    "named": lambda x: Pair(x, "n" * int(x)),
    "more than a slab": lambda x: np.full(1_000_000, x, np.uint8),
}
"""These can be batched, too."""

ODD: dict[str, Callable[[int], Any]] = {
    "fields": lambda x: np.array([(x, 2.0, (1, 2, 3))], FIELDS),
    "one with fields": lambda x: np.array([(x, 2.0, (1, 2, 3))], FIELDS)[0],
    "fields with objects": lambda x: np.array([(x, "zz")], [("a", "i4"), ("b", "O")]),
    "objects": lambda x: np.array([x, "a", None], object),
    "raw bytes": lambda _: np.zeros(3, "V5"),
    "masked": lambda x: np.ma.masked_array([1, 2, x], mask=[False, True, False]),
    "half a character": lambda x: f"{x}\ud800",
    "none": lambda _: None,
    "set": lambda x: {1, int(x)},
    "large": lambda x: 2**70 + int(x),
    "mapping": lambda x: collections.UserDict(a=[x, 1], b=[2, 3]),
}
"""These are elements, but no part of a batch."""


@pytest.fixture
def runtime() -> Iterator[ad.Runtime]:
    """One worker process for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=1, memory_limit_bytes=64 << 20)) as runtime:
        yield runtime


def mapped(function: Callable[[int], Any], place: str) -> ad.Dataset:
    """The function over some numbers."""
    return ad.Dataset.range(5).map(function, None if place == "inline" else 2, executor=place)


def same(one: Any, other: Any) -> bool:
    """Whether two elements are alike to the last bit and type."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ma.MaskedArray):
        return same(one.filled(0), other.filled(0)) and same(np.ma.getmaskarray(one), np.ma.getmaskarray(other))
    if isinstance(one, np.ndarray | np.generic):
        content = (lambda array: repr(array.tolist())) if one.dtype.hasobject else (lambda array: array.tobytes())
        return one.dtype == other.dtype and one.shape == other.shape and content(one) == content(other)
    return bool(one == other)


@pytest.mark.usefixtures("runtime")
def test_it_makes_no_difference_where_a_function_runs() -> None:
    """Types, shapes, masks, fields and texts are those of the call that ran on the loop."""
    for case, function in (ALIKE | ODD).items():
        expected = list(mapped(function, "inline"))
        assert len(expected) == 5
        for place in ("thread", "process"):
            found = list(mapped(function, place))
            assert same(tuple(expected), tuple(found)), (case, place, expected, found)


@pytest.mark.usefixtures("runtime")
def test_batches_are_the_same_too() -> None:
    """Whoever stacks them."""
    for case, function in ALIKE.items():
        expected = list(mapped(function, "inline").batch(3))
        assert len(expected) == 2
        for place in ("thread", "process"):
            found = list(mapped(function, place).batch(3))
            assert same(tuple(expected), tuple(found)), (case, place, expected, found)


@pytest.mark.usefixtures("runtime")
def test_what_is_no_part_of_a_batch_is_refused() -> None:
    """No mask, field or character is dropped to make it fit; the error names the stage."""
    for function in ODD.values():
        for place in PLACES:
            with pytest.raises(ad.UnbatchableError) as caught:
                list(mapped(function, place).batch(3))
            assert "batch(3)" in (caught.value.stage or "")
            assert "element 0 of range" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("kind", ["padded_batch", "ragged_batch"])
@pytest.mark.parametrize("case", ["masked", "half a character", "mapping"])
def test_nor_of_batches_of_uneven_elements(case: str, kind: str) -> None:
    """The same for those that pad, and those that keep lengths."""
    with pytest.raises(ad.UnbatchableError, match=r"mask|UTF-8|dict\(") as caught:
        list(getattr(mapped(ODD[case], "inline"), kind)(3))
    assert f"{kind}(3)" in (caught.value.stage or "")


@pytest.mark.parametrize("place", PLACES)
def test_nor_of_the_rows_of_an_element(place: Any) -> None:
    """What is taken apart keeps its mask, or is refused."""
    ds = mapped(ODD["masked"], place)
    for taken_apart in (ds.unbatch(), ds.rebatch(2)):
        with pytest.raises(ad.UnbatchableError, match="mask would be lost"):
            list(taken_apart)


@pytest.mark.usefixtures("runtime")
@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="this numpy has no such strings")
@pytest.mark.parametrize("place", PLACES)
def test_arrays_of_texts_of_any_length_are_elements(place: str) -> None:
    """Their rows are texts; as they are they make no batch, which is an error that names their dtype."""

    def texts(x: int) -> Any:
        return np.array(["a" * 40, f"{x}"], np.dtypes.StringDType())

    ds = mapped(texts, place)
    assert [array.tolist() for array in ds.take(2)] == [["a" * 40, "0"], ["a" * 40, "1"]]
    for batches in (ds.unbatch().batch(2), ds.rebatch(2)):
        assert [batch.tolist() for batch in batches.take(2)] == [["a" * 40, "0"], ["a" * 40, "1"]]
    vectorized = ds.map(lambda arrays: arrays, vectorized=True)
    assert [array.tolist() for array in vectorized.take(2)] == [["a" * 40, "0"], ["a" * 40, "1"]]
    for refused in (ds.batch(2), ds.padded_batch(2), ds.ragged_batch(2), vectorized.batch(2)):
        with pytest.raises(ad.UnbatchableError, match="StringDType"):
            list(refused)


def test_the_keys_of_a_mapping_are_no_rows() -> None:
    """One that is no dict, such as the output of a tokenizer, is an object, of which NumPy would see the keys only."""
    ds = mapped(ODD["mapping"], "inline")
    with pytest.raises(ad.UnbatchableError, match=r"dict\("):
        list(ds.unbatch())
    with pytest.raises(TypeError, match="make a dict of it"):
        ad.Dataset.from_tensor_slices((ODD["mapping"](1), [1, 2]))
    assert list(ds.map(lambda mapping: mapping, vectorized=True)) == list(ds)
    assert [batch["a"].tolist() for batch in ds.map(dict).batch(5)] == [[[x, 1] for x in range(5)]]


def test_masked_arrays_reach_vectorized_functions_as_they_are() -> None:
    """As objects, since no array of several of them would have their masks."""
    ds = mapped(ODD["masked"], "inline")
    assert same(tuple(ds.map(lambda arrays: arrays, vectorized=True)), tuple(ds))


@pytest.mark.usefixtures("runtime")
def test_functions_are_given_arrays_with_fields() -> None:
    """Rows of a source keep their fields on the way to a function."""
    rows = np.array([(1, 2.5, (1, 2, 3)), (4, 5.5, (4, 5, 6))], FIELDS)
    source = ad.Dataset.from_tensor_slices(rows)
    for place in PLACES:
        dataset = source.map(lambda row: (row["a"], row["b"], row["c"].sum()), 2, executor=place)
        assert list(dataset) == [(1, 2.5, 6), (4, 5.5, 15)]


@pytest.mark.usefixtures("runtime")
def test_a_text_may_be_followed_by_one_that_is_no_unicode() -> None:
    """Those before it, which were written in place, stay what they are."""

    def name(x: int) -> Any:
        return ("ä" * int(x), b"b" * int(x), int(x)) if x < 3 else ("\udcff", b"", 7)

    expected = [("", b"", 0), ("ä", b"b", 1), ("ää", b"bb", 2), ("\udcff", b"", 7), ("\udcff", b"", 7)]
    for place in PLACES:
        assert list(mapped(name, place)) == expected


def test_classes_of_a_script_come_back_as_themselves() -> None:
    """Namedtuples, dataclasses and enums of ``__main__``, from worker processes; with a batch and without."""
    code, out, err = run("""
        import collections, dataclasses, enum
        Pair = collections.namedtuple("Pair", "a b")
        class Color(enum.Enum):
            RED = 1
        @dataclasses.dataclass
        class Plain:
            x: int
        @ad.register_dataclass
        @dataclasses.dataclass
        class Point:
            x: int
            y: str
        def make(x):
            return Pair(Point(x, "y"), (Color.RED, Plain(int(x))))
        def stackable(x):
            return Pair(Point(x, "y"), b"b")
        def ragged(x):
            return Pair(np.zeros(int(x)), x)
        for isolate in (False, True):
            with ad.Runtime(ad.Options(num_workers=1, isolate=isolate)):
                (one,) = ad.Dataset.range(1).map(make, 2)
                assert type(one) is Pair and type(one.a) is Point and one.b == (Color.RED, Plain(0)), one
                (one,) = ad.Dataset.range(2).map(stackable, 2).batch(2)
                assert type(one) is Pair and type(one.a) is Point and one.a.x.tolist() == [0, 1], one
                one, two = ad.Dataset.range(2).map(ragged, 2)
                assert type(two) is Pair and two.a.shape == (1,), two
                (one,) = ad.Dataset.range(1).map(make).map(lambda pair: (pair.a, pair.b), 2)
                assert type(one[0]) is Point and one[1][0] is Color.RED, one
                source = ad.Dataset.from_generator(lambda: [Plain(1), Plain(2)])
                assert list(source.map(lambda plain: plain.x, 2)) == [1, 2]
        say("done")
    """)
    assert (code, out, err) == (0, "done\n", "")
