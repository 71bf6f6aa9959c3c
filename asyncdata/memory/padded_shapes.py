"""The shapes that `padded_batch` pads to, as users write them: nested like the elements, a leaf's in several ways."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np

from asyncdata.errors import UnbatchableError
from asyncdata.memory.structure import DictOf, RecordOf, Structure, TupleOf, leaf_count

Shape: TypeAlias = "tuple[int | None, ...] | None"
"""Per axis the length, None for the longest of the batch; None for this with every axis."""

_MISSING: Final = object()


def arranged(structure: Structure, given: Any, what: str) -> Iterable[Any]:
    """What was given for every leaf, in the order of the leaves; None in the place of a nest is None for all of it.

    Raises:
        UnbatchableError: It is nested in another way than the elements.
    """
    if given is None:
        yield from [None] * leaf_count(structure)
    elif isinstance(structure, TupleOf):
        if not isinstance(given, tuple | list) or len(given) != len(structure.children):
            raise UnbatchableError(f"{what} must be nested like the elements: a tuple of {len(structure.children)}")
        for child, part in zip(structure.children, given, strict=True):
            yield from arranged(child, part, what)
    elif isinstance(structure, DictOf):
        if not isinstance(given, dict) or set(given) != set(structure.keys):
            raise UnbatchableError(f"{what} must be nested like the elements: a dict with keys {list(structure.keys)}")
        for key, child in zip(structure.keys, structure.children, strict=True):
            yield from arranged(child, given[key], what)
    elif isinstance(structure, RecordOf):
        for field, child in zip(structure.fields, structure.children, strict=True):
            part = given.get(field, _MISSING) if isinstance(given, dict) else getattr(given, field, _MISSING)
            if part is _MISSING:
                raise UnbatchableError(f"{what} must be nested like the elements: a dict with {list(structure.fields)}")
            yield from arranged(child, part, what)
    else:
        yield given


def as_shape(given: Any) -> Shape:
    """A shape as the user writes it: None, or numbers with None or -1 for unknown ones; a number for one axis."""
    if given is None:
        return None
    if isinstance(given, int | np.integer):
        given = (given,)
    try:
        extents = [extent if extent is None else operator.index(extent) for extent in given]
        shape = tuple(None if extent is None or extent < 0 else extent for extent in extents)
    except (TypeError, ValueError) as error:
        raise UnbatchableError(f"a padded shape is a sequence of int or None, not {given!r}") from error
    return shape
