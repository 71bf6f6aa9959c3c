"""``python -m benchmarks [--quick] [--only PART ...]``: benchmarks one after the other; one Markdown table each.

Every benchmark is a process of its own. ``--quick`` is handed on to those that know it; the others run in full.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.servers import REPOSITORY, here

BENCHMARKS: Final = (
    "formats_cost",
    "elements",
    "functions",
    "feed",
    "memory",
    "range_read",
    "window",
    "autotune",
    "predicted_rates",
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
    """Runs what was asked for; the number of those that failed is the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="run those that have a quick form in it")
    parser.add_argument("--only", nargs="+", metavar="PART", default=[], help="run those that have these parts")
    given = parser.parse_args(arguments)
    texts = {name: _text(name) for name in BENCHMARKS}
    parts = {name: [part for part in given.only if _knows(text, "--only", part)] for name, text in texts.items()}
    for part in given.only:
        if not any(part in known for known in parts.values()):
            parser.error(f"no benchmark has a part {part!r}")
    failed = 0
    for name, text in texts.items():
        if given.only and not parts[name]:
            continue
        options = ["--quick"] if given.quick and _knows(text, "--quick") else []
        options += ["--only", *parts[name]] if parts[name] else []
        print(f"\n## {name}\n", flush=True)
        failed += (
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], env=here(), check=False).returncode
            != 0
        )
    return failed


def _text(name: str) -> str:
    """Of a program, with the names of its parts."""
    home = REPOSITORY / "benchmarks"
    return "".join(path.read_text() for path in (home / f"{name}.py", home / f"{name}_works.py") if path.exists())


def _knows(text: str, *words: str) -> bool:
    """Whether a program's text has all these words as strings."""
    return all(f'"{word}"' in text for word in words)


if __name__ == "__main__":
    sys.exit(main())
