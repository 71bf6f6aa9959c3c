"""TensorFlow as the referee of what groups elements: element for element, errors included."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

import asyncdata as ad
from tests.referee import grouping
from tests.referee.process import interpreter
from tests.samples import samples


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_groups_are_what_tensorflow_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """window, group_by_window, buckets, padded, ragged and re-batched elements, in drawn pipelines."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where both put what cache(filename) writes
    python = interpreter()
    plans = [grouping.draw(seed) for seed in range(samples(60, 3000))]
    done = subprocess.run(
        [python, str(Path(__file__).with_name("tf_grouping.py"))],
        input=json.dumps(plans),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    with ad.Runtime(ad.Options(num_workers=0)):
        for seed, (plan, expected) in enumerate(zip(plans, json.loads(done.stdout), strict=True)):
            found = grouping.answer(plan)
            context = f"seed {seed}: {json.dumps(plan)}\nTensorFlow: {expected}\nasyncdata: {found}"
            assert (found["error"] is None) == (expected["error"] is None), context
            count = len(found["elements"])
            if expected["error"] is None:
                assert count == len(expected["elements"]), context
            # An element that is too long fails here when it is met, there when its group is made: less may precede it.
            assert found["elements"] == expected["elements"][:count], context
