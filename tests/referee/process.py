"""Where TensorFlow is, and a process that runs pipelines with it."""

from __future__ import annotations

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
    """A long-lived process that answers descriptions of pipelines; see ``tf_pipelines``."""

    def __init__(self, python: str, program: str = "tf_pipelines.py") -> None:
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "AUTOGRAPH_VERBOSITY": "0",
        }
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(program))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.version = self._read()["version"]

    def ask(self, plan: dict[str, Any]) -> dict[str, Any]:
        """What TensorFlow makes of a pipeline."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.stdout.close()
            raise RuntimeError(f"the process with TensorFlow has ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
