"""torchdata's StatefulDataLoader."""

from __future__ import annotations

from pathlib import Path

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from asyncdata import feed
from tests.feed.trainers.record import EPOCHS, RATE, Kind, Record, batches


def train(record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
    """See `Trainer`."""
    folder.mkdir(parents=True)
    fed = feed.torch(batches(kind))
    loader = StatefulDataLoader(fed, batch_size=None, num_workers=0)
    weight, step = torch.zeros(()), 0
    if checkpoint is not None:
        saved = torch.load(checkpoint)
        weight, step = saved["weight"], saved["step"]
        loader.load_state_dict(saved["data"])
        epoch = saved["epoch"]
    else:
        epoch = 0
    for number in range(epoch, EPOCHS):
        for batch in loader:
            record.add(batch["x"], ((batch["x"] - weight) ** 2).mean())
            weight = weight + RATE * (batch["x"].mean() - weight)
            step += 1
            state = {"step": step, "weight": weight, "epoch": number}
            torch.save({**state, "data": loader.state_dict()}, path_of(folder, step))


def path_of(folder: Path, step: int) -> Path:
    """See `Trainer`."""
    return folder / f"{step}.pt"
