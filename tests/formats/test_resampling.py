"""Resizing: laws that hold for every kernel; TensorFlow itself is asked in ``tests/referee``."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from asyncdata.formats.resampling import INTERPOLATIONS, Resampler, crop_box, nearest, pad_box, weights

SIZES = [(1, 1), (1, 7), (5, 5), (9, 4), (4, 9), (30, 7)]


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize(("size", "wanted"), SIZES)
def test_every_kernel(interpolation: str, size: int, wanted: int) -> None:
    """One colour stays one colour; what is turned over before is what is turned over afterwards."""
    resample = pickle.loads(pickle.dumps(Resampler(interpolation)))
    flat = np.full((size, size, 3), 100, np.uint8)
    np.testing.assert_allclose(resample(flat, wanted, wanted + 1), 100, atol=0.01)
    image = np.random.default_rng(1).integers(0, 256, (size, size + 2, 3), np.uint8)
    out = resample(image, wanted, wanted)
    assert out.shape == (wanted, wanted, 3)
    assert out.dtype == (np.uint8 if interpolation == "nearest" else np.float32)
    if interpolation != "nearest":  # which has to choose a side
        turned = resample(np.ascontiguousarray(image[::-1, ::-1]), wanted, wanted)
        np.testing.assert_allclose(turned[::-1, ::-1], out, atol=0.02)


@pytest.mark.parametrize(
    "interpolation", [name for name in INTERPOLATIONS if name not in ("gaussian", "mitchellcubic")]
)
def test_the_same_size_is_the_same_image(interpolation: str) -> None:
    """Kernels that interpolate give every pixel back at its own place; the other two smooth."""
    image = np.random.default_rng(2).integers(0, 256, (6, 7, 1), np.uint8)
    np.testing.assert_allclose(Resampler(interpolation)(image, 6, 7), image, atol=1e-3)


def test_area_is_the_mean() -> None:
    """A pixel of the result is the mean of what it covers, in parts where borders do not meet."""
    image = np.arange(12, dtype=np.float32).reshape(4, 3, 1)
    assert Resampler("area")(image, 2, 1)[..., 0].tolist() == [[2.5], [8.5]]
    np.testing.assert_allclose(weights("area", 3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]], atol=1e-6)


def test_threads_may_share_a_resampler() -> None:
    """Weights that another thread forgets, as soon as they are found, are used all the same."""

    class Forgetful(OrderedDict[tuple[int, int], Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            return self.pop(key, default)

    image = np.arange(12, dtype=np.float32).reshape(4, 3, 1)
    resample = Resampler("area")
    resample._known = Forgetful()
    for _ in range(3):
        assert resample(image, 2, 1)[..., 0].tolist() == [[2.5], [8.5]]


def test_nearest_takes_the_centre() -> None:
    """The input pixel in which the centre of the output pixel lies."""
    assert nearest(4, 2).tolist() == [1, 3]
    assert nearest(2, 4).tolist() == [0, 0, 1, 1]


def test_boxes() -> None:
    """The middle with the wanted ratio; the size that fits, and where it is put."""
    assert crop_box(10, 20, 5, 5) == (slice(0, 10), slice(5, 15))
    assert crop_box(20, 10, 4, 8) == (slice(7, 12), slice(0, 10))
    assert crop_box(1, 1, 300, 2) == (slice(0, 1), slice(0, 1))
    assert pad_box(10, 20, 5, 5) == (2, 5, 1, 0)
    assert pad_box(20, 10, 40, 40) == (40, 20, 0, 10)
    assert pad_box(1, 1000, 8, 8) == (1, 8, 3, 0)
    assert pad_box(1000, 1, 8, 8) == (8, 1, 0, 3)


def test_unknown_kernels() -> None:
    """Names are checked when they are given."""
    with pytest.raises(ValueError, match="bilinear"):
        Resampler("sinc")
