"""Synthetic photographs as real JPEGs: windows of one large field of coloured noise at five scales.

Decoding one costs what decoding a photograph of the same size and the same number of bytes does: about 40 KB for
500 x 375. The field is a function of the seed, a picture of its number, so that processes agree without talking.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.image import encode_jpeg

HEIGHT: Final = 375
WIDTH: Final = 500
_FIELD: Final = (1200, 1600)
_SCALES: Final = ((1, 5.0), (3, 14.0), (9, 20.0), (40, 30.0), (160, 40.0))
"""Size in pixels and contrast of each layer of noise."""
_QUALITY: Final = 85


@functools.lru_cache(maxsize=1)
def _field(seed: int) -> npt.NDArray[np.uint8]:
    random = np.random.default_rng(seed)
    total = np.full((*_FIELD, 3), 128.0, np.float32)
    for size, contrast in _SCALES:
        coarse = random.normal(0.0, contrast, (_FIELD[0] // size + 2, _FIELD[1] // size + 2, 3)).astype(np.float32)
        total += _stretch(_stretch(coarse, _FIELD[0], size, 0), _FIELD[1], size, 1)
    return np.clip(total, 0, 255).astype(np.uint8)


def _stretch(coarse: npt.NDArray[np.float32], length: int, size: int, axis: int) -> npt.NDArray[np.float32]:
    """Linear interpolation along one axis."""
    at = np.arange(length, dtype=np.float32) / size
    low = at.astype(np.intp)
    shape = [1, 1, 1]
    shape[axis] = length
    weight = (at - low).astype(np.float32).reshape(shape)
    stretched: npt.NDArray[np.float32] = coarse.take(low, axis) * (1 - weight) + coarse.take(low + 1, axis) * weight
    return stretched


def make_picture(number: int, seed: int) -> bytes:
    """One JPEG."""
    random = np.random.default_rng((seed, number))
    field = _field(seed)
    top = int(random.integers(field.shape[0] - HEIGHT))
    left = int(random.integers(field.shape[1] - WIDTH))
    window = field[top : top + HEIGHT, left : left + WIDTH]
    if random.integers(2):
        window = window[:, ::-1]
    return encode_jpeg(np.ascontiguousarray(window), _QUALITY)


def make_example(number: int, seed: int) -> bytes:
    """One ``tf.train.Example`` with a picture and its number as the label."""
    return serialize_example({"image": make_picture(number, seed), "label": int(number)})
