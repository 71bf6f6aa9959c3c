"""Images: elements as one piece of memory, which can be stored and turned into blocks again.

    body    | origin, 32 B per row | arrays | rows (offset, length) of references | payloads, arrays 64-byte aligned |

References count from the beginning of the body. An image that is loaded into a slab becomes a block whose reference
columns point into that slab: only the small tables are copied again. Specs describe the columns; they are plain data
that can be written as JSON (`block_file`). Python objects that are not numbers, strings or arrays are kept as they are
and cannot be written.

Rows of one leaf may be of several kinds, as ``bytes`` and None are. Then the rows of each kind lie together: how many
images there are, and whether they can be written, does not depend on how the rows were divided into blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import DataError
from asyncdata.memory.advance import EMPTY, ORIGIN_WIDTH
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn, as_objects, read_table
from asyncdata.memory.leaf import BYTES, STR, Leaf, array_leaf
from asyncdata.memory.own import own
from asyncdata.memory.slabs import Slabs
from asyncdata.memory.structure import LEAF, Structure, element_bytes
from asyncdata.memory.wire import aligned

PLAIN: Final = (type(None), bool, int, float, complex)
"""Python values that are kept as they are, one by one, and can be written as JSON."""

DTYPE_KINDS: Final = "biufcMm"


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Rows side by side at `at`."""

    dtype: str
    shape: tuple[int, ...]
    at: int


@dataclass(frozen=True, slots=True)
class StoredRefs:
    """References: ``int64[n, 2]`` at `rows_at`; what each is: ``leaves[0]``, or by ``uint32[n]`` at `which_at`."""

    leaves: tuple[Leaf, ...]
    which_at: int
    rows_at: int


@dataclass(frozen=True, slots=True)
class StoredPlain:
    """Python numbers, booleans and None."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ObjectSpec:
    """Other Python objects."""

    items: tuple[Any, ...]


UniformSpec: TypeAlias = StoredArray | StoredRefs | StoredPlain | ObjectSpec


@dataclass(frozen=True, slots=True)
class StoredMixed:
    """Rows of several kinds: those of each, in order; ``uint8[n]`` at `kinds_at` says of which kind each row is."""

    parts: tuple[UniformSpec, ...]
    kinds_at: int


Spec: TypeAlias = UniformSpec | StoredMixed


def _uniform_specs(spec: Spec) -> tuple[UniformSpec, ...]:
    """The spec, or those that it is made of."""
    return spec.parts if isinstance(spec, StoredMixed) else (spec,)


@dataclass(frozen=True, slots=True)
class Image:
    """See the module's docstring.

    Attributes:
        rows: Number of elements.
        structure: How their leaves nest.
        specs: One per leaf.
        nbytes: Size of the body.
        body: The body in private memory; None when it lies in a file.
        object_bytes: What Python objects in the specs take besides.
    """

    rows: int
    structure: Structure
    specs: tuple[Spec, ...]
    nbytes: int
    body: npt.NDArray[np.uint8] | None = None
    object_bytes: int = 0

    @property
    def has_references(self) -> bool:
        """Whether it must be loaded into a slab."""
        return any(isinstance(part, StoredRefs) for spec in self.specs for part in _uniform_specs(spec))


# --- making one ----------------------------------------------------------------------------------------------------


Kind: TypeAlias = tuple[Any, ...]
"""What must agree for rows to lie together."""

_REFERENCES: Final[Kind] = ("refs",)
_PLAIN: Final[Kind] = ("plain",)
_OBJECTS: Final[Kind] = ("objects",)

_SMALL: Final = 1 << 16
"""An image of fewer bytes is not ended because rows of another kind come."""


class _Arrays:
    def __init__(self) -> None:
        self.parts: list[npt.NDArray[Any]] = []


class _Refs:
    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.leaves: dict[Leaf, int] = {}
        self.which: list[int] = []


class _Items:
    def __init__(self) -> None:
        self.items: list[Any] = []


_Part: TypeAlias = _Arrays | _Refs | _Items


class _Column:
    """Rows by their kind, and of which kind each is."""

    def __init__(self) -> None:
        self.parts: dict[Kind, _Part] = {}
        self.kinds: list[npt.NDArray[np.uint8]] = []

    def place(self, kind: Kind) -> Kind:
        """The kind of part that takes such rows: of arrays, those of the first type and shape lie side by side."""
        is_other = kind[0] == "array" and kind not in self.parts and any(each[0] == "array" for each in self.parts)
        return _REFERENCES if is_other else kind

    def part(self, kind: Kind) -> tuple[int, _Part]:
        """The part that takes rows of a kind, and its number."""
        place = self.place(kind)
        if place not in self.parts:
            self.parts[place] = _part(place[0])
        return list(self.parts).index(place), self.parts[place]


class ImageBuilder:
    """Collects the rows of several blocks, copying them, until they are one image."""

    def __init__(self) -> None:
        self.rows = 0
        self._structure: Structure = LEAF
        self._columns: list[_Column] = []
        self._origins: list[npt.NDArray[np.int64]] = []
        self._payload = bytearray()
        self._array_bytes = 0
        self._object_bytes = 0

    @property
    def nbytes(self) -> int:
        """About the size of the body so far, with objects beside it."""
        return len(self._payload) + self._array_bytes + self._object_bytes + 48 * self.rows

    def takes(self, block: Block) -> bool:
        """Whether a block's rows go into the same image as those before.

        Rows of another kind do where the image is small, or has such rows already.
        """
        if not self.rows:
            return True
        if block.structure != self._structure:
            return False
        return self.nbytes < _SMALL or all(
            target.place(kind) in target.parts
            for column, target in zip(block.columns, self._columns, strict=True)
            for kind in set(_kinds(column))
        )

    def add(self, block: Block) -> None:
        """Copies the rows of a block, which `takes` allowed; the block stays the caller's."""
        if not self.rows:
            self._structure = block.structure
            self._columns = [_Column() for _ in block.columns]
        for column, target in zip(block.columns, self._columns, strict=True):
            kinds = _kinds(column)
            if len(kinds) == 1:
                number, part = target.part(kinds[0])
                self._add(column, part)
                target.kinds.append(np.full(len(block), number, np.uint8))
                continue
            items, numbers = _items(column), np.empty(len(block), np.uint8)
            for kind in dict.fromkeys(kinds):
                number, part = target.part(kind)
                rows = [row for row, each in enumerate(kinds) if each == kind]
                numbers[rows] = number
                self._add(ObjectColumn([items[row] for row in rows]), part)
            target.kinds.append(numbers)
        self._origins.append(block.origin)
        self.rows += len(block)

    def _add(self, column: Column, target: _Part) -> None:
        if isinstance(target, _Arrays):
            array = column.array.copy() if isinstance(column, ArrayColumn) else np.array(_items(column))
            self._array_bytes += array.nbytes
            target.parts.append(array)
        elif isinstance(target, _Refs):
            self._add_references(column, target)
        else:
            # Of its own: the elements themselves go on, and whoever gets them may write to them.
            items = [column.private(row) for row in range(len(column))]
            self._object_bytes += sum(map(element_bytes, items))
            target.items += items

    def _add_references(self, column: Column, target: _Refs) -> None:
        if isinstance(column, RefColumn):
            view = column.slabs.arena.view
            for row, (at, length) in enumerate(column.rows.tolist()):
                leaf = column.leaf_at(row)
                if leaf.kind == "table":
                    items = [
                        view[a : a + n] for a, n in read_table(column.slabs.arena.array, at, leaf.shape[0]).tolist()
                    ]
                    self._put_table(target, items, leaf)
                else:
                    self._put(target, view[at : at + length], BYTES if leaf.kind == "bytes" else leaf)
            return
        for row in range(len(column)):
            value = column.element(row)
            if isinstance(value, BytesArray):
                leaf = Leaf("table", shape=(len(value),), text=value.text)
                self._put_table(target, value.views(), leaf)
            elif isinstance(value, str):
                self._put(target, value.encode(), STR)
            elif isinstance(value, bytes):
                self._put(target, value, BYTES)
            else:
                self._put(target, np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, array_leaf(value))

    def _put(self, target: _Refs, data: Any, leaf: Leaf) -> None:
        if leaf.kind == "array":
            self._align()
        target.rows.append((len(self._payload), len(data)))
        self._payload += data
        target.which.append(target.leaves.setdefault(leaf, len(target.leaves)))

    def _put_table(self, target: _Refs, items: list[Any], leaf: Leaf) -> None:
        table = np.empty((len(items), 2), np.int64)
        for row, item in enumerate(items):
            table[row] = len(self._payload), len(item)
            self._payload += item
        self._align()
        # Counts from the payloads' beginning; moved when it is known where they begin.
        self._put(target, table.tobytes(), leaf)

    def _align(self) -> None:
        self._payload += bytes(-len(self._payload) % 64)

    def finish(self) -> Image:
        """The image; the builder is empty afterwards."""
        parts: list[npt.NDArray[Any]] = [np.concatenate(self._origins)]
        at = [0]

        def place(array: npt.NDArray[Any]) -> int:
            at.append(at[-1] + aligned(parts[-1].nbytes))
            parts.append(array)
            return at[-1]

        refs: list[tuple[_Refs, npt.NDArray[np.int64]]] = []

        def written(part: _Part) -> UniformSpec:
            if isinstance(part, _Arrays):
                # Without a type they would be in the byte order of this machine.
                array = np.ascontiguousarray(np.concatenate(part.parts, dtype=part.parts[0].dtype))
                return StoredArray(array.dtype.str, array.shape[1:], place(array))
            if isinstance(part, _Refs):
                rows = np.array(part.rows, np.int64).reshape(-1, 2)
                refs.append((part, rows))
                which = place(np.array(part.which, np.uint32)) if len(part.leaves) > 1 else -1
                return StoredRefs(tuple(part.leaves), which, place(rows))
            if all(type(item) in PLAIN for item in part.items):
                return StoredPlain(tuple(part.items))
            return ObjectSpec(tuple(part.items))

        specs: list[Spec] = []
        for column in self._columns:
            made = tuple(map(written, column.parts.values()))
            specs.append(made[0] if len(made) == 1 else StoredMixed(made, place(np.concatenate(column.kinds))))
        # One byte more than the payloads, so that an empty one at the end begins inside.
        base = place(np.frombuffer(bytes(self._payload) + b"\0" if refs else b"", np.uint8))
        nbytes = base + aligned(parts[-1].nbytes)
        body = np.zeros(nbytes, np.uint8)
        for position, part in zip(at, parts, strict=True):
            body[position : position + part.nbytes] = part.reshape(-1).view(np.uint8)
        for held, rows in refs:
            self._move(body, held, rows, base)
        for found in (found for spec in specs for found in _uniform_specs(spec)):
            if isinstance(found, StoredRefs):
                count = len(refs.pop(0)[1])
                body[found.rows_at : found.rows_at + 16 * count].view(np.int64)[::2] += base
        image = Image(self.rows, self._structure, tuple(specs), nbytes, body, self._object_bytes)
        self.__init__()  # type: ignore[misc]  # begins again
        return image

    @staticmethod
    def _move(body: npt.NDArray[np.uint8], column: _Refs, rows: npt.NDArray[np.int64], base: int) -> None:
        """Tables count from the body's beginning from now on."""
        leaves = list(column.leaves)
        for (at, length), which in zip(rows.tolist(), column.which, strict=True):
            if leaves[which].kind == "table":
                body[base + at : base + at + length].view(np.int64)[::2] += base


def _part(kind: str) -> _Part:
    if kind == "array":
        return _Arrays()
    return _Refs() if kind == "refs" else _Items()


def _items(column: Column) -> list[Any]:
    return column.items if isinstance(column, ObjectColumn) else [column.element(row) for row in range(len(column))]


def _kinds(column: Column) -> list[Kind]:
    """The kind of all rows, or of each."""
    if isinstance(column, ArrayColumn) and column.array.dtype.kind in DTYPE_KINDS:
        return [("array", column.array.dtype.str, column.array.shape[1:])]
    if isinstance(column, RefColumn):
        return [_REFERENCES if _is_stored(column) else _OBJECTS]
    items = _items(column)
    types = set(map(type, items))
    if len(types) == 1 and issubclass(next(iter(types)), np.generic):
        dtypes = {item.dtype for item in items}
        if len(dtypes) == 1 and items[0].dtype.kind in DTYPE_KINDS:
            return [("array", dtypes.pop().str, ())]
    kinds = list(map(_kind, items))
    return kinds[:1] if len(set(kinds)) == 1 else kinds


def _kind(item: Any) -> Kind:
    if _is_reference(item):
        return _REFERENCES
    return _PLAIN if type(item) in PLAIN else _OBJECTS


def unpickled(column: Column) -> Column:
    """The column, or its Python objects, so that an image is the same whether or not they came from a worker."""
    if isinstance(column, RefColumn) and not _is_stored(column):
        return ObjectColumn([column.element(row) for row in range(len(column))])
    return column


def _is_stored(column: RefColumn) -> bool:
    """Whether all rows can be references in an image."""
    leaves = [column.leaf_at(row) for row in range(len(column) if column.leaf is None else 1)]
    return not any(
        leaf.kind == "object" or (leaf.kind == "array" and np.dtype(leaf.dtype).kind not in DTYPE_KINDS)
        for leaf in leaves
    )


_STRINGS: Final = frozenset((bytes, str, np.bytes_, np.str_))
"""An instance of another class would be read back as one of these."""


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_reference(item: Any) -> bool:
    if isinstance(item, str):
        return type(item) in _STRINGS and _is_unicode(item)
    if type(item) in _STRINGS or type(item) is BytesArray:
        return True
    return (type(item) is np.ndarray or isinstance(item, np.generic)) and item.dtype.kind in DTYPE_KINDS


# --- making a block of it ------------------------------------------------------------------------------------------


def load(image: Image, memory: npt.NDArray[np.uint8], start: int, slabs: Slabs | None) -> Block:
    """The block whose image's body begins at `start`; its rows hold the slab, the caller's own hold stays his.

    Args:
        image: What lies there.
        memory: The arena, or the private body of an image without references.
        start: Of the body.
        slabs: Of the arena.
    """
    count = image.rows
    origin = memory[start : start + 8 * ORIGIN_WIDTH * count].view(np.int64).reshape(count, ORIGIN_WIDTH).copy()
    columns: list[Column] = []
    for spec in image.specs:
        if isinstance(spec, StoredMixed):
            kinds = memory[start + spec.kinds_at : start + spec.kinds_at + count]
            parts = [
                _loaded(part, memory, start, slabs, int(np.count_nonzero(kinds == number)))
                for number, part in enumerate(spec.parts)
            ]
            items = [iter(as_objects(part).items) for part in parts]
            columns.append(ObjectColumn([next(items[kind]) for kind in kinds.tolist()]))
        else:
            columns.append(_loaded(spec, memory, start, slabs, count))
    return Block(image.structure, tuple(columns), origin, EMPTY)


def _loaded(spec: UniformSpec, memory: npt.NDArray[np.uint8], start: int, slabs: Slabs | None, count: int) -> Column:
    if isinstance(spec, StoredArray):
        dtype = np.dtype(spec.dtype)
        nbytes = dtype.itemsize * int(np.prod(spec.shape, dtype=np.int64)) * count
        data = memory[start + spec.at : start + spec.at + nbytes]
        return ArrayColumn(data.view(dtype).reshape(count, *spec.shape).copy())
    if isinstance(spec, StoredRefs):
        assert slabs is not None
        return _references(spec, memory, start, slabs, count)
    return ObjectColumn(list(map(own, spec.values if isinstance(spec, StoredPlain) else spec.items)))


def _references(spec: StoredRefs, memory: npt.NDArray[np.uint8], start: int, slabs: Slabs, count: int) -> RefColumn:
    rows = memory[start + spec.rows_at : start + spec.rows_at + 16 * count].view(np.int64).reshape(count, 2).copy()
    rows[:, 0] += start
    column = RefColumn(slabs, rows, spec.leaves[0])
    if len(spec.leaves) > 1:
        which = memory[start + spec.which_at : start + spec.which_at + 4 * count].view(np.uint32)
        leaves = np.empty(count, object)
        leaves[:] = [spec.leaves[index] for index in which.tolist()]
        column = RefColumn(slabs, rows, None, leaves)
    for row, at in enumerate(rows[:, 0].tolist()):
        leaf = column.leaf_at(row)
        if leaf.kind == "table":
            read_table(memory, at, leaf.shape[0])[:, 0] += start
    column.hold()
    return column


def check_image(image: Image, memory: npt.NDArray[np.uint8], start: int) -> None:
    """Raises ``DataError`` unless everything the specs say lies inside the body; for images from storage."""
    _check(0 <= 8 * ORIGIN_WIDTH * image.rows <= image.nbytes)
    taken: list[_Span] = []
    for spec in image.specs:
        if not isinstance(spec, StoredMixed):
            _check_column(spec, image, memory, start, image.rows, taken)
            continue
        _check(spec.kinds_at >= 0 and spec.kinds_at + image.rows <= image.nbytes)
        taken.append(_span(spec.kinds_at, image.rows))
        kinds = memory[start + spec.kinds_at : start + spec.kinds_at + image.rows]
        _check(int(kinds.max(initial=0)) < len(spec.parts))
        for number, part in enumerate(spec.parts):
            _check_column(part, image, memory, start, int(np.count_nonzero(kinds == number)), taken)
    _check_apart(taken)


_Span: TypeAlias = npt.NDArray[np.int64]
"""Where something begins and ends: ``int64[n, 2]``."""


def _span(at: int, nbytes: int) -> _Span:
    return np.array([[at, at + nbytes]], np.int64)


def _check_apart(taken: list[_Span]) -> None:
    """Tables are changed where they lie when an image is loaded, which must change nothing else that was checked."""
    if not taken:
        return
    spans = np.concatenate(taken)
    spans = spans[spans[:, 0] < spans[:, 1]]
    spans = spans[np.argsort(spans[:, 0])]
    if (spans[1:, 0] < spans[:-1, 1]).any():
        raise DataError("the header describes tables that lie in one another")


def _check_column(
    spec: UniformSpec, image: Image, memory: npt.NDArray[np.uint8], start: int, count: int, taken: list[_Span]
) -> None:
    if isinstance(spec, StoredArray):
        leaf = Leaf("array", spec.dtype, (count, *spec.shape))
        _check(spec.at >= 0 and spec.at + leaf.nbytes <= image.nbytes)
    elif isinstance(spec, StoredPlain):
        _check(len(spec.values) == count)
    elif isinstance(spec, StoredRefs):
        _check_references(spec, image, memory, start, count, taken)


def _check_references(
    spec: StoredRefs, image: Image, memory: npt.NDArray[np.uint8], start: int, count: int, taken: list[_Span]
) -> None:
    _check(spec.rows_at >= 0 and spec.rows_at + 16 * count <= image.nbytes and len(spec.leaves) > 0)
    taken.append(_span(spec.rows_at, 16 * count))
    rows = memory[start + spec.rows_at : start + spec.rows_at + 16 * count].view(np.int64).reshape(count, 2)
    _check_rows(rows, image.nbytes)
    which = np.zeros(count, np.uint32)
    if len(spec.leaves) > 1:
        _check(spec.which_at >= 0 and spec.which_at + 4 * count <= image.nbytes)
        taken.append(_span(spec.which_at, 4 * count))
        which = memory[start + spec.which_at : start + spec.which_at + 4 * count].view(np.uint32)
        _check(not count or int(which.max()) < len(spec.leaves))
    for index, leaf in enumerate(spec.leaves):
        chosen = rows[which == index]
        if leaf.kind in ("array", "table"):
            _check((chosen[:, 1] == leaf.nbytes).all())
        if leaf.kind == "table":
            _check(not (chosen[:, 0] % 8).any())
            taken.append(chosen[:, :1] + np.array([0, leaf.nbytes]))
            for at in chosen[:, 0].tolist():
                _check_rows(read_table(memory, start + at, leaf.shape[0]), image.nbytes)


def _check_rows(rows: npt.NDArray[np.int64], nbytes: int) -> None:
    inside = (rows >= 0).all() and (rows[:, 0] < nbytes).all() and (rows[:, 1] <= nbytes - rows[:, 0]).all()
    _check(bool(inside))


def _check(holds: Any) -> None:
    if not holds:
        raise DataError("the header describes data outside of its block")
