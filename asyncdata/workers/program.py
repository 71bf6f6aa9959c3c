"""What a worker executes: check the payloads, run the user's functions, write the results in place.

A `Program` is pickled once per worker; a task names rows in the arena and gets back where its results lie. The same
code runs in worker processes and in the threads of the parent.

    task      rows of a block, packed into the message, or into a span of the arena  (`memory.wire`)
    results   one batch slab in which every task of the batch fills its own rows  (`memory.layout`),
              plus a slab of payloads per task where results are byte strings

An exception of a user function is not raised: the reply says at which row it happened, so that the parent can name the
record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Rows
from asyncdata.memory.structure import Structure, flatten
from asyncdata.memory.wire import Rowset
from asyncdata.workers.child import GrantDeniedError
from asyncdata.workers.failure import encode_failure
from asyncdata.workers.results import Need, Results, write_columns
from asyncdata.workers.tasks import CORRUPT, DONE, FAILED, NO_SPAN, Reply, Task, decode_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to do with every element.

    Attributes:
        functions: Applied in turn; none means that the payloads are only checked.
        rng: Per function, whether it is called with ``rng=`` a generator keyed by the element's provenance.
        depth: Of the first function's step in the plan; sets its random numbers apart from those of other steps.
        zero_copy: Whether the first function receives memoryviews instead of ``bytes``.
        check: Returns the positions of rows whose checksum does not hold; None when there is nothing to check.
        stack: Whether results must be alike because they become one batch.
    """

    functions: tuple[Callable[..., Any], ...]
    rng: tuple[bool, ...] = ()
    depth: int = 0
    zero_copy: bool = False
    check: Callable[[npt.NDArray[np.uint8], Rows], npt.NDArray[np.int64]] | None = None
    stack: bool = True


class _RowFailure(Exception):  # noqa: N818 -- a signal between two functions of this file
    def __init__(self, row: int, cause: BaseException) -> None:
        super().__init__(row)
        self.row = row
        self.cause = cause


def execute(arena: memoryview, program: Program, payload: bytes, need: Need) -> bytes:
    """Runs one task; the handler of `workers.pool`."""
    started, cpu_started = time.perf_counter(), time.thread_time()
    task = Task.decode(payload)
    array = np.frombuffer(arena, np.uint8)
    shape = decode_shape(task.shape)
    packed, offset = (array, task.offset) if task.offset != NO_SPAN else (np.frombuffer(task.inline, np.uint8), 0)
    rows = Rowset(array, packed, offset, task.count, shape, with_origin=task.with_origin)

    def reply(status: int, row: int = 0, offset: int = NO_SPAN, payloads: int = NO_SPAN, body: bytes = b"") -> bytes:
        seconds = _cost(time.perf_counter() - started, time.thread_time() - cpu_started)
        return Reply(status, row, offset, payloads, seconds, body).encode()

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
            return reply(DONE, 0, *write_columns(array, task, *columns, need))
        results = Results(array, task, need, stack=program.stack)
        _call_each(program, rows, task, arena if program.zero_copy else None, results)
        status, offset, payloads, body = results.finish()
        return reply(status, 0, offset, payloads, body)
    except _RowFailure as failure:
        return reply(FAILED, failure.row, body=encode_failure(failure.cause))


def _cost(wall_s: float, cpu_s: float) -> float:
    """What a task cost: CPU time, so that a busy machine does not make tasks look long; or wall time if it waited."""
    return cpu_s if 4 * cpu_s > wall_s else wall_s


def _call_each(program: Program, rows: Rowset, task: Task, view: memoryview | None, results: Results) -> None:
    for row in range(len(rows)):
        try:
            value = rows.element(row, view)
            for position, function in enumerate(program.functions):
                kwargs = {}
                if program.rng and program.rng[position]:
                    assert rows.origin is not None
                    kwargs["rng"] = generator(task.keys, rows.origin[row], program.depth + position)
                value = function(*value, **kwargs) if isinstance(value, tuple) else function(value, **kwargs)
            results.add(value)
        except GrantDeniedError:
            raise
        except BaseException as error:
            raise _RowFailure(row, error) from error


def generator(keys: tuple[int, int], origin: Rows, position: int) -> np.random.Generator:
    """The generator for one element: Philox keyed by (seed, epoch and stage), its counter the element's provenance."""
    shard, record, sub, _ = origin.tolist()
    counter = [position << 32, shard & _MASK, record & _MASK, sub & _MASK]
    return np.random.Generator(np.random.Philox(key=list(keys), counter=counter))


_MASK: Final = (1 << 64) - 1


def _call_batched(program: Program, rows: Rowset, array: npt.NDArray[np.uint8]) -> tuple[Structure, list[Any]] | None:
    """Columns from a function that takes many records at once, or None without one.

    Such a function says so with ``accepts_rows = True`` and has a method ``rows(array, rows)`` that takes references
    instead of payloads, as the parsers of `formats.example` do.
    """
    if len(program.functions) != 1 or not program.stack or len(rows.refs) != 1 or rows.refs[0] is None or not len(rows):
        return None
    function: Any = program.functions[0]
    if getattr(function, "accepts_rows", False) is not True:
        return None
    try:
        result = function.rows(array, rows.refs[0])
    except Exception:  # noqa: BLE001 -- element by element the same error names its row
        return None
    leaves, structure = flatten(result)
    if any(not isinstance(leaf, np.ndarray) and not _is_texts(leaf) for leaf in leaves):
        return None  # ragged: element by element the error says what does not fit
    return structure, leaves


def _is_texts(column: Any) -> bool:
    return isinstance(column, list) and all(isinstance(item, bytes | str | memoryview) for item in column)
