"""Holds processes to a part of a processor each, by the cpu controller of control groups (version 1; as root)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup/cpu")
_PERIOD_US: Final = 20_000


def is_possible() -> bool:
    """Whether this system has such groups, and lets this user make them."""
    return (_ROOT / "cpu.cfs_quota_us").exists() and os.access(_ROOT, os.W_OK)


@contextlib.contextmanager
def held(pids: Sequence[int], share: float) -> Iterator[None]:
    """Gives each process so much of one processor, until the block is left."""
    groups = [_ROOT / f"asyncdata-benchmark-{pid}" for pid in pids]
    try:
        for group, pid in zip(groups, pids, strict=True):
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(round(share * _PERIOD_US)))
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group, pid in zip(groups, pids, strict=True):
            if group.exists():
                with contextlib.suppress(OSError):  # it has ended
                    (_ROOT / "cgroup.procs").write_text(str(pid))
                group.rmdir()
