from __future__ import annotations

import random
from typing import Any

import pytest

from asyncdata.formats.example import layouts
from asyncdata.formats.example.columnar import ColumnarReader
from asyncdata.formats.example.features import FixedLenFeature
from asyncdata.formats.example.fields import SPARE_BYTES
from asyncdata.formats.example.layouts import LayoutReader
from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.example.wanted import want
from tests.formats.example.laid_out import alone, laid_out, values
from tests.samples import samples

SPEC = {
    "format": FixedLenFeature((), "bytes"),
    "image": FixedLenFeature((), "bytes"),
    "label": FixedLenFeature((), "int64"),
    "weight": FixedLenFeature((), "float32"),
}
WANTED = [want(name, feature) for name, feature in SPEC.items()]


def example(label: int, image: bytes, **more: Any) -> bytes:
    """One record with everything that is wanted."""
    return serialize_example({"format": b"JPEG", "image": image, "label": label, "weight": 0.5, **more})


def test_records_of_one_layout_are_read_together() -> None:
    """Byte strings of different lengths are references; what lies around them is looked at once for all records."""
    records = [example(100 + i, random.Random(i).randbytes(20_000 + i)) for i in range(60)]
    array, rows = laid_out(records)
    columns = LayoutReader(WANTED).read(array, rows)
    assert columns is not None
    assert columns[1].memory is array
    assert [values(columns, row) for row in range(60)] == [alone(record, WANTED) for record in records]


def test_a_few_layouts_may_be_mixed() -> None:
    """Numbers of one byte, of two and of nine, lengths of one byte, of two and of three."""
    drawn = random.Random(5)
    labels = [drawn.choice((3, 300)) for _ in range(200)]
    records = [example(label, bytes(drawn.choice((100, 3000)))) for label in labels]
    array, rows = laid_out(records)
    columns = LayoutReader(WANTED).read(array, rows)
    assert columns is not None
    assert [values(columns, row) for row in range(200)] == [alone(record, WANTED) for record in records]


def test_blocks_may_have_one_layout_after_another() -> None:
    """No record of a block needs to be laid out like those of the block before."""
    reader = LayoutReader(WANTED)
    for label in (3, 300, 3, 70_000, 300):
        records = [example(label + i, bytes(300)) for i in range(20)]
        columns = reader.read(*laid_out(records))
        assert columns is not None
        assert [values(columns, row) for row in range(20)] == [alone(record, WANTED) for record in records]


@pytest.mark.parametrize(
    "other",
    [
        [example(3, bytes(300)), example(300, bytes(300))],
        [example(5, bytes(300))],
        [serialize_example({"label": 1})],
    ],
)
def test_threads_may_share_a_reader(other: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever others read with it in the middle of a block, this one is read, and later ones are, too."""
    reader = LayoutReader(WANTED)
    records = [example(label, bytes(300)) for label in (3, 300, 70_000, 300, 3, 3)]
    array, rows = laid_out(records)
    between: list[Any] = []
    read = layouts._Layout.read

    def interrupted(layout: Any, array: Any, rows: Any) -> Any:
        found = read(layout, array, rows)
        while between:
            reader.read(*between.pop())
        return found

    monkeypatch.setattr(layouts._Layout, "read", interrupted)
    for _ in range(2):
        between.append(laid_out(other))
        columns = reader.read(array, rows)
        assert columns is not None
        assert [values(columns, row) for row in range(6)] == [alone(record, WANTED) for record in records]
        assert any(reader.read(array, rows) is not None for _ in range(40))


@pytest.mark.parametrize(
    "odd",
    [
        serialize_example({"image": bytes(300), "label": 1, "weight": 1.0}),
        serialize_example({"format": [], "image": bytes(300), "label": 1, "weight": 1.0}),
        serialize_example({"format": b"PNG", "image": bytes(300), "label": [], "weight": 1.0}),
        example(-1, bytes(300)),
        b"",
        b"\x0a",
    ],
)
def test_what_is_unusual_is_left_to_others(odd: bytes) -> None:
    """A block with a record that lacks a value, or is none, is not read; nor is one of which it is the first."""
    records = [example(5, bytes(300)) for _ in range(9)]
    for order in ([*records, odd], [odd, *records]):
        array, rows = laid_out(order)
        assert LayoutReader(WANTED).read(array, rows) is None
        whole = ColumnarReader(WANTED).read(array, rows)
        assert (
            whole is None or not whole[1][order.index(odd)] or alone(odd, WANTED) == values(whole[0], order.index(odd))
        )


def test_a_reader_that_met_others_waits_before_it_looks_again() -> None:
    """Looking costs; blocks that are alike later are read again."""
    reader = LayoutReader(WANTED)
    array, rows = laid_out([example(5, bytes(300)) for _ in range(9)])
    other, places = laid_out([serialize_example({"label": 1})] * 9)
    assert reader.read(array, rows) is not None
    assert reader.read(other, places) is None
    assert reader.read(array, rows) is None
    assert any(reader.read(array, rows) is not None for _ in range(40))


def test_no_damage_is_overlooked() -> None:
    """Whatever one byte is changed to, and wherever a record is cut: it is read as it is when it is alone, or not."""
    drawn = random.Random(11)
    wanted = [WANTED[1], WANTED[2], WANTED[3]]  # the format is in the records and not asked for
    right = [example(200 + i, drawn.randbytes(150 + i % 4)) for i in range(8)]
    size = len(right[0])
    changes: list[bytes] = []
    for at in [at for at in range(size) if not 40 < at < size - 60] * samples(1, 8):
        value = drawn.choice((right[0][at] ^ 1 << drawn.randrange(8), drawn.randrange(256)))
        before, behind = right[0][:at], right[0][at + 1 :]
        changes += [b"%b%c%b" % (before, value, behind), before, before + behind]
    accepted = 0
    for changed in changes:
        reader = LayoutReader(wanted)
        assert reader.read(*laid_out(right)) is not None
        columns = reader.read(*laid_out([*right, changed]))
        if columns is not None:
            accepted += 1
            assert values(columns, 8) == alone(changed, wanted)
    assert 0 < accepted < len(changes)


def test_records_may_lie_at_the_very_end_of_the_memory() -> None:
    """Nothing behind the memory is read."""
    array, rows = laid_out([example(5, bytes(300)) for _ in range(9)])
    end = array[:-SPARE_BYTES]
    columns = LayoutReader(WANTED).read(end, rows)
    assert columns is None or values(columns, 8) == [b"JPEG", bytes(300), 5, 0.5]
