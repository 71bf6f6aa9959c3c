"""feed.transformers_callback: what it refuses. What it keeps is tested in tests/feed/trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata import feed
from asyncdata.errors import PipelineError
from tests.feed.installed import needed

needed("torch")
needed("transformers")
from transformers import TrainerControl, TrainerState, TrainingArguments  # noqa: E402 -- behind the check


@pytest.fixture
def callback() -> Any:
    """Of a small feed."""
    return feed.transformers_callback(feed.torch(ad.Dataset.range(6).batch(2)))


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    """Of a run on the CPU."""
    return TrainingArguments(str(folder), use_cpu=True, report_to=[], **settings)


def test_batches_are_not_skipped_twice(callback: Any, tmp_path: Path) -> None:
    """Trainer must not skip what the feed leaves out; it is told before the first step of the first run."""
    with pytest.raises(ValueError, match="ignore_data_skip=True"):
        callback.on_train_begin(arguments(tmp_path), TrainerState(), TrainerControl())
    callback.on_train_begin(arguments(tmp_path, ignore_data_skip=True), TrainerState(), TrainerControl())


def test_a_checkpoint_without_a_position_is_told(callback: Any, tmp_path: Path) -> None:
    """When it is loaded, and when it is written because a callback behind this one asked for it."""
    known = arguments(tmp_path, ignore_data_skip=True)
    with pytest.warns(UserWarning, match="no position"):
        callback.on_train_begin(known, TrainerState(global_step=3), TrainerControl())
    state, control = TrainerState(global_step=4), TrainerControl()
    callback.on_epoch_end(known, state, control)
    with pytest.raises(PipelineError, match="after all others"):
        callback.on_save(known, state, control)
    control.should_save = True
    callback.on_epoch_end(known, state, control)
    callback.on_save(known, state, control)
