"""Resizes images as ``tf.image.resize`` does, with half-pixel centres and without antialiasing.

    out = rows @ image @ columns.T       rows, columns: a weight per (output, input) position, float32

A kernel is a matrix of weights per axis, cached for the sizes that occur. OpenCV computes bilinear, the default
everywhere. Nearest takes one input position per output position. Values between 0 and 255 differ from TensorFlow's by
rounding: by less than 0.01, and by 0.2 for `bicubic`, whose weights TensorFlow takes from a table.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.formats.image import ImageDecoder, resize_bilinear

Pixels = npt.NDArray[Any]
Weights = npt.NDArray[np.float32]

_REMEMBERED: Final = 64
"""Pairs of sizes whose weights are kept."""


def _cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _mitchell(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    near = ((7 / 6) * x - 2) * x * x + 8 / 9
    far = ((-7 / 18 * x + 2) * x - 10 / 3) * x + 16 / 9
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _gaussian(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(x < 1.5, np.exp(-2 * x * x), 0)


def _lanczos(radius: float) -> Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]:
    def kernel(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.where(x <= radius, np.sinc(x) * np.sinc(x / radius), 0)

    return kernel


_KERNELS: Final[dict[str, tuple[float, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]]]] = {
    "bicubic": (2, _cubic),
    "lanczos3": (3, _lanczos(3)),
    "lanczos5": (5, _lanczos(5)),
    "gaussian": (1.5, _gaussian),
    "mitchellcubic": (2, _mitchell),
}

INTERPOLATIONS: Final = ("bilinear", "nearest", "area", *_KERNELS)
"""Names that `Resampler` takes."""


class Resampler:
    """Resizes images to any sizes; picklable.

    Args:
        interpolation: One of `INTERPOLATIONS`.
    """

    def __init__(self, interpolation: str) -> None:
        if interpolation not in INTERPOLATIONS:
            raise ValueError(
                f"interpolation must be one of {', '.join(INTERPOLATIONS)}, not {arguments.shown(interpolation)}"
            )
        self.interpolation = interpolation
        self._known: OrderedDict[tuple[int, int], Weights] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return Resampler, (self.interpolation,)

    def __call__(self, pixels: Pixels, height: int, width: int) -> Pixels:
        """An image (height, width, channels) of this size: float32, or the image's dtype for `nearest`."""
        if self.interpolation == "nearest":
            return pixels[nearest(pixels.shape[0], height)[:, None], nearest(pixels.shape[1], width)]
        if self.interpolation == "bilinear":
            return resize_bilinear(pixels, height, width)
        image = pixels.astype(np.float32, copy=False)
        rows = self._weights(image.shape[0], height)
        columns = self._weights(image.shape[1], width)
        tall = np.tensordot(rows, image, (1, 0))
        out: Pixels = np.ascontiguousarray(np.tensordot(tall, columns, (1, 1)).transpose(0, 2, 1))
        return out

    def _weights(self, size: int, wanted: int) -> Weights:
        known = self._known.get((size, wanted))
        if known is None:
            known = weights(self.interpolation, size, wanted)
            self._known[size, wanted] = known
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        else:
            with contextlib.suppress(KeyError):  # another thread may just have forgotten it
                self._known.move_to_end((size, wanted))
        return known


def nearest(size: int, wanted: int) -> npt.NDArray[np.int64]:
    """The input position that each output position takes."""
    scale = np.float32(size) / np.float32(wanted)
    centres = (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * scale
    positions: npt.NDArray[np.int64] = np.minimum(np.floor(centres).astype(np.int64), size - 1)
    return positions


def weights(interpolation: str, size: int, wanted: int) -> Weights:
    """``float32[wanted, size]``: what each input position contributes to each output position."""
    if interpolation == "area":
        return _area(size, wanted)
    radius, kernel = _KERNELS[interpolation]
    # In float32, as there: a kernel that ends abruptly is sensitive to the last bit.
    half, one = np.float32(0.5), np.float32(1)
    centres = (np.arange(wanted, dtype=np.float32) + half) * (one / (np.float32(wanted) / np.float32(size)))
    distance = np.abs(np.arange(size, dtype=np.float32)[None, :] + half - centres[:, None]).astype(np.float64)
    found = np.where(distance <= radius, kernel(distance), 0)
    total = found.sum(1, keepdims=True)
    return np.asarray(found / np.where(np.abs(total) < 1e-6, 1, total), np.float32)


def _area(size: int, wanted: int) -> Weights:
    """Overlap of every output pixel with the input pixels."""
    edges = np.arange(wanted + 1) * (size / wanted)
    starts, stops = edges[:-1, None], edges[1:, None]
    inner = np.arange(size)[None, :]
    overlap = np.clip(np.minimum(stops, inner + 1) - np.maximum(starts, inner), 0, None)
    return np.asarray(overlap / overlap.sum(1, keepdims=True), np.float32)


def crop_box(height: int, width: int, target_height: int, target_width: int) -> tuple[slice, slice]:
    """The largest part in the middle of an image that has the target's aspect ratio."""
    tall = max(1, min(height, int(np.float32(width * target_height) / np.float32(target_width))))
    wide = max(1, min(width, int(np.float32(height * target_width) / np.float32(target_height))))
    top, left = (height - tall) // 2, (width - wide) // 2
    return slice(top, top + tall), slice(left, left + wide)


def pad_box(height: int, width: int, target_height: int, target_width: int) -> tuple[int, int, int, int]:
    """Height and width that an image is resized to, to fit into the target, and the offsets where it is put.

    A very long or very high image keeps a pixel of its other side.
    """
    tall, wide = np.float32(height), np.float32(width)
    ratio = max(wide / np.float32(target_width), tall / np.float32(target_height))
    new_tall, new_wide = tall / ratio, wide / ratio
    top = max(0, int(np.floor((np.float32(target_height) - new_tall) / 2)))
    left = max(0, int(np.floor((np.float32(target_width) - new_wide) / 2)))
    return max(1, int(np.floor(new_tall))), max(1, int(np.floor(new_wide))), top, left


class ImageLoader:
    """``loader(content)`` or ``loader(content, label)``: the pixels, with the label if there is one. Picklable.

    Args:
        channels: 1, 3 or 4.
        size: Height and width of the result.
        interpolation: One of `INTERPOLATIONS`.
        crop: Whether the middle with the wanted aspect ratio is cut out first, instead of distorting the image.
        pad: Whether zeros fill up what the image does not cover, instead of distorting it.
        channels_first: Whether the result is (channels, height, width).
    """

    def __init__(
        self, *, channels: int, size: tuple[int, int], interpolation: str, crop: bool, pad: bool, channels_first: bool
    ) -> None:
        self._decoder = ImageDecoder(channels=channels)
        self._resampler = Resampler(interpolation)
        self._size = size
        self._crop = crop
        self._pad = pad
        self._channels_first = channels_first

    def __call__(self, content: Any, *label: Any) -> Any:
        """See the class.

        Raises:
            CorruptRecordError: The file is not a whole JPEG or PNG.
        """
        image = self._resized(self._decoder.decode(content))
        if self._channels_first:
            image = np.ascontiguousarray(image.transpose(2, 0, 1))
        return (image, *label) if label else image

    def _resized(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        height, width = self._size
        tall, wide = pixels.shape[:2]
        if self._crop:
            rows, columns = crop_box(tall, wide, height, width)
            return self._resampler(pixels[rows, columns], height, width)
        if self._pad:
            tall, wide, top, left = pad_box(tall, wide, height, width)
            image = self._resampler(pixels, tall, wide)
            out = np.zeros((height, width, image.shape[2]), image.dtype)
            out[top : top + tall, left : left + wide] = image
            return out
        return self._resampler(pixels, height, width)
