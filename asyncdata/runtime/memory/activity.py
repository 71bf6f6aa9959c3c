"""Counts a pipeline's activities outside of its loop: reads, calls in threads and workers, user code, the consumer.

A pipeline has stalled if all its tasks wait and no activity outside of the loop could wake one. In this case the memory
that a stage waits for will never be free. No stage needs to report whether it is working.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType

_current: ContextVar[Activity | None] = ContextVar("asyncdata_activity", default=None)


class Activity:
    """Counts what goes on outside the loop for the pipeline that uses one part of the memory. Stage loop only.

    Args:
        ceased: A method that is called when the last of it has ended, as long as its object lives.

    Attributes:
        changes: Grows whenever the pipeline may have got further.
    """

    def __init__(self, ceased: Callable[[], None]) -> None:
        self.changes = 0
        # Contexts refer to this, and whatever was begun in one of them, for longer than the memory is to live.
        self._ceased = weakref.WeakMethod(ceased)
        self._count = 0
        self._consumer = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing goes on."""
        return not self._count and not self._consumer

    def enter(self) -> None:
        """The current task, and those it starts, belong to the pipeline that is meant."""
        _current.set(self)

    def begin(self) -> None:
        """Something begins that ends by itself."""
        self._count += 1

    def end(self) -> None:
        """It has ended."""
        self._count -= 1
        self._changed()

    def consume(self, active: bool) -> None:
        """Says whether the consumer is busy with something else than waiting for the next element."""
        self._consumer = active
        self._changed()

    def _changed(self) -> None:
        self.changes += 1
        ceased = self._ceased()
        if ceased is not None and self.is_idle:
            ceased()


def current() -> Activity | None:
    """That of the pipeline whose task this is; None outside of pipelines."""
    return _current.get()


def note_progress() -> None:
    """The pipeline got further, although nobody asked for memory or gave any back."""
    activity = _current.get()
    if activity is not None:
        activity.changes += 1


class Outside:
    """``with Outside():`` around an await that something outside of the pipeline's loop ends."""

    __slots__ = ("_activity",)

    def __enter__(self) -> None:
        self._activity = _current.get()
        if self._activity is not None:
            self._activity.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._activity is not None:
            self._activity.end()
