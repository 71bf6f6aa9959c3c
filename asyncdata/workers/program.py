"""The program of a worker: verify the payloads, run the user's functions, write the results in place.

A `Program` is pickled once per worker. A task names rows in the arena and returns where its results are. The same code
runs in worker processes and in the threads of the parent.

    task      rows of a block, packed into the message, or into a span of the arena  (`memory.wire`)
    results   one batch slab in which every task of the batch fills its own rows  (`memory.layout`),
              plus a slab of payloads per task where results are byte strings

An exception of a user function, or a damaged payload, is not raised: the reply says which rows failed and how, so that
the parent can name the records. The rows before the first failed one always have results. With ``skip`` all other rows
have results too, side by side, as if the failed rows did not exist.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Rows
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.narrow import fits, half_of
from asyncdata.memory.own import own
from asyncdata.memory.returned import returned_nest
from asyncdata.memory.structure import Structure, flatten
from asyncdata.memory.wire import Rowset, Shape
from asyncdata.workers.calling import as_element, explain_call
from asyncdata.workers.child import GrantDeniedError
from asyncdata.workers.failure import encode_failure
from asyncdata.workers.results import Need, Results, Rooms, has_place, rows_within, write_columns
from asyncdata.workers.task_records import (
    DAMAGED,
    DONE,
    HUNG,
    NO_SPAN,
    Reply,
    Task,
    decode_shape,
    encode_failed,
    encode_unlike,
)
from asyncdata.workers.whereabouts import Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to do with every element.

    Attributes:
        functions: Applied in turn; with none the elements are put together as they are.
        rng: Per function, whether it is called with ``rng=`` a generator keyed by the element's provenance.
        depth: Of the first function's step in the plan; sets its random numbers apart from those of other steps.
        zero_copy: Whether the first function receives memoryviews instead of ``bytes``.
        check: Returns the positions of unchecked rows whose checksum does not hold; None where no rows are unchecked.
        stack: Whether results must be alike because they become one batch.
        narrow: Whether numbers of 64 bits are written in 32 where results are put together, see `memory.narrow`.
        skip: Whether the rows behind one that failed are worked on all the same.
        limit_ns: The longest that one call of a function may take, in a process that can be ended; None for no limit.
    """

    functions: tuple[Callable[..., Any], ...]
    rng: tuple[bool, ...] = ()
    depth: int = 0
    zero_copy: bool = False
    check: Callable[[npt.NDArray[np.uint8], Rows], npt.NDArray[np.int64]] | None = None
    stack: bool = False
    narrow: bool = False
    skip: bool = False
    limit_ns: int | None = None


class OtherProgram(Protocol):
    """What to do with something else than elements; calls nothing of the user's and needs no memory for results.

    Attributes:
        functions: None.
    """

    functions: tuple[Callable[..., Any], ...]

    def run(self, arena: memoryview, payload: bytes) -> bytes:
        """Does one task."""


def execute(
    arena: memoryview, program: Program | OtherProgram, payload: bytes, need: Need, mark: Mark | None = None
) -> bytes:
    """Runs one task; the handler of `workers.pool`.

    Args:
        arena: Where rows and results lie.
        program: What to do.
        payload: The task.
        need: Asks for more memory for results than the task has.
        mark: Tells the parent process which row the functions are in, where there is one that would end them.
    """
    if not isinstance(program, Program):
        return program.run(arena, payload)
    started, cpu_started = time.perf_counter(), time.thread_time()
    task = Task.decode(payload)
    array = np.frombuffer(arena, np.uint8)
    shape = decode_shape(task.shape)
    packed, offset = (array, task.offset) if task.offset != NO_SPAN else (np.frombuffer(task.inline, np.uint8), 0)
    rows = Rowset(array, packed, offset, task.count, shape, with_origin=task.with_origin)

    rooms = Rooms(task, need)
    failed: list[tuple[int, bytes]] = []
    used = task.count

    def reply(status: int, count: int, offset: int, payloads: int, body: bytes) -> bytes:
        seconds = _cost(time.perf_counter() - started, time.thread_time() - cpu_started)
        done = [(row, blob) for row, blob in failed if row < used]
        reply = Reply(status, count, offset, payloads, seconds, body, encode_failed(done), used, rooms.payload_bytes)
        return reply.encode()

    todo: Sequence[int] = range(task.count)
    damaged = _damaged(program, array, rows, shape)
    if len(damaged) or task.hung:
        failed = sorted((dict.fromkeys(damaged.tolist(), DAMAGED) | dict.fromkeys(task.hung, HUNG)).items())
        if program.skip:
            todo = np.delete(np.arange(task.count), [row for row, _ in failed]).tolist()
        else:
            failed = failed[:1]
            todo = range(failed[0][0])
    columns = _call_batched(program, rows, todo, array)
    if columns is not None:
        structure, leaves, records = columns
        if (count := rows_within(task, leaves, len(todo), array)) < len(todo):
            used, leaves, records = todo[count], [leaf[:count] for leaf in leaves], records[:count]
        return reply(DONE, count, *write_columns(array, task, records, structure, leaves, rooms, narrow=program.narrow))
    results = Results(array, task, rooms, rows, stack=program.stack, narrow=program.narrow)
    view = arena.toreadonly() if _takes_views(program) else None
    failed, used = _call_each(program, rows, todo, task, view, results, failed, mark)
    if results.unlike is not None and not failed:
        failed = [(len(results), encode_unlike(results.unlike))]
    status, offset, payloads, body = results.finish()
    return reply(status, len(results), offset, payloads, body)


def _damaged(program: Program, array: npt.NDArray[np.uint8], rows: Rowset, shape: Shape) -> npt.NDArray[np.int64]:
    """Rows of which a payload's checksum does not hold, ascending."""
    refs = rows.payloads
    if program.check is None or refs is None:
        return _NO_ROWS
    leaf = shape.parts[0].leaf
    return program.check(array, refs) if leaf is not None and leaf.unchecked else _NO_ROWS


def _takes_views(program: Program) -> bool:
    """Whether payloads may be views: the user said so, or the only function is one that keeps nothing of them."""
    return program.zero_copy or (len(program.functions) == 1 and _accepts_rows(program.functions[0]))


def _accepts_rows(function: Any) -> bool:
    return getattr(function, "accepts_rows", False) is True


def _cost(wall_s: float, cpu_s: float) -> float:
    """What a task cost: CPU time, so that a busy machine does not make tasks look long; or wall time if it waited."""
    return cpu_s if 4 * cpu_s > wall_s else wall_s


def _call_each(
    program: Program,
    rows: Rowset,
    todo: Sequence[int],
    task: Task,
    view: memoryview | None,
    results: Results,
    failed: list[tuple[int, bytes]],
    mark: Mark | None,
) -> tuple[list[tuple[int, bytes]], int]:
    """Calls the functions for row after row, until the results are as large as they may be.

    Returns:
        The rows that failed, those that had already among them, and how many rows were used.
    """
    encoded_bytes = 0
    limit_ns = program.limit_ns
    mark = None if limit_ns is None else mark
    function: Callable[..., Any] | None = None
    pid = os.getpid()
    for row in todo:
        if results.is_full:
            return sorted(failed), row
        passed: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        try:
            value = rows.element(row, view)
            for position, function in enumerate(program.functions):
                kwargs = {}
                if position:
                    value = own(returned_nest(value))  # as if the maps were steps of their own
                if program.rng and program.rng[position]:
                    assert rows.origin is not None
                    kwargs["rng"] = generator(task.keys, rows.origin[row], program.depth + position)
                passed = value if type(value) is tuple else (value,)
                if mark is not None and limit_ns is not None:
                    mark.enter(row, limit_ns)
                value = as_element(function(*passed, **kwargs))
            _end_copy(pid)
            if mark is not None:
                mark.leave()
            results.add(value, row)
        except GrantDeniedError:
            raise
        except BaseException as error:  # noqa: BLE001 -- reported with the row
            _end_copy(pid)
            if mark is not None:
                mark.leave()
            explain_call(error, function, passed, kwargs)
            blob = encode_failure(error, brief=encoded_bytes > _MOST_FAILURE_BYTES)
            encoded_bytes += len(blob)
            if not program.skip or not isinstance(error, Exception):
                return [*((bad, known) for bad, known in failed if bad < row), (row, blob)], task.count
            failed.append((row, blob))
    return sorted(failed), task.count


def _end_copy(pid: int) -> None:
    """Ends a copy of the process that user code forked and let return: the memory for results is the original's."""
    if os.getpid() != pid:
        os._exit(0)


def generator(keys: tuple[int, int], origin: Rows, position: int) -> np.random.Generator:
    """The generator for one element: Philox keyed by (seed, epoch and stage), its counter the element's provenance."""
    shard, record, sub, _ = origin.tolist()
    counter = [position << 32, shard & _MASK, record & _MASK, sub & _MASK]
    return np.random.Generator(np.random.Philox(key=list(keys), counter=counter))


_MASK: Final = (1 << 64) - 1
_MOST_FAILURE_BYTES: Final = 1 << 18
"""When the exceptions of one task take so many bytes, those that follow come without their tracebacks."""

_NO_ROWS: Final = np.empty(0, np.int64)


def _call_batched(
    program: Program, rows: Rowset, todo: Sequence[int], array: npt.NDArray[np.uint8]
) -> tuple[Structure, list[Any], Rows] | None:
    """Columns from a function that takes many records at once, and where these lie, or None without one.

    Such a function says so with ``accepts_rows = True`` and has a method ``rows(array, rows)`` that takes references
    instead of payloads, as the parsers of `formats.example` do.
    """
    refs = rows.payloads
    if len(program.functions) != 1 or refs is None or not len(todo):
        return None
    function: Any = program.functions[0]
    if not _accepts_rows(function):
        return None
    if len(todo) < len(refs):
        refs = refs[todo if isinstance(todo, list) else slice(len(todo))]
    try:
        result = function.rows(array, refs)
    except Exception:  # noqa: BLE001 -- element by element the same error names its row
        return None
    leaves, structure = flatten(result)
    if not all(_is_of_rows(leaf) for leaf in leaves):
        return None  # ragged, or arrays of objects: element by element they are put aside, or refused with a reason
    if not program.stack and any(np.ndim(leaf) == 0 or len(leaf) != len(todo) for leaf in leaves):
        return None  # not one item per row, so not to be taken apart into rows
    if program.narrow and not all(fits(leaf, half_of(leaf.dtype)) for leaf in leaves if isinstance(leaf, np.ndarray)):
        return None
    return structure, leaves, refs


def _is_of_rows(column: Any) -> bool:
    """Whether a slab can hold the rows of a column side by side."""
    if isinstance(column, list):
        return all(isinstance(item, bytes | str | memoryview) for item in column)
    return isinstance(column, BytesArray) or (isinstance(column, np.ndarray) and has_place(column))
