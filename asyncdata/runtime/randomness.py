"""Random numbers as a pure function of (seed, epoch, stage, position).

There is no generator state: the draw at a position depends neither on who requests it, nor on the order, nor on how the
input is divided into blocks. The bits are Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011) as numpy implements it: four 64-bit words per counter value.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt

_WORDS: Final = 4

_LARGEST: Final = (1 << 64) - (1 << 11)
"""Of a word of a key. numpy passes some pairs of words through float64, which makes more than fits of a larger one."""


def stage_key(seed: int, stage: str, epoch: tuple[int, ...]) -> tuple[int, int]:
    """The Philox key of one stage in one epoch.

    Args:
        seed: The stage's seed, any integer.
        stage: The stage's place in the plan; two stages with one seed must not draw alike.
        epoch: The path of repeat counters, the outermost first.
    """
    digest = hashlib.blake2b(f"{seed}/{stage}/{epoch}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def words(key: tuple[int, int], start: int, count: int) -> npt.NDArray[np.uint64]:
    """``uint64[count]``: the random words at positions ``start, start + 1, …``."""
    block, skip = divmod(start, _WORDS)
    bits = np.random.Philox(key=[min(word, _LARGEST) for word in key], counter=[block, 0, 0, 0])
    drawn: npt.NDArray[np.uint64] = bits.random_raw(skip + count)
    return drawn[skip:]


def fractions(key: tuple[int, int], start: int, count: int) -> npt.NDArray[np.float64]:
    """``float64[count]``: draws from 0 to below 1, at positions ``start, start + 1, …``."""
    return (words(key, start, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(key: tuple[int, int], start: int, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """``int64[n]``: draw i is uniform over ``0 .. bounds[i] - 1``; its position is ``start + i``.

    The bias of the multiplication is below ``bound / 2**53``.
    """
    return np.minimum((fractions(key, start, len(bounds)) * bounds).astype(np.int64), bounds - 1)


def permutation(key: tuple[int, int], count: int) -> npt.NDArray[np.int64]:
    """``int64[count]``: a permutation of ``0 .. count - 1``, uniform up to ties of 64-bit words."""
    return np.argsort(words(key, 0, count), kind="stable")
