"""When to start missing worker processes: at once, or one at a time with growing delays while starts fail.

    ready ──▶ every missing worker, now
    failed ─▶ one worker after 0.1 s, 0.2 s, 0.4 s … 5 s, until one is ready

Decisions only: no clock, no process. A start fails if the process cannot be launched, refuses, or dies before it is
ready, as happens while memory is exhausted. After three failures in a row, calls that wait for a worker get an error.
Starts continue nevertheless, so that the pool works again as soon as the problem is over.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Final

from asyncdata.errors import PipelineError

_MOST_FAILED: Final = 3
_FIRST_DELAY_S: Final = 0.1
_MOST_DELAY_S: Final = 5.0


class Starts:
    """See the module.

    Attributes:
        failed: How many starts in a row have failed.
    """

    def __init__(self) -> None:
        self.failed = 0
        self._errors: deque[PipelineError] = deque(maxlen=_MOST_FAILED)

    @property
    def hopeless(self) -> bool:
        """Whether so many have failed that nobody is to wait for the next one."""
        return self.failed >= _MOST_FAILED

    def succeed(self) -> None:
        """A worker is ready."""
        self.failed = 0
        self._errors.clear()

    def fail(self, error: PipelineError) -> None:
        """A worker has not become ready."""
        self.failed += 1
        self._errors.append(error)

    def plan(self, *, missing: int, starting: int) -> tuple[int, float]:
        """How many workers to start, and in how many seconds.

        Args:
            missing: Workers that neither live nor are being started.
            starting: Workers that are not ready yet.
        """
        if not self.failed:
            return missing, 0.0
        if starting or not missing:
            return 0, 0.0
        doublings = min(self.failed - 1, 30)
        return 1, min(_MOST_DELAY_S, _FIRST_DELAY_S * 2**doublings)

    def error(self) -> PipelineError:
        """Why no worker starts. A new exception each time: one that several callers raise collects their tracebacks."""
        last = self._errors[-1]
        reasons = "; ".join(dict.fromkeys(error.message for error in self._errors))
        error = copy.copy(last)
        error.message = (
            f"no worker process can be started; {self.failed} in a row have failed: {reasons}. "
            "asyncdata tries again from time to time, so a later iteration works if the cause is gone"
        )
        error.args = (error.message,)
        error.__cause__ = last.__cause__
        return error
