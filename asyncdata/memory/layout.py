"""Where the leaves of a finished batch are inside its slab.

A batch slab has one part per leaf, each 64-byte aligned: an array of all rows side by side or, for byte strings and
texts, a table of (offset, length) whose payloads are elsewhere. The layout follows from the rows alone, so all tasks
that fill rows of one batch compute the same layout without exchanging it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.leaf import Leaf, is_plain, rounds_integers
from asyncdata.memory.structure import Structure, describe, is_ragged, leaf_names, leaf_order
from asyncdata.memory.wire import aligned
from asyncdata.wording import kind_of


@dataclass(frozen=True, slots=True)
class Layout:
    """Leaves of one batch and their offsets from the slab's beginning.

    Attributes:
        structure: How the leaves nest.
        leaves: Whole-batch leaves: ``array`` with the batch as first axis, or ``table``.
        offsets: Bytes from the beginning of the slab.
        nbytes: Size of all parts together.
    """

    structure: Structure
    leaves: tuple[Leaf, ...]
    offsets: tuple[int, ...]
    nbytes: int


def batch_leaves(structure: Structure, values: Sequence[Any], count: int) -> list[Leaf]:
    """What `count` elements like this one become as a batch, leaf by leaf."""
    leaves: list[Leaf] = []
    try:
        for value in values:
            leaves.append(value_leaf(value, count))  # noqa: PERF401 -- the error says at which leaf it was
    except UnbatchableError as error:
        error.complete(leaf=leaf_names(structure)[len(leaves)] or None)
        raise
    return leaves


def value_leaf(value: Any, count: int) -> Leaf:
    """What `count` values like this one become as a batch."""
    if isinstance(value, bytes | bytearray | memoryview):
        return Leaf("table", shape=(count,))
    if isinstance(value, str):
        return Leaf("table", shape=(count,), text=True)
    array = as_array(value)
    if array.dtype.kind == "O" and not isinstance(value, np.ndarray):
        raise UnbatchableError(
            f"a value of type {type(value).__name__} cannot be batched; return numbers, numpy arrays, bytes or str, or "
            "a dict or tuple of them"
        )
    if array.dtype.kind in "OV" or not (array.dtype.kind in "US" or is_plain(array)):
        raise UnbatchableError(
            f"a numpy array of dtype {array.dtype} cannot be batched; return arrays of numbers, or a dict of them"
        )
    if array.dtype.kind in "US":
        raise UnbatchableError(
            f"a numpy array of dtype {array.dtype} cannot be batched; return bytes or str, which may differ in length"
        )
    return Leaf("array", array.dtype.str, (count, *array.shape))


def row_leaf(value: Any, count: int) -> Leaf:
    """What `count` values like this one become as a batch that may hold several byte strings or texts a row."""
    texts = text_array(value)
    return value_leaf(value, count) if texts is None else texts_leaf(texts, count)


def text_array(value: Any) -> npt.NDArray[Any] | None:
    """An array, or a list, of byte strings or of texts as an array of objects; None for anything else."""
    if isinstance(value, BytesArray):
        return np.asarray(value)
    if isinstance(value, list) and value and all(isinstance(item, bytes | str) for item in value):
        array = np.empty(len(value), object)
        array[:] = value
    elif isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "OSU":
        array = value.astype(object, copy=False)
    else:
        return None
    kinds = set(map(type, array.ravel().tolist()))
    return array if len(kinds) <= 1 and kinds <= {bytes, str} else None


def texts_leaf(array: npt.NDArray[Any], count: int) -> Leaf:
    """What `count` values like such an array of objects become as a batch."""
    text = array.size > 0 and isinstance(array.flat[0], str)
    return Leaf("object", shape=(count, *array.shape), text=text)


def as_array(value: Any) -> npt.NDArray[Any]:
    """Returns the array that a value becomes in a batch.

    Raises:
        UnbatchableError: It is no regular array, or one whose mask would be lost.
    """
    refuse_mapping(value)
    if _is_masked(value):
        raise UnbatchableError("a masked array cannot be batched: its mask would be lost; fill it in map()")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UnbatchableError(f"{kind_of(value)} that is not a regular array cannot be batched: {error}") from error
    if rounds_integers(array, value):
        raise UnbatchableError(
            f"{kind_of(value)} of integers that neither int64 nor uint64 can hold together cannot be batched; "
            "return floats, or smaller integers"
        )
    return array


def _is_masked(value: Any) -> bool:
    """Whether a value is a masked array, or a list with one in it."""
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))
        return any(issubclass(kind, np.ma.MaskedArray | list | tuple) for kind in kinds) and any(map(_is_masked, value))
    return isinstance(value, np.ma.MaskedArray)


def refuse_mapping(value: Any) -> None:
    """Raises ``UnbatchableError`` for a mapping that is no dict, such as a `UserDict`: NumPy reads only its keys."""
    if isinstance(value, Mapping):
        raise UnbatchableError(f"{kind_of(value)} is not taken apart like a dict; return dict(...) of it in map()")


def as_bytes(value: Any) -> bytes:
    """A byte string or a text as a batch holds it.

    Raises:
        UnbatchableError: A text that is not Unicode, such as a file name with a byte that could not be decoded.
    """
    try:
        return value.encode() if isinstance(value, str) else bytes(value)
    except UnicodeEncodeError as error:
        raise UnbatchableError(f"a str that cannot be encoded as UTF-8 cannot be batched: {error}") from error


def plan_layout(structure: Structure, leaves: Sequence[Leaf]) -> Layout:
    """Lays the leaves of a batch out one after the other.

    By their names, so that tasks whose first dicts have their keys in different orders write to the same places.
    """
    names = leaf_names(structure)
    order = range(len(leaves)) if len(names) != len(leaves) else sorted(range(len(names)), key=names.__getitem__)
    offsets = [0] * len(leaves)
    position = 0
    for index in order:
        offsets[index] = position
        # At least one boundary further, so that a leaf of no bytes begins inside the slab too.
        position += aligned(max(leaves[index].nbytes, 1))
    return Layout(structure, tuple(leaves), tuple(offsets), max(position, 1))


def same_places(layout: Layout, other: Layout) -> bool:
    """Whether two layouts are the same but for the order of keys."""
    ours, theirs = (list(zip(each.leaves, each.offsets, strict=True)) for each in (layout, other))
    order = leaf_order(layout.structure, other.structure)
    return order is not None and [theirs[leaf] for leaf in order] == ours


def parts_of(arena: npt.NDArray[np.uint8], offset: int, layout: Layout) -> list[npt.NDArray[Any]]:
    """A writable array per leaf: the batch itself, or ``int64[n, 2]`` for a table."""
    parts = []
    for leaf, start in zip(layout.leaves, layout.offsets, strict=True):
        raw = arena[offset + start : offset + start + leaf.nbytes]
        if leaf.kind == "table":
            parts.append(raw.view(np.int64).reshape(leaf.shape[0], 2))
        else:
            parts.append(raw.view(leaf.dtype).reshape(leaf.shape))
    return parts


def mismatch(structure: Structure, expected: Sequence[Leaf], found: Sequence[Leaf], position: int) -> UnbatchableError:
    """The error for an element that does not fit the batch it should go into."""
    names = leaf_names(structure)
    for name, want, have in zip(names, expected, found, strict=True):
        if want != have:
            return UnbatchableError(
                f"elements of one batch differ: {row_text(want)} in the batch's first element "
                f"but {row_text(have)} in element {position} of the batch; "
                "make all elements alike in map(), or use padded_batch or ragged_batch",
                leaf=name or None,
            )
    raise AssertionError("the leaves are alike")


def refuse_ragged(structure: Structure) -> None:
    """Raises ``UnbatchableError`` if there is a RaggedArray in the elements: row splits do not stack."""
    if is_ragged(structure):
        raise UnbatchableError("batch() does not accept RaggedArrays; use ragged_batch()")


def structure_mismatch(expected: Structure, found: Structure, position: int) -> UnbatchableError:
    """The error for an element that nests differently from the first one of its batch."""
    want = describe(expected, iter(["·"] * 1000))
    have = describe(found, iter(["·"] * 1000))
    return UnbatchableError(
        f"elements of one batch differ in structure: {want} in the batch's first element but {have} "
        f"in element {position} of the batch"
    )


def row_text(leaf: Leaf) -> str:
    """One row of a batch leaf in words."""
    if leaf.kind == "table":
        return "str" if leaf.text else "bytes"
    if leaf.kind == "object" and len(leaf.shape) == 1:
        return "a list of bytes or str"
    if leaf.kind == "object":
        return f"{'str' if leaf.text else 'bytes'}{list(leaf.shape[1:])}"
    return f"{np.dtype(leaf.wide or leaf.dtype).name}{list(leaf.shape[1:])}"
