"""What a worker executes: check the payloads, run the user's functions, write the results in place.

A `Program` is pickled once per worker; a task names rows in the arena and gets back where its results lie. The same
code runs in worker processes and in the threads of the parent.

    task      rows of a block, packed into the message, or into a span of the arena  (`memory.wire`)
    results   one batch slab in which every task of the batch fills its own rows  (`memory.layout`),
              plus a slab of payloads per task where results are byte strings

Memory is asked for with ``need(nbytes)``: the first call is for the batch slab (every task of one batch asks for the
same number and is given the same slab), the second for the payloads of this task's byte strings.

An exception of a user function is not raised: the reply says at which row it happened, so that the parent can name the
record.
"""

from __future__ import annotations

import functools
import pickle
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.advance import Rows
from asyncdata.memory.layout import (
    Layout,
    mismatch,
    parts_of,
    plan_layout,
    structure_mismatch,
    value_leaf,
)
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import Structure, flatten, flatten_as
from asyncdata.memory.wire import Rowset, Shape, aligned
from asyncdata.workers.failure import encode_failure

Need = Callable[[int], tuple[int, int]]

_HEADER: Final = struct.Struct("<qqqqqQQ?")
_REPLY: Final = struct.Struct("<bqqqd")
DONE: Final = 0
RAGGED: Final = 1
FAILED: Final = 2
CORRUPT: Final = 3
NO_SPAN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to do with every element.

    Attributes:
        functions: Applied in turn; none means that the payloads are only checked.
        rng: Per function, whether it is called with ``rng=`` a generator keyed by the element's provenance.
        zero_copy: Whether the first function receives memoryviews instead of ``bytes``.
        check: Returns the positions of rows whose checksum does not hold; None when there is nothing to check.
        stack: Whether results must be alike because they become one batch.
    """

    functions: tuple[Callable[..., Any], ...]
    rng: tuple[bool, ...] = ()
    zero_copy: bool = False
    check: Callable[[npt.NDArray[np.uint8], Rows], npt.NDArray[np.int64]] | None = None
    stack: bool = True


@dataclass(frozen=True, slots=True)
class Task:
    """One call's work.

    Attributes:
        offset: Of the packed block in the arena; `NO_SPAN` when it is in the message.
        count: Rows of this task.
        batch_size: Rows of the batch that the results belong to.
        batch_start: Which row of the batch the first result is.
        keys: Key of the random generators: seed, and a mix of epoch and stage.
        with_origin: Whether provenance is packed with the rows.
        shape: The pickled `Shape` of the packed block.
        inline: The packed block itself, when it is in the message.
    """

    offset: int
    count: int
    batch_size: int
    batch_start: int
    keys: tuple[int, int]
    with_origin: bool
    shape: bytes
    inline: bytes = b""

    def encode(self) -> bytes:
        """The message."""
        head = _HEADER.pack(
            self.offset, self.count, self.batch_size, self.batch_start, len(self.shape), *self.keys, self.with_origin
        )
        return head + self.shape + self.inline

    @classmethod
    def decode(cls, payload: bytes) -> Task:
        """The task a message describes."""
        offset, count, size, start, shape_bytes, key0, key1, with_origin = _HEADER.unpack_from(payload)
        border = _HEADER.size + shape_bytes
        shape, inline = payload[_HEADER.size : border], payload[border:]
        return cls(offset, count, size, start, (key0, key1), with_origin, shape, inline)


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a task.

    Attributes:
        status: `DONE`, `RAGGED`, `FAILED` or `CORRUPT`.
        row: The row at which it failed.
        offset: Of the batch slab (`DONE`), or of the row tables (`RAGGED`).
        payloads: Offset of the slab of payloads, or `NO_SPAN`.
        seconds: Time spent in the worker.
        body: Pickled `Layout` (`DONE`), pickled `RaggedRows` (`RAGGED`), an encoded exception (`FAILED`).
    """

    status: int
    row: int
    offset: int
    payloads: int
    seconds: float
    body: bytes

    def encode(self) -> bytes:
        """The message."""
        return _REPLY.pack(self.status, self.row, self.offset, self.payloads, self.seconds) + self.body

    @classmethod
    def decode(cls, message: bytes) -> Reply:
        """The reply a message holds."""
        status, row, offset, payloads, seconds = _REPLY.unpack_from(message)
        return cls(status, row, offset, payloads, seconds, message[_REPLY.size :])


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """Results that are not alike, one payload per row and leaf.

    Attributes:
        structure: How the leaves nest.
        leaves: Per leaf, what each row is.
    """

    structure: Structure
    leaves: tuple[tuple[Leaf, ...], ...]


class _RowFailure(Exception):  # noqa: N818 -- a signal between two functions of this file
    def __init__(self, row: int, cause: BaseException) -> None:
        super().__init__(row)
        self.row = row
        self.cause = cause


def execute(arena: memoryview, program: Program, payload: bytes, need: Need) -> bytes:
    """Runs one task; the handler of `workers.pool`."""
    started = time.perf_counter()
    task = Task.decode(payload)
    array = np.frombuffer(arena, np.uint8)
    shape = _decode_shape(task.shape)
    packed, offset = (array, task.offset) if task.offset != NO_SPAN else (np.frombuffer(task.inline, np.uint8), 0)
    rows = Rowset(array, packed, offset, task.count, shape, with_origin=task.with_origin)

    def reply(status: int, row: int = 0, offset: int = NO_SPAN, payloads: int = NO_SPAN, body: bytes = b"") -> bytes:
        return Reply(status, row, offset, payloads, time.perf_counter() - started, body).encode()

    for part, refs in zip(shape.parts, rows.refs, strict=True):
        if program.check is not None and refs is not None and part.leaf is not None and part.leaf.unchecked:
            bad = program.check(array, refs)
            if len(bad):
                return reply(CORRUPT, int(bad[0]))
    if not program.functions:
        return reply(DONE)
    try:
        columns = _call_batched(program, rows, array)
        if columns is not None:
            return reply(DONE, 0, *_write_columns(array, task, *columns, need))
        results = _Results(array, task, need, stack=program.stack)
        _call_each(program, rows, task, arena if program.zero_copy else None, results)
        status, offset, payloads, body = results.finish()
        return reply(status, 0, offset, payloads, body)
    except _RowFailure as failure:
        return reply(FAILED, failure.row, body=encode_failure(failure.cause))


def _call_each(program: Program, rows: Rowset, task: Task, view: memoryview | None, results: _Results) -> None:
    for row in range(len(rows)):
        try:
            value = rows.element(row, view)
            for position, function in enumerate(program.functions):
                kwargs = {}
                if program.rng and program.rng[position]:
                    assert rows.origin is not None
                    kwargs["rng"] = generator(task.keys, rows.origin[row], position)
                value = function(*value, **kwargs) if isinstance(value, tuple) else function(value, **kwargs)
            results.add(value)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            raise _RowFailure(row, error) from error


def generator(keys: tuple[int, int], origin: Rows, position: int) -> np.random.Generator:
    """The generator for one element: Philox keyed by (seed, epoch and stage), its counter the element's provenance."""
    shard, record, sub, _ = origin.tolist()
    counter = [position << 32, shard & _MASK, record & _MASK, sub & _MASK]
    return np.random.Generator(np.random.Philox(key=list(keys), counter=counter))


_MASK: Final = (1 << 64) - 1


def _call_batched(program: Program, rows: Rowset, array: npt.NDArray[np.uint8]) -> tuple[Structure, list[Any]] | None:
    """Columns from a function that takes many records at once, or None without one.

    Such a function has a method ``rows(array, rows)`` that takes references instead of payloads, as the parsers of
    `formats.example` do.
    """
    if len(program.functions) != 1 or not program.stack or len(rows.refs) != 1 or rows.refs[0] is None or not len(rows):
        return None
    parse_rows = getattr(program.functions[0], "rows", None)
    if parse_rows is None:
        return None
    try:
        result = parse_rows(array, rows.refs[0])
    except Exception:  # noqa: BLE001 -- element by element the same error names its row
        return None
    leaves, structure = flatten(result)
    if any(not isinstance(leaf, np.ndarray) and not _is_texts(leaf) for leaf in leaves):
        return None  # ragged: element by element the error says what does not fit
    return structure, leaves


def _is_texts(column: Any) -> bool:
    return isinstance(column, list) and all(isinstance(item, bytes | str | memoryview) for item in column)


def _write_columns(
    array: npt.NDArray[np.uint8], task: Task, structure: Structure, columns: list[Any], need: Need
) -> tuple[int, int, bytes]:
    leaves = []
    for column in columns:
        if isinstance(column, np.ndarray):
            leaves.append(Leaf("array", column.dtype.str, (task.batch_size, *column.shape[1:])))
        else:
            leaves.append(Leaf("table", shape=(task.batch_size,), text=isinstance(column[0], str)))
    layout = plan_layout(structure, leaves)
    offset, _ = need(layout.nbytes)
    rows = slice(task.batch_start, task.batch_start + task.count)
    tables = []
    for part, column in zip(parts_of(array, offset, layout), columns, strict=True):
        if isinstance(column, np.ndarray):
            part[rows] = column
        else:
            tables.append((part[rows], list(column)))
    return offset, _write_payloads(array, tables, need), pickle.dumps(layout, 5)


def _write_payloads(
    array: npt.NDArray[np.uint8], tables: Sequence[tuple[npt.NDArray[Any], list[Any]]], need: Need
) -> int:
    """Copies byte strings into a slab of this task's own, and their places into the tables."""
    if not tables:
        return NO_SPAN
    raw = [[item.encode() if isinstance(item, str) else item for item in items] for _, items in tables]
    total = sum(len(item) for items in raw for item in items)
    base, _ = need(max(total, 1))
    position = base
    for (table, _), items in zip(tables, raw, strict=True):
        for row, item in enumerate(items):
            size = len(item)
            array[position : position + size] = np.frombuffer(item, np.uint8)
            table[row, 0] = position
            table[row, 1] = size
            position += size
    return base


class _Results:
    """Collects results: in place as long as they are alike, aside once they turn out not to be."""

    def __init__(self, array: npt.NDArray[np.uint8], task: Task, need: Need, *, stack: bool) -> None:
        self._array = array
        self._task = task
        self._need = need
        self._stack = stack
        self._layout: Layout | None = None
        self._offset = NO_SPAN
        self._parts: list[npt.NDArray[Any]] = []
        self._texts: list[list[Any]] = []
        self._done = 0
        self._aside: list[list[Any]] | None = None

    def add(self, value: Any) -> None:
        if self._layout is None:
            leaves, structure = flatten(value)
            self._structure = structure
            if self._stack or self._all_plain(leaves):
                self._begin(structure, leaves)
            else:
                self._aside = [[] for _ in leaves]
        else:
            leaves = []
            if not flatten_as(self._structure, value, leaves):
                raise structure_mismatch(self._structure, flatten(value)[1], self._task.batch_start + self._done)
        if self._aside is not None:
            self._put_aside(leaves)
        else:
            self._put(leaves)
        self._done += 1

    def _all_plain(self, leaves: list[Any]) -> bool:
        try:
            for value in leaves:
                value_leaf(value, 1)
        except UnbatchableError:
            return False
        return True

    def _begin(self, structure: Structure, leaves: list[Any]) -> None:
        size = self._task.batch_size
        self._layout = plan_layout(structure, [value_leaf(value, size) for value in leaves])
        self._offset, _ = self._need(self._layout.nbytes)
        self._parts = parts_of(self._array, self._offset, self._layout)
        self._texts = [[] for _ in leaves]

    def _put(self, leaves: list[Any]) -> None:
        assert self._layout is not None
        row = self._task.batch_start + self._done
        for column, (leaf, value) in enumerate(zip(self._layout.leaves, leaves, strict=True)):
            if leaf.kind == "table":
                if isinstance(value, str) != leaf.text or not isinstance(value, bytes | bytearray | memoryview | str):
                    return self._misfit(leaves)
                # A view of the record is valid during the call only: what is kept is a copy.
                self._texts[column].append(bytes(value) if isinstance(value, memoryview | bytearray) else value)
            else:
                part = self._parts[column]
                item = value if isinstance(value, np.ndarray) else np.asarray(value)
                if item.shape != leaf.shape[1:] or item.dtype.str != leaf.dtype:
                    return self._misfit(leaves)
                part[row] = item
        return None

    def _misfit(self, leaves: list[Any]) -> None:
        assert self._layout is not None
        if self._stack:
            size = self._task.batch_size
            found = [value_leaf(value, size) for value in leaves]
            raise mismatch(self._structure, self._layout.leaves, found, self._task.batch_start + self._done)
        self._aside = self._taken_back()
        self._put_aside(leaves)

    def _taken_back(self) -> list[list[Any]]:
        """What was written in place so far, as one list per leaf."""
        assert self._layout is not None
        start = self._task.batch_start
        return [
            text[: self._done] if leaf.kind == "table" else [part[start + i].copy() for i in range(self._done)]
            for leaf, part, text in zip(self._layout.leaves, self._parts, self._texts, strict=True)
        ]

    def _put_aside(self, leaves: list[Any]) -> None:
        assert self._aside is not None
        if self._layout is None:
            self._layout = plan_layout(self._structure, ())
        for column, value in zip(self._aside, leaves, strict=True):
            column.append(bytes(value) if isinstance(value, memoryview | bytearray) else value)

    def finish(self) -> tuple[int, int, int, bytes]:
        if self._aside is not None:
            return self._finish_ragged()
        assert self._layout is not None
        start = self._task.batch_start
        tables = [
            (part[start : start + self._done], texts)
            for leaf, part, texts in zip(self._layout.leaves, self._parts, self._texts, strict=True)
            if leaf.kind == "table"
        ]
        payloads = _write_payloads(self._array, tables, self._need)
        return DONE, self._offset, payloads, pickle.dumps(self._layout, 5)

    def _finish_ragged(self) -> tuple[int, int, int, bytes]:
        assert self._aside is not None
        kinds: list[tuple[Leaf, ...]] = []
        payloads: list[list[npt.NDArray[Any] | bytes]] = []
        for column in self._aside:
            parts = [_payload(value) for value in column]
            kinds.append(tuple(leaf for leaf, _ in parts))
            payloads.append([data for _, data in parts])
        table_bytes = aligned(16 * self._done)
        if self._offset == NO_SPAN:
            self._offset, _ = self._need(max(1, table_bytes * len(kinds)))
            tables_at, base = self._offset, NO_SPAN
            extra = 0
        else:
            # The batch slab was taken for a layout that did not last: tables and payloads share the second slab.
            tables_at, extra, base = NO_SPAN, table_bytes * len(kinds), NO_SPAN
        total = sum(aligned(_size(data)) for column in payloads for data in column)
        base, _ = self._need(max(1, total + extra))
        if tables_at == NO_SPAN:
            tables_at, position = base, base + extra
        else:
            position = base
        for index, column in enumerate(payloads):
            at = tables_at + index * table_bytes
            table = self._array[at : at + 16 * self._done].view(np.int64).reshape(self._done, 2)
            for row, data in enumerate(column):
                size = _size(data)
                raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
                self._array[position : position + size] = raw
                table[row] = position, size
                position += aligned(size)
        body = pickle.dumps((tables_at, RaggedRows(self._structure, tuple(kinds))), 5)
        return RAGGED, self._offset, base, body


def _payload(value: Any) -> tuple[Leaf, npt.NDArray[Any] | bytes]:
    if isinstance(value, bytes):
        return Leaf("bytes"), value
    if isinstance(value, str):
        return Leaf("str"), value.encode()
    if isinstance(value, np.ndarray | np.generic | int | float | bool | complex):
        array = np.asarray(value)
        if array.dtype.kind not in "OUS":
            return Leaf("array", array.dtype.str, array.shape), np.ascontiguousarray(array)
    return Leaf("object"), pickle.dumps(value, 5)


def _size(data: npt.NDArray[Any] | bytes) -> int:
    return len(data) if isinstance(data, bytes) else int(data.nbytes)


@functools.lru_cache(maxsize=64)
def encode_shape(shape: Shape) -> bytes:
    """The pickled shape that tasks carry."""
    return pickle.dumps(shape, 5)


@functools.lru_cache(maxsize=64)
def _decode_shape(data: bytes) -> Shape:
    shape: Shape = pickle.loads(data)  # noqa: S301 -- made by the parent process of this pipeline
    return shape
