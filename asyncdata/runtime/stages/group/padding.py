"""What `padded_batch` makes of one leaf: the shape all elements are padded to, and with what.

Shapes and padding values are given nested like the elements; here they are brought into the order of the leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.narrow import fits, halved_leaf, too_large
from asyncdata.memory.padded_shapes import Shape, arranged, as_shape
from asyncdata.memory.structure import LEAF, DictOf, RaggedOf, RecordOf, Structure, TupleOf, leaf_count, leaf_names
from asyncdata.runtime.stage import Pause
from asyncdata.runtime.stages.group.uneven import Loose, Part, Plan, Stored, strings_part
from asyncdata.runtime.stages.group.values import Numbers, StringArrays, StringLists, Strings, Values
from asyncdata.wording import counted

_SCALARS: Final = (type(None), bool, int, float, complex, bytes, str, np.generic, np.ndarray)
"""A padding value for all leaves, not a nest of values."""


class Padding:
    """How `padded_batch` lays its batches out.

    Args:
        shapes: As the user gave them.
        values: Likewise.
        longest: Stands in for lengths that were not given; None for the longest of the batch.
        narrow: Whether numbers of 64 bits are written in 32, see `memory.narrow`.
    """

    def __init__(self, shapes: Any, values: Any, longest: int | None = None, *, narrow: bool = False) -> None:
        self._narrow = narrow
        self._shapes = shapes
        self._values = values
        self._longest = longest
        self._known: tuple[Structure, list[Shape], list[Any]] | None = None

    def __call__(self, structure: Structure, values: Sequence[Values]) -> Plan:
        """The leaves of one batch.

        Raises:
            UnbatchableError: An element does not fit.
        """
        shapes, paddings = self._of(structure)
        names = leaf_names(structure)
        parts: list[Part] = []
        for leaf, shape, padding, name in zip(values, shapes, paddings, names, strict=True):
            try:
                parts.append(_padded(leaf, self._known_lengths(shape, leaf), padding, narrow=self._narrow))
            except UnbatchableError as error:
                error.complete(leaf=name or None)
                raise
        return Plan(structure, parts)

    def _known_lengths(self, shape: Shape, leaf: Values) -> Shape:
        if self._longest is None:
            return shape
        rank = leaf.rank if isinstance(leaf, Numbers | StringArrays) else int(isinstance(leaf, StringLists))
        if shape is None and rank > 1:
            raise UnbatchableError(
                f"pad_to_bucket_boundary needs padded_shapes for elements of {rank} axes, to know which of them to pad"
            )
        return tuple(self._longest if length is None else length for length in shape or (None,) * rank)

    def _of(self, structure: Structure) -> tuple[list[Shape], list[Any]]:
        """Shape and padding value of every leaf."""
        known = self._known
        if known is None or known[0] != structure:
            _refuse_ragged(structure)
            shapes: list[Shape] = [None] * leaf_count(structure)
            if self._shapes is not None:
                shapes = [as_shape(shape) for shape in arranged(structure, self._shapes, "padded_shapes")]
            paddings = [self._values] * leaf_count(structure)
            if structure is not LEAF and not isinstance(self._values, _SCALARS):
                paddings = list(arranged(structure, self._values, "padding_values"))
            known = self._known = (structure, shapes, paddings)
        return known[1], known[2]


def _refuse_ragged(structure: Structure) -> None:
    if isinstance(structure, RaggedOf):
        raise UnbatchableError("padded_batch takes no RaggedArray; call to_dense() in map(), or use ragged_batch")
    if isinstance(structure, TupleOf | DictOf | RecordOf):
        for child in structure.children:
            _refuse_ragged(child)


def _padded(values: Values, shape: Shape, padding: Any, *, narrow: bool) -> Part:
    if isinstance(values, Strings):
        _check_rank(shape, 0)
        _string_padding(padding, text=values.text)
        return strings_part(values)
    if isinstance(values, StringLists):
        _check_rank(shape, 1)
        return _padded_lists(values, shape, _string_padding(padding, text=values.text))
    _check_rank(shape, values.rank)
    if isinstance(values, StringArrays):
        return _padded_arrays(values, shape, _string_padding(padding, text=values.text))
    fill = _number_padding(padding, values.dtype)
    shapes = values.shapes()
    target = _target(shape, shapes)
    leaf = Leaf("array", values.dtype.str, (len(values.arrays), *target))
    even = bool((shapes == target).all())
    if narrow and (leaf := halved_leaf(leaf)).wide:
        _check_range(values, None if even or not leaf.nbytes else fill, np.dtype(leaf.dtype))
    return Stored(leaf, _Writer(values, target, fill, even=even))


def _target(shape: Shape, shapes: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """The shape that elements of these shapes are padded to."""
    most = shapes.max(axis=0).tolist()
    target = tuple(
        longest if wished is None else wished
        for wished, longest in zip(shape or (None,) * len(most), most, strict=True)
    )
    _check_fits(target, shapes)
    return target


def _check_range(values: Numbers, fill: Any, half: np.dtype[Any]) -> None:
    """Raises an error if a value, or the padding where there is any, does not fit."""
    arrays = [values.arrays] if isinstance(values.arrays, np.ndarray) else [*values.arrays]
    if fill is not None:
        arrays.append(np.asarray(fill))
    if not all(fits(array, half) for array in arrays):
        raise too_large(values.dtype, half)


class _Writer:
    """Writes the elements, and the padding where there is any."""

    def __init__(self, values: Numbers, target: tuple[int, ...], fill: Any, *, even: bool) -> None:
        self._arrays = values.arrays
        self._target = target
        self._fill = fill
        self._even = even

    async def __call__(self, out: npt.NDArray[Any], pause: Pause) -> None:
        if not self._even:
            out[...] = self._fill
        if isinstance(self._arrays, np.ndarray):
            out[(slice(None), *(slice(extent) for extent in self._arrays.shape[1:]))] = self._arrays
            return
        if self._even:
            np.stack(self._arrays, out=out)
        elif len(self._target) == 1:
            for row, array in enumerate(self._arrays):
                out[row, : len(array)] = array
                if not row & 63:
                    await pause()
        else:
            for row, array in enumerate(self._arrays):
                out[row][tuple(slice(extent) for extent in array.shape)] = array
                if not row & 63:
                    await pause()


def _padded_lists(values: StringLists, shape: Shape, padding: Any) -> Part:
    longest = max(map(len, values.lists))
    target = longest if shape is None or shape[0] is None else shape[0]
    _check_fits((target,), np.array([[len(part)] for part in values.lists]))
    out = np.full((len(values.lists), target), padding, object)
    for row, part in enumerate(values.lists):
        out[row, : len(part)] = part
    return Loose(out)


def _padded_arrays(values: StringArrays, shape: Shape, padding: Any) -> Part:
    out = np.full(
        (len(values.arrays), *_target(shape, np.array([array.shape for array in values.arrays], np.int64))),
        padding,
        object,
    )
    for row, array in enumerate(values.arrays):
        out[row][tuple(slice(extent) for extent in array.shape)] = array
    return Loose(out)


def _check_rank(shape: Shape, rank: int) -> None:
    if shape is not None and len(shape) != rank:
        raise UnbatchableError(
            f"the padded shape {list(shape)} has {counted(len(shape), 'axis', 'axes')}, but the elements have {rank}"
        )


def _check_fits(target: tuple[int, ...], shapes: npt.NDArray[np.int64]) -> None:
    too_large = np.flatnonzero((shapes > np.array(target, np.int64)).any(axis=1))
    if len(too_large):
        row = int(too_large[0])
        raise UnbatchableError(
            f"element {row} of the batch has the shape {shapes[row].tolist()}, larger than its padded shape "
            f"{list(target)}"
        )


def _number_padding(padding: Any, dtype: np.dtype[Any]) -> Any:
    """The padding value as one of this dtype; Python numbers may be converted, typed ones must agree."""
    if padding is None:
        return np.zeros((), dtype)[()]
    value = np.asarray(padding)
    typed = isinstance(padding, np.ndarray | np.generic)
    fits = value.ndim == 0 and value.dtype.kind in "biufc"
    if fits and typed:
        fits = value.dtype == dtype
    elif fits:
        order = "biufc"
        kind = "i" if dtype.kind == "u" else dtype.kind
        fits = dtype.kind in order and order.index(value.dtype.kind.replace("u", "i")) <= order.index(kind)
        fits = fits and (value.dtype.kind == "b") == (dtype.kind == "b")
    if fits and dtype.kind in "iu":
        info = np.iinfo(dtype)
        fits = info.min <= int(value) <= info.max
    if not fits:
        raise UnbatchableError(f"the padding value {padding!r} does not fit elements of {dtype.name}")
    return value.astype(dtype)[()]


def _string_padding(padding: Any, *, text: bool) -> Any:
    if padding is None:
        return "" if text else b""
    if isinstance(padding, str) and not text:
        return padding.encode()
    if not isinstance(padding, str if text else bytes):
        raise UnbatchableError(f"the padding value {padding!r} does not fit elements of {'str' if text else 'bytes'}")
    return padding
