from __future__ import annotations

import csv
import gzip
import io
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncdata.errors import BrokenFrameError, CorruptRecordError
from asyncdata.formats import csv_split
from asyncdata.formats.csv_rows import CsvFramer
from asyncdata.formats.csv_split import Splitter
from asyncdata.formats.csv_values import Column
from asyncdata.testing.decoders import pieces_of, run
from tests.formats.framers import check_any_chunking, decoder, outcome, plain
from tests.formats.streams import iter_framed
from tests.samples import samples

INT, LONG, BYTES = Column("int32", None), Column("int64", None), Column("bytes", None)
FLOAT, DOUBLE = Column("float32", None), Column("float64", None)
NAN, INF = math.nan, math.inf

CASES: list[tuple[bytes, list[Any], dict[str, Any], list[tuple[Any, ...]], bool]] = [
    (b"1,a\n2,b\n", [INT, BYTES], {}, [(1, b"a"), (2, b"b")], False),
    (b"1,a\r\n2,b", [INT, BYTES], {}, [(1, b"a"), (2, b"b")], False),
    (b"1,a\r2,b\r", [INT, BYTES], {}, [(1, b"a"), (2, b"b")], False),
    (b"1,a\n\n2,b\n", [INT, BYTES], {}, [(1, b"a")], True),
    (b"a\n\nb\n", [BYTES], {}, [(b"a",)], True),
    (b"a\n\nb\n", [b"d"], {}, [(b"a",), (b"d",), (b"b",)], False),
    (b"1,\n", [INT, BYTES], {}, [], True),
    (b",a\n", [INT, BYTES], {}, [], True),
    (b",a\n", [7, BYTES], {}, [(7, b"a")], False),
    (b'1,"x""y\n,z"\n2,""\n', [INT, b"dd"], {}, [(1, b'x"y\n,z'), (2, b"dd")], False),
    (b'1,a"b\n2,c\n', [INT, BYTES], {}, [], True),
    (b'1,"a"b\n2,c\n', [INT, BYTES], {}, [], True),
    (b'1,"abc', [INT, BYTES], {}, [], True),
    (b'1,"abc"', [INT, BYTES], {}, [(1, b"abc")], False),
    (b'1,a"b\n2,c\n', [INT, BYTES], {"use_quote_delim": False}, [(1, b'a"b'), (2, b"c")], False),
    (b'1,"a,b"\n', [INT, BYTES, BYTES], {"use_quote_delim": False}, [(1, b'"a', b'b"')], False),
    (b"1\n", [INT, BYTES], {}, [], True),
    (b"1,2,3\n", [INT, BYTES], {}, [], True),
    (b" 1 ,2\n", [INT, INT], {}, [(1, 2)], False),
    (b"x,2\n", [INT, INT], {}, [], True),
    (b"99999999999,2\n", [INT, INT], {}, [], True),
    (b"1.5,inf\nnan,1e400\n0x10,-0\n", [FLOAT, FLOAT], {}, [(1.5, INF), (NAN, INF), (16.0, -0.0)], False),
    (b"NA,2\n", [5, INT], {"na_value": "NA"}, [(5, 2)], False),
    (b",2\n", [5, INT], {"na_value": "NA"}, [(5, 2)], False),
    (b'"NA",2\n', [5, INT], {"na_value": "NA"}, [(5, 2)], False),
    (b"a,b\n1,2\n", [INT, INT], {"header": True}, [(1, 2)], False),
    (b'"a\n",b\n1,2\n', [INT, INT], {"header": True}, [(1, 2)], False),
    (b"a,b", [INT, INT], {"header": True}, [], False),
    (b"", [INT, INT], {"header": True}, [], True),
    (b"1,2,3\n4,5,6\n", [INT, INT], {"select_cols": [0, 2]}, [(1, 3), (4, 6)], False),
    (b"1,2,3\n4,5\n", [INT], {"select_cols": [0]}, [(1,), (4,)], False),
    (b"1,2,3\n4\n", [INT], {"select_cols": [1]}, [(2,)], True),
    (b"1;2\n", [INT, INT], {"field_delim": ";"}, [(1, 2)], False),
    (b"1\n2\n", [INT], {}, [(1,), (2,)], False),
    (b"1,2\n", [LONG, DOUBLE], {}, [(1, 2.0)], False),
    (b"+1,2.5.5\n", [INT, FLOAT], {}, [], True),
    (b"1_0,1\n", [INT, INT], {}, [], True),
    (b"1,2\n\r\n3,4", [INT, INT], {}, [(1, 2)], True),
    (b"\n1,2", [INT, INT], {}, [], True),
    (b"1,2\n\n", [INT, INT], {}, [(1, 2)], True),
    (b"a\r\n\r\nb", [BYTES], {}, [(b"a",)], True),
    (b'"a"\r\n"b"\r"c"\n', [BYTES], {}, [(b"a",), (b"b",), (b"c",)], False),
    (b"1,2\n", [3, 4], {}, [(1, 2)], False),
    (b'"1","2.5"\n', [INT, FLOAT], {}, [(1, 2.5)], False),
    (b' "a",b\n', [BYTES, BYTES], {}, [], True),
    (b'"",b\n', [BYTES, BYTES], {}, [], True),
    (b'1,"a,b', [INT, BYTES], {"use_quote_delim": False}, [], True),
    (b"1,2,\n", [INT, INT], {"select_cols": [0, 1]}, [(1, 2)], False),
    (b'1,x"y,2\n3,4,5\n', [INT, INT], {"select_cols": [0, 2]}, [], True),
    (b'1,2,x"y\n3,4,5\n', [INT, INT], {"select_cols": [0, 1]}, [], True),
    (b"1,2\n3,4\n", [INT], {"select_cols": [1]}, [(2,), (4,)], False),
    (b"1\x00,a\x00b\n", [BYTES, BYTES], {}, [(b"1\x00", b"a\x00b")], False),
    (b"1e3,1e3\n", [FLOAT, INT], {}, [], True),
    (b"infinity,-INF\nNaN,.5\n5.,1d\n", [FLOAT, FLOAT], {}, [(INF, -INF), (NAN, 0.5)], True),
    (b",\n", [1.5, b"z"], {}, [(1.5, b"z")], False),
    (b"0x1F\n", [INT], {}, [], True),
    (b"007\n", [INT], {}, [(7,)], False),
    (b"- 1\n", [INT], {}, [], True),
    (b"\t1\n", [INT], {}, [(1,)], False),
    (b"  \n", [INT], {}, [], True),
    (b"  \n", [1], {}, [], True),
    (b'1,"a""b"",""c",x\r\n2,"""",y', [INT, BYTES, BYTES], {}, [(1, b'a"b","c', b"x"), (2, b'"', b"y")], False),
    (
        b"-9223372036854775808,9223372036854775807\n9223372036854775808,1",
        [LONG, LONG],
        {},
        [(-9223372036854775808, 9223372036854775807)],
        True,
    ),
    (
        b"1.00000017881393432617187499,3\n0.1,2\n",
        [FLOAT, INT],
        {},
        [(1.0000001192092896, 3), (0.10000000149011612, 2)],
        False,
    ),
    (
        b"1.00000017881393432617187501,3\n0.1,2\n",
        [FLOAT, INT],
        {},
        [(1.000000238418579, 3), (0.10000000149011612, 2)],
        False,
    ),
    (b"1.000000178813934326171875\n", [FLOAT], {}, [(1.000000238418579,)], False),
    (b"1e39\n-1e39\n1e-46\n1e-40\n", [FLOAT], {}, [(INF,), (-INF,), (0.0,), (9.99994610111476e-41,)], False),
    (b"a,b\r\r\nc,d\n", [BYTES, b"z"], {}, [(b"a", b"b")], True),
    (b"+-1\n", [INT], {}, [], True),
    (b"-0x10\n", [FLOAT], {}, [(-16.0,)], False),
    (b"0x1.8p1\n", [FLOAT], {}, [(3.0,)], False),
    (b"nan(1)\n", [FLOAT], {}, [(NAN,)], False),
    (b"-nan\n", [FLOAT], {}, [(NAN,)], False),
    (b"+inf\n", [FLOAT], {}, [(INF,)], False),
    (b"1e\n", [FLOAT], {}, [], True),
    (b".\n", [FLOAT], {}, [], True),
    (b"1 2\n", [FLOAT], {}, [], True),
    (b"00000000000000000000000001\n", [INT], {}, [(1,)], False),
    (b"0." + b"0" * 83 + b"1e83\n", [FLOAT], {}, [(0.10000000149011612,)], False),
    (b"1\x002\n", [INT], {}, [], True),
    (b"1\x00\n", [FLOAT], {}, [], True),
    (b"\xef\xbb\xbf1\n", [INT], {}, [], True),
    (b"1,2", [INT, INT], {"header": True}, [], False),
    (b"\n\n", [b"q"], {}, [(b"q",), (b"q",)], False),
    (b"\r", [b"q"], {}, [(b"q",)], False),
    (b'"', [BYTES], {}, [], True),
    (b'""', [b"q"], {}, [(b"q",)], False),
    (b'"a\rb\r\nc"\n', [BYTES], {}, [(b"a\rb\r\nc",)], False),
    (b'a"', [BYTES], {}, [], True),
    (b'""""', [BYTES], {}, [(b'"',)], False),
    (b'"""', [BYTES], {}, [], True),
    (b'"a"\n"b', [BYTES], {}, [(b"a",)], True),
]
"""Text, columns, options, and what tf.data makes of it: the rows, and whether an error follows them."""


def column(wish: Any) -> Column:
    """A column given by its default, or as it is."""
    if isinstance(wish, Column):
        return wish
    return Column({int: "int32", float: "float32"}.get(type(wish), "bytes"), wish)


def framer(columns: list[Any], options: dict[str, Any]) -> Callable[[], CsvFramer]:
    """Makes framers, with tf.data's names for what is special."""

    def make() -> CsvFramer:
        return CsvFramer(
            [column(wish) for wish in columns],
            header=options.get("header", False),
            delimiter=options.get("field_delim", ",").encode(),
            quotes=options.get("use_quote_delim", True),
            na_value=options.get("na_value", "").encode(),
            selected=options.get("select_cols"),
        )

    return make


def typed(columns: list[Any], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Expected rows with the types of their columns, as `plain` writes them."""
    names = [column(wish).dtype for wish in columns]
    return [
        tuple(
            value if name == "bytes" else plain(np.dtype(name).type(value))
            for name, value in zip(names, row, strict=True)
        )
        for row in rows
    ]


@pytest.mark.sampled
@pytest.mark.parametrize(("data", "columns", "options", "rows", "fails"), CASES)
def test_rows_and_errors_are_those_of_tf_data(
    data: bytes, columns: list[Any], options: dict[str, Any], rows: list[tuple[Any, ...]], fails: bool
) -> None:
    """Values, types and the row at which an error ends it; however the text is cut, the same and the same error."""
    make = framer(columns, options)
    found, error = outcome(make, data)
    assert repr(found) == repr(typed(columns, rows))
    assert (error is not None) == fails
    expected = [repr(row).encode() for row in found]
    if error is None:
        check_any_chunking(make, data, expected, rounds=1, full=200)
    else:
        for size in (1, 2, 3):
            cut = run(decoder(make, block=size), pieces_of(data, size))
            assert (cut.records, str(cut.error)) == (expected, str(error))


@pytest.mark.parametrize(
    ("data", "message", "kind", "record", "offset"),
    [
        (b"1,2\nx,3\n", "line 2: column 0 is not a valid int64: b'x'", CorruptRecordError, 1, 4),
        (b"1,2\n3,\n", "line 2: column 1 is required, but missing", CorruptRecordError, 1, 4),
        (b"1,2\n\n3\n", "line 2: 2 fields are expected, but there are 1", CorruptRecordError, 1, 4),
        (b'1,2\n3,"4"5\n', "line 2: a quote is neither", BrokenFrameError, 1, 8),
        (b'1,2\n3,"4\n5,6\n', "line 2: the data ends inside quotes", BrokenFrameError, 1, 4),
        (b'1,2\r\n"3\r\n",4\r\n5,\r\n', "line 4: column 1 is required", CorruptRecordError, 2, 14),
    ],
)
def test_an_error_names_line_column_record_and_offset(
    data: bytes, message: str, kind: type[Exception], record: int, offset: int
) -> None:
    """Lines are counted as an editor counts them, those inside quotes included."""
    _, error = outcome(framer([LONG, LONG], {}), data)
    assert error is not None
    assert type(error) is kind
    assert message in str(error)
    assert (error.url, error.record, error.offset) == ("gs://b/o", record, offset)


def test_a_compressed_file_is_named() -> None:
    """An error in the first bytes says what the file looks like, unless a text can begin so, too."""
    data = b"".join(b"%d,%d\n" % (n, n) for n in range(500))
    _, error = outcome(framer([LONG, LONG], {}), gzip.compress(data))
    assert "the file looks like gzip: pass compression_type='GZIP'" in str(error)
    for first in (b"BM,2\n", b"<,2\n"):
        assert "looks like" not in str(outcome(framer([LONG, LONG], {}), first + data)[1])
    assert "looks like" not in str(outcome(framer([LONG, LONG], {}), data + b"x\n")[1])


def test_what_python_writes_is_read_back() -> None:
    """Random texts with delimiters, quotes and line ends inside, written by Python's csv module."""
    source = random.Random(8)
    for _ in range(samples(4, 500)):
        words = ["", "a", "ab c", '"', '""', ",", "\n", "\r\n", "x,y", 'say "hi"', "ä", "\r"]
        fields = ["".join(source.choices(words, k=source.randint(0, 3))) for _ in range(3 * source.randint(0, 9))]
        rows = [fields[at : at + 3] for at in range(0, len(fields), 3)]
        text = io.StringIO()
        # A lone line end is data to the writer unless it ends its own lines so: then quotes stand around it.
        end = source.choice(["\n", "\r", "\r\n"])
        writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_MINIMAL if end == "\r\n" else csv.QUOTE_ALL)
        writer.writerows(rows)
        expected = [repr(tuple(field.encode() for field in row)).encode() for row in rows]
        make = framer([b"", b"", b""], {})
        check_any_chunking(make, text.getvalue().encode(), expected, rounds=2, full=10)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_of_every_length(dtype: str) -> None:
    """Limits, leading zeros, signs and white space, many in one block, are Python's integers."""
    info = np.iinfo(dtype)
    numbers = [0, -1, 9, info.min, info.max, *(10**n for n in range(10)), *(-(10**n) for n in range(10))]
    texts = [*map(str, numbers), "+5", " 6\t", "0" * 30 + "7", "-08"]
    found, error = outcome(framer([Column(dtype, None)], {}), "\n".join(texts).encode())
    assert error is None
    assert [value for ((_, value),) in found] == [*numbers, 5, 6, 7, -8]
    for wrong in (info.min - 1, info.max + 1, 10**30):
        assert outcome(framer([Column(dtype, None)], {}), f"1\n{wrong}\n".encode())[1] is not None


def test_floats_are_the_nearest_ones() -> None:
    """float64 as Python reads it; float32 the nearest to what is written, also half-way between two."""
    source = random.Random(2)
    texts = [repr(source.uniform(-1e3, 1e3) * 10.0 ** source.randint(-30, 30)) for _ in range(300)]
    texts += ["1.00000017881393432617187499", "1.00000017881393432617187501", "16777217", "16777219", "1e-46", "3.5e38"]
    texts += ["3.4028235677973366e+38", "-3.4028235677973366e+38"]
    data = "\n".join(texts).encode()
    found, _ = outcome(framer([DOUBLE], {}), data)
    assert [value for ((_, value),) in found] == [float(text) for text in texts]
    found, _ = outcome(framer([FLOAT], {}), data)
    with np.errstate(over="ignore", under="ignore"):
        expected = [float(np.float32(float(text))) for text in texts]
    expected[-2:] = [float(np.finfo(np.float32).max), float(np.finfo(np.float32).min)]
    expected[300:302] = [float.fromhex("0x1.000002p+0"), float.fromhex("0x1.000004p+0")]
    assert [value for ((_, value),) in found] == expected


def test_a_field_longer_than_any_window_is_one_value() -> None:
    """A quoted field of two megabytes with line ends inside is neither cut nor searched for ever."""
    large = b"x\n," * 700_000
    make = framer([BYTES, INT], {})
    found, error = outcome(make, b'"' + large + b'",1\nb,2\n')
    assert error is None
    assert found == [(large, ("int32", 1)), (b"b", ("int32", 2))]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("first", [b"id", b'"id"'])
def test_columns_by_the_header_whatever_the_cut(first: bytes, mark: bytes) -> None:
    """The header is read once, however the bytes arrive, and rows have the columns that it names."""
    data = mark + first + b',"a,""b"""\r\n1,x\r\n2,y'

    def make() -> CsvFramer:
        return CsvFramer([BYTES, INT], header=True, names=['a,"b"', "id"], by_header=True)

    check_any_chunking(make, data, [repr(row).encode() for row in outcome(make, data)[0]])
    assert [dict(row) for row in iter_framed(make(), [data], url="gs://b/o")] == [
        {'a,"b"': b"x", "id": 1},
        {'a,"b"': b"y", "id": 2},
    ]


def test_a_byte_order_mark_in_front_of_a_header_that_is_passed_over() -> None:
    """Behind it a name may be quoted; a file of nothing else has no header."""
    make = framer([BYTES, INT], {"header": True})
    assert outcome(make, b'\xef\xbb\xbf"a\n",b\nx,1\n')[0] == outcome(make, b"a,b\nx,1\n")[0] != []
    assert "the file is empty" in str(outcome(make, b"\xef\xbb\xbf")[1])


def test_pieces_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes looked at in small pieces are split as they are in one; positions inside a first record may be its own."""
    draw = random.Random(5)
    for _ in range(samples(300, 20_000)):
        text = np.frombuffer(bytes(draw.choices(b'a,"\n\r', (6, 3, 3, 2, 1), k=draw.randrange(1, 60))), np.uint8)
        answers = []
        for piece in (1 << 18, draw.randrange(1, 9)):
            monkeypatch.setattr(csv_split, "_PIECE", piece)
            split = Splitter(b",", quotes=True).split(text, 0, len(text), limit=8, at_least=1, last=bool(len(text) % 2))
            lines = csv_split.lines_at(split, np.append(split.starts, [split.stop, max(split.misplaced, 0)]), 1)
            seen = split._replace(breaks=lines, quotes=split.quotes[split.quotes < split.stop])
            answers.append([part.tolist() if isinstance(part, np.ndarray) else part for part in seen])
        assert answers[0] == answers[1], bytes(text)
