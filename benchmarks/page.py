"""Measures the tables of docs/explanation/performance-tables.md again and replaces them.

    python -m benchmarks.page [name …] [-- options for the benchmark]

A table is between ``<!-- table: NAME -->`` and ``<!-- end of NAME -->``; the output of the command replaces everything
in between. A plot is drawn beside the page and shown below its table.

The small tables of docs/explanation/performance.md repeat figures of the full ones, each below a comment
``<!-- part of: NAME -->``. They are edited by hand; a test compares their figures with the full table.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.servers import REPOSITORY, here

PAGE: Final = REPOSITORY / "docs" / "explanation" / "performance-tables.md"
SUMMARY: Final = PAGE.with_name("performance.md")
COMMANDS: Final = {
    "range_read": ("range_read", "--server", "nginx", "--only", "http", "tls", "paced"),
    "receivers": ("range_read", "--server", "nginx", "--only", "receivers", "quota"),
    "decode": ("decode",),
    "end_to_end": ("end_to_end",),
    "noisy_trainer": ("noisy_trainer",),
    "listing": ("listing",),
    "demo": ("demo",),
    "elements": ("elements",),
    "functions": ("functions",),
    "steps": ("steps",),
    "serializing": ("formats_cost", "--serializing"),
    "feed": ("feed",),
    "remote": ("remote",),
    "parsed": ("remote", "--work", "blobs", "tiny", "--only", "clear"),
    "pictures": ("remote", "--work", "jpeg", "--only", "clear"),
    "https": ("remote", "--work", "raw", "blobs", "jpeg", "--only", "clear", "--tls"),
    "resume": ("resume",),
    "resume_peers": ("resume_peers", "--plot", "docs/explanation/resume-peers.png"),
    "autotune": ("autotune",),
    "window": ("window", "--plot", "docs/explanation/window.png"),
    "stragglers": ("stragglers",),
    "latency_hiding": ("latency_hiding", "--plot", "docs/explanation/latency-hiding.png"),
}
NOT_YET: Final = "Not measured yet."
"""The placeholder of a table."""

_WIDTH: Final = 120


def measure(name: str, options: Sequence[str]) -> str:
    """Runs a benchmark and returns the text below the mark: the command, and its output from the conditions on."""
    module, *usual = COMMANDS[name]
    words = ["-m", f"benchmarks.{module}", *usual]
    done = subprocess.run(
        [sys.executable, *words, *options], stdout=subprocess.PIPE, text=True, check=True, env=here(), cwd=REPOSITORY
    )
    lines = done.stdout.replace(f"{REPOSITORY}/", "").splitlines()
    begin = next(number for number, line in enumerate(lines) if "; seed " in line)
    said = [
        line
        if line.startswith(("|", "    "))
        else textwrap.fill(line, _WIDTH, break_long_words=False, break_on_hyphens=False)
        for line in (f"`python {' '.join(words)}`: {lines[begin]}", *lines[begin + 1 :])
    ]
    if "--plot" in usual:
        said += ["", f"![{name}]({Path(usual[-1]).name})"]
    return "\n".join(said).rstrip()


def replaced(page: str, name: str, table: str) -> str:
    """Returns the page with one table replaced.

    Raises:
        ValueError: The page has no such table.
    """
    begin, end = f"<!-- table: {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no {begin} … {end}")
    return pattern.sub(lambda _: f"{begin}\n\n{table}\n\n{end}", page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    at = given.index("--") if "--" in given else len(given)
    names, options = given[:at] or list(COMMANDS), given[at + 1 :]
    for name in names:
        table = measure(name, options)
        PAGE.write_text(replaced(PAGE.read_text(), name, table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
