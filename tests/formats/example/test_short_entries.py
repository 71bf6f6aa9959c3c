from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from asyncdata.formats.example import short_entries
from asyncdata.formats.example.columnar import ColumnarReader
from asyncdata.formats.example.features import FixedLenFeature
from asyncdata.formats.example.fields import SPARE_BYTES
from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.example.wanted import Wanted, want
from tests.formats.example.laid_out import alone, laid_out, values
from tests.samples import samples

SPEC = {
    "age": FixedLenFeature((), "int64"),
    "name": FixedLenFeature((), "bytes"),
    "number": FixedLenFeature((), "int64"),
    "weight": FixedLenFeature((), "float32"),
}
WANTED = [want(name, feature) for name, feature in SPEC.items()]


def example(age: int = 5, number: int = 300, name: bytes = b"name", **more: Any) -> bytes:
    """One record with everything that is wanted, and one thing that is not."""
    return serialize_example({"age": age, "name": name, "number": number, "unasked": 1, "weight": 0.5, **more})


class Watched(short_entries.ShortEntriesReader):
    """Knows what it read last."""

    def read(self, array: Any, begin: Any, end: Any) -> list[Any] | None:
        self.found = super().read(array, begin, end)
        return self.found


class Reader(ColumnarReader):
    """Says whether short entries were read together."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        super().__init__(wanted)
        self._short = self.short = Watched(wanted)
        self._layouts = None  # which comes first

    def together(self, array: Any, rows: Any) -> list[Any] | None:
        """The columns; None if records were read in another way, or not all of them."""
        self.short.found = None
        self.read(array, rows)
        return self.short.found


def integer(draw: random.Random) -> int:
    """An int64 of any width."""
    edge = 1 << draw.randint(0, 63)
    return int(draw.choice((0, -1, edge - 1, -edge, draw.randrange(edge))))


def drawn(draw: random.Random, count: int) -> tuple[list[Wanted], list[bytes]]:
    """A spec of single values, and records with its keys and others, in one order."""
    names = [bytes([draw.randrange(97, 123)] * draw.choice((1, 2, 9, 30, 60))).decode() + str(i) for i in range(25)]
    names = draw.sample(names, draw.randint(1, 25))
    kinds = {name: draw.choice(("int64", "int64", "float32", "bytes")) for name in names}
    wanted = [want(name, FixedLenFeature((), kind)) for name, kind in kinds.items() if draw.random() < 0.8]
    make: dict[str, Callable[[], Any]] = {
        "int64": lambda: integer(draw),
        "float32": draw.random,
        "bytes": lambda: draw.randbytes(draw.randrange(40)),
    }
    return wanted, [serialize_example({name: make[kind]() for name, kind in kinds.items()}) for _ in range(count)]


def test_numbers_of_all_widths_are_read_together() -> None:
    """Integers of one byte to ten and strings of any length beside each other; strings are references."""
    draw = random.Random(3)
    records = [example(integer(draw), integer(draw), draw.randbytes(draw.randrange(90))) for _ in range(300)]
    array, rows = laid_out(records)
    columns = Reader(WANTED).together(array, rows)
    assert columns is not None
    assert [column.dtype for column in (columns[0], columns[3])] == [np.int64, np.float32]
    assert columns[1].memory is array
    assert [values(columns, row) for row in range(300)] == [alone(record, WANTED) for record in records]


@pytest.mark.parametrize("seed", range(samples(40, 1000)))
def test_any_spec_of_single_values(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of any length, in any order, wanted or not; several rounds; what is read is what each record is alone."""
    draw = random.Random(seed)
    monkeypatch.setattr(short_entries, "_ROUND_BYTES", draw.choice((1, 5000, 1 << 19)))
    wanted, records = drawn(draw, 40)
    array, rows = laid_out(records)
    columns = Reader(wanted).together(array, rows) if wanted else []
    assert columns is not None
    assert [values(columns, row) for row in range(40)] == [alone(record, wanted) for record in records]


def test_blocks_may_have_one_order_after_another() -> None:
    """The keys of a block need not come in the order of the block before."""
    reader = Reader(WANTED)
    for turn in range(6):
        keys = random.Random(turn).sample(list(SPEC), 4)
        value = {"age": turn, "name": b"n" * turn, "number": -turn, "weight": turn / 2}
        records = [serialize_example({key: value[key] for key in keys}) for _ in range(20)]
        columns = reader.together(*laid_out(records))
        assert columns is not None
        assert [values(columns, row) for row in range(20)] == [alone(record, WANTED) for record in records]


class Shared(Watched):
    """Whenever it looks something up, another thread then forgets the chain, or counts the pause down."""

    _kept: Any = None
    _left = 0

    @property
    def _chain(self) -> Any:
        found, self._kept = self._kept, None
        return found

    @_chain.setter
    def _chain(self, chain: Any) -> None:
        self._kept = chain

    @property
    def _pause(self) -> int:
        found, self._left = self._left, max(self._left - 1, 0)
        return found

    @_pause.setter
    def _pause(self, pause: int) -> None:
        self._left = pause


def test_threads_may_share_a_reader() -> None:
    """Whatever others read with it in the middle of a block, this one is read; and a pause ends."""
    reader = Reader(WANTED)
    reader._short = reader.short = Shared(WANTED)
    array, rows = laid_out([example(number) for number in range(20)])
    for pause in (0, 1):
        reader.short._pause = pause
        tried = [reader.together(array, rows) is not None for _ in range(5)]
        assert tried == [not pause, True, True, True, True]


@pytest.mark.parametrize(
    "odd",
    [
        serialize_example({"age": 1, "name": b"a", "unasked": 1, "weight": 1.0}),
        serialize_example({"age": [], "name": b"a", "number": 1, "unasked": 1, "weight": 1.0}),
        serialize_example({"age": [1, 2], "name": b"a", "number": 1, "unasked": 1, "weight": 1.0}),
        serialize_example({"age": 1, "name": [], "number": 1, "unasked": 1, "weight": 1.0}),
        example(name=bytes(200)),
        example(unasked=bytes(200)),
        example(weight=1),
        b"",
        b"\x0a",
    ],
)
def test_what_is_unusual_is_left_to_others(odd: bytes) -> None:
    """A block with a record that has a long value, lacks one, or is none, is not read, wherever the record comes."""
    records = [example() for _ in range(9)]
    for order in ([*records, odd], [odd, *records]):
        array, rows = laid_out(order)
        assert Reader(WANTED).together(array, rows) is None
        whole = ColumnarReader(WANTED).read(array, rows)
        place = order.index(odd)
        assert whole is None or not whole[1][place] or alone(odd, WANTED) == values(whole[0], place)


def test_a_reader_that_met_others_waits_before_it_looks_again() -> None:
    """Looking costs; blocks that are alike later are read again."""
    reader = Reader(WANTED)
    array, rows = laid_out([example() for _ in range(9)])
    other, places = laid_out([serialize_example({"age": 1})] * 9)
    assert reader.together(array, rows) is not None
    assert reader.together(other, places) is None
    assert reader.together(array, rows) is None
    assert any(reader.together(array, rows) is not None for _ in range(40))


@pytest.mark.parametrize("label", [b"", b"l" * 80])
def test_no_damage_is_overlooked(label: bytes) -> None:
    """Whatever one byte is changed to, and wherever a record is cut: it is read as it is when it is alone, or not.

    The length of the whole takes one byte, or two.
    """
    draw = random.Random(11)
    right = [example(3 << 7 * (i % 8), -i, label, unasked=b"u" * i) for i in range(8)]
    changed = [
        b"%b%c%b" % (right[0][:at], value, right[0][at + 1 :])
        for at in range(len(right[0]))
        for value in {right[0][at] ^ 1 << bit for bit in range(8)}
        | {draw.randrange(256) for _ in range(samples(4, 200))}
    ]
    changed += [right[0][:at] + right[0][at + cut :] for at in range(len(right[0])) for cut in (1, 2, 9, 1000)]
    reader = Reader(WANTED)
    accepted = 0
    for record in changed:
        reader.short._pause = 0
        assert reader.together(*laid_out(right)) is not None
        columns = reader.together(*laid_out([*right, record]))
        if columns is not None:
            accepted += 1
            assert values(columns, 8) == alone(record, WANTED)
    assert 0 < accepted < len(changed)


def test_records_may_lie_at_the_very_end_of_the_memory() -> None:
    """Nothing behind the memory is read."""
    array, rows = laid_out([example() for _ in range(9)])
    end = array[:-SPARE_BYTES]
    for stop in range(len(end), len(array)):
        columns = Reader(WANTED).together(array[:stop], rows)
        assert columns is None or values(columns, 8) == [5, b"name", 300, 0.5]
    reader = Reader(WANTED)
    assert reader.together(array, rows) is not None
    assert reader.together(array, rows + 1000) is None
