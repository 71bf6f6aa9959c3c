"""Where TensorFlow is, and a process that runs pipelines with it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PYTHON = "ASYNCDATA_REFEREE_PYTHON"
"""Environment variable: the path of an interpreter that has TensorFlow, where this one has not."""


def interpreter() -> str:
    """The interpreter that has TensorFlow; skips the test, loudly, where there is none."""
    named = os.environ.get(PYTHON)
    if named:
        return named
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip(f"TensorFlow is not installed (extra 'referee'), and {PYTHON} names no interpreter that has it")
    return sys.executable


class Referee:
    """A long-lived process that answers questions; see ``tf_referee``.

    What TensorFlow does not survive has no answer: another process takes the next question.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._process: subprocess.Popen[str] | None = None
        self.deaths = 0
        self.begin()

    def begin(self) -> None:
        """Starts the process, where there is none."""
        if self._process is not None:
            return
        program = Path(__file__).with_name("tf_referee.py")
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "AUTOGRAPH_VERBOSITY": "0",
            "KERAS_BACKEND": "tensorflow",
        }
        self._process = subprocess.Popen(
            [self._python, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.end()
            raise RuntimeError(f"{self._python} cannot run {program.name}")

    def ask(self, to: str, question: Any) -> Any:
        """What one of the files ``tf_*.py`` answers; None when that was the end of the process."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"to": to, "question": question}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self.end()
            self.begin()
            self.deaths += 1
            return None
        return json.loads(line)

    def end(self) -> None:
        """Ends the process, and closes what leads to it."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None
