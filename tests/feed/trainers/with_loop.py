"""A plain PyTorch loop."""

from __future__ import annotations

from pathlib import Path

import torch

from asyncdata import feed
from tests.feed.trainers.record import EPOCHS, RATE, Kind, Record, batches, per_step


def train(record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
    """See `Trainer`."""
    folder.mkdir(parents=True)
    fed = feed.torch(batches(kind))
    weight = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([weight], RATE)
    step = 0
    if checkpoint is not None:
        saved = torch.load(checkpoint)
        step = saved["step"]
        weight.data = saved["weight"]
        optimizer.load_state_dict(saved["optimizer"])
        fed.load_state_dict(saved["data"])
    while fed.epoch < EPOCHS:
        for number, batch in enumerate(fed, start=1):
            loss = ((batch["x"] - weight) ** 2).mean()
            record.add(batch["x"], loss.item())
            loss.backward()
            if number % per_step(kind) == 0:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                state = {"step": step, "weight": weight.data, "optimizer": optimizer.state_dict()}
                torch.save({**state, "data": fed.state_dict()}, path_of(folder, step))


def path_of(folder: Path, step: int) -> Path:
    """See `Trainer`."""
    return folder / f"{step}.pt"
