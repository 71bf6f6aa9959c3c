"""What a training run has seen, batch by batch; it can end the process as a crash would."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

import asyncdata as ad
from asyncdata.feed.ranks import Even

Kind: TypeAlias = Literal["known", "unknown", "accumulate", "drop", "pad", "agree"]
"""Whether the number of batches is known; whether an optimizer step takes two of them; how uneven ranks are made even.
"""

EPOCHS = 2
RATE = 0.1

_EVEN: dict[Kind, Even] = {"drop": "drop", "pad": "pad", "agree": "agree"}
UNEVEN = tuple(_EVEN)
KEPT = [number for number in range(26) if number % 4 != 1]
"""The numbers of uneven ranks: of two, one has thirteen of them, which are seven batches, and the other six."""


def batches(kind: Kind) -> ad.Dataset:
    """Six batches in another order in each epoch; five, if their number is not known; or as many as `KEPT` makes."""
    if kind in UNEVEN:
        numbers = ad.Dataset.range(26).filter(lambda number: number % 4 != 1).shuffle(7, seed=3)
        return numbers.map(lambda number: {"x": np.float32(number)}, 2, executor="thread").batch(2)
    numbers = ad.Dataset.range(10 if kind == "unknown" else 12).shuffle(7, seed=3)
    ds = numbers.map(lambda number: {"x": np.float32(number)}, 2, executor="thread").batch(2)
    return ds.filter(lambda _: True) if kind == "unknown" else ds


def per_step(kind: Kind) -> int:
    """Batches of an optimizer step."""
    return 2 if kind == "accumulate" else 1


def even_of(kind: Kind) -> Even:
    """The arguments of `asyncdata.feed.torch`."""
    return _EVEN.get(kind, "drop")


def parts_of(element: Any) -> tuple[Any, Any]:
    """The numbers of a batch, and which of them count."""
    batch, mask = element if isinstance(element, list | tuple) else (element, None)
    return batch["x"], batch["x"] == batch["x"] if mask is None else mask


def loss_of(x: Any, counts: Any, weight: Any) -> Any:
    """Of the numbers that count."""
    return ((x - weight) ** 2 * counts).sum() / counts.sum().clip(1)


class Record:
    """See the module's docstring.

    Args:
        stop: The process ends in the training step behind so many.
        told: What the process says then, of what it has seen.
    """

    def __init__(self, stop: int | None = None, told: Callable[[list[Any]], Any] = lambda seen: seen) -> None:
        self.seen: list[Any] = []
        self._stop = stop
        self._told = told

    def add(self, batch: Any, loss: Any) -> None:
        """In a training step."""
        if len(self.seen) == self._stop:
            sys.stdout.write(json.dumps(self._told(self.seen)) + "\n")
            sys.stdout.flush()
            os._exit(0)
        self.seen.append([batch if isinstance(batch, list) else np.asarray(batch).tolist(), float(loss)])
