"""Runs the ranks of a test, a process each; all of them end with it, and each answers with a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.architecture.tree import ROOT
from tests.patience import LIMIT_S


def answers_of(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> list[dict[str, Any]]:
    """The last line that each rank prints.

    Args:
        commands: Of each rank: the module and its arguments, and variables for the environment.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words, variables in commands
    ]
    try:
        outcomes = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not any(process.returncode for process in processes), "\n".join(err for _, err in outcomes)
    return [json.loads(out.splitlines()[-1]) for out, _ in outcomes]
