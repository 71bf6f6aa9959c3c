"""Trainers as they are, with feeds: whatever they ask ahead and accumulate, an interrupted run goes on exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.tree import ROOT
from tests.feed.installed import needed_here
from tests.feed.trainers.record import EPOCHS, Kind
from tests.patience import LIMIT_S

CASES = [
    *(("loop", "torch", kind) for kind in ("known", "unknown", "accumulate")),
    *(("stateful_dataloader", "torchdata", kind) for kind in ("known", "unknown")),
    *(("accelerate", "accelerate", kind) for kind in ("known", "unknown", "accumulate")),
    *(("lightning", "lightning", kind) for kind in ("known", "unknown", "accumulate")),
    *(("transformers", "transformers", kind) for kind in ("known", "unknown", "accumulate")),
    *(("flax", "flax", kind) for kind in ("known", "unknown", "accumulate")),
    *(("keras", "keras", kind) for kind in ("known", "unknown")),
]

QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def seen(trainer: str, kind: Kind, folder: Path, mode: str) -> Any:
    """What a trainer saw, in a process of its own."""
    outcome = subprocess.run(
        [sys.executable, "-m", "tests.feed.trainers.run", trainer, kind, str(folder), mode],
        cwd=ROOT,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return json.loads(outcome.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "package", "kind"), CASES)
def test_a_run_goes_on_from_every_checkpoint(trainer: str, package: str, kind: Kind, tmp_path: Path) -> None:
    """Behind each optimizer step of two epochs: the batches and the losses of the run that was not interrupted."""
    needed_here(package)
    found = seen(trainer, kind, tmp_path, "all")
    whole = found["0"]
    assert len(whole) == EPOCHS * (5 if kind == "unknown" else 6)
    assert len(found) == len(whole) // (2 if kind == "accumulate" else 1)
    for begin, rest in found.items():
        assert rest == whole[int(begin) :]


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "package", "kind"), [case for case in CASES if case[2] == "unknown"])
def test_a_run_that_crashed_goes_on_in_a_fresh_process(trainer: str, package: str, kind: Kind, tmp_path: Path) -> None:
    """From checkpoints in the middle of an epoch, behind its end, and in the last one."""
    needed_here(package)
    first = seen(trainer, kind, tmp_path, "stop:8")
    assert len(first) == 8
    rests = {stop: seen(trainer, kind, tmp_path, f"resume:{stop}") for stop in (8, 5, 2)}
    whole = first + rests[8]
    assert len(whole) == 5 * EPOCHS
    assert {stop: whole[stop:] for stop in rests} == rests
