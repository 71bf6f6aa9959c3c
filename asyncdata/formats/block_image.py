"""Images: elements as one piece of memory, which can be stored and turned into blocks again.

    body    | origin, 32 B per row | arrays | rows (offset, length) of references | payloads, arrays 64-byte aligned |

References count from the beginning of the body. An image that is loaded into a slab becomes a block whose reference
columns point into that slab: only the small tables are copied again. Specs describe the columns; they are plain data
that can be written as JSON (`block_file`). Python objects that are not numbers, strings or arrays are kept as they are
and cannot be written.
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
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn, read_table
from asyncdata.memory.leaf import BYTES, STR, Leaf, array_leaf
from asyncdata.memory.own import own
from asyncdata.memory.slabs import Slabs
from asyncdata.memory.structure import LEAF, Structure, element_bytes
from asyncdata.memory.wire import aligned

PLAIN: Final = (type(None), bool, int, float)
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


Spec: TypeAlias = StoredArray | StoredRefs | StoredPlain | ObjectSpec


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
        return any(isinstance(spec, StoredRefs) for spec in self.specs)


# --- making one ----------------------------------------------------------------------------------------------------


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


class ImageBuilder:
    """Collects the rows of several blocks, copying them, until they are one image."""

    def __init__(self) -> None:
        self.rows = 0
        self._structure: Structure = LEAF
        self._kinds: tuple[Any, ...] = ()
        self._columns: list[_Arrays | _Refs | _Items] = []
        self._origins: list[npt.NDArray[np.int64]] = []
        self._payload = bytearray()
        self._array_bytes = 0
        self._object_bytes = 0

    @property
    def nbytes(self) -> int:
        """About the size of the body so far, with objects beside it."""
        return len(self._payload) + self._array_bytes + self._object_bytes + 48 * self.rows

    def takes(self, block: Block) -> bool:
        """Whether a block's rows go into the same image as those before."""
        return not self.rows or (block.structure == self._structure and self._kinds == _kinds(block))

    def add(self, block: Block) -> None:
        """Copies the rows of a block, which `takes` allowed; the block stays the caller's."""
        kinds = _kinds(block)
        if not self.rows:
            self._structure, self._kinds = block.structure, kinds
            self._columns = [_column(kind[0]) for kind in kinds]
        for column, target in zip(block.columns, self._columns, strict=True):
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
        self._origins.append(block.origin)
        self.rows += len(block)

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

        specs: list[Spec] = []
        refs: list[tuple[_Refs, npt.NDArray[np.int64]]] = []
        for column in self._columns:
            if isinstance(column, _Arrays):
                # Without a type they would be in the byte order of this machine.
                array = np.ascontiguousarray(np.concatenate(column.parts, dtype=column.parts[0].dtype))
                specs.append(StoredArray(array.dtype.str, array.shape[1:], place(array)))
            elif isinstance(column, _Refs):
                rows = np.array(column.rows, np.int64).reshape(-1, 2)
                refs.append((column, rows))
                which = place(np.array(column.which, np.uint32)) if len(column.leaves) > 1 else -1
                specs.append(StoredRefs(tuple(column.leaves), which, place(rows)))
            elif all(type(item) in PLAIN for item in column.items):
                specs.append(StoredPlain(tuple(column.items)))
            else:
                specs.append(ObjectSpec(tuple(column.items)))
        # One byte more than the payloads, so that an empty one at the end begins inside.
        base = place(np.frombuffer(bytes(self._payload) + b"\0" if refs else b"", np.uint8))
        nbytes = base + aligned(parts[-1].nbytes)
        body = np.zeros(nbytes, np.uint8)
        for position, part in zip(at, parts, strict=True):
            body[position : position + part.nbytes] = part.reshape(-1).view(np.uint8)
        for column, rows in refs:
            self._move(body, column, rows, base)
        for spec in specs:
            if isinstance(spec, StoredRefs):
                body[spec.rows_at : spec.rows_at + 16 * self.rows].view(np.int64)[::2] += base
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


def _column(kind: str) -> _Arrays | _Refs | _Items:
    if kind == "array":
        return _Arrays()
    return _Refs() if kind == "refs" else _Items()


def _items(column: Column) -> list[Any]:
    return column.items if isinstance(column, ObjectColumn) else [column.element(row) for row in range(len(column))]


def _kinds(block: Block) -> tuple[Any, ...]:
    return tuple(_kind(column) for column in block.columns)


def _kind(column: Column) -> tuple[Any, ...]:
    """What must agree for columns to go into one image."""
    if isinstance(column, ArrayColumn) and column.array.dtype.kind in DTYPE_KINDS:
        return ("array", column.array.dtype.str, column.array.shape[1:])
    if isinstance(column, RefColumn):
        return ("refs",) if _is_stored(column) else ("objects",)
    items = _items(column)
    types = set(map(type, items))
    if len(types) == 1 and issubclass(next(iter(types)), np.generic):
        dtypes = {item.dtype for item in items}
        if len(dtypes) == 1 and items[0].dtype.kind in DTYPE_KINDS:
            return ("array", dtypes.pop().str, ())
    if all(map(_is_reference, items)):
        return ("refs",)
    return ("plain",) if all(type(item) in PLAIN for item in items) else ("objects",)


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
        if isinstance(spec, StoredArray):
            dtype = np.dtype(spec.dtype)
            nbytes = dtype.itemsize * int(np.prod(spec.shape, dtype=np.int64)) * count
            data = memory[start + spec.at : start + spec.at + nbytes]
            columns.append(ArrayColumn(data.view(dtype).reshape(count, *spec.shape).copy()))
        elif isinstance(spec, StoredRefs):
            assert slabs is not None
            columns.append(_references(spec, memory, start, slabs, count))
        else:
            items = spec.values if isinstance(spec, StoredPlain) else spec.items
            columns.append(ObjectColumn(list(map(own, items))))
    return Block(image.structure, tuple(columns), origin, EMPTY)


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
    count = image.rows
    _check(0 <= 8 * ORIGIN_WIDTH * count <= image.nbytes)
    for spec in image.specs:
        if isinstance(spec, StoredArray):
            leaf = Leaf("array", spec.dtype, (count, *spec.shape))
            _check(spec.at >= 0 and spec.at + leaf.nbytes <= image.nbytes)
        elif isinstance(spec, StoredPlain):
            _check(len(spec.values) == count)
        elif isinstance(spec, StoredRefs):
            _check_references(spec, image, memory, start)


def _check_references(spec: StoredRefs, image: Image, memory: npt.NDArray[np.uint8], start: int) -> None:
    count = image.rows
    _check(spec.rows_at >= 0 and spec.rows_at + 16 * count <= image.nbytes and len(spec.leaves) > 0)
    rows = memory[start + spec.rows_at : start + spec.rows_at + 16 * count].view(np.int64).reshape(count, 2)
    _check_rows(rows, image.nbytes)
    which = np.zeros(count, np.uint32)
    if len(spec.leaves) > 1:
        _check(spec.which_at >= 0 and spec.which_at + 4 * count <= image.nbytes)
        which = memory[start + spec.which_at : start + spec.which_at + 4 * count].view(np.uint32)
        _check(not count or int(which.max()) < len(spec.leaves))
    for index, leaf in enumerate(spec.leaves):
        chosen = rows[which == index]
        if leaf.kind in ("array", "table"):
            _check((chosen[:, 1] == leaf.nbytes).all())
        if leaf.kind == "table":
            _check(not (chosen[:, 0] % 8).any())
            for at in chosen[:, 0].tolist():
                _check_rows(read_table(memory, start + at, leaf.shape[0]), image.nbytes)


def _check_rows(rows: npt.NDArray[np.int64], nbytes: int) -> None:
    inside = (rows >= 0).all() and (rows[:, 0] < nbytes).all() and (rows[:, 1] <= nbytes - rows[:, 0]).all()
    _check(bool(inside))


def _check(holds: Any) -> None:
    if not holds:
        raise DataError("the header describes data outside of its block")
