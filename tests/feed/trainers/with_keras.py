"""Keras' fit: several steps in an epoch of Keras, and a backup behind each."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
import keras

from asyncdata import feed
from tests.feed.trainers.record import EPOCHS, RATE, Kind, Record, batches, per_step


class OneWeight(keras.Model):  # type: ignore[misc]  # keras is not there where types are checked
    """As small as a model can be; it notes what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(), initializer="zeros", name="weight")
        self.built = True
        self.trained_on: Any = None

    def call(self, x: Any) -> Any:
        """Its guess of each number."""
        return keras.ops.zeros_like(x) + self.weight

    def compute_loss(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Of one batch."""
        self.trained_on = x
        return super().compute_loss(x, *args, **kwargs)


class Told(keras.callbacks.Callback):  # type: ignore[misc]  # as above
    """Tells each batch and the mean of the losses of the epoch up to it, in front of the backup."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Of one batch."""
        self._record.add(self.model.trained_on[:, 0], logs["loss"])


class Kept(keras.callbacks.Callback):  # type: ignore[misc]  # as above
    """Keeps the backups that the next step overwrites and the end removes, behind each optimizer step."""

    def __init__(self, fed: Any, file: Path, folder: Path, per_step: int) -> None:
        super().__init__()
        self._fed = fed
        self._file = file
        self._folder = folder
        self._per_step = per_step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Inside an epoch."""
        if self._fed.position % self.params["steps"]:
            self._keep()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Behind its last batch."""
        self._keep()

    def _keep(self) -> None:
        step, rest = divmod(self._fed.position, self._per_step)
        if not rest:
            shutil.copyfile(self._file, path_of(self._folder, step))


def train(record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
    """See `Trainer`."""
    folder.mkdir(parents=True)
    backup = folder / "backup.npz"
    if checkpoint is not None:
        shutil.copyfile(checkpoint, backup)
    keras.utils.set_random_seed(0)
    model = OneWeight()
    accumulated = per_step(kind) if per_step(kind) > 1 else None
    optimizer = keras.optimizers.Adam(RATE, gradient_accumulation_steps=accumulated)
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=True)
    numbers = batches(kind).map(lambda batch: (batch["x"][:, None], batch["x"][:, None]))
    fed = feed.keras(numbers, steps=5 if kind == "unknown" else None)
    model.fit(
        fed,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[Told(record), fed.backup(backup, 1), Kept(fed, backup, folder, per_step(kind))],
    )


def path_of(folder: Path, step: int) -> Path:
    """See `Trainer`."""
    return folder / f"{step}.npz"
