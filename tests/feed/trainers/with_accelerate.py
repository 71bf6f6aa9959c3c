"""Accelerate."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from asyncdata import feed
from tests.feed.trainers.record import EPOCHS, RATE, Kind, Record, batches, even_of, loss_of, parts_of, per_step


def train(record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
    """See `Trainer`."""
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=per_step(kind))
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), RATE))
    fed = feed.torch(batches(kind), even=even_of(kind), device=accelerator.device)
    accelerator.register_for_checkpointing(fed.all_ranks())
    step = 0
    if checkpoint is not None:
        accelerator.load_state(str(checkpoint))
        step = int(checkpoint.name)
    while fed.epoch < EPOCHS:
        for element in fed:
            x, counts = parts_of(element)
            with accelerator.accumulate(model):
                loss = loss_of(model(x[:, None])[:, 0], counts, 1)
                record.add(x[counts], loss.item())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                accelerator.save_state(str(path_of(folder, step)))


def path_of(folder: Path, step: int) -> Path:
    """See `Trainer`."""
    return folder / str(step)
