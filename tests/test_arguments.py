"""Checks of single arguments: what they take, what they give back, and what they say."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import arguments


@pytest.mark.parametrize("value", [3, 0.5, np.float32(2.5), np.int64(3), math.inf])
def test_numbers_are_taken_as_they_are(value: Any) -> None:
    """As Python's numbers, without a change of value."""
    found = arguments.number("x", value, least=0)
    assert found == value
    assert type(found) in (int, float)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (-1, {"least": 0}, "x must be at least 0, not -1"),
        (math.nan, {"least": 0}, "x must be at least 0, not nan"),
        (math.nan, {"least": 0, "most": 1}, "x must be from 0 to 1, not nan"),
        (2, {"least": 0, "most": 1}, "x must be from 0 to 1, not 2"),
        (0, {"above": 0}, "x must be greater than 0, not 0"),
    ],
)
def test_numbers_out_of_bounds_are_refused(value: float, bounds: dict[str, float], message: str) -> None:
    """NaN is within no bounds."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        arguments.number("x", value, **bounds)


@pytest.mark.parametrize("value", [True, "1", None, 1j, [1]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    """Bools among it: they are never meant."""
    with pytest.raises(TypeError, match="x must be a number"):
        arguments.number("x", value)
    with pytest.raises(TypeError, match="x must be an integer"):
        arguments.integer("x", value)


def test_integers_are_bounded() -> None:
    """By what is wanted, and by 64 bits; AUTOTUNE may stand below."""
    assert arguments.integer("x", -1, least=1, autotune=True) == -1
    with pytest.raises(ValueError, match="x must be AUTOTUNE, or at least 1, not -2"):
        arguments.integer("x", -2, least=1, autotune=True)
    with pytest.raises(ValueError, match="x must fit in 64 bits"):
        arguments.integer("x", -(2**63) - 1)
    assert arguments.integer_or_none("x", None, least=1) is None
    with pytest.raises(TypeError, match=r"x must be an integer or None, not 1\.5"):
        arguments.integer_or_none("x", 1.5)
    assert arguments.seed("x", 2**70) == 2**70
    with pytest.raises(TypeError, match="x must be an integer or None, not True"):
        arguments.seed("x", True)


def test_flags_are_true_or_false() -> None:
    """Also numpy's, and 1 and 0."""
    assert [arguments.flag("x", value) for value in (True, np.True_, 1, False, np.False_, 0)] == [True] * 3 + [
        False
    ] * 3
    assert arguments.flag_or_none("x", None) is None
    for wrong in (None, 2, "yes", 1.0, np.int64(1)):
        with pytest.raises(TypeError, match="x must be True or False"):
            arguments.flag("x", wrong)
    for number in (0, 1):
        with pytest.raises(TypeError, match=f"x must be True or False, not {number}"):
            arguments.flag("x", number, strict=True)


def test_options_take_no_number_for_a_flag_and_no_flag_for_a_number() -> None:
    """By the name of the option; of all of them."""
    kinds: tuple[Any, ...] = (ad.Options, ad.RetryOptions, ad.TimeoutOptions, ad.HedgeOptions, ad.ErrorPolicy)
    for kind in kinds:
        for field in dataclasses.fields(kind):
            default = getattr(kind(), field.name)
            if isinstance(default, bool):
                wrong: tuple[Any, ...] = (0, 1, "yes", None)
            elif isinstance(default, int | float) or field.name in ("seed", "max_skipped", "max_fraction"):
                wrong = (True, False, "1")
            else:
                continue
            for value in wrong:
                with pytest.raises(TypeError, match=f"^{field.name} must be"):
                    kind(**{field.name: value})


def test_dtypes_may_be_others() -> None:
    """TensorFlow's know numpy's; None, which is float64 to numpy, is none."""
    assert arguments.dtype("x", SimpleNamespace(as_numpy_dtype=np.int32)) == np.int32
    assert arguments.dtype("x", "f4") == np.float32
    for wrong in (None, "rubbish", 5):
        with pytest.raises(TypeError, match="x must be a dtype of numpy's"):
            arguments.dtype("x", wrong)
    with pytest.raises(TypeError, match="x must be a dtype of numbers, not <U1"):
        arguments.dtype("x", "U1")


def test_one_of_several_values_is_one_of_their_type() -> None:
    """0 is not False, nor None."""
    assert arguments.choice("x", "a", ("a", None)) == "a"
    assert arguments.choice("x", None, ("a", None)) is None
    for wrong in (0, "b", np.arange(2), ["a"]):
        with pytest.raises(ValueError, match="x must be 'a' or None"):
            arguments.choice("x", wrong, ("a", None))


def test_names_of_files_are_texts() -> None:
    """Given as paths, as bytes, alone or in a list; sets have no order, and dicts are no lists."""
    assert arguments.urls("x", Path("/a")) == ("/a",)
    assert arguments.urls("x", ["gs://b/c", b"d"]) == ("gs://b/c", "d")
    for wrong in ({"a"}, {"a": 1}, 5, [5], None):
        with pytest.raises(TypeError, match="x must be a str"):
            arguments.urls("x", wrong)


def test_functions_are_plain_where_they_must_be() -> None:
    """Objects that are called like an async function are no plain ones."""

    async def later() -> None:
        """Nothing."""

    class Later:
        async def __call__(self) -> None:
            """Nothing."""

    assert arguments.plain_function("f", len) is len
    assert arguments.function("f", later) is later
    for wrong in (later, Later()):
        with pytest.raises(TypeError, match="f must be a plain function"):
            arguments.plain_function("f", wrong)
    with pytest.raises(TypeError, match="f must be a function, not 'len'"):
        arguments.function("f", "len")
