"""``python -m tests.feed.killed_ranks FRAMEWORK WORLD FOLDER SEED KILLS``: ranks that train, are killed, and go on.

Each rank is a process. It trains with a feed of each kind side by side, and writes behind every step what it was given
and the states of its feeds. One rank kills itself at a drawn step and moment; so the others are killed, as whoever runs
them would do. Then all go on behind the last step that all of them have written. The last line is JSON: by rank, what
it wrote in each step.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

import asyncdata as ad
from asyncdata import feed
from asyncdata.feed.ranks import Even
from tests.patience import LIMIT_S

COUNTS: Final = [36, 60, 44, 52]
"""Of numbers that each rank has; nobody knows in advance how many."""
BATCH: Final = 4
EPOCHS: Final = 2
EVEN: Final[tuple[Even, ...]] = ("drop", "pad", "agree")
MOMENTS: Final = 3
"""In a step: before its batches are asked for, before it is written, and behind that."""


class Stop(NamedTuple):
    """Where a rank kills itself."""

    rank: int
    step: int
    moment: int


class Framework(Protocol):
    """What ranks have in common."""

    def fed(self, dataset: ad.Dataset, even: Even) -> Any:
        """A feed."""

    def exchange(self) -> None:
        """What every rank does in each step, as training does with gradients."""


class Torch:
    """Gloo."""

    def __init__(self, folder: Path, meeting: str, rank: int, world: int) -> None:
        import torch.distributed  # noqa: PLC0415 -- one framework per process

        torch.set_num_threads(1)
        file = f"file://{folder / meeting.partition(':')[2]}"
        torch.distributed.init_process_group("gloo", init_method=file, rank=rank, world_size=world)
        self._torch = torch

    def fed(self, dataset: ad.Dataset, even: Even) -> Any:
        """See `Framework`."""
        return feed.torch(dataset, even=even, shard=False)

    def exchange(self) -> None:
        """See `Framework`."""
        self._torch.distributed.all_reduce(self._torch.ones(1))


class Jax:
    """``jax.distributed``."""

    def __init__(self, folder: Path, meeting: str, rank: int, world: int) -> None:
        del folder
        import jax  # noqa: PLC0415 -- one framework per process
        from jax.experimental import multihost_utils  # noqa: PLC0415 -- likewise

        jax.distributed.initialize(meeting, num_processes=world, process_id=rank)
        self._gather = multihost_utils.process_allgather

    def fed(self, dataset: ad.Dataset, even: Even) -> Any:
        """See `Framework`."""
        return feed.jax(dataset, even=even, shard=False, dtypes="jax")

    def exchange(self) -> None:
        """See `Framework`."""
        self._gather(np.ones(1, np.int32))


FRAMEWORKS: Final[dict[str, Any]] = {"torch": Torch, "jax": Jax}


def own(rank: int) -> ad.Dataset:
    """The batches of a rank."""
    numbers = ad.Dataset.range(1000 * rank, 1000 * rank + COUNTS[rank]).shuffle(16, seed=1)
    return numbers.filter(lambda _: True).batch(BATCH)


def given(element: Any) -> list[int]:
    """The numbers that count."""
    batch, mask = element if isinstance(element, list | tuple) else (element, None)
    found: list[int] = np.asarray(batch)[slice(None) if mask is None else np.asarray(mask)].tolist()
    return found


def epochs_of(batches: Any) -> Iterator[tuple[int, Any]]:
    """Each batch with the number of its epoch."""
    while batches.epoch < EPOCHS:
        for batch in batches:
            yield batches.epoch, batch


def train(name: str, world: int, folder: Path, meeting: str, rank: int, begin: int, stop: Stop | None) -> None:
    """One rank, from a step on to the end of the last epoch."""
    framework: Framework = FRAMEWORKS[name](folder, meeting, rank, world)
    feeds = {even: framework.fed(own(rank), even) for even in EVEN}
    if begin:
        states = json.loads((folder / f"{rank}-{begin}.json").read_text())["states"]
        for even, fed in feeds.items():
            fed.load_state_dict(states[even])
    runs = {even: epochs_of(fed) for even, fed in feeds.items()}
    step, steps = begin, {}
    while True:
        step += 1
        for moment in range(MOMENTS):
            if moment == 1:
                steps = {even: next(run, None) for even, run in runs.items()}
                if not any(steps.values()):
                    return
                framework.exchange()
            if moment == 2:
                used = {even: None if found is None else [found[0], given(found[1])] for even, found in steps.items()}
                written = {"used": used, "states": {even: fed.state_dict() for even, fed in feeds.items()}}
                (folder / f"{rank}.new").write_text(json.dumps(written))
                (folder / f"{rank}.new").replace(folder / f"{rank}-{step}.json")
            if stop == (rank, step, moment):
                os.kill(os.getpid(), signal.SIGKILL)


def main(name: str, world: int, folder: Path, seed: int, kills: int) -> dict[str, list[list[Any]]]:
    """See the module's docstring."""
    importlib.import_module(name)  # once for all ranks; nothing of it runs here
    chance, fork = random.Random(seed), multiprocessing.get_context("fork")
    begin = 0
    for left in range(kills, -1, -1):
        stop = Stop(chance.randrange(world), begin + chance.randint(1, 9), chance.randrange(MOMENTS)) if left else None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = f"127.0.0.1:{free.getsockname()[1]}"
        settings = (name, world, folder, meeting)
        ranks = [fork.Process(target=train, args=(*settings, rank, begin, stop)) for rank in range(world)]
        for rank in ranks:
            rank.start()
        try:
            for rank in ranks if stop is None else [ranks[stop.rank]]:
                rank.join(LIMIT_S)
                assert rank.exitcode in ((0,) if stop is None else (0, -signal.SIGKILL)), (stop, rank.exitcode)
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
        begin = min(len(written(folder, rank)) for rank in range(world))
        for path in chain(*(written(folder, rank)[begin:] for rank in range(world))):
            path.unlink()
    return {"ranks": [[json.loads(path.read_text()) for path in written(folder, rank)] for rank in range(world)]}


def written(folder: Path, rank: int) -> list[Path]:
    """What a rank wrote, step by step."""
    return sorted(folder.glob(f"{rank}-*.json"), key=lambda path: int(path.stem.partition("-")[2]))


if __name__ == "__main__":
    found = main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    sys.stdout.write(json.dumps(found) + "\n")
