"""JPEG and PNG to arrays, as a ready-made map function: ``decode_image()``.

OpenCV decodes (extra ``images``); it is imported when the first image is decoded, and only here. Invariants: the header
is read before the decoder runs, so an image that declares too many pixels costs nothing; the result is uint8, with
channels in the order RGB(A), not rotated by EXIF (as in ``tf.io.decode_image``); a damaged or truncated image, or one
of another format, raises a ``CorruptRecordError`` that says what its bytes look like.

JPEG pixels equal those of TensorFlow's accurate DCT. TensorFlow's default, the fast DCT, differs by a few units. Images
in CMYK are rounded in another way, by at most 2 units.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.errors import CorruptRecordError, MissingPackageError
from asyncdata.formats.signatures import look_of
from asyncdata.spec import ArraySpec
from asyncdata.wording import counted

Image: TypeAlias = npt.NDArray[np.uint8]
Encoded: TypeAlias = bytes | bytearray | memoryview

MAX_PIXELS: Final = 1 << 27
"""Default limit of width times height: 134 million, 400 MB as RGB."""

_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_PNG_END: Final = b"IEND\xaeB`\x82"
_JPEG_SIGNATURE: Final = b"\xff\xd8\xff"
_JPEG_END: Final = b"\xff\xd9"
_FRAME_MARKERS: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_LONE_MARKERS: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_PNG_COLOUR: Final = 25
"""Where the header has its colour type, behind the bits per channel."""
_PNG_GREY: Final = 0
_png_header = struct.Struct(">4sIIB").unpack_from
_png_chunk = struct.Struct(">I4s").unpack_from
_jpeg_frame = struct.Struct(">BHHB").unpack_from
_u16 = struct.Struct(">H").unpack_from
_EXAMPLE: Final = "a tf.train.Example; name the feature that holds the image, or parse it first"


class ImageHeader(NamedTuple):
    """The declared properties of an image.

    Attributes:
        form: "JPEG" or "PNG".
        height: In pixels.
        width: In pixels.
        bits: Bits per channel.
    """

    form: str
    height: int
    width: int
    bits: int


def _size(size: Any) -> tuple[int, int]:
    lengths = arguments.integers("size", size, least=1)
    if len(lengths) != 2:
        raise ValueError(f"size must be (height, width), not {arguments.shown(size)}")
    return lengths[0], lengths[1]


class ImageDecoder:
    """A picklable map function: an encoded image, or a dict that holds one, to pixels.

    Attributes:
        channels: 1 (grey), 3 (RGB) or 4 (RGBA; alpha is 255 if the image has none).
        size: (height, width) to resize to, bilinear; None keeps the image's own.
        feature: For records that are dicts: the key of the encoded image, which the pixels replace.
        max_pixels: Images that declare more are rejected.
    """

    def __init__(
        self,
        *,
        channels: int = 3,
        size: tuple[int, int] | None = None,
        feature: str | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.channels = arguments.integer("channels", channels)
        if channels not in (1, 3, 4):
            raise ValueError(f"channels must be 1, 3 or 4, not {channels}")
        self.size = None if size is None else _size(size)
        self.feature = feature if feature is None else arguments.instance("feature", feature, str, "a str or None")
        self.max_pixels = arguments.integer("max_pixels", max_pixels, least=1)
        self._cv2: Any = None

    def __reduce__(self) -> tuple[Callable[..., ImageDecoder], tuple[Any, ...]]:
        return _rebuild, (self.channels, self.size, self.feature, self.max_pixels)

    def __repr__(self) -> str:
        return f"decode_image(channels={self.channels}, size={self.size}, feature={self.feature!r})"

    def __element_spec__(self, given: Any) -> Any:
        """Returns the spec of the result for a record of the spec `given`."""
        pixels = ArraySpec((*(self.size or (None, None)), self.channels), np.uint8)
        if self.feature is None:
            return pixels
        return {**given, self.feature: pixels} if isinstance(given, Mapping) and self.feature in given else None

    def __call__(self, record: Any) -> Any:
        """Decodes one record.

        Raises:
            CorruptRecordError: The record is not a complete JPEG or PNG within the limits.
            TypeError: The record is a dict and no feature was named, or vice versa.
            ModuleNotFoundError: OpenCV is not installed.
        """
        if self.feature is None:
            return self.decode(record)
        if not isinstance(record, Mapping):
            raise TypeError(f"decode_image(feature={self.feature!r}) needs a dict, not {type(record).__name__}")
        if self.feature not in record:
            raise KeyError(f"the record has no feature {self.feature!r}; it has {sorted(map(str, record))}")
        try:
            pixels = self.decode(record[self.feature])
        except CorruptRecordError as error:
            raise CorruptRecordError(f"feature {self.feature!r}: {error.message}") from None
        return {**record, self.feature: pixels}

    def decode(self, data: Encoded, out: Image | None = None) -> Image:
        """Decodes one image.

        Args:
            data: The encoded image.
            out: An array of the result's shape; the pixels are copied or resized directly into it.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"an encoded image is bytes, not {type(data).__name__}")
        header = read_header(data)
        if header.height * header.width > self.max_pixels:
            raise CorruptRecordError(
                f"a {header.form} declares {header.height} x {header.width} pixels, over the limit of {self.max_pixels}"
            )
        if header.bits > 8:
            raise CorruptRecordError(
                f"a {header.form} has {header.bits} bits per channel; only images of up to 8 bits are decoded to uint8"
            )
        _check_end(data, header.form)
        if self._cv2 is None:
            self._cv2 = _opencv()
        pixels = self._pixels(np.frombuffer(data, np.uint8))
        if pixels is None or pixels.shape[:2] != (header.height, header.width):
            raise CorruptRecordError(f"the image is damaged: {_look(data)}")
        return self._fit(pixels, out)

    def _pixels(self, data: npt.NDArray[np.uint8]) -> Image | None:
        """Returns the decoded image with the right number of channels."""
        cv2 = self._cv2
        plain = cv2.IMREAD_IGNORE_ORIENTATION
        try:
            if self.channels == 3:
                rgb: Image | None = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB | plain)
                return rgb
            if self.channels == 1:
                grey: Image | None = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE | plain)
                return None if grey is None else grey[:, :, None]
            found = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
            if found is None:
                return None
            depth = 1 if found.ndim == 2 else found.shape[2]
            code = {1: cv2.COLOR_GRAY2RGBA, 3: cv2.COLOR_BGR2RGBA, 4: cv2.COLOR_BGRA2RGBA}.get(depth)
            rgba: Image | None = None if code is None else cv2.cvtColor(found, code)
            if rgba is not None and depth == 1 and (clear := _clear_grey(data.data)) is not None:
                rgba[found == clear, 3] = 0
        except cv2.error as error:
            raise CorruptRecordError(f"the image cannot be decoded: {error.err}; {_look(data.data)}") from None
        return rgba

    def _fit(self, pixels: Image, out: Image | None) -> Image:
        """Resizes if requested, into ``out`` if given."""
        size = pixels.shape[:2] if self.size is None else self.size
        shape = (*size, self.channels)
        if out is not None and (out.shape != shape or out.dtype != np.uint8):
            raise ValueError(f"the image is uint8 {shape}, but out is {out.dtype} {out.shape}")
        if size != pixels.shape[:2]:
            flat = out[:, :, 0] if out is not None and self.channels == 1 else out
            resized = self._cv2.resize(pixels, (size[1], size[0]), dst=flat, interpolation=self._cv2.INTER_LINEAR)
            pixels = resized.reshape(shape)
        if out is None:
            return pixels
        if not np.may_share_memory(pixels, out):
            out[...] = pixels
        return out


@arguments.suggests
def decode_image(
    channels: int = 3,
    size: tuple[int, int] | None = None,
    feature: str | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
) -> ImageDecoder:
    """A map function from an encoded JPEG or PNG to a uint8 array (height, width, channels).

    Args:
        channels: 1 for grey, 3 for RGB, 4 for RGBA.
        size: (height, width) to resize to, bilinear; None keeps the image's own.
        feature: For records that are dicts, as from ``parse_example``: the key of the encoded image, which the pixels
            replace.
        max_pixels: Images that declare more pixels are rejected before they are decoded.

    Example:
        >>> import asyncdata as ad, cv2, numpy as np
        >>> decode = ad.decode_image(size=(2, 2))
        >>> _, png = cv2.imencode(".png", np.full((4, 6, 3), 7, np.uint8))
        >>> decode(png.tobytes()).tolist()
        [[[7, 7, 7], [7, 7, 7]], [[7, 7, 7], [7, 7, 7]]]
    """
    return ImageDecoder(channels=channels, size=size, feature=feature, max_pixels=max_pixels)


def _rebuild(channels: int, size: tuple[int, int] | None, feature: str | None, max_pixels: int) -> ImageDecoder:
    return ImageDecoder(channels=channels, size=size, feature=feature, max_pixels=max_pixels)


def read_header(data: Encoded) -> ImageHeader:
    """Reads only the format and size of an encoded image.

    Raises:
        CorruptRecordError: It is neither a JPEG nor a PNG, or its header is damaged.
    """
    view = memoryview(data)
    head = bytes(view[:8])
    try:
        if head == _PNG_SIGNATURE:
            chunk, width, height, bits = _png_header(view, 12)
            if chunk == b"IHDR" and width and height:
                return ImageHeader("PNG", height, width, bits)
        elif head.startswith(_JPEG_SIGNATURE):
            header = _jpeg_header(view)
            if header is not None:
                return header
        else:
            raise CorruptRecordError(f"the record is neither a JPEG nor a PNG: {_look(data)}")
    except (struct.error, IndexError):
        pass
    raise CorruptRecordError(f"the header of the image is damaged: {_look(data)}")


def _clear_grey(view: memoryview) -> int | None:
    """The grey level that a PNG without an alpha channel declares transparent, which OpenCV passes over; or None."""
    if bytes(view[:8]) != _PNG_SIGNATURE or view[_PNG_COLOUR] != _PNG_GREY:
        return None
    most = (1 << view[_PNG_COLOUR - 1]) - 1
    position = len(_PNG_SIGNATURE)
    while True:
        size, chunk = _png_chunk(view, position)
        if chunk == b"tRNS":
            level: int = _u16(view, position + 8)[0]
            return (level & most) * 255 // most
        if chunk == b"IDAT":
            return None
        position += size + 12


def _jpeg_header(view: memoryview) -> ImageHeader | None:
    """Walks the segments of a JPEG up to the one that contains its size."""
    position = 2
    while True:
        if view[position] != 0xFF:
            return None
        marker = view[position + 1]
        if marker == 0xFF:  # padding
            position += 1
            continue
        if marker in _FRAME_MARKERS:
            bits, height, width, _ = _jpeg_frame(view, position + 4)
            return ImageHeader("JPEG", height, width, bits) if height and width else None
        if marker in (0xD9, 0xDA):
            return None
        position += 2 if marker in _LONE_MARKERS else 2 + _u16(view, position + 2)[0]


def _check_end(data: Encoded, form: str) -> None:
    """Rejects a truncated image, because some decoders fill the missing part with grey."""
    view = memoryview(data)
    end = _JPEG_END if form == "JPEG" else _PNG_END
    if view[-len(end) :] == end:
        return
    # Bytes behind the end of an image are allowed. A thumbnail inside a JPEG's header has an end of its own, but it is
    # very unlikely in the last quarter of a truncated file; the decoder notices that.
    if bytes(view[len(view) // 4 :]).find(end) < 0:
        raise CorruptRecordError(f"the image is truncated: {_look(data)}")


def _look(data: Encoded) -> str:
    head = bytes(memoryview(data)[:12])
    if not head:
        return "it is empty"
    text = f"it is {counted(len(data), 'byte')} long and begins with {head.hex(' ')}"
    look = _EXAMPLE if head[0] == 0x0A else look_of(head, file=False)
    return f"{text}, which looks like {look}" if look else text


def _opencv() -> Any:
    """Returns OpenCV, set to use only the calling thread, because the workers provide the parallelism."""
    try:
        import cv2  # noqa: PLC0415 -- optional, and the only place that imports it
    except ImportError as error:
        raise MissingPackageError(
            "decoding images needs OpenCV: pip install 'asyncdata[images]' (or opencv-python-headless)"
        ) from error
    cv2.setNumThreads(1)
    return cv2


def resize_bilinear(pixels: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[np.float32]:
    """An image (height, width, channels) of another size as float32: between half-pixel centres, not antialiased."""
    cv2 = _opencv()
    image = pixels.astype(np.float32, copy=False)
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    out: npt.NDArray[np.float32] = resized.reshape(height, width, pixels.shape[2])
    return out


def encode_jpeg(pixels: Image, quality: int = 95) -> bytes:
    """A JPEG of a uint8 array (height, width, 3 as RGB, or 1)."""
    cv2 = _opencv()
    return _encoded(cv2, ".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])


def encode_png(pixels: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]) -> bytes:
    """A PNG of a uint8 or uint16 array (height, width, 1, 3 as RGB, or 4 as RGBA)."""
    return _encoded(_opencv(), ".png", pixels, [])


def _encoded(cv2: Any, suffix: str, pixels: npt.NDArray[Any], settings: list[int]) -> bytes:
    code = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}.get(pixels.shape[2])
    done, data = cv2.imencode(suffix, pixels if code is None else cv2.cvtColor(pixels, code), settings)
    if not done:
        raise ValueError(f"an array {pixels.dtype} {pixels.shape} cannot be encoded as {suffix}")
    encoded: bytes = data.tobytes()
    return encoded
