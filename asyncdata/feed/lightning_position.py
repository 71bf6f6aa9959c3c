"""Lightning: a callback that keeps the position after what was trained on; the only file that imports lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from asyncdata.feed.feeding import Feed, UsedBatches


class LightningCallback(Callback):  # type: ignore[misc]  # lightning is not there where types are checked
    """Keeps the position of a feed in Lightning's checkpoints; `asyncdata.feed.lightning_callback` makes it."""

    def __init__(self, batches: Feed) -> None:
        self._batches = batches
        self._used = UsedBatches(batches)
        self._steps = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Takes the number of the epoch before Lightning asks for batches or loads a checkpoint, which knows more."""
        if stage == "fit":
            self._batches.set_epoch(trainer.current_epoch)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the epoch's number again: that of a checkpoint without a position is known only now."""
        if self._batches.epoch < trainer.current_epoch:
            self._batches.set_epoch(trainer.current_epoch)
        self._steps = trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing is accumulated over the end of an epoch."""
        self._used.begin_epoch()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Whoever steps the optimizer by hand may do it without Lightning's knowledge."""
        # Lightning (2.6) does not count the epoch that follows a checkpoint of an epoch's end as begun. A checkpoint in
        # the middle of it would be resumed as one of its beginning, and the optimizer stepped after other batches.
        for epochs in (trainer.fit_loop.epoch_progress.current, trainer.fit_loop.epoch_progress.total):
            epochs.ready = max(epochs.ready, epochs.completed + 1)
            epochs.started = max(epochs.started, epochs.completed + 1)
        self._used.trained(stepped=trainer.global_step != self._steps or not pl_module.automatic_optimization)
        self._steps = trainer.global_step
        # A checkpoint after the last batch may be one inside the epoch for Lightning, which then ends that epoch
        # without asking for a batch.
        if trainer.is_last_batch or batch_idx + 1 >= trainer.num_training_batches:
            self._used.end_epoch()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends the epoch of a module that did so itself, before it trained on a batch that it was given."""
        if trainer.is_last_batch:
            self._used.end_epoch(trainer.current_epoch)  # and not the next one, which may have been asked for ahead

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Makes Lightning continue after the last optimizer step, too, because accumulated gradients are not saved."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (progress["current"], progress["total"]):
            for name in counts:
                counts[name] -= self._used.unused

    def state_dict(self) -> dict[str, Any]:
        """All ranks', because Lightning saves what the first rank says; all of them call it."""
        return self._used.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the run was interrupted."""
        self._used.load_state_dict(state_dict)
