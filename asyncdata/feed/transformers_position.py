"""Hugging Face's Trainer: a callback that keeps the position of a feed; the only file that imports transformers.

Trainer saves the states of callbacks on the first rank alone, and makes new callbacks of them. So the position of all
ranks is put into the trainer's own state shortly before it is saved.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from asyncdata.errors import PipelineError
from asyncdata.feed.feeding import Feed, UsedBatches

_PLACE: Final = "asyncdata"
"""Where in the trainer's state the position is."""


class TransformersCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there where types are checked
    """Keeps the position of a feed in Trainer's checkpoints; `asyncdata.feed.transformers_callback` makes it."""

    def __init__(self, batches: Feed) -> None:
        self._batches = batches
        self._used = UsedBatches(batches)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Goes on where the checkpoint is."""
        if not args.ignore_data_skip:
            raise ValueError(
                "TrainingArguments(ignore_data_skip=True) is needed: a resumed feed gives the batches after the "
                "checkpoint, and Trainer would skip as many once more"
            )
        saved = state.stateful_callbacks.get(_PLACE)
        if saved is not None:
            self._used.load_state_dict(saved["position"])
        elif state.global_step:
            warnings.warn("the checkpoint has no position of the feed: the data begins anew", stacklevel=2)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Nothing is accumulated over the end of an epoch."""
        self._used.begin_epoch()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Gradients of a batch are accumulated."""
        self._used.trained(stepped=False)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        self._used.trained(stepped=True)
        self._put(state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A checkpoint of an epoch follows."""
        self._put(state, control)

    def _put(self, state: TrainerState, control: TrainerControl) -> None:
        if control.should_save or control.should_evaluate:
            # Trainer believes that its data is at an end if the first epoch after a checkpoint is empty.
            self._batches.look_ahead()
            state.stateful_callbacks[_PLACE] = {"step": state.global_step, "position": self._used.state_dict()}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The checkpoint was written."""
        if state.stateful_callbacks.get(_PLACE, {}).get("step") != state.global_step:
            raise PipelineError(
                "the checkpoint has no position of the feed, because another callback asked for it later: put the "
                "feed's callback after all others in callbacks="
            )
