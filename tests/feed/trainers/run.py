"""``python -m tests.feed.trainers.run TRAINER KIND FOLDER MODE``: trains with a real trainer, and prints what it saw.

``whole`` trains to the end, and ``all`` then once more from every checkpoint. ``link:A:B:C`` goes on from the
checkpoint behind optimizer step B, which the link that had begun at A has written, and crashes in the step behind C;
from the beginning where B is 0, and to the end where C is. The last line is JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, Protocol, cast

from tests.feed.trainers.record import Kind, Record, per_step


class Trainer(Protocol):
    """A module of this folder."""

    def train(self, record: Record, kind: Kind, folder: Path, checkpoint: Path | None) -> None:
        """Trains to the end of the last epoch, with a checkpoint in the folder behind each optimizer step.

        Args:
            record: Is told each batch and its loss.
            kind: See `Kind`.
            folder: For checkpoints.
            checkpoint: Where to go on; None: at the beginning.
        """

    def path_of(self, folder: Path, step: int) -> Path:
        """The checkpoint behind an optimizer step."""


def main(name: str, kind: Kind, folder: Path, mode: str) -> Any:
    """See the module's docstring."""
    trainer = cast("Trainer", importlib.import_module(f"tests.feed.trainers.with_{name}"))
    mode, *numbers = mode.split(":")
    if mode == "link":
        before, begin, end = map(int, numbers)
        record = Record((end - begin) * per_step(kind) if end else None)
        checkpoint = trainer.path_of(folder / f"from{before}", begin) if begin else None
        trainer.train(record, kind, folder / f"from{begin}", checkpoint)
        return record.seen
    whole, first = Record(), folder / "first"
    trainer.train(whole, kind, first, None)
    if mode == "whole":
        return whole.seen
    found = {0: whole.seen}
    # A finished run has nothing to resume.
    for step in range(1, len(whole.seen) // per_step(kind)):
        again = Record()
        trainer.train(again, kind, folder / str(step), trainer.path_of(first, step))
        found[step * per_step(kind)] = again.seen
    return found


if __name__ == "__main__":
    found = main(sys.argv[1], cast("Kind", sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    sys.stdout.write(json.dumps(found) + "\n")
