from __future__ import annotations

import pickle
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.image import ImageHeader, decode_image, encode_jpeg, encode_png, read_header


def noise(*shape: int) -> npt.NDArray[np.uint8]:
    """Pixels that no resampling leaves as they are."""
    return np.random.default_rng(1).integers(0, 256, shape, np.uint8)


def smooth() -> npt.NDArray[np.uint8]:
    """Pixels that JPEG keeps nearly as they are: red grows to the right, green downwards."""
    y, x = np.mgrid[0:64, 0:96]
    return np.stack((x * 2, y * 3, np.full_like(x, 40)), axis=2).astype(np.uint8)


def chunk(kind: bytes, body: bytes) -> bytes:
    """One part of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_header(height: int, width: int, bits: int = 8) -> bytes:
    """A PNG that declares a size and holds no pixels."""
    head = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("bits", "level", "grey"), [(8, 7, 7), (8, 0, 0), (4, 3, 51), (1, 1, 255), (1, 255, 255)])
def test_a_transparent_grey_has_no_alpha(bits: int, level: int, grey: int) -> None:
    """A grey PNG may name one; it is given in the image's own bits, of which only the lowest count."""
    levels = (np.arange(16)[None] % (1 << bits)).astype(np.uint8)
    rows = b"\0" + np.packbits(np.unpackbits(levels.T, axis=1)[:, 8 - bits :]).tobytes()
    header = struct.pack(">IIBBBBB", 16, 1, bits, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"tRNS", struct.pack(">H", level)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    found = decode_image(4)(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in parts))
    assert found[0, :, 0].tolist() == (levels[0].astype(int) * 255 // ((1 << bits) - 1)).tolist()
    assert found[0, :, 3].tolist() == [0 if value == grey else 255 for value in found[0, :, 0]]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_pixels_come_back_exactly(channels: int) -> None:
    """Lossless, in the order RGB(A)."""
    pixels = noise(37, 50, channels)
    found = decode_image(channels)(encode_png(pixels))
    assert found.dtype == np.uint8
    assert np.array_equal(found, pixels)


def test_jpeg_pixels_come_back_nearly() -> None:
    """Red stays red: the channel order is RGB."""
    pixels = smooth()
    found = decode_image()(encode_jpeg(pixels))
    assert found.shape == pixels.shape
    assert np.abs(found.astype(int) - pixels).mean() < 3


def test_channels_are_converted() -> None:
    """Grey to colour, colour to grey, alpha dropped, or added as 255."""
    grey, colour, alpha = noise(8, 9, 1), noise(8, 9, 3), noise(8, 9, 4)
    assert np.array_equal(decode_image(3)(encode_png(grey)), np.repeat(grey, 3, axis=2))
    assert np.array_equal(decode_image(3)(encode_png(alpha)), alpha[:, :, :3])
    assert np.array_equal(decode_image(4)(encode_png(colour)), np.dstack((colour, np.full((8, 9), 255, np.uint8))))
    assert np.array_equal(decode_image(4)(encode_png(grey))[:, :, 1], grey[:, :, 0])
    assert decode_image(1)(encode_png(colour)).shape == (8, 9, 1)
    assert decode_image(4)(encode_jpeg(colour)).shape == (8, 9, 4)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [None, (5, 7), (64, 96), (100, 200)])
def test_pixels_can_be_written_where_the_caller_wants_them(channels: int, size: tuple[int, int] | None) -> None:
    """``out`` is filled and returned; the pixels are those of a decode without it."""
    decode = decode_image(channels, size)
    data = encode_jpeg(smooth())
    expected = decode(data)
    assert expected.shape == (*(size or (64, 96)), channels)
    slab = np.zeros((3, *expected.shape), np.uint8)
    assert decode.decode(data, slab[1]).base is slab
    assert np.array_equal(slab[1], expected)
    assert not slab[0].any()
    assert not slab[2].any()
    with pytest.raises(ValueError, match="but out is"):
        decode.decode(data, np.zeros((1, 1, channels), np.uint8))


def test_resizing_is_bilinear() -> None:
    """Half the size of a checkerboard of 2 by 2 blocks of one colour keeps the colours."""
    small = noise(16, 16, 3)
    large = small.repeat(2, axis=0).repeat(2, axis=1)
    assert np.array_equal(decode_image(size=(16, 16))(encode_png(large)), small)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_an_image(kind: Any) -> None:
    """A record may be bytes or a view of a slab."""
    assert decode_image()(kind(encode_png(noise(4, 5, 3)))).shape == (4, 5, 3)


def test_a_feature_of_a_dict_is_replaced() -> None:
    """The other features are handed on, and the record that came in is left alone."""
    record = {"image": encode_png(noise(4, 5, 3)), "label": 3}
    found = decode_image(feature="image")(record)
    assert found["image"].shape == (4, 5, 3)
    assert found["label"] == 3
    assert isinstance(record["image"], bytes)
    with pytest.raises(KeyError, match="it has \\['image', 'label'\\]"):
        decode_image(feature="picture")(record)
    with pytest.raises(TypeError, match="needs a dict"):
        decode_image(feature="image")(record["image"])
    with pytest.raises(CorruptRecordError, match="feature 'image'"):
        decode_image(feature="image")({"image": b"nothing"})
    with pytest.raises(TypeError, match="an encoded image is bytes, not dict"):
        decode_image()(record)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"GIF89a" + bytes(20), "looks like a GIF"),
        (b"RIFF\0\0\0\0WEBP", "looks like a WebP"),
        (b"<html>", "looks like XML or HTML"),
        (serialize_example({"image": b"x"}), "looks like a tf.train.Example"),
        (b"\x01\x02\x03", "3 bytes long and begins with 01 02 03"),
        (b"\x89PNG\r\n\x1a\n", "header of the image is damaged"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "header of the image is damaged"),
        (b"\xff\xd8\xff\xd9", "header of the image is damaged"),
        (png_header(10, 10), "the image is damaged"),
        (png_header(0, 10), "header of the image is damaged"),
        (png_header(4, 4, 16), "16 bits per channel"),
    ],
)
def test_what_is_no_image_says_what_it_is(data: bytes, words: str) -> None:
    """Length, first bytes, and what they look like."""
    with pytest.raises(CorruptRecordError, match=words):
        decode_image()(data)


def test_sixteen_bit_images_are_refused() -> None:
    """Their low bits would be lost without a word."""
    with pytest.raises(CorruptRecordError, match="16 bits per channel"):
        decode_image()(encode_png(np.full((4, 4, 3), 1000, np.uint16)))


def test_bombs_are_refused_by_their_header() -> None:
    """A declared size beyond the limit is refused before anything is decoded or allocated."""
    bomb = png_header(1_000_000, 1_000_000)
    with pytest.raises(CorruptRecordError, match="declares 1000000 x 1000000 pixels"):
        decode_image()(bomb)
    data = encode_jpeg(noise(20, 30, 3))
    with pytest.raises(CorruptRecordError, match="a JPEG declares 20 x 30 pixels, over the limit of 599"):
        decode_image(max_pixels=599)(data)
    assert decode_image(max_pixels=600)(data).shape == (20, 30, 3)


@pytest.mark.parametrize("encode", [encode_jpeg, encode_png])
def test_every_truncation_is_an_error(encode: Any) -> None:
    """No part of an image passes for an image."""
    data = encode(noise(16, 24, 3))
    for size in range(len(data)):
        with pytest.raises(CorruptRecordError):
            decode_image()(data[:size])
    assert decode_image()(data + b"\0 trailing").shape == (16, 24, 3)


def test_headers_are_read_without_decoding() -> None:
    """Format, height, width and depth, from either format."""
    assert read_header(encode_png(noise(7, 9, 4))) == ImageHeader("PNG", 7, 9, 8)
    assert read_header(encode_png(np.zeros((7, 9, 1), np.uint16))) == ImageHeader("PNG", 7, 9, 16)
    jpeg = encode_jpeg(noise(7, 9, 3))
    assert read_header(jpeg) == ImageHeader("JPEG", 7, 9, 8)
    padded = jpeg[:2] + b"\xff\xff\xe1\x00\x06ab\xff\xc0" + jpeg[2:]
    assert read_header(padded) == ImageHeader("JPEG", 7, 9, 8)


def test_exif_rotation_is_ignored() -> None:
    """As tf.io.decode_jpeg does: the pixels are those that are stored."""
    jpeg = encode_jpeg(smooth())
    tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    body = b"Exif\0\0" + tiff
    turned = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]
    for channels in (1, 3, 4):
        assert np.array_equal(decode_image(channels)(turned), decode_image(channels)(jpeg))


def test_decoders_travel_to_other_processes() -> None:
    """A decoder is picklable before and after its first image."""
    decode = decode_image(3, (5, 6), "image", max_pixels=1000)
    data = encode_png(noise(4, 5, 3))
    for _ in range(2):
        again = pickle.loads(pickle.dumps(decode))
        assert repr(again) == "decode_image(channels=3, size=(5, 6), feature='image')"
        assert again.max_pixels == 1000
        assert decode({"image": data})["image"].shape == (5, 6, 3)


@pytest.mark.parametrize("arguments", [{"channels": 2}, {"size": (0, 5)}, {"max_pixels": 0}])
def test_impossible_arguments_are_refused(arguments: Any) -> None:
    """Found out where the decoder is made, not in a worker."""
    with pytest.raises(ValueError, match="must be"):
        decode_image(**arguments)
