"""Trainers as they are, with feeds: whatever they ask ahead and accumulate, an interrupted run goes on exactly."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.tree import ROOT
from tests.feed.installed import needed_here
from tests.feed.trainers.record import EPOCHS, Kind, per_step
from tests.patience import LIMIT_S
from tests.samples import SOAK

CASES: list[tuple[str, str, Kind]] = [
    *(("loop", "torch", kind) for kind in ("known", "unknown", "accumulate")),
    *(("stateful_dataloader", "torchdata", kind) for kind in ("known", "unknown")),
    *(("accelerate", "accelerate", kind) for kind in ("known", "unknown", "accumulate")),
    *(("lightning", "lightning", kind) for kind in ("known", "unknown", "accumulate")),
    *(("transformers", "transformers", kind) for kind in ("known", "unknown", "accumulate")),
    *(("flax", "flax", kind) for kind in ("known", "unknown", "accumulate")),
    *(("keras", "keras jax", kind) for kind in ("known", "unknown", "accumulate")),
]

EVERY = 1 << 30
"""In the place of a seed: a crash behind every step."""

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
@pytest.mark.parametrize(("trainer", "packages", "kind"), CASES)
def test_a_run_goes_on_from_every_checkpoint(trainer: str, packages: str, kind: Kind, tmp_path: Path) -> None:
    """Behind each optimizer step of two epochs: the batches and the losses of the run that was not interrupted."""
    needed_here(*packages.split())
    found = seen(trainer, kind, tmp_path, "all")
    whole = found["0"]
    assert len(whole) == EPOCHS * (5 if kind == "unknown" else 6)
    assert len(found) == len(whole) // (2 if kind == "accumulate" else 1)
    for begin, rest in found.items():
        assert rest == whole[int(begin) :]


def drawn_links() -> list[tuple[str, str, Kind, int]]:
    """In the long run all trainers, all kinds, a crash behind each step; else one kind each, and two crashes."""
    if SOAK:
        return [(*case, EVERY) for case in CASES]
    chance = random.Random(5)
    names = dict.fromkeys(name for name, _, _ in CASES)
    return [(*chance.choice([case for case in CASES if case[0] == name]), chance.randrange(EVERY)) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "packages", "kind", "seed"), drawn_links())
def test_a_chain_of_crashes_is_the_uninterrupted_run(
    trainer: str, packages: str, kind: Kind, seed: int, tmp_path: Path
) -> None:
    """Each process trains from one optimizer step to another; the next goes on from what it has left on the disk."""
    needed_here(*packages.split())
    whole = seen(trainer, kind, tmp_path, "whole")
    steps = len(whole) // per_step(kind)
    crashes = range(1, steps) if seed == EVERY else sorted(random.Random(seed).sample(range(1, steps), 2))
    found: list[Any] = []
    before = begin = 0
    for end in (*crashes, 0):
        found += seen(trainer, kind, tmp_path, f"link:{before}:{begin}:{end}")
        assert found == whole[: len(found)]
        before, begin = begin, end
    assert found == whole
