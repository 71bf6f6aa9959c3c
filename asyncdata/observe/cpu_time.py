"""CPU time of threads and processes, and the time for which they waited for a processor, by the system's counters."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple


class CpuTime(NamedTuple):
    """Seconds so far; 0 where the system does not say, or the thread is gone.

    Attributes:
        used_s: On a processor.
        delayed_s: Able to run, without a processor.
    """

    used_s: float = 0.0
    delayed_s: float = 0.0

    def since(self, before: CpuTime) -> CpuTime:
        """What came later."""
        return CpuTime(max(0.0, self.used_s - before.used_s), max(0.0, self.delayed_s - before.delayed_s))


def of_process(pid: int) -> CpuTime:
    """Of all threads of a process; delays are its main thread's."""
    # Linux numbers the clock of a process by its complemented id.
    return CpuTime(clock_s(~pid << 3 | 2), _delayed_s(Path(f"/proc/{pid}/schedstat")))


def of_thread(clock: int | None, native_id: int) -> CpuTime:
    """Of a thread of this process.

    Args:
        clock: Of ``time.pthread_getcpuclockid``; None where there are no such clocks.
        native_id: Of ``threading.get_native_id``.
    """
    return CpuTime(0.0 if clock is None else clock_s(clock), _delayed_s(Path(f"/proc/self/task/{native_id}/schedstat")))


def clock_s(clock: int) -> float:
    """A clock of the system; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return time.clock_gettime(clock)
    return 0.0


def _delayed_s(path: Path) -> float:
    try:
        return int(path.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
