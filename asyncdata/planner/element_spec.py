"""The spec of a plan's elements, as far as it is known without running the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np

from asyncdata.errors import UnbatchableError
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.padded_shapes import Shape, arranged, as_shape
from asyncdata.memory.ragged import RaggedArray
from asyncdata.memory.structure import LEAF, RaggedOf, Structure, flatten, unflatten
from asyncdata.plan import combining, grouping, sources, transformations
from asyncdata.plan.node import Node, upwards
from asyncdata.spec import ArraySpec, BytesSpec, DatasetSpec, RaggedSpec, StrSpec

TELLS = "__element_spec__"
"""Attribute of a function: the spec of what it returns (of the elements of the dataset that it returns), or a method
that says so for the spec of its argument."""

Of = Callable[[Node], Any]
"""Gives the spec of an input."""


def element_spec(node: Node) -> Any:
    """Specs nested like the elements; None in the place of what is not known."""
    return element_specs(node)[id(node)]


def element_specs(node: Node) -> dict[int, Any]:
    """The same of each node of the plan, by ``id``."""
    return upwards(node, _rule)


@singledispatch
def _rule(node: Node, of: Of) -> Any:
    """What a node says itself; the kinds below are those whose elements are nests of others' leaves."""
    return node.element_spec(of)


@_rule.register
def _slices(node: sources.TensorSlices, of: Of) -> Any:
    del of
    specs = [
        ArraySpec(array.shape[1:], array.dtype)
        if array.dtype != object
        else _common([spec_of(item) for item in array.tolist()])
        for array in node.arrays
    ]
    return unflatten(node.structure, iter(specs))


@_rule.register
def _items(node: sources.Items, of: Of) -> Any:
    del of
    return _common([spec_of(item) for item in node.items])


@_rule.register
def _map(node: transformations.Map, of: Of) -> Any:
    return _told(node.function, of(node.input))


@_rule.register
def _map_batch(node: transformations.MapBatch, of: Of) -> Any:
    spec = of(node.input)
    for function in node.functions:
        spec = _told(function, spec)
    return _batched(spec, node.size if node.drop_remainder else None)


@_rule.register
def _interleave(node: transformations.Interleave, of: Of) -> Any:
    return _told(node.function, of(node.input))


@_rule.register
def _batch(node: transformations.Batch, of: Of) -> Any:
    return _batched(of(node.input), node.size if node.drop_remainder else None)


@_rule.register
def _padded_batch(node: grouping.PaddedBatch, of: Of) -> Any:
    spec = of(node.input)
    leaves, structure = flatten(spec)
    shapes: list[Shape] = [None] * len(leaves)
    if node.shapes is not None:
        try:
            shapes = [as_shape(shape) for shape in arranged(structure, node.shapes, "padded_shapes")]
        except UnbatchableError:
            return None  # of elements whose nest is not known, or an error when they come
    padded = (_padded(leaf, shape, node) for leaf, shape in zip(leaves, shapes, strict=True))
    return unflatten(structure, padded)


def _padded(spec: Any, shape: Shape, node: grouping.PaddedBatch) -> Any:
    """One leaf of batches; what is of one length in all elements is not padded."""
    size = node.size if node.drop_remainder else None
    if isinstance(spec, BytesSpec | StrSpec):
        return type(spec)((size,)) if spec.shape == () else None
    if not isinstance(spec, ArraySpec):
        return None
    if shape is None and spec.shape is not None:
        shape = (None,) * len(spec.shape)
    if shape is None or (spec.shape is not None and len(spec.shape) != len(shape)):
        return ArraySpec(None, spec.dtype)
    longest = spec.shape if node.longest is None else (node.longest,) * len(shape)
    extents = (most if length is None else length for length, most in zip(shape, longest or shape, strict=True))
    return ArraySpec((size, *extents), spec.dtype)


@_rule.register
def _ragged_batch(node: grouping.RaggedBatch, of: Of) -> Any:
    size = node.size if node.drop_remainder else None

    def ragged(spec: Any) -> Any:
        if not isinstance(spec, ArraySpec) or spec.shape is None:
            return None
        if None not in spec.shape:
            return ArraySpec((size, *spec.shape), spec.dtype)
        return RaggedSpec((size, *spec.shape), spec.dtype, _rank(spec.shape))

    return _each(ragged, of(node.input))


def _rank(shape: tuple[int | None, ...]) -> int:
    return max(axis for axis, extent in enumerate(shape, start=1) if extent is None)


@_rule.register
def _unbatch(node: grouping.Unbatch, of: Of) -> Any:
    def row(spec: Any) -> Any:
        if isinstance(spec, ArraySpec):
            return None if not spec.shape else ArraySpec(spec.shape[1:], spec.dtype)
        if isinstance(spec, BytesSpec | StrSpec):
            return None if not spec.shape else type(spec)(spec.shape[1:])
        return None

    return _each(row, of(node.input))


@_rule.register
def _window(node: grouping.Window, of: Of) -> Any:
    return _each(DatasetSpec, of(node.input))


@_rule.register
def _zip(node: combining.Zip, of: Of) -> Any:
    return unflatten(node.structure, (of(child) for child in node.datasets))


@_rule.register(combining.Concatenate)
@_rule.register(combining.SampleFrom)
@_rule.register(combining.ChooseFrom)
def _either(node: combining.Concatenate | combining.SampleFrom | combining.ChooseFrom, of: Of) -> Any:
    return _common([of(child) for child in node.datasets])


def spec_of(element: Any) -> Any:
    """The spec of an element that is there."""
    leaves, structure = flatten(element)
    left, specs = iter(leaves), []

    def outline(part: Structure) -> Structure:
        """The structure with a RaggedArray as one leaf; its parts have no specs of their own."""
        if part is LEAF or isinstance(part, RaggedOf):
            specs.append(_spec_of_leaf(unflatten(part, left)))
            return LEAF
        return dataclasses.replace(part, children=tuple(map(outline, part.children)))

    return unflatten(outline(structure), iter(specs))


def _spec_of_leaf(leaf: Any) -> Any:
    if isinstance(leaf, bytes | bytearray):
        return BytesSpec()
    if isinstance(leaf, str):
        return StrSpec()
    if isinstance(leaf, BytesArray):
        kind = StrSpec if any(isinstance(item, str) for item in leaf[:1]) else BytesSpec
        return kind((len(leaf),))
    if isinstance(leaf, RaggedArray):
        return RaggedSpec(leaf.shape, leaf.dtype, leaf.ragged_rank)
    if isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic):
        array = np.asarray(leaf)
        return None if array.dtype.kind == "O" else ArraySpec(array.shape, array.dtype)
    return None


def _told(function: Callable[..., Any], given: Any) -> Any:
    told = getattr(function, TELLS, None)
    return told(given) if callable(told) else told


def _each(change: Callable[[Any], Any], spec: Any) -> Any:
    """The same nest with every leaf changed; unknown leaves stay unknown."""
    leaves, structure = flatten(spec)
    return unflatten(structure, (None if leaf is None else change(leaf) for leaf in leaves))


def _batched(spec: Any, size: int | None) -> Any:
    def stack(leaf: Any) -> Any:
        if isinstance(leaf, ArraySpec):
            return ArraySpec(None if leaf.shape is None else (size, *leaf.shape), leaf.dtype)
        if isinstance(leaf, BytesSpec | StrSpec):
            return type(leaf)((size,)) if leaf.shape == () else None
        return None

    return _each(stack, spec)


def _common(specs: list[Any]) -> Any:
    """What holds for all of them."""
    if not specs:
        return None
    first, structure = flatten(specs[0])
    columns = [[leaf] for leaf in first]
    for spec in specs[1:]:
        leaves, found = flatten(spec)
        if found != structure:
            return None
        for column, leaf in zip(columns, leaves, strict=True):
            if leaf != column[0]:
                column.append(leaf)
    return unflatten(structure, (_common_leaf(column) for column in columns))


def _common_leaf(leaves: list[Any]) -> Any:
    first = leaves[0]
    if all(leaf == first for leaf in leaves):
        return first
    if not all(type(leaf) is type(first) for leaf in leaves) or isinstance(first, RaggedSpec | DatasetSpec):
        return None
    shapes = [leaf.shape for leaf in leaves]
    shape = None
    if None not in shapes and len({len(s) for s in shapes}) == 1:
        shape = tuple(axis[0] if len(set(axis)) == 1 else None for axis in zip(*shapes, strict=True))
    if not isinstance(first, ArraySpec):
        return type(first)(shape)
    return ArraySpec(shape, first.dtype) if len({leaf.dtype for leaf in leaves}) == 1 else None
