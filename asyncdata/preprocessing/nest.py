"""Functions, or learners, by the leaves of an element: dicts and tuples of them, nested like the elements.

    elements   {"age": …, "city": …, "id": …}      (x, y)
    learners   {"age": Normalization(),            (Normalization(), None)
                "city": Vocabulary()}

A dict names some of the keys. In a tuple, None means a part that does not change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from asyncdata import arguments
from asyncdata.preprocessing.function import described, to_text, write

Nest: TypeAlias = "Mapping[str, Any] | tuple[Any, ...] | Any"
Path: TypeAlias = tuple[Any, ...]


class ByLeaf:
    """A picklable map function that applies functions to the leaves of an element, and keeps the other leaves.

    Attributes:
        functions: Dicts and tuples of functions, nested like the elements; None keeps a part as it is.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.from_tensor_slices({"x": [1.0, 3.0], "id": [7, 8]}).batch(2)
        >>> learned = ad.adapt(ds, {"x": ad.Normalization(axis=None)})
        >>> list(ds.map(learned))
        [{'x': array([-1.,  1.], dtype=float32), 'id': array([7, 8])}]
        >>> learned["x"]
        Normalize(mean=2.0, variance=1.0, invert=False)
    """

    def __init__(self, functions: Nest) -> None:
        self.functions = functions

    def __call__(self, *parts: Any) -> Any:
        """Returns the element with the functions' results in it. A tuple may be passed in parts, as `map` does.

        Raises:
            KeyError: The element has no such leaf.
            TypeError: It is nested otherwise.
        """
        return _applied(self.functions, whole(self.functions, parts), ())

    def __getitem__(self, key: Any) -> Any:
        return self.functions[key]

    def __eq__(self, other: object) -> bool:
        return self.functions == other.functions if isinstance(other, ByLeaf) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compared by content, like a dict

    def __repr__(self) -> str:
        return f"ByLeaf({self.functions!r})"

    def __element_spec__(self, given: Any) -> Any:
        """Returns the spec of the result for an element of the spec `given`."""
        try:
            return _applied(self.functions, given, (), lambda function: function.__element_spec__)
        except (KeyError, TypeError):
            return None

    def to_json(self) -> str:
        """Returns all functions as a JSON text."""
        return to_text({"leaves": _written(self.functions)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all functions to a local file of JSON, which is replaced as a whole.

        Raises:
            OSError: The file cannot be written.
        """
        write(path, self.to_json())


def whole(nest: Nest, parts: tuple[Any, ...]) -> Any:
    """Returns the element that `map` passes: a tuple in parts, a namedtuple and everything else as it is."""
    if len(parts) != 1:
        return parts
    is_whole = _is_namedtuple(parts[0]) or (isinstance(parts[0], tuple) and isinstance(nest, tuple) and len(nest) > 1)
    return parts[0] if is_whole or not isinstance(nest, tuple) else parts


def leaves_of(nest: Nest, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields the leaves of a nest with their paths."""
    if isinstance(nest, Mapping):
        for key, part in nest.items():
            yield from leaves_of(part, (*path, key))
    elif isinstance(nest, tuple):
        for index, part in enumerate(nest):
            yield from leaves_of(part, (*path, index))
    elif nest is not None:
        yield path, nest


def filled(nest: Nest, values: Iterator[Any]) -> Nest:
    """Returns the nest with other leaves, taken in the order of `leaves_of`."""
    if isinstance(nest, Mapping):
        return {key: filled(part, values) for key, part in nest.items()}
    if isinstance(nest, tuple):
        return tuple(filled(part, values) for part in nest)
    return None if nest is None else next(values)


def paired(nest: Nest, element: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Yields the leaves of a nest with their paths and what an element has there.

    Raises:
        KeyError: It has no such leaf.
        TypeError: It is nested otherwise.
    """
    if isinstance(nest, Mapping):
        for key, part in nest.items():
            yield from paired(part, _part(element, key, path), (*path, key))
    elif isinstance(nest, tuple):
        for index, (part, at) in enumerate(zip(nest, _parts(nest, element), strict=True)):
            yield from paired(part, at, (*path, index))
    elif nest is not None:
        if isinstance(element, tuple | Mapping):
            where = f"the leaf {name_of(path)!r}" if path else "an element"
            raise TypeError(f"functions must be nested like the elements: {where} is {arguments.shown(element)}")
        yield path, nest, element


def name_of(path: Path) -> str:
    """Returns the path as messages show it: ``image.size``, ``[0]``; empty for an element that is a single leaf."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors inside tell in a note which leaf they are about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if path:
            error.add_note(f"in the leaf {name_of(path)!r}")
        raise


def _part(element: Any, key: Any, path: Path) -> Any:
    if isinstance(element, dict | tuple):
        with suppress(KeyError, IndexError, TypeError):
            return element[key]
    has = sorted(map(str, element)) if isinstance(element, Mapping) else arguments.shown(element)
    raise KeyError(f"elements have no leaf {name_of((*path, key))!r}: here is {has}")


def _parts(nest: tuple[Any, ...], element: Any) -> tuple[Any, ...]:
    if not isinstance(element, tuple) or len(element) != len(nest):
        raise TypeError(f"the functions are for tuples of {len(nest)} parts, not for {arguments.shown(element)}")
    return element


def _applied(nest: Nest, element: Any, path: Path, call: Callable[[Any], Any] = lambda function: function) -> Any:
    if nest is None:
        return element
    if isinstance(nest, Mapping):
        made = {k: _applied(n, _part(element, k, path), (*path, k), call) for k, n in nest.items()}
        return {**element, **made}
    if isinstance(nest, tuple):
        pairs = zip(nest, _parts(nest, element), strict=True)
        parts = [_applied(n, part, (*path, i), call) for i, (n, part) in enumerate(pairs)]
        return type(element)(*parts) if _is_namedtuple(element) else tuple(parts)
    with named(path):
        return call(nest)(element)


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _written(nest: Nest) -> Any:
    if isinstance(nest, Mapping):
        return {"dict": [[key, _written(part)] for key, part in nest.items()]}
    if isinstance(nest, tuple):
        return {"tuple": [_written(part) for part in nest]}
    return None if nest is None else described(nest)
