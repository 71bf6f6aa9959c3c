"""Keras' fit, every step an epoch of Keras, because it takes epochs that were interrupted from their beginning."""

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


class Kept(keras.callbacks.Callback):  # type: ignore[misc]  # keras is not there where types are checked
    """Tells the losses, and keeps what would be overwritten by the next step and removed at the end."""

    def __init__(self, record: Record, folder: Path, per_step: int) -> None:
        super().__init__()
        self._record = record
        self._folder = folder
        self._per_step = per_step

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Behind the other callbacks."""
        step, rest = divmod(epoch + 1, self._per_step)
        if not rest:
            shutil.copytree(self._folder / "now", path_of(self._folder, step))
        self._record.add([], logs["loss"])


def train(record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
    """See `Trainer`."""
    now = folder / "now"
    if checkpoint is None:
        now.mkdir(parents=True)
    else:
        shutil.copytree(checkpoint, now)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    accumulated = per_step(kind) if per_step(kind) > 1 else None
    model.compile(optimizer=keras.optimizers.Adam(RATE, gradient_accumulation_steps=accumulated), loss="mse")
    fed = feed.keras(batches(kind).map(lambda batch: (batch["x"][:, None], batch["x"][:, None])), steps=1)
    model.fit(
        fed,
        epochs=EPOCHS * (5 if kind == "unknown" else 6),
        verbose=0,
        callbacks=[
            keras.callbacks.BackupAndRestore(str(now / "backup")),
            fed.callback(now / "position.json"),
            Kept(record, folder, per_step(kind)),
        ],
    )


def path_of(folder: Path, step: int) -> Path:
    """See `Trainer`."""
    return folder / str(step)
