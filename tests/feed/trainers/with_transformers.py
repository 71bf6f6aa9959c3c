"""Hugging Face's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from asyncdata import feed
from tests.feed.trainers.record import (
    EPOCHS,
    KEPT,
    RATE,
    UNEVEN,
    Kind,
    Record,
    batches,
    even_of,
    loss_of,
    parts_of,
    per_step,
)


class OneWeight(torch.nn.Module):  # type: ignore[misc]  # torch is not there where types are checked
    """As small as a model can be."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: Any, counts: Any) -> Any:
        """Of one batch."""
        loss = loss_of(x, counts, self.weight)
        self._record.add(x[counts], loss.item())
        return loss


class FedTrainer(Trainer):  # type: ignore[misc]  # transformers is not there where types are checked
    """A trainer with a feed."""

    fed: Any

    def get_train_dataloader(self) -> Any:
        """In the place of Trainer's own."""
        return self.fed.dataloader()

    def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
        """Of elements with a mask, too."""
        return model(*parts_of(inputs))


class LastEpoch(TrainerCallback):  # type: ignore[misc]  # as above
    """Ends a training that does not know how many steps its epochs have."""

    def __init__(self, fed: Any) -> None:
        self._fed = fed

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 -- Trainer's
        """Behind the last batch."""
        control.should_training_stop = self._fed.epoch >= EPOCHS


def train(record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
    """See `Trainer`."""
    fed = feed.torch(batches(kind), even=even_of(kind))
    most = {"unknown": EPOCHS * 5, **dict.fromkeys(UNEVEN, EPOCHS * len(KEPT))}.get(kind, -1)
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        max_steps=most,
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
    callbacks = [*([LastEpoch(fed)] if kind in UNEVEN else []), feed.transformers_callback(fed)]
    trainer = FedTrainer(OneWeight(record), arguments, callbacks=callbacks)
    trainer.fed = fed
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


def path_of(folder: Path, step: int) -> Path:
    """See `Trainer`."""
    return folder / f"checkpoint-{step}"
