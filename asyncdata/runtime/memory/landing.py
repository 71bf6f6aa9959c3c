"""Copies what a stage collects into slabs, so that the ledger charges as many bytes as there are.

    arrays, byte strings, texts of an inline function   ─▶ |row|row|row|row|…     one slab for many rows
    lists and other plain objects, None                 ─▶ |pickle|pickle|…
    results of a task, alone in a slab of 64 KiB        ─▶ |row|row|…

Rows that are already in slabs stay there, unless they are small; all rows of a larger slab stay. Numbers, arrays as
small as numbers, and objects of other classes stay outside.
"""

from __future__ import annotations

import io
import pickle
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import PipelineError
from asyncdata.memory.accounts import Account, Kind
from asyncdata.memory.advance import Rows
from asyncdata.memory.arena import GRANULE
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.leaf import BYTES, OBJECT, STR, Leaf, array_leaf, is_plain, rows_in
from asyncdata.memory.slabs import Slab, Slabs
from asyncdata.memory.structure import has_structure
from asyncdata.memory.wire import ALIGN, aligned
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.memory.packing import Packer, RefLeaf

_SMALL_ROW: Final = 64
"""Rows of arrays stay side by side up to this many bytes, because references to them would cost as much."""
_SLAB_PART: Final = 1024
"""Small rows share slabs of one part in so many of the limit, at most of `_MOST_SLAB_BYTES`."""
_MOST_SLAB_BYTES: Final = 1 << 20
_AHEAD_PART: Final = 16
"""Of the limit: reserved for elements that were made ahead."""
_SHORT: Final = 1024
"""Up to so many bytes, arrays are joined before they are written: one copy more, and nothing else to do for each."""
_NUMBERS: Final = (int, float, complex, np.number, np.bool_)
_LARGE_BYTES: Final = 1 << 20
"""Larger pickles are made twice: once to know their size, and again in the arena."""
_NONE: Final = pickle.dumps(None, pickle.HIGHEST_PROTOCOL)
_THIN: Final = 9 / 8
"""Small rows move out of slabs that are so much larger than all that is in them."""


class _Loose:
    """A column that lies outside of slabs, and how its rows are written into them.

    Attributes:
        steps: What each row takes.
    """

    def __init__(self, sizes: Rows, leaf: Leaf | None, leaves: list[Leaf], items: Any, *, joins: bool = True) -> None:
        self._items = items
        self._leaf = leaf
        self._leaves = leaves
        self._joins = joins and all(each.kind != "array" for each in (leaves if leaf is None else [leaf]))
        # An empty row begins inside the slab, too.
        self.steps: Rows = np.maximum(sizes, 1) if self._joins else -(-np.maximum(sizes, 1) // ALIGN) * ALIGN
        self._rows = np.stack((self.steps, sizes), axis=1)

    def write(self, arena: npt.NDArray[np.uint8], at: int, start: int, stop: int) -> int:
        """Copies some rows; returns where the next ones may begin."""
        ends = np.cumsum(self.steps[start:stop]) + at
        rows = self._rows[start:stop]
        rows[:, 0] = ends - self.steps[start:stop]
        items = self._items[start:stop]
        if self._leaf is not None and self._leaf.kind == "array":
            target = rows_in(arena, at, int(self.steps[0]), stop - start, self._leaf)
            if isinstance(items, np.ndarray):
                target[...] = items
            elif self._leaf.nbytes <= _SHORT:
                target[...] = np.concatenate(items, axis=None).reshape(target.shape)
            else:
                for row, item in zip(target, items, strict=True):
                    row[...] = item
        elif not self._joins:
            for (offset, size), item in zip(rows.tolist(), items, strict=True):
                if isinstance(item, _Large):
                    item.write_into(arena[offset : offset + size].data)
                elif isinstance(item, bytes):
                    arena[offset : offset + size] = np.frombuffer(item, np.uint8)
                else:
                    arena[offset : offset + size].view(item.dtype).reshape(item.shape)[...] = item
        elif len(joined := b"".join(items)) == int(ends[-1]) - at:
            arena[at : at + len(joined)] = np.frombuffer(joined, np.uint8)
        else:
            for (offset, size), item in zip(rows.tolist(), items, strict=True):
                arena[offset : offset + size] = np.frombuffer(item, np.uint8)
        return aligned(int(ends[-1]))

    def column(self, slabs: Slabs) -> RefColumn:
        """The rows as references; they hold nothing yet."""
        if self._leaf is not None:
            return RefColumn(slabs, self._rows, self._leaf)
        leaves = np.empty(len(self._rows), object)
        leaves[:] = self._leaves
        return RefColumn(slabs, self._rows, None, leaves)


class Landing:
    """See the module's docstring.

    Args:
        budget: For slabs.
        account: Of the stage that collects; charged with them.
    """

    def __init__(self, budget: Budget, account: Account) -> None:
        self._budget = budget
        self._account = account
        self._slab: Slab | None = None
        self._full: list[Slab] = []
        self._free = 0
        part = budget.limit // _SLAB_PART // GRANULE * GRANULE
        self._slab_bytes = max(GRANULE, min(part, _MOST_SLAB_BYTES))

    async def __call__(self, block: Block) -> None:
        """Replaces columns of a block, which has rows and stays the caller's; waits until there is memory.

        Raises:
            MemoryLimitError: There never will be.
        """
        slabs = self._budget.slabs
        loose = [_loose(column) for column in block.columns]
        packer = self._thin(block)
        columns: list[Column] = list(block.columns)
        if packer is not None:
            packed = iter(packer.write(slabs.arena.view, await self._room(packer.nbytes)))
            for index, column in enumerate(columns):
                if isinstance(column, RefColumn):
                    moved = next(packed)
                    columns[index] = RefColumn(slabs, moved.rows, moved.leaf, moved.leaves)
        outside = [one for one in loose if one is not None]
        if outside:
            await self._write(outside, len(block))
        for index, one in enumerate(loose):
            if one is not None:
                columns[index] = one.column(slabs)
        # Nothing waits or fails from here on: the holds change hands.
        for before, after in zip(block.columns, columns, strict=True):
            if after is not before:
                assert isinstance(after, RefColumn)
                after.hold()
                before.release()
        block.columns = tuple(columns)
        self._drop_full()

    async def _write(self, columns: list[_Loose], count: int) -> None:
        """Copies rows, as many side by side as a slab has room for."""
        ends = np.cumsum(sum(column.steps for column in columns))
        start = before = 0
        while start < count:
            stop = max(start + 1, int(np.searchsorted(ends, before + self._slab_bytes, side="right")))
            nbytes = int(ends[stop - 1]) - before
            # Every column begins on a boundary of its own.
            at = await self._room(nbytes + ALIGN * (len(columns) - 1))
            for column in columns:
                at = column.write(self._budget.slabs.arena.array, at, start, stop)
            start, before = stop, before + nbytes

    def _thin(self, block: Block) -> Packer | None:
        """What moves the references of a block, if they are all that much larger slabs hold; charges their slabs."""
        slabs = self._budget.slabs
        refs = [column for column in block.columns if isinstance(column, RefColumn)]
        if not refs:
            return None
        tables = [table for column in refs for table in column.tables()]
        rows = [column.rows for column in refs] + tables
        holds = slabs.holds_of(np.concatenate([part[:, 0] for part in rows]) if len(rows) > 1 else rows[0][:, 0])
        alone = 0
        for index, count in holds:
            slab = slabs.slab(index)
            payer, mine = slab.account.account, slabs.holds(slab) == count
            # What a source still reads from is its own, and what others hold as well is theirs.
            if payer.kind is Kind.FLOW or (mine and payer.kind is Kind.ASSEMBLER and payer.rank > self._account.rank):
                self._budget.move(slab, self._account)
            alone += slab.nbytes if mine else -self._budget.limit
        nbytes = sum(int(part[:, 1].sum()) for part in rows)
        if alone < _THIN * nbytes or nbytes > self._slab_bytes // 4 * len(block):
            return None
        if any(column.leaf is not None and column.leaf.unchecked for column in refs):
            return None  # what follows a row would have to come along
        packer = Packer(slabs.arena.array)
        for column in refs:
            packer.add(RefLeaf(column.rows, column.leaf, column.leaves))
        return packer

    async def _room(self, nbytes: int) -> int:
        """The offset where `nbytes` bytes may be written: in the current slab, or in a new one."""
        nbytes = aligned(nbytes)
        if self._slab is None or self._free + nbytes > self._slab.offset + self._slab.nbytes:
            alone = nbytes > self._slab_bytes // 2
            slab = await self._take(nbytes if alone else self._slab_bytes)
            if alone:
                self._full.append(slab)
                return slab.offset
            if self._slab is not None:
                self._full.append(self._slab)
            self._slab, self._free = slab, slab.offset
        at, self._free = self._free, self._free + nbytes
        return at

    async def _take(self, nbytes: int) -> Slab:
        return await self._budget.take(self._account, nbytes)

    def _drop_full(self) -> None:
        """Slabs that no more rows come into belong to the rows in them."""
        full, self._full = self._full, []
        self._budget.slabs.drop_each(full)

    def close(self) -> None:
        """No more rows come."""
        if self._slab is not None:
            self._full.append(self._slab)
            self._slab = None
        self._drop_full()


class LandingAhead(Landing):
    """For elements that are made ahead of time: within a reserve that is theirs alone, so that nobody waits for it."""

    async def __call__(self, block: Block) -> None:
        """As `Landing`; elements that find no room stay what they are.

        Raises:
            NoRoomError: They did.
        """
        try:
            await super().__call__(block)
        finally:
            self._drop_full()

    async def _take(self, nbytes: int) -> Slab:
        account = self._account
        if not account.reserved:
            self._budget.reserve(account, self._budget.limit // _AHEAD_PART)
        if account.used + self._budget.charge(nbytes) > account.backed:
            raise NoRoomError
        slab = self._budget.take_now(account, nbytes)
        if slab is None:
            raise NoRoomError
        return slab

    def _thin(self, block: Block) -> None:
        """What lies in slabs is charged to whom it is."""


class NoRoomError(Exception):
    """There is no memory for what was made ahead."""


def _loose(column: Column) -> _Loose | None:
    """The rows of a column that have to move to a slab; None where they stay."""
    if isinstance(column, ArrayColumn):
        array = column.array
        if array.nbytes <= _SMALL_ROW * len(array) or not _is_landed(array):
            return None
        return _Loose(np.full(len(array), array[0].nbytes, np.int64), array_leaf(array[0]), [], array)
    if not isinstance(column, ObjectColumn) or all(issubclass(k, _NUMBERS) for k in set(map(type, column.items))):
        return None
    try:
        return _of_objects(column.items)
    except Exception:  # noqa: BLE001 -- a lone surrogate, an object of another class, nests too deep: they stay outside
        return None


def _of_objects(items: list[Any]) -> _Loose:
    """Rows of Python objects.

    Raises:
        Exception: One cannot be pickled, or has to stay what it is.
    """
    kinds = set(map(type, items))
    if kinds == {bytes}:
        return _Loose(_lengths(items), BYTES, [], items)
    if kinds == {str}:
        texts = [item.encode() for item in items]
        return _Loose(_lengths(texts), STR, [], texts)
    if kinds == {np.ndarray} and _are_alike(items):
        return _Loose(np.full(len(items), items[0].nbytes, np.int64), array_leaf(items[0]), [], items)
    rows = list(map(_as_row, items))
    leaves = [leaf for leaf, _ in rows]
    payloads = [payload for _, payload in rows]
    sizes = np.array([len(data) if isinstance(data, bytes) else data.nbytes for data in payloads], np.int64)
    same = all(leaf == leaves[0] for leaf in leaves)
    joins = not any(isinstance(data, _Large) for data in payloads)
    return _Loose(sizes, leaves[0] if same else None, leaves, payloads, joins=joins)


def _are_alike(arrays: list[npt.NDArray[Any]]) -> bool:
    """Whether these are rows of one kind."""
    dtype, shape = arrays[0].dtype, arrays[0].shape
    is_row = len(shape) > 0 and _is_landed(arrays[0])
    return is_row and all(array.dtype == dtype and array.shape == shape for array in arrays)


def _as_row(item: Any) -> tuple[Leaf, Any]:
    """What an object is in the arena, and its bytes or itself to be written there."""
    kind = type(item)
    if kind is bytes:
        return BYTES, item
    if kind is str:
        return STR, item.encode()
    if (kind is np.ndarray and item.ndim and _is_landed(item)) or issubclass(kind, np.number | np.bool_):
        return array_leaf(item), item
    if item is None:
        return OBJECT, _NONE  # usual among other values
    if has_structure(kind):
        raise pickle.PicklingError  # elements nest differently, which whoever batches them wants to see
    data = _Beginning()
    _PlainPickler(data, pickle.HIGHEST_PROTOCOL).dump(item)
    return OBJECT, data.getvalue() if data.is_whole else _Large(item, data.nbytes)


class _Beginning(io.BytesIO):
    """Keeps what is written as long as that is little, and counts all of it.

    Attributes:
        nbytes: So much was written.
    """

    nbytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether everything was kept."""
        return self.nbytes <= _LARGE_BYTES

    def write(self, data: Any) -> int:
        """As a file does."""
        nbytes = memoryview(data).nbytes  # of whatever has a buffer
        self.nbytes += nbytes
        if self.is_whole:
            return super().write(data)
        self.truncate(0)
        return nbytes


class _Large:
    """An object whose pickle is written where there is room for it, instead of being copied there.

    Args:
        item: The object.
        nbytes: Of its pickle.
    """

    def __init__(self, item: Any, nbytes: int) -> None:
        self._item = item
        self.nbytes = nbytes

    def write_into(self, target: memoryview) -> None:
        """Pickles the object.

        Raises:
            PipelineError: It has become larger.
        """
        at = 0

        def write(data: Any) -> int:
            nonlocal at
            content = memoryview(data).cast("B")
            if at + len(content) > len(target):
                raise PipelineError("an element was changed while it was passed on")
            target[at : at + len(content)] = content
            at += len(content)
            return len(content)

        _PlainPickler(SimpleNamespace(write=write), pickle.HIGHEST_PROTOCOL).dump(self._item)


class _PlainPickler(pickle.Pickler):
    """For numbers, texts and bytes in containers of Python, NumPy and this package, whose copies are as good as they.

    A window is such a container.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Refuses objects of other classes, which may have an identity, or functions of their own for pickling."""
        by_name = isinstance(obj, type | FunctionType | BuiltinFunctionType)
        if _package(obj if by_name else type(obj)) == "asyncdata":
            return NotImplemented
        if _package(obj) == "numpy" if by_name else type(obj) is np.ndarray or isinstance(obj, np.generic | np.dtype):
            return NotImplemented
        raise pickle.PicklingError


def _package(named: Any) -> str:
    return str(named.__module__).partition(".")[0]


def _is_landed(array: npt.NDArray[Any]) -> bool:
    """Whether rows of an array may be references; raw bytes are elements, but no part of a batch, and say so there."""
    return is_plain(array) and array.dtype.kind != "V"


def _lengths(items: list[bytes]) -> Rows:
    return np.array(list(map(len, items)), np.int64)
