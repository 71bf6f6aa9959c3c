"""Where TensorFlow is, and a process that runs pipelines with it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

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
    """A long-lived process that answers descriptions of pipelines; see ``tf_pipelines``.

    What TensorFlow does not survive has no answer: another process takes the next question.
    """

    def __init__(self, python: str, program: str = "tf_pipelines.py") -> None:
        self._python = python
        self._program = Path(__file__).with_name(program)
        self._process = self._start()
        self.deaths = 0

    def _start(self) -> subprocess.Popen[str]:
        program = self._program
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "AUTOGRAPH_VERBOSITY": "0",
        }
        process = subprocess.Popen(
            [self._python, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        if not process.stdout.readline():
            self._end(process)
            raise RuntimeError(f"{self._python} cannot run {program.name}")
        return process

    def ask(self, plan: dict[str, Any]) -> dict[str, Any] | None:
        """What TensorFlow makes of a pipeline; None when that was the end of it."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(plan) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self._end(process)
            self._process = self._start()
            self.deaths += 1
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(BrokenPipeError):
            process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self._process)
