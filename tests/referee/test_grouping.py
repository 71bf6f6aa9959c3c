"""TensorFlow as the referee of what groups elements: element for element, errors included."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

import asyncdata as ad
from tests.referee import grouping
from tests.referee.process import Referee
from tests.samples import samples


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_groups_are_what_tensorflow_makes(referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """window, group_by_window, buckets, padded, ragged and re-batched elements, in drawn pipelines."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where both put what cache(filename) writes
    plans = [grouping.draw(seed) for seed in range(samples(60, 3000))]
    answers = referee.ask("tf_grouping", {"plans": plans, "folder": str(tmp_path)})
    with ad.Runtime(ad.Options(num_workers=0)):
        for seed, (plan, expected) in enumerate(zip(plans, answers, strict=True)):
            found = grouping.answer(plan)
            context = f"seed {seed}: {json.dumps(plan)}\nTensorFlow: {expected}\nasyncdata: {found}"
            assert (found["error"] is None) == (expected["error"] is None), context
            count = len(found["elements"])
            if expected["error"] is None:
                assert count == len(expected["elements"]), context
            # An element that is too long fails here when it is met, there when its group is made: less may precede it.
            assert found["elements"] == expected["elements"][:count], context
