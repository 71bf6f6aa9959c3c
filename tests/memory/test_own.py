"""What a function has returned is the pipeline's: copied, unless nobody else has it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.own import settled

NESTS: list[Callable[[Any], Any]] = [
    lambda array: array,
    lambda array: {"a": array, "b": 1},
    lambda array: (array, 1),
    lambda array: {"a": (array, 2)},
    lambda array: [array],
]


def array_in(nest: Any) -> Any:
    """The only array in one of these."""
    while not isinstance(nest, np.ndarray):
        nest = nest["a"] if isinstance(nest, dict) else nest[0]
    return nest


@pytest.mark.parametrize("nest", NESTS)
def test_who_keeps_an_array_may_fill_it_again(nest: Callable[[Any], Any]) -> None:
    """Whether the array, a view of it, or the nest it is in was kept."""
    kept = np.zeros(4)
    value = nest(kept)
    found = settled(value)
    kept[:] = 1
    assert not array_in(found).any()
    value = nest(kept[:2])
    found = settled(value)
    kept[:] = 2
    assert (array_in(found) == 1).all()
    whole = nest(np.zeros(4))
    held = [whole]
    found = settled(whole)
    array_in(held[0])[:] = 1
    assert not array_in(found).any()


def test_a_dict_that_is_filled_again() -> None:
    """What is put into it later is not seen."""
    kept: dict[str, Any] = {"a": np.zeros(4)}
    found = settled(kept)
    kept["a"] = 5
    assert not found["a"].any()


def place(array: Any) -> int:
    """Where an array has its values."""
    address: int = array.__array_interface__["data"][0]
    return address


@pytest.mark.parametrize("nest", NESTS[:3])
def test_what_was_just_made_is_not_copied(nest: Callable[[Any], Any]) -> None:
    """Neither alone nor in a dict or tuple that was just made."""
    places: list[int] = []

    def make() -> Any:
        array = np.zeros(4)
        places.append(place(array))
        return nest(array)

    value = make()
    assert place(array_in(settled(value))) == places[0]


def test_an_array_that_is_found_again_without_being_held() -> None:
    """In a cache of weak references."""
    kept: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    value = {"a": kept.setdefault(0, np.zeros(4))}
    found = settled(value)
    kept[0][:] = 1
    assert not found["a"].any()


class Frozen(dict[str, Any]):
    """A dict that cannot be changed."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("frozen")

    def __copy__(self) -> Frozen:
        return self


@pytest.mark.parametrize("nest", [lambda item: item, lambda item: (item, 1), lambda item: {"a": item}])
def test_dicts_that_cannot_be_changed(nest: Callable[[Any], Any]) -> None:
    """They become plain ones, wherever they are."""
    value = nest(Frozen(b=[1]))
    found = settled(value)
    while "b" not in found:
        found = found["a"] if isinstance(found, dict) else found[0]
    assert found == {"b": [1]}
    assert type(found) is dict
