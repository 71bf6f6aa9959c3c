"""``python -m tests.feed.trainers.ranks TRAINER FOLDER MODE``: a rank of a real trainer, named by the environment.

``first`` trains to the end, and then crashes in a step of another run. ``again`` goes on from checkpoints of these, and
``joined`` from those of ``alone``, a single process, which goes on from those of ``first`` before. The last line is
JSON: by kind, what was seen in each of these runs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from tests.feed.trainers.record import UNEVEN, Kind, Record
from tests.feed.trainers.run import Trainer

STEPS: dict[Kind, int] = {"drop": 3, "pad": 7, "agree": 3}
"""Of an epoch with two ranks."""

CRASHED: Kind = "agree"
"""The run of this kind crashes, and later runs from its beginning to its end without a crash."""

STOP = 2
"""Steps before the crash, and before the number of ranks changes."""


def places(kind: Kind) -> list[int]:
    """Steps behind which a run is interrupted: inside an epoch, at its end, and in the last epoch."""
    return [STOP] if kind == CRASHED else [STOP, STEPS[kind], STEPS[kind] + STOP]


def main(trainer: Trainer, folder: Path, mode: str) -> Any:
    """See the module's docstring."""

    def seen(kind: Kind, run: str, begin: Path | None = None) -> list[Any]:
        record = Record()
        trainer.train(record, kind, folder / run / kind, begin)
        return record.seen

    def again(kind: Kind, run: str, steps: Iterable[int]) -> dict[int, list[Any]]:
        begin = folder / run / kind
        return {step: seen(kind, f"{mode}{step}", trainer.path_of(begin, step)) for step in steps}

    if mode == "first":
        found: dict[Kind, Any] = {kind: seen(kind, mode) for kind in UNEVEN if kind != CRASHED}
        crash = Record(STOP, lambda steps: {**found, CRASHED: steps})
        trainer.train(crash, CRASHED, folder / mode / CRASHED, None)
    if mode == "again":
        rests = {kind: again(kind, "first", places(kind)) for kind in UNEVEN}
        return {**rests, "whole": seen(CRASHED, "whole")}
    if mode == "alone":
        return {kind: [again(kind, "first", [STOP])[STOP], seen(kind, mode)] for kind in UNEVEN}
    return {kind: again(kind, "alone", [STOP])[STOP] for kind in UNEVEN}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    module = cast("Trainer", importlib.import_module(f"tests.feed.trainers.with_{sys.argv[1]}"))
    sys.stdout.write(json.dumps(main(module, Path(sys.argv[2]), sys.argv[3])) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of Gloo can abort a process whose interpreter ends while they hold tensors
