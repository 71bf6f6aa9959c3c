"""The test kit for packages that build on asyncdata: leak checks, a virtual clock, forced order of events."""

from asyncdata.testing.clock import StalledLoopError, VirtualClockLoop, run_virtual
from asyncdata.testing.leaks import (
    Leak,
    LeakError,
    ProcessSnapshot,
    assert_no_leaks,
    check,
    settle,
    settle_async,
    snapshot,
    start_process_wide,
)
from asyncdata.testing.sequencer import BrokenSequenceError, Sequencer

__all__ = [
    "BrokenSequenceError",
    "Leak",
    "LeakError",
    "ProcessSnapshot",
    "Sequencer",
    "StalledLoopError",
    "VirtualClockLoop",
    "assert_no_leaks",
    "check",
    "run_virtual",
    "settle",
    "settle_async",
    "snapshot",
    "start_process_wide",
]
