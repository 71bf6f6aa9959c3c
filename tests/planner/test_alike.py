"""Two functions that are made anew are one function, or they are not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.planner.alike import are_alike
from asyncdata.planner.picking import maps_of

SIZES = {"one": 1}


class Scaling:
    """A user's function with a state, and methods."""

    def __init__(self, rate: int) -> None:
        self.rate = rate

    def __call__(self, element: Any) -> Any:
        return element

    def method(self, element: Any) -> Any:
        """A function of one object."""
        return element


SCALING = Scaling(2)


def scaled(rate: Any, element: Any, *, by: Any = 1) -> Any:
    """A function for `partial`."""
    return element, rate, by


def counting_down(path: str, sizes: Any) -> Callable[[Any], Any]:
    """A function that calls itself."""
    del path

    def down(element: Any) -> Any:
        return down(element[1:]) if element else sizes

    return down


def mutual(path: str, _: Any) -> Callable[[Any], Any]:
    """Two functions that call each other, one of which knows its path."""

    def first(element: Any) -> Any:
        return second(element) or path

    def second(element: Any) -> Any:
        return first(element)

    return second


def defaults(path: str, sizes: Any) -> Callable[..., Any]:
    """A function with defaults."""
    del path

    def function(element: Any, sizes: Any = sizes, *, more: Any = sizes) -> Any:
        return element, sizes, more

    return function


SAME: dict[str, Callable[[str, Any], Any]] = {
    "one function": lambda _, __: scaled,
    "lambda": lambda _, __: lambda element: element,
    "what is outside": lambda _, sizes: lambda element: (element, sizes, SIZES),
    "defaults": defaults,
    "calls itself": counting_down,
    "partial": lambda _, sizes: functools.partial(scaled, sizes, by=sizes),
    "partial of a lambda": lambda _, sizes: functools.partial(lambda x, y: (x, y, sizes), sizes),
    "method": lambda _, __: SCALING.method,
    "parser": lambda _, __: ad.parse_example({"f": ad.FixedLenFeature((2,), np.float32, (1.0, 2.0))}),
    "decoder": lambda _, __: ad.decode_image(channels=1),
}
DIFFERENT: dict[str, Callable[[str, Any], Any]] = {
    "its path": lambda path, _: lambda element: (element, path),
    "its path in a default": lambda path, _: lambda element, path=path: (element, path),
    "its path in partial": lambda path, _: functools.partial(scaled, path),
    "its path by keyword": lambda path, _: functools.partial(scaled, 1, by=path),
    "names of keywords": lambda path, _: functools.partial(scaled, **{"rate" if path == "a" else "by": None}),
    "its path inside": mutual,
    "another function": lambda path, _: scaled if path == "a" else mutual,
    "another lambda": lambda path, _: (lambda element: element) if path == "a" else (lambda element: (element,)),
    "a list of its own": lambda _, __: functools.partial(scaled, []),
    "an object of its own": lambda _, __: Scaling(2),
    "a method of its own": lambda _, __: Scaling(2).method,
    "parsers": lambda path, _: ad.parse_example({path: ad.FixedLenFeature((), np.float32)}),
    "a parser and none": lambda path, _: (
        ad.parse_example({path: ad.FixedLenFeature((), np.int64)}) if path == "a" else scaled
    ),
}


def maps(function: Any, **settings: Any) -> Any:
    """The steps of a dataset of one file."""
    return maps_of(ad.TFRecordDataset("x").map(function, **settings)._node)


@pytest.mark.parametrize("kind", [*SAME, *DIFFERENT])
def test_functions_made_anew(kind: str) -> None:
    """What refers to the call that made it is another one for each call."""
    make = {**SAME, **DIFFERENT}[kind]
    made = [make("a", SIZES), make("b", SIZES)]
    assert are_alike(*map(maps, made)) is (kind in SAME)
    assert are_alike(maps(made[0]), maps(made[0]))


def test_how_many_and_how() -> None:
    """Each function counts, and how it is called as far as its result may depend on that."""
    one, two = maps(scaled), [*maps(scaled), *maps(scaled)]
    assert are_alike(two, two)
    assert not are_alike(one, two)
    assert not are_alike(one, [])
    assert are_alike([], [])
    assert not are_alike(one, maps(scaled, zero_copy=True))
    assert are_alike(one, maps(scaled, num_parallel_calls=2))
