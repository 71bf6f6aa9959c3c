from __future__ import annotations

import datetime
import decimal
import io
import math
import random
import zoneinfo
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from asyncdata.errors import BrokenFrameError, DataError
from asyncdata.formats.parquet import ParquetFooter, RowGroup, footer_bytes
from asyncdata.formats.parquet_filters import checked_filters
from asyncdata.formats.parquet_values import Packed
from asyncdata.memory.structure import DictOf, unflatten
from tests.samples import samples

N = 10
WHEN = datetime.datetime(2020, 1, 2, 3, 4, 5)  # noqa: DTZ001 -- without a zone on purpose
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "int": (pa.int32(), [np.int32(n) for n in range(N)]),
    "uint": (pa.uint8(), [np.uint8(n) for n in range(N)]),
    "int or none": (pa.int64(), [None if n % 3 == 0 else np.int64(n) for n in range(N)]),
    "float": (pa.float32(), [np.float32(n / 4) for n in range(N)]),
    "bool": (pa.bool_(), [np.bool_(n % 2) for n in range(N)]),
    "bool or none": (pa.bool_(), [None if n == 4 else np.bool_(n % 2) for n in range(N)]),
    "text": (pa.string(), ["ä" * n for n in range(N)]),
    "text or none": (pa.string(), [None if n == 1 else "x" for n in range(N)]),
    "large text": (pa.large_string(), [str(n) for n in range(N)]),
    "bytes": (pa.binary(), [b"\0" * n for n in range(N)]),
    "fixed bytes": (pa.binary(2), [b"%02d" % n for n in range(N)]),
    "category": (pa.dictionary(pa.int8(), pa.string()), ["pq"[n % 2] for n in range(N)]),
    "date": (pa.date32(), [np.datetime64("2020-01-02")] * N),
    "time": (pa.timestamp("us"), [np.datetime64(WHEN)] * N),
    "decimal": (pa.decimal128(5, 2), [decimal.Decimal("1.25")] * N),
    "list": (pa.list_(pa.int64()), [np.arange(n) for n in range(N)]),
    "list or none": (pa.list_(pa.int64()), [None if n == 2 else np.arange(1) for n in range(N)]),
    "list with gaps": (
        pa.list_(pa.int64()),
        [[None] if n == 2 else None if n == 3 else np.arange(n) for n in range(N)],
    ),
    "pair": (pa.list_(pa.int64(), 2), [np.array([n, -n]) for n in range(N)]),
    "texts": (pa.list_(pa.string()), [["a"] * (n % 3) for n in range(N)]),
    "struct": (
        pa.struct([("u", pa.int64()), ("v", pa.struct([("w", pa.string())]))]),
        [{"u": np.int64(n), "v": {"w": str(n)}} for n in range(N)],
    ),
    "nothing": (pa.null(), [None] * N),
}


def stored(table: Any, **options: Any) -> bytes:
    """A Parquet file."""
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def table_of(columns: dict[str, tuple[Any, list[Any]]]) -> Any:
    """An Arrow table of the columns above."""
    arrays = {}
    for name, (kind, values) in columns.items():
        items = [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in values]
        if name == "category":
            arrays[name] = pa.array(items).cast(pa.string()).dictionary_encode()
        else:
            arrays[name] = pa.array(items, kind)
    return pa.table(arrays)


def opened(data: bytes, columns: Sequence[str] | None = None, filters: Any = None) -> ParquetFooter:
    """The footer of a file."""
    length = footer_bytes(data[-8:], len(data), url="gs://b/o", version="1")
    return ParquetFooter(
        data[-length:],
        size=len(data),
        url="gs://b/o",
        version="1",
        columns=columns,
        filters=checked_filters(filters),
    )


def rows(data: bytes, columns: Sequence[str] | None = None, filters: Any = None) -> list[Any]:
    """All rows; bytes that were not announced are not to be had."""
    footer = opened(data, columns, filters)
    found: list[Any] = []
    for group in footer.groups:
        allowed = bytearray(b"\xa5" * len(data))
        for start, stop in group.ranges:
            allowed[start:stop] = data[start:stop]

        for decoded in footer.decode(group, _reading(memoryview(allowed), group)):
            leaves = [_items(leaf) for leaf in decoded.leaves]
            kept = decoded.rows if decoded.kept is None else len(decoded.kept)
            assert all(len(leaf) == kept for leaf in leaves)
            found += [unflatten(footer.structure, iter(row)) for row in zip(*leaves, strict=True)]
    return found


def _reading(view: memoryview, group: RowGroup) -> Callable[[int, int], memoryview]:
    def read_at(start: int, stop: int) -> memoryview:
        if not any(a <= start and stop <= b for a, b in group.ranges):
            raise ValueError(f"bytes {start} to {stop} were not announced")
        return view[start:stop]

    return read_at


def _items(leaf: Any) -> list[Any]:
    if not isinstance(leaf, Packed):
        return list(leaf)
    bounds = leaf.offsets.tolist()
    raw = [leaf.data[a:b].tobytes() for a, b in pairwise(bounds)]
    return [item.decode() for item in raw] if leaf.text else raw


def same(one: Any, other: Any) -> bool:
    """Equal, of one type, arrays element by element."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("options", [{}, {"compression": "none", "use_dictionary": False}])
def test_values_of_every_kind(name: str, options: dict[str, Any]) -> None:
    """Numbers are numpy scalars, texts str, lists arrays, structs dicts; what is missing is None."""
    kind, values = COLUMNS[name]
    data = stored(table_of({name: (kind, values)}), row_group_size=4, **options)
    found = rows(data)
    assert len(found) == N
    assert all(same(row[name], value) for row, value in zip(found, values, strict=True))


def test_columns_of_one_name() -> None:
    """A row is a dict, which holds one of them: the error names the file; the other columns can be read."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "y"])
    data = stored(table)
    for columns, filters in ((None, None), (["x"], None), (["y"], [("x", ">", 0)])):
        with pytest.raises(DataError, match=r"there are 2 columns 'x'.*gs://b/o"):
            opened(data, columns, filters)
    assert [int(row["y"]) for row in rows(data, ["y"])] == [3]


def test_missing_floats_and_times() -> None:
    """They are NaN and NaT, so that the column stays an array."""
    table = pa.table({"f": pa.array([1.0, None]), "t": pa.array([WHEN, None], pa.timestamp("s"))})
    found = rows(stored(table))
    assert np.isnan(found[1]["f"])
    assert np.isnat(found[1]["t"])


def test_columns_in_the_order_wanted() -> None:
    """Only wanted columns, in the order in which they were named, come and are read."""
    data = stored(table_of(COLUMNS), row_group_size=3)
    everything, part = opened(data), opened(data, ["text", "int"])
    assert part.structure == DictOf(("text", "int"), (None, None))
    assert list(rows(data, ["text", "int"])[0]) == ["text", "int"]
    assert all(len(group.ranges) == 2 for group in part.groups)
    assert all(set(few.ranges) < set(all_.ranges) for few, all_ in zip(part.groups, everything.groups, strict=True))


@pytest.mark.parametrize(
    ("filters", "expected", "groups"),
    [
        ([("int", ">", 5)], [6, 7, 8, 9], [1, 2]),
        ([("int", ">=", 8)], [8, 9], [2]),
        ([("int", "==", 5), ("text", "!=", "x")], [5], [1]),
        ([("text or none", "==", "y")], [], []),
        ([("text or none", "!=", "x")], [], [0, 1, 2]),
        ([("int or none", "<", 3)], [1, 2], [0]),
        ([("category", "in", ["q", "z"])], [1, 3, 5, 7, 9], [0, 1, 2]),
        ([("category", "not in", ["q"])], [0, 2, 4, 6, 8], [0, 1, 2]),
        ([("category", ">", "p"), ("int", ">", 6)], [7, 9], [1, 2]),
        ([("int", "in", [0, 9])], [0, 9], [0, 2]),
        ([("int", "not in", list(range(9)))], [9], [0, 1, 2]),
        ([[("int", "<", 1)], [("large text", "==", "9")]], [0, 9], [0, 2]),
        ([("int", ">", 100)], [], []),
    ],
)
def test_filters_leave_out_row_groups_and_rows(filters: Any, expected: list[int], groups: list[int]) -> None:
    """Row groups by their statistics, rows exactly; columns of filters need not be among the wanted."""
    data = stored(table_of(COLUMNS), row_group_size=4)
    assert [group.number for group in opened(data, ["uint"], filters).groups] == groups
    assert [int(row["uint"]) for row in rows(data, ["uint"], filters)] == expected
    assert [list(row) for row in rows(data, ["uint"], filters)] == [["uint"]] * len(expected)


def _condition(source: random.Random) -> tuple[str, str, Any]:
    operator = source.choice(["==", "!=", "<", ">", "<=", ">=", "in", "not in"])
    return ("x", operator, source.sample(range(20), 3) if "in" in operator else source.randint(0, 20))


def test_rows_as_pyarrow_filters_them() -> None:
    """Random filters over random values with gaps: the rows that pyarrow itself gives."""
    source = random.Random(3)
    values = [source.choice([None, *range(20)]) for _ in range(200)]
    data = stored(pa.table({"x": pa.array(values, pa.int64()), "row": range(200)}), row_group_size=23)
    for _ in range(samples(20, 1000)):
        alternatives = [[_condition(source) for _ in range(source.randint(1, 2))] for _ in range(source.randint(1, 2))]
        expected = pq.read_table(io.BytesIO(data), filters=alternatives)["row"].to_pylist()
        assert [int(row["row"]) for row in rows(data, ["row"], alternatives)] == expected


_DAY = datetime.datetime(2024, 10, 27, tzinfo=datetime.UTC)
_ZONES = (None, "Europe/Berlin", "+02:00", "UTC")
_STEPS = (0, 1, 999, 1000, 1500, 1_000_000, 2_700_000_000, 5_400_000_000, 8_100_000_000)
"""Microseconds, around the hour when clocks are put back."""


def _column_of_a_kind(source: random.Random) -> tuple[Any, list[Any], list[Any]]:
    """A column, and values that filters compare it with."""
    kind = source.choice(["float32", "float64", "int", "date", "time", "text"])
    if kind in ("float32", "float64"):
        numbers = [source.choice([0.1, 0.3, 0.7, 1e-3, 0.1 + 1e-9, math.inf, -0.0, None]) for _ in range(30)]
        kinds = source.choice([float, np.float32, np.float16, np.float64])
        return pa.array(numbers, getattr(pa, kind)()), numbers, [kinds(n) for n in numbers if n is not None]
    if kind == "time":
        zone = source.choice(_ZONES)
        times = [_DAY + datetime.timedelta(microseconds=source.choice(_STEPS)) for _ in range(30)]
        unit = source.choice(["ms", "us", "ns"])
        chosen = None if zone is None else zoneinfo.ZoneInfo("Europe/Berlin") if "Berlin" in zone else datetime.UTC
        asked = [t.replace(tzinfo=None) if chosen is None else t.astimezone(chosen) for t in times]
        stored_times = pa.array(times, pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "UTC"), safe=False)
        return stored_times.cast(pa.timestamp(unit, zone)), times, asked
    if kind == "date":
        dates = [datetime.date(1969, 12, 31) + datetime.timedelta(days=source.randint(0, 3)) for _ in range(30)]
        return pa.array(dates), dates, list(dates)
    if kind == "int":
        numbers = [source.choice([-1, 0, 1, 2**53 + 1, None]) for _ in range(30)]
        return pa.array(numbers, pa.int64()), numbers, [n for n in numbers if n is not None]
    texts = [source.choice(["", "a", "ä", "a" * 70 + "b", "a" * 70, None]) for _ in range(30)]
    return pa.array(texts), texts, [t for t in texts if t is not None]


@pytest.mark.parametrize("seed", range(samples(60, 3000)))
def test_statistics_change_no_rows(seed: int) -> None:
    """The rows that pass are those of a file without statistics, whatever is compared with what."""
    source = random.Random(seed)
    column, _, values = _column_of_a_kind(source)
    if not values:
        return
    table = pa.table({"x": column, "row": range(len(column))})
    bare = stored(table, write_statistics=False)
    data = stored(table, row_group_size=source.choice([1, 2, 7]))
    for operator in ("==", "<", "<=", ">", ">=", "in"):
        value = source.sample(values, min(2, len(values))) if operator == "in" else source.choice(values)
        filters = [("x", operator, value)]
        try:
            expected = [int(row["row"]) for row in rows(bare, ["row"], filters)]
        except (DataError, TypeError, ValueError, pa.ArrowException):
            continue  # pyarrow does not compare these
        assert [int(row["row"]) for row in rows(data, ["row"], filters)] == expected, (filters, column.type)


def test_bounds_in_a_zone_that_nobody_knows() -> None:
    """They are compared as points in time."""
    times = pa.array([_DAY, _DAY + datetime.timedelta(hours=2)], pa.timestamp("us", "UTC"))
    table = pa.table({"x": times.cast(pa.timestamp("us", "Not/AZone")), "row": range(2)})
    footer = opened(stored(table, row_group_size=1), ["row"], [("x", ">", _DAY + datetime.timedelta(hours=1))])
    assert [group.number for group in footer.groups] == [1]


def test_missing_values_among_those_that_are_listed() -> None:
    """They pass in every row group, whatever its statistics say, as for pyarrow."""
    values = [1, None, 3, None, None, None, 7, 8]
    data = stored(pa.table({"x": pa.array(values, pa.int64()), "row": range(8)}), row_group_size=2)
    for operator in ("in", "not in"):
        for listed in ([None], [3, None], [None, 100], []):
            filters = [("x", operator, listed)]
            expected = pq.read_table(io.BytesIO(data), filters=filters)["row"].to_pylist()
            assert [int(row["row"]) for row in rows(data, ["row"], filters)] == expected


def test_large_unsigned_integers_are_compared() -> None:
    """Those beyond int64, with numbers that are written as usual."""
    data = stored(pa.table({"x": pa.array([2**63 + 1, 1, 2**64 - 1, 5], pa.uint64())}))
    assert [int(row["x"]) for row in rows(data, None, [("x", ">", 3)])] == [2**63 + 1, 2**64 - 1, 5]
    assert [int(row["x"]) for row in rows(data, None, [("x", "<=", 2**63 + 1)])] == [2**63 + 1, 1, 5]


def test_a_value_of_another_kind_is_no_damage() -> None:
    """The error speaks of the filters, not of the file."""
    with pytest.raises(DataError, match="filters do not fit the types") as raised:
        rows(stored(pa.table({"x": ["a"]})), None, [("x", "<", 5)])
    assert not isinstance(raised.value, BrokenFrameError)


def test_a_file_without_rows_is_whole() -> None:
    """Its columns may lie nowhere; an empty row group among others too."""
    empty = pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.string())})
    assert rows(stored(empty)) == []
    assert rows(stored(empty, row_group_size=3), ["y"], [("x", ">", 1)]) == []
    file = io.BytesIO()
    with pq.ParquetWriter(file, pa.schema({"x": pa.int64()})) as writer:
        for values in ([], [1], [], [2, 3], []):
            writer.write_table(pa.table({"x": pa.array(values, pa.int64())}))
    assert [int(row["x"]) for row in rows(file.getvalue())] == [1, 2, 3]


def test_names_with_dots() -> None:
    """Whatever else pyarrow takes them for."""
    data = stored(pa.table({"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}], "c.d": [5, 6], "c": [7, 8]}))
    assert rows(data, ["a.b"]) == [{"a.b": 1}, {"a.b": 2}]
    assert rows(data, ["a"]) == [{"a": {"b": 3}}, {"a": {"b": 4}}]
    assert rows(data, ["c"]) == [{"c": 7}, {"c": 8}]
    assert rows(data, ["c.d"]) == [{"c.d": 5}, {"c.d": 6}]


def test_few_rows_at_a_time_where_they_are_large() -> None:
    """About 4 MB are decoded together, whatever the rows' size."""
    data = stored(pa.table({"x": [random.Random(n).randbytes(1 << 20) for n in range(9)]}), compression="none")
    footer = opened(data)
    assert footer.groups[0].rows_at_a_time in (3, 4)
    assert len(rows(data)) == 9


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a Parquet file"),
        (b"PAR1", "not a Parquet file|12 bytes|claims"),
        (b"x" * 100, "not a Parquet file"),
        (bytes(90) + b"PARE", "encrypted"),
        (bytes(90) + b"\xff\xff\xff\x7fPAR1", "claims to have"),
        (bytes(90) + b"\x10\x00\x00\x00PAR1", "footer is damaged"),
    ],
)
def test_what_is_no_parquet_file_is_told(data: bytes, message: str) -> None:
    """Neither magic bytes nor a footer's stated length are believed."""
    with pytest.raises(BrokenFrameError, match=message):
        opened(data)


def test_a_column_that_is_not_there() -> None:
    """The error names it and those that are there."""
    data = stored(pa.table({"a": [1], "b": [2]}))
    for columns, filters in ((["a", "c"], None), (None, [("c", "==", 1)])):
        with pytest.raises(DataError, match=r"no column 'c'; the file has 'a', 'b'"):
            opened(data, columns, filters)


def test_a_footer_that_counts_its_rows_in_two_ways_is_damaged() -> None:
    """Rows that one of the counts leaves out would be lost without a word."""
    data = bytearray(stored(pa.table({"x": list(range(1000))}), row_group_size=600))
    length = int.from_bytes(data[-8:-4], "little")
    stated = b"\xd0\x0f"  # 1000 as Thrift writes it
    assert data.count(stated, len(data) - length) == 1
    at = data.index(stated, len(data) - length)
    data[at : at + 2] = b"\xce\x0f"
    with pytest.raises(BrokenFrameError, match="claims to have 999 rows, but its row groups 1000"):
        opened(bytes(data))


def test_damage_is_an_error_or_harmless() -> None:
    """Changed bytes anywhere give an error of this project or rows; ranges never lie outside the file."""
    data = stored(table_of({name: COLUMNS[name] for name in ("int", "text", "list", "category")}), row_group_size=5)
    source = random.Random(9)
    urls = []
    for _ in range(samples(150, 5000)):
        damaged = bytearray(data)
        for _ in range(source.randint(1, 3)):
            damaged[source.randrange(len(data))] = source.randrange(256)
        try:
            for group in opened(bytes(damaged)).groups:
                assert all(4 <= start <= stop <= len(data) for start, stop in group.ranges)
            rows(bytes(damaged))
        except DataError as error:
            urls.append(error.url)
    assert len(urls) > 30
    assert set(urls) == {"gs://b/o"}


@pytest.mark.parametrize("nested", [False, True])
def test_texts_that_are_no_utf8_are_an_error(nested: bool) -> None:
    """The error comes when they are decoded, not when somebody looks at them, and names the row."""
    array = pa.array([b"ok", b"ok", b"\xff"]).view(pa.string())
    if nested:
        array = pa.ListArray.from_arrays([0, 1, 2, 3], array)
    with pytest.raises(BrokenFrameError, match=r"row group 0 is damaged \(column 't': ") as raised:
        rows(stored(pa.table({"t": array})))
    assert raised.value.record == 2


BEYOND_PYTHON: list[tuple[Any, list[Any]]] = [
    (pa.time64("ns"), [1000, 5]),
    (pa.list_(pa.duration("ns")), [[1000], [5]]),
    (pa.list_(pa.timestamp("ns")), [[1000], [5]]),
    (pa.list_(pa.timestamp("us")), [[1000], [2**62]]),
    (pa.list_(pa.date32()), [[1000], [2**30]]),
    (pa.list_(pa.timestamp("us", "Mars/Base")), [[], [1]]),
]


@pytest.mark.parametrize(("kind", "values"), BEYOND_PYTHON, ids=str)
@pytest.mark.parametrize("filters", [None, [("n", ">", 2)]])
def test_a_value_that_python_cannot_represent_is_no_damage(kind: Any, values: list[Any], filters: Any) -> None:
    """The error names the column, its type and the row in the file; other columns can be read."""
    table = pa.table({"n": [1, 2, 3, 4], "c": pa.array([values[0], None, values[0], values[1]], kind)})
    data = stored(table, row_group_size=3)
    with pytest.raises(DataError, match=r"column 'c' of type .* that Python cannot represent") as raised:
        rows(data, None, filters)
    assert not isinstance(raised.value, BrokenFrameError)
    assert raised.value.record == 3
    assert str(kind).rpartition(" ")[2] in raised.value.message
    assert "pandas" not in raised.value.message
    assert [int(row["n"]) for row in rows(data, ["n"])] == [1, 2, 3, 4]
