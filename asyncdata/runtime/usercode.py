"""Calling functions that users wrote, and saying which element they failed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncdata.memory.advance import Rows
from asyncdata.runtime.sourcetable import SourceTable
from asyncdata.types import Element
from asyncdata.workers.failure import annotate
from asyncdata.workers.program import generator


def function_name(function: Callable[..., Any]) -> str:
    """A function's name for labels: qualified, or its class's name."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).replace("<locals>.", "")


class UserFunction:
    """A function of one element, called where the pipeline runs.

    A tuple element is unpacked into the arguments. An exception keeps its type and traceback and gains a note with the
    stage and the element's provenance.

    Args:
        function: The user's function.
        label: The stage's name.
        sources: For naming the record.
        keys: Key of the random generators, when the function takes one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        label: str,
        sources: SourceTable,
        keys: tuple[int, int] | None = None,
    ) -> None:
        self._function = function
        self._label = label
        self._sources = sources
        self._keys = keys

    def __call__(self, element: Element, origin: Rows) -> Any:
        try:
            if self._keys is not None:
                rng = generator(self._keys, origin, 0)
                return self._function(*element, rng=rng) if isinstance(element, tuple) else self._function(element, rng=rng)
            return self._function(*element) if isinstance(element, tuple) else self._function(element)
        except Exception as error:
            annotate(error, f"in {self._label}, {self._sources.name_element(origin)}")
            raise
