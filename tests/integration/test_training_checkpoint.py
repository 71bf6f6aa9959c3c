"""The training loop of the documentation: killed at any step and started again, it has the losses of one run."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.architecture.tree import ROOT
from tests.patience import LIMIT_S
from tests.samples import samples

PAGE = ROOT / "docs/howto/checkpoint-a-training-loop.md"


def run(program: Path, folder: Path, steps: int | None = None) -> int:
    """Runs the program, and kills it once it has said so many steps; the steps that it said."""
    folder.mkdir(exist_ok=True)
    with subprocess.Popen([sys.executable, str(program)], cwd=folder, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        said = 0
        for line in running.stdout:
            assert line.startswith("step ")
            said += 1
            if said == steps:
                running.kill()
        code = running.wait(LIMIT_S)
    # By the time it is killed it may have said more, or have come to its end.
    was_killed = steps is not None and said >= steps
    assert code == 0 or (was_killed and code == -signal.SIGKILL)
    return said


def losses(folder: Path) -> list[float]:
    """Those of its last checkpoint."""
    with np.load(folder / "checkpoint.npz") as saved:
        found: list[float] = saved["losses"].tolist()
    return found


def test_losses_are_equal(tmp_path: Path) -> None:
    """In two epochs, killed again and again, between checkpoints and while one is written."""
    program = tmp_path / "train.py"
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    program.write_text(code[1], encoding="utf-8")
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert run(program, whole) == 100
    draw = random.Random(1)
    most = samples(24, 15)
    for _ in range(samples(4, 30)):
        run(program, torn, draw.randint(1, most))
    run(program, torn)
    assert losses(torn) == losses(whole)
    assert losses(whole)[-1] < losses(whole)[0] / 2
    assert run(program, torn) == 0, "it was at its end"
