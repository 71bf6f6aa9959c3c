"""What Python functions make in ``benchmarks.functions``, the same for both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np


def row(number: int) -> dict[str, Any]:
    """A few numbers, as of a table."""
    return {"values": np.full(8, number, np.float32), "label": number}


def picture(number: int) -> tuple[Any, int]:
    """A small picture."""
    return np.full((64, 64, 3), number % 251, np.uint8), number


def tokens(number: int) -> dict[str, Any]:
    """From 1 to 50 numbers."""
    return {"tokens": np.full(number % 50 + 1, number, np.int64), "label": number}


def rows(count: int) -> Iterator[dict[str, Any]]:
    """The elements of `row`, one after the other."""
    return map(row, range(count))


FUNCTIONS: Final[dict[str, Callable[[int], Any]]] = {"row": row, "picture": picture, "tokens": tokens}
