"""Hugging Face's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from asyncdata import feed
from tests.feed.trainers.record import EPOCHS, RATE, Kind, Record, batches, per_step


class OneWeight(torch.nn.Module):  # type: ignore[misc]  # torch is not there where types are checked
    """As small as a model can be."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: Any) -> Any:
        """Of one batch."""
        loss = ((x - self.weight) ** 2).mean()
        self._record.add(x, loss.item())
        return {"loss": loss}


class FedTrainer(Trainer):  # type: ignore[misc]  # transformers is not there where types are checked
    """A trainer with a feed."""

    fed: Any

    def get_train_dataloader(self) -> Any:
        """In the place of Trainer's own."""
        return self.fed.dataloader()


def train(record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
    """See `Trainer`."""
    fed = feed.torch(batches(kind))
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        max_steps=EPOCHS * 5 if kind == "unknown" else -1,
        save_strategy="steps",
        save_steps=1,
        gradient_accumulation_steps=per_step(kind),
        ignore_data_skip=True,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        report_to=[],
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = FedTrainer(OneWeight(record), arguments, callbacks=[feed.transformers_callback(fed)])
    trainer.fed = fed
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


def path_of(folder: Path, step: int) -> Path:
    """See `Trainer`."""
    return folder / f"checkpoint-{step}"
