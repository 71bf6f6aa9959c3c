"""``python -m benchmarks [--quick]``: every benchmark, one after the other; one Markdown table each.

Every benchmark is a process of its own. ``--quick`` is handed on to those that know it; the others run in full.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.servers import REPOSITORY, here

BENCHMARKS: Final = (
    "formats_cost",
    "elements",
    "feed",
    "memory",
    "range_read",
    "window",
    "autotune",
    "stragglers",
    "latency_hiding",
    "decode",
    "end_to_end",
    "remote",
    "resume",
    "resume_peers",
    "state_rate",
    "noisy_trainer",
    "hdfs_read",
    "fake_gcs_server",
    "listing",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; the number of those that failed is the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    failed = 0
    for name in BENCHMARKS:
        path = REPOSITORY / "benchmarks" / f"{name}.py"
        if not path.exists():
            continue
        known = [word for word in given if f'"{word}"' in path.read_text()]
        print(f"\n## {name}\n", flush=True)
        failed += (
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *known], env=here(), check=False).returncode
            != 0
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
