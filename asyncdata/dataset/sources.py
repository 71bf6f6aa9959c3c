"""Checks and nodes of the datasets without input."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from asyncdata import arguments
from asyncdata.arguments import is_async_generator
from asyncdata.dataset.signature import Renewed, converted, signature_of
from asyncdata.errors import UnsupportedURLError
from asyncdata.memory.leaf import rounds_integers
from asyncdata.memory.structure import flatten, unflatten
from asyncdata.plan.node import Node
from asyncdata.plan.sequence import Counter
from asyncdata.plan.sources import Generator, Items, ListFiles, Range, TensorSlices, byte_order
from asyncdata.types import Element


def list_files(
    file_pattern: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], shuffle: bool | None, seed: int | None
) -> Node:
    """`Dataset.list_files`."""
    patterns = arguments.urls("file_pattern", file_pattern)
    if not patterns:
        raise ValueError("file_pattern must name at least one pattern")
    if "" in patterns:
        raise UnsupportedURLError("file_pattern is an empty URL")
    shuffled = arguments.flag_or_none("shuffle", shuffle) is not False
    return ListFiles(patterns=patterns, shuffle=shuffled, seed=arguments.seed("seed", seed))


def slices(tensors: Any, *, drawn_by: str | None = None) -> Node:
    """`Dataset.from_tensor_slices`, of rows in an order that a function may have drawn itself."""
    leaves, structure = flatten(tensors)
    if not leaves:
        raise ValueError("from_tensor_slices needs at least one array")
    arrays = tuple(_as_rows(leaf) for leaf in leaves)
    lengths = sorted({len(array) for array in arrays})
    if len(lengths) != 1:
        raise ValueError(f"from_tensor_slices needs arrays of one length, not of {lengths}")
    return TensorSlices(arrays=arrays, structure=structure, drawn_by=drawn_by)


def single(tensors: Element) -> Node:
    """`Dataset.from_tensors`."""
    leaves, structure = flatten(tensors)
    return Items(items=(unflatten(structure, map(_frozen, leaves)),))


def generated(
    generator: Callable[..., Any],
    output_types: Any,
    output_shapes: Any,
    args: Sequence[Any] | None,
    output_signature: Any,
    state: Any,
    every: int,
) -> Node:
    """`Dataset.from_generator`."""
    if not callable(generator):
        raise TypeError(
            f"generator must be a function that returns an iterable, not {arguments.shown(generator)}; "
            "wrap it: lambda: my_iterable"
        )
    if not inspect.isgeneratorfunction(generator) and not is_async_generator(generator):
        generator = Renewed(generator)
    signature = signature_of(output_types, output_shapes, output_signature)
    if signature is not None:
        generator = converted(generator, signature)
    if args is not None and (isinstance(args, str | bytes) or not isinstance(args, Iterable)):
        raise TypeError(f"args must be a tuple of the function's arguments, not {arguments.shown(args)}")
    get, restore = _state_functions(state)
    return Generator(
        function=generator,
        args=() if args is None else tuple(args),
        signature=signature,
        get_state=get,
        set_state=restore,
        state_every=arguments.integer("every", every, least=1),
    )


def _state_functions(state: Any) -> tuple[Any, Any]:
    if state is None:
        return None, None
    if not isinstance(state, tuple) or len(state) != 2 or not all(map(callable, state)):
        raise TypeError(f"state must be two functions, (get, set), not {arguments.shown(state)}")
    get, restore = state
    return arguments.plain_function("get", get), arguments.plain_function("set", restore)


def numbers(start: int, stop: int | None, step: int, output_type: Any) -> Node:
    """`Dataset.range`."""
    first, end = arguments.integer("start", start), arguments.integer_or_none("stop", stop)
    if end is None:
        first, end = 0, first
    distance = arguments.integer("step", step)
    if distance == 0:
        raise ValueError("step must not be 0")
    if -((first - end) // distance) > sys.maxsize:
        raise ValueError(f"a range of more than {sys.maxsize} numbers is too long to be counted")
    dtype = arguments.dtype("output_type", output_type, "iuf")
    return Range(start=first, stop=end, step=distance, dtype=dtype.str)


def counted(start: float, step: float, dtype: Any) -> Node:
    """`Dataset.counter`."""
    found = arguments.dtype("dtype", dtype, "iuf")

    def checked(name: str, value: float) -> float:
        if found.kind != "f" or isinstance(value, int | np.integer):
            return arguments.integer(name, value)
        number = arguments.number(name, value)
        if not math.isfinite(number):
            raise ValueError(f"{name} must be finite, not {number}")
        return number

    return Counter(start=checked("start", start), step=checked("step", step), dtype=found.str)


def _frozen(leaf: Any) -> Any:
    """Returns a copy of values that the caller could change."""
    if isinstance(leaf, list):
        try:
            array = np.array(leaf)
        except ValueError:
            return leaf
        if rounds_integers(array, leaf):
            return leaf
        if array.dtype.kind in "US":
            texts = _texts(leaf, array.shape)
            leaf = texts if all(isinstance(item, str | bytes) for item in texts.flat) else leaf
        elif array.dtype.kind in "biufc":
            leaf = array
    elif isinstance(leaf, np.ndarray):
        leaf = leaf.copy()
    if isinstance(leaf, np.ndarray):
        leaf.flags.writeable = False
    return leaf


def _texts(value: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Returns byte strings and texts unchanged, because a numpy string array drops trailing zeros and lengths."""
    array = np.empty(shape, object)
    array[...] = np.array(value, object)
    array.reshape(-1)[:] = [str(item) if isinstance(item, np.str_) else item for item in array.flat]
    return array


def _as_rows(value: Any) -> np.ndarray[Any, Any]:
    if any(isinstance(each, np.ma.MaskedArray) for each in (value, *(value if isinstance(value, list) else ()))):
        raise TypeError(
            "from_tensor_slices would lose the mask of a masked array: give array.filled(value), or array.data and "
            "np.ma.getmaskarray(array) as two arrays"
        )
    if isinstance(value, AbstractSet | Iterator | Mapping):
        made = "dict" if isinstance(value, Mapping) else "list"
        raise TypeError(
            f"tensors must be arrays or lists, not {arguments.shown(value)}; make a {made} of it, or use from_generator"
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"from_tensor_slices needs arrays, or lists of one length on every level, not {arguments.shown(value)}; "
            "from_generator takes rows of different lengths"
        ) from error
    if rounds_integers(array, value):
        array = np.array(value, object)
    if array.dtype.kind == "T":
        array = array.astype(object)
        if not all(isinstance(item, str) for item in array.flat):
            raise TypeError("from_tensor_slices needs a str for every missing value of a StringDType array")
    if array.dtype.kind in "US" and array.ndim:
        array = _texts(value, array.shape)
    if array.ndim == 0:
        raise ValueError(
            "from_tensor_slices needs arrays with at least one axis; use from_tensors for a single element"
        )
    return byte_order(array) if array.dtype != object else array
