"""Whole image files to arrays of one size: the map function of `image_dataset_from_directory`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata.formats.image import ImageDecoder
from asyncdata.formats.resampling import Resampler, crop_box, pad_box


class ImageLoader:
    """``loader(content)`` or ``loader(content, label)``: the pixels, with the label if there is one. Picklable.

    Args:
        channels: 1, 3 or 4.
        size: Height and width of the result.
        interpolation: See `resampling`.
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
