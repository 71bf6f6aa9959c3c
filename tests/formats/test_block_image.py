"""Images: the same elements come back however the rows were divided into blocks, and mixed ones can be written."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest

from asyncdata.errors import DataError
from asyncdata.formats.block_file import ImagePlace, frame, read_image
from asyncdata.formats.block_image import Image, ImageBuilder, StoredMixed, StoredRefs, check_image, load
from asyncdata.memory.advance import EMPTY, ORIGIN_WIDTH
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn
from asyncdata.memory.structure import LEAF
from tests.samples import samples

ITEMS: Final[tuple[Callable[[int], Any], ...]] = (
    lambda _: None,
    lambda n: n,
    lambda n: n / 2,
    lambda n: n % 2 == 0,
    np.int64,
    np.float32,
    lambda n: np.arange(n % 4),
    lambda n: np.full((2, 2), n, np.uint8),
)
"""Leaves that need no arena to be read back, and arrays, which do where they lie beside others."""
PLAIN: Final = ITEMS[:4]


def column(items: Sequence[Any]) -> Column:
    """As a step makes it of its elements: side by side where they are alike."""
    arrays = all(isinstance(item, np.generic | np.ndarray) for item in items)
    if arrays and len({(item.dtype, item.shape) for item in items}) == 1:
        return ArrayColumn(np.stack(items))
    return ObjectColumn(list(items))


def built(items: Sequence[Any], draw: random.Random) -> list[Image]:
    """Images of blocks that are cut anywhere."""
    builder, images, at = ImageBuilder(), [], 0
    while at < len(items):
        count = draw.choice([1, 1, 2, 7, len(items)])
        part = items[at : at + count]
        origin = np.arange(at, at + len(part))[:, None].repeat(ORIGIN_WIDTH, 1)
        block = Block(LEAF, (column(part),), origin, EMPTY)
        if not builder.takes(block):
            images.append(builder.finish())
        builder.add(block)
        at += len(part)
    return [*images, builder.finish()]


def same(one: Any, other: Any) -> bool:
    """Of one type, and equal."""
    return (
        type(one) is type(other)
        and np.array_equal(one, other)
        and getattr(one, "dtype", 0) == getattr(other, "dtype", 0)
    )


@pytest.mark.parametrize("seed", range(samples(60, 3000)))
def test_rows_of_several_kinds_are_one_image_however_they_are_cut(seed: int) -> None:
    """What is small is one image: its elements and their provenance come back, from a file, too."""
    draw = random.Random(seed)
    makes = draw.sample(PLAIN, draw.randint(1, len(PLAIN)))
    items = [draw.choice(makes)(number) for number in range(draw.randint(1, 60))]
    (image,) = built(items, draw)
    pieces = b"".join(map(bytes, frame(image)))
    memory = np.frombuffer(pieces, np.uint8)
    read, start = read_image(memory, ImagePlace(64, len(pieces), image.rows), 1 << 30)
    check_image(read, memory, start)
    assert image.body is not None
    for block in (load(image, image.body, 0, None), load(read, memory, start, None)):
        assert all(map(same, [block.columns[0].element(row) for row in range(len(block))], items))
        assert block.origin[:, 0].tolist() == list(range(len(items)))


@pytest.mark.parametrize("seed", range(samples(30, 1000)))
def test_arrays_of_any_shape_among_others_end_no_image(seed: int) -> None:
    """The number of images does not depend on how the rows are cut, nor whether they can be written."""
    draw = random.Random(seed)
    makes = draw.sample(ITEMS, draw.randint(1, len(ITEMS)))
    items = [draw.choice(makes)(number) for number in range(draw.randint(1, 60))]
    for _ in range(3):
        (image,) = built(items, draw)
        assert image.rows == len(items)
        assert frame(image)


def test_what_is_large_ends_where_other_rows_come() -> None:
    """Rows side by side stay so; an image that has rows of both kinds takes both."""
    builder = ImageBuilder()

    def block(items: Sequence[Any]) -> Block:
        return Block(LEAF, (column(items),), np.zeros((len(items), ORIGIN_WIDTH), np.int64), EMPTY)

    builder.add(block([np.zeros(1 << 15)]))
    assert builder.takes(block([np.zeros(1 << 15)]))
    assert not builder.takes(block([None]))
    builder.finish()
    builder.add(block([None]))
    builder.add(block([np.zeros(1 << 15)]))
    assert builder.takes(block([None, None]))
    (spec,) = builder.finish().specs
    assert isinstance(spec, StoredMixed)


def test_a_table_lies_apart_from_all_that_is_checked() -> None:
    """Loading moves what tables point at: a crafted file with two rows on one would have it moved twice."""
    builder = ImageBuilder()
    items = [BytesArray(np.frombuffer(b"abcd", np.uint8), np.array([[0, 1], [1, 3]])) for _ in range(2)]
    builder.add(Block(LEAF, (ObjectColumn(items),), np.zeros((2, ORIGIN_WIDTH), np.int64), EMPTY))
    image = builder.finish()
    assert image.body is not None
    check_image(image, image.body, 0)
    (spec,) = image.specs
    assert isinstance(spec, StoredRefs)
    assert spec.leaves[0].kind == "table"
    for place in (lambda rows: rows[1, 0], lambda rows: rows[1, 0] + 16, lambda _: spec.rows_at):
        body = image.body.copy()
        rows = body[spec.rows_at : spec.rows_at + 32].view(np.int64).reshape(2, 2)
        rows[0, 0] = place(rows)
        with pytest.raises(DataError, match="lie in one another"):
            check_image(image, body, 0)
