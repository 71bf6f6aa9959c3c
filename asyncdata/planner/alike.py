"""Whether the functions of two plans are the same one, so that what one makes of an element the other makes, too.

A function inside another function is made anew by each call: `lambda path: TFRecordDataset(path).map(lambda x: x + 1)`.
Two of them are the same if they have the same code and refer to the same objects. Whoever refers to what its own call
was given is another function.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import types
from collections.abc import Iterable, Sequence
from typing import Any

from asyncdata.plan.transformations import Map


def are_alike(first: Sequence[Map], second: Sequence[Map]) -> bool:
    """Whether two datasets make the same of each element by their functions, one after the other."""
    same = _Same()
    return len(first) == len(second) and all(
        a.zero_copy == b.zero_copy and same(a.setup, b.setup) and same(a.function, b.function)
        for a, b in zip(first, second, strict=True)
    )


class _Same:
    """Whether two objects are the same function, or the same object."""

    def __init__(self) -> None:
        self._asked: set[tuple[int, int]] = set()

    def __call__(self, a: Any, b: Any) -> bool:
        # A function that calls itself is the same one as another if everything else is.
        if a is b or (id(a), id(b)) in self._asked:
            return True
        self._asked.add((id(a), id(b)))
        if type(a) is not type(b):
            return False
        if isinstance(a, types.FunctionType):
            return a.__code__ is b.__code__ and self._all(_refers_to(a), _refers_to(b))
        if isinstance(a, types.MethodType):
            return a.__self__ is b.__self__ and self(a.__func__, b.__func__)
        if isinstance(a, functools.partial):
            ours, theirs = [(part.func, *part.args, *part.keywords, *part.keywords.values()) for part in (a, b)]
            return self._all(ours, theirs)
        with contextlib.suppress(
            Exception
        ):  # what ready-made functions were given, and are nothing but, may be anything
            return type(a).__module__.startswith("asyncdata.") and pickle.dumps(a) == pickle.dumps(b)
        return False

    def _all(self, first: Iterable[Any], second: Iterable[Any]) -> bool:
        ours, theirs = list(first), list(second)
        return len(ours) == len(theirs) and all(map(self, ours, theirs))


def _refers_to(function: types.FunctionType) -> Iterable[Any]:
    yield from function.__defaults__ or ()
    for name, value in (function.__kwdefaults__ or {}).items():
        yield from (name, value)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it has no value yet
            yield cell
