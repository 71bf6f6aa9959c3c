"""Rows of a task that have no result: which, and why, as an error that names the element."""

from __future__ import annotations

from typing import NamedTuple

from asyncdata.errors import AsyncdataError, CorruptRecordError, TaskTimeoutError
from asyncdata.formats.tfrecord import says_damaged
from asyncdata.memory.advance import Rows
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.workers.call import OverdueError
from asyncdata.workers.failure import annotate, decode_failure, stack_of
from asyncdata.workers.task_records import DAMAGED, HUNG


class Failed(NamedTuple):
    """A row that has no result.

    Attributes:
        row: Which one of the job.
        error: Names the element.
    """

    row: int
    error: BaseException


def error_of(
    blob: bytes, overdue: OverdueError | None, size: int, *, label: str, sources: SourceTable, origin: Rows
) -> BaseException:
    """What is wrong with a row.

    Args:
        blob: As the worker says it, see `workers.tasks.encode_failed`.
        overdue: Says where a function did not return, if that is it.
        size: Of a record, in bytes.
        label: The stage's name.
        sources: For naming the record.
        origin: Provenance of the row.
    """
    if blob == DAMAGED:
        return CorruptRecordError(says_damaged(size), stage=label, **sources.place(origin))
    error = _timeout(overdue) if blob == HUNG and overdue is not None else decode_failure(blob, where=label)
    if isinstance(error, AsyncdataError):
        error.complete(stage=label, **sources.place(origin))
    annotate(error, f"in {label}, {sources.name_element(origin)}")
    return error


def _timeout(overdue: OverdueError) -> TaskTimeoutError:
    trace = stack_of(overdue.hang.stacks)
    where = f", at {trace.place}" if trace.place else ""
    error = TaskTimeoutError(
        f"a call did not return within task_timeout_s={overdue.limit_s:g}{where}; its worker process was ended"
    )
    error.stack = str(trace.args[0])
    error.__cause__ = trace
    return error
