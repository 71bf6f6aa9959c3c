"""The declared types of a generator's elements, in tf.data's three ways, and the conversion to them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.arguments import is_async_generator
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.structure import LEAF, DictOf, Structure, TupleOf, flatten, flatten_as, unflatten
from asyncdata.spec import ArraySpec, BytesSpec, DatasetSpec, RaggedSpec, StrSpec

_SPECS = (ArraySpec, BytesSpec, StrSpec, RaggedSpec, DatasetSpec)


def signature_of(types: Any, shapes: Any, signature: Any) -> Any:
    """Returns the spec of the elements, or None if nothing is declared.

    Raises:
        TypeError: Both a signature and types are given, or shapes do not nest like the types.
    """
    if signature is not None:
        if types is not None or shapes is not None:
            raise TypeError("output_signature replaces output_types and output_shapes; give one or the other")
        leaves, structure = flatten(signature)
        return unflatten(structure, map(_spec, leaves))
    if types is None:
        if shapes is not None:
            raise TypeError("output_shapes needs output_types")
        return None
    leaves, structure = flatten(types)
    if shapes is None:
        return unflatten(structure, (_typed(leaf, None) for leaf in leaves))
    parts: list[Any] = []
    # A shape is itself a tuple, so it is a leaf only where the types have a leaf.
    _shapes_as(types, shapes, parts)
    return unflatten(structure, map(_typed, leaves, parts))


def _shapes_as(types: Any, shapes: Any, parts: list[Any]) -> None:
    if isinstance(types, tuple | dict):
        if type(shapes) is not type(types) or len(shapes) != len(types):
            raise TypeError(f"output_shapes {shapes!r} do not nest like output_types {types!r}")
        keys: Any = range(len(types)) if isinstance(types, tuple) else types
        for key in keys:
            _shapes_as(types[key], shapes[key], parts)
        return
    parts.append(shapes)


def _spec(leaf: Any) -> Any:
    if isinstance(leaf, _SPECS):
        return leaf
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        raise TypeError(
            f"every part of output_signature must be an ArraySpec, BytesSpec or StrSpec, not {arguments.shown(leaf)}"
        )
    return _typed(leaf.dtype, leaf.shape)


def _typed(dtype: Any, shape: Any) -> Any:
    """Returns the spec of a dtype of numpy or TensorFlow."""
    dtype = arguments.dtype("every part of output_types", dtype, "?biufcmMSUO")
    if hasattr(shape, "as_list"):  # TensorFlow's
        shape = None if shape.rank is None else shape.as_list()
    if dtype.kind in "OS":
        return BytesSpec(shape)
    return StrSpec(shape) if dtype.kind == "U" else ArraySpec(shape, dtype)


def converted(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Returns a generator function whose leaves are arrays of the declared dtypes."""
    return (_ConvertedLater if is_async_generator(function) else _Converted)(function, signature)


class Renewed:
    """A function that returns a new iterable for every epoch. A used-up iterator is an error.

    Picklable if the function is; the pickle does not contain what was remembered.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._ended: Any = None
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __reduce__(self) -> tuple[Any, ...]:
        return Renewed, (self._function,)

    def __call__(self, *args: Any) -> Any:
        """Returns the function's iterable."""
        made = self._function(*args)
        return self._watched(made) if isinstance(made, Iterator) else made

    def _watched(self, made: Iterator[Any]) -> Iterator[Any]:
        spent = made is self._ended or (inspect.isgenerator(made) and inspect.getgeneratorstate(made) == "GEN_CLOSED")
        iterator = iter(made)  # an iterator that can restart does so here
        count = 0
        try:
            while (element := next(iterator, self)) is not self:
                count += 1
                yield element
            if spent and not count:
                raise ValueError(
                    "the generator function returned an iterator that an earlier epoch or another reader has used up; "
                    "make it return a new iterator in every call"
                )
            self._ended = made
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()


class _Conversion:
    """A generator function and the declared types of its elements; a class, so that it can be pickled."""

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self.function = function
        self.signature = signature
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)
        self._specs, self._structure = flatten(signature)

    def convert(self, element: Any) -> Any:
        """Converts one element."""
        leaves: list[Any] = []
        if not flatten_as(self._structure, _listed(self._structure, element), leaves):
            raise TypeError(f"the generator yielded {arguments.shown(element)}, which does not nest like its signature")
        return unflatten(self._structure, map(_convert, leaves, self._specs))


def _listed(structure: Structure, element: Any) -> Any:
    """Returns the element with a list for every tuple where the signature declares one array."""
    if structure is LEAF:
        return list(element) if isinstance(element, tuple) else element
    if isinstance(element, tuple) and isinstance(structure, TupleOf) and len(element) == len(structure.children):
        return tuple(map(_listed, structure.children, element))
    if isinstance(element, dict) and isinstance(structure, DictOf) and element.keys() == set(structure.keys):
        children = dict(zip(structure.keys, structure.children, strict=True))
        return {key: _listed(child, element[key]) for key, child in children.items()}
    return element


class _Converted(_Conversion):
    def __call__(self, *args: Any) -> Iterator[Any]:
        for element in self.function(*args):
            yield self.convert(element)


class _ConvertedLater(_Conversion):
    async def __call__(self, *args: Any) -> AsyncIterator[Any]:
        async with aclosing(self.function(*args)) as elements:
            async for element in elements:
                yield self.convert(element)


def _convert(leaf: Any, spec: Any) -> Any:
    if isinstance(spec, BytesSpec) and isinstance(leaf, str):
        return leaf.encode()
    if isinstance(spec, BytesSpec | StrSpec) and (isinstance(leaf, list) or _is_text_array(leaf)):
        return _texts(leaf, spec)
    wanted = (bytes, bytearray, memoryview, BytesArray) if isinstance(spec, BytesSpec) else (str, BytesArray)
    if isinstance(spec, BytesSpec | StrSpec) and not isinstance(leaf, wanted):
        raise TypeError(f"the generator yielded {arguments.shown(leaf)}, but its signature declares {spec}")
    if not isinstance(spec, ArraySpec) or spec.dtype is None:
        return leaf
    found = np.asarray(leaf)
    if found.dtype == spec.dtype:
        return _shaped(found, spec.shape)
    if found.size and not _becomes(found, spec.dtype):
        raise TypeError(f"the generator yielded {arguments.shown(leaf)}, but its signature declares {spec.dtype.name}")
    with np.errstate(over="ignore"):  # beyond float32: inf
        array = np.asarray(leaf, spec.dtype)
    return _shaped(array, spec.shape)


def _becomes(found: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether values of one type are what a signature with another type declares: no fraction, sign or digit is lost.

    Of floats and complex numbers digits may be, an imaginary part never is. Python's own integers have been examined
    by numpy.
    """
    if dtype.kind in "biu" and found.dtype.kind in "fc":
        return False
    if dtype.kind == "f" and found.dtype.kind == "c":
        return False
    if dtype.kind in "biufc" and found.dtype.kind in "SU":
        return False
    if dtype.kind in "biufc" and found.dtype.kind == "O":
        # numpy makes NaN or False of None, and cuts the fractions of decimals.
        if dtype.kind == "f" and any(isinstance(item, complex | np.complexfloating) for item in found.flat):
            return False  # numpy's own have __float__, which drops the imaginary part
        protocols = ("__float__", "__complex__") if dtype.kind in "fc" else ("__index__",)
        return all(isinstance(item, np.bool_) or any(hasattr(item, name) for name in protocols) for item in found.flat)
    if dtype.kind in "iu" and found.dtype.kind in "iu" and not np.can_cast(found.dtype, dtype):
        limits = np.iinfo(dtype)
        return int(found.min()) >= limits.min and int(found.max()) <= limits.max
    return True


def _is_text_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSU"


def _texts(leaf: Any, spec: BytesSpec | StrSpec) -> Any:
    """Returns byte strings or texts as an array of objects, because numpy's own string arrays drop trailing zeros."""
    array = np.array(leaf, object)
    items = array.reshape(-1)
    for index, item in enumerate(items):
        if isinstance(spec, BytesSpec) and isinstance(item, str):
            items[index] = item.encode()
        elif not isinstance(item, str | bytes):
            raise TypeError(f"the generator yielded {arguments.shown(leaf)}, but its signature declares {spec}")
    return _shaped(array, spec.shape)


def _shaped(array: Any, said: tuple[int | None, ...] | None) -> Any:
    if said is not None and not _fits(array.shape, said):
        raise TypeError(f"the generator yielded an array of shape {array.shape}, but its signature declares {said}")
    return array[()] if array.ndim == 0 else array


def _fits(shape: tuple[int, ...], said: tuple[int | None, ...]) -> bool:
    return len(shape) == len(said) and all(b is None or a == b for a, b in zip(shape, said, strict=True))
