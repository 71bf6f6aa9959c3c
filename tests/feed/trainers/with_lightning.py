"""Lightning."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from asyncdata import feed
from tests.feed.trainers.record import EPOCHS, RATE, Kind, Record, batches, even_of, loss_of, parts_of, per_step

WORLD = int(os.environ.get("WORLD_SIZE", "1"))  # Lightning removes it behind the first run


class OneWeight(lightning.LightningModule):  # type: ignore[misc]  # lightning is not there where types are checked
    """As small as a model can be."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002 -- Lightning passes it by name
        """Of one batch."""
        x, counts = parts_of(batch)
        loss = loss_of(x, counts, self.weight)
        self._record.add(x[counts], loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        """One with a state."""
        return torch.optim.Adam(self.parameters(), RATE)


def train(record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
    """See `Trainer`."""
    fed = feed.torch(batches(kind), even=even_of(kind))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=per_step(kind),
        callbacks=[
            feed.lightning_callback(fed),
            ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1),
        ],
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(OneWeight(record), fed, ckpt_path=checkpoint)


def path_of(folder: Path, step: int) -> Path:
    """See `Trainer`."""
    return folder / f"step={step}.ckpt"
