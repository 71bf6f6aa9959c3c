"""Converts fields of CSV to values: a column of byte ranges becomes an array, or references to the bytes themselves.

numpy converts fields in the usual form (digits with a sign, plain decimals) all at once. Other fields are converted one
by one, by the rules of tf.data: white space around numbers is ignored, floats may be ``inf``, ``nan`` or hexadecimal,
integers must fit.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.formats.csv_split import QUOTE_BYTE, Octets
from asyncdata.formats.framing import NOWHERE, Positions, Refs, Values

_SPACES: Final = b" \t\n\v\f\r"
_MOST_DIGITS: Final = 18
_WIDEST: Final = 64
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,1000}")
_DECIMAL: Final = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NAMED: Final = re.compile(rb"([+-]?(?:inf|infinity|nan))(?:(?<=nan)\([0-9a-z_]*\))?", re.IGNORECASE)
_HEXADECIMAL: Final = re.compile(rb"[+-]?0x([0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(p[+-]?[0-9]{1,9})?", re.IGNORECASE)
_PLAIN_FLOAT: Final = np.isin(np.arange(256), np.frombuffer(b"0123456789+-.eE", np.uint8))
_HALF_WAY: Final = 0x10000000
"""The bits of a double below a float32's last: exactly between two float32."""


class Column(NamedTuple):
    """What a column holds.

    Attributes:
        dtype: numpy's name of a number, or ``"bytes"``.
        default: In place of a missing value; None: none may be missing.
    """

    dtype: str
    default: Any


class Converted(NamedTuple):
    """The values of a column, up to the first field that is wrong.

    Attributes:
        values: One per field; the values of wrong fields are meaningless.
        wrong: Index of the first one; the number of fields when all are right.
        message: What is wrong with it.
        escaped: Indices of references to bytes in which quotes are still written twice.
    """

    values: Values
    wrong: int
    message: str
    escaped: Positions = NOWHERE


class Fields(NamedTuple):
    """A column of fields with quotes around them left out.

    Attributes:
        starts: Position of the first byte of each.
        lengths: In bytes.
        escaped: Indices of those in which quotes are written twice.
    """

    starts: Positions
    lengths: Positions
    escaped: Positions = NOWHERE


def unquoted(array: Octets, starts: Positions, ends: Positions, quotes: Positions) -> Fields:
    """Fields without the quotes around them."""
    lengths = ends - starts
    if not len(quotes):
        return Fields(starts, lengths)
    quoted = (lengths > 0) & (array[np.minimum(starts, len(array) - 1)] == QUOTE_BYTE)
    if not quoted.any():
        return Fields(starts, lengths)
    inside = np.searchsorted(quotes, ends) - np.searchsorted(quotes, starts)
    return Fields(starts + quoted, lengths - 2 * quoted, np.flatnonzero(quoted & (inside > 2)))


def make_quotes_single(view: memoryview, rows: Positions, escaped: Positions) -> None:
    """Makes quotes that are written twice one, in place, in the rows with these indices."""
    for index in escaped.tolist():
        begin, size = rows[index].tolist()
        text = _single_quotes(view, begin, size)
        view[begin : begin + len(text)] = text
        rows[index, 1] = len(text)


def _single_quotes(view: memoryview, begin: int, size: int) -> bytes:
    return bytes(view[begin : begin + size]).replace(b'""', b'"')


def missing(view: memoryview, fields: Fields, na_value: bytes) -> npt.NDArray[np.bool_]:
    """Which fields are empty, or say that they are missing."""
    empty: npt.NDArray[np.bool_] = fields.lengths == 0
    if na_value:
        for index in np.flatnonzero(fields.lengths == len(na_value)).tolist():
            begin = int(fields.starts[index])
            empty[index] = view[begin : begin + len(na_value)] == na_value
        for index in fields.escaped.tolist():
            empty[index] = _single_quotes(view, int(fields.starts[index]), int(fields.lengths[index])) == na_value
    return empty


def convert(
    view: memoryview, array: Octets, fields: Fields, column: Column, absent: npt.NDArray[np.bool_], record: Positions
) -> Converted:
    """The values of a column.

    Args:
        view: The bytes.
        array: The same.
        fields: Where the values are written.
        column: What they are.
        absent: Which of them are missing.
        record: A position inside each one's record, for values of no bytes.
    """
    count = len(absent)
    some = bool(absent.any())
    wrong, message = count, ""
    if some and column.default is None:
        wrong, message = int(absent.argmax()), "is required, but missing"
    if column.dtype == "bytes":
        rows = np.stack((fields.starts, fields.lengths), 1)
        rows[absent, 1] = 0
        rows[:, 0] = np.where(rows[:, 1] > 0, rows[:, 0], record)
        if not some or not column.default:
            return Converted(Refs(rows), wrong, message, fields.escaped[~absent[fields.escaped]])
        items = [bytes(view[begin : begin + size]) for begin, size in rows.tolist()]
        for index in fields.escaped.tolist():
            items[index] = items[index].replace(b'""', b'"')
        for index in np.flatnonzero(absent).tolist():
            items[index] = column.default
        return Converted(items, wrong, message)
    dtype = np.dtype(column.dtype)
    present = np.flatnonzero(~absent)
    parts = Fields(fields.starts[present], fields.lengths[present])
    numbers, bad = _integers(view, array, parts, dtype) if dtype.kind == "i" else _floats(view, array, parts, dtype)
    values = numbers
    if some:
        values = np.full(count, 0 if column.default is None else column.default, dtype)
        values[present] = numbers
    if len(bad) and (first := int(present[bad[0]])) < wrong:
        begin, size = int(fields.starts[first]), int(fields.lengths[first])
        shown = bytes(view[begin : begin + min(size, 50)])
        wrong, message = first, f"is not a valid {column.dtype}: {shown!r}{_wider(shown, dtype)}"
    return Converted(values, wrong, message)


def _wider(text: bytes, dtype: np.dtype[Any]) -> str:
    """What to do about a number that is too large for its column; nothing for other text."""
    number = text.strip(_SPACES)
    if dtype != np.int32 or not _INTEGER.fullmatch(number) or not -(1 << 63) <= int(number) < 1 << 63:
        return ""
    return "; use np.int64 for this column (int and whole-number defaults mean int32, as in tf.data)"


def _integers(view: memoryview, array: Octets, fields: Fields, dtype: np.dtype[Any]) -> tuple[Any, Positions]:
    """The values, and the indices of those that are none."""
    starts, lengths, _ = fields
    values = np.zeros(len(starts), np.int64)
    if not len(starts):
        return values.astype(dtype), np.empty(0, np.int64)
    first = array[starts]
    negative = first == ord("-")
    digits = lengths - (negative | (first == ord("+")))
    width = int(min(digits.max(), _MOST_DIGITS))
    plain = (digits > 0) & (digits <= _MOST_DIGITS)
    if width > 0:
        places = np.arange(width)
        index = (starts + lengths - width)[:, None] + places
        figures = array[np.maximum(index, 0)].astype(np.int64) - ord("0")
        used = places >= width - digits[:, None]
        plain &= (((figures >= 0) & (figures <= 9)) | ~used).all(1)
        figures[~used] = 0
        values = figures @ (10 ** np.arange(width - 1, -1, -1, dtype=np.int64))
        values[negative] *= -1
    info = np.iinfo(dtype)
    plain &= (values >= info.min) & (values <= info.max)
    bad = []
    for row in np.flatnonzero(~plain).tolist():
        text = bytes(view[int(starts[row]) : int(starts[row] + lengths[row])]).strip(_SPACES)
        number = int(text) if _INTEGER.fullmatch(text) else None
        if number is None or not info.min <= number <= info.max:
            bad.append(row)
            number = 0
        values[row] = number
    return values.astype(dtype), np.array(bad, np.int64)


def _floats(view: memoryview, array: Octets, fields: Fields, dtype: np.dtype[Any]) -> tuple[Any, Positions]:
    """The values, and the indices of those that are none."""
    starts, lengths, _ = fields
    values = np.zeros(len(starts), np.float64)
    odd = np.ones(len(starts), np.bool_)
    width = int(min(lengths.max(initial=0), _WIDEST))
    if width:
        places = np.arange(width)
        used = places < lengths[:, None]
        letters = array[np.minimum(starts[:, None] + places, len(array) - 1)]
        odd = ~(_PLAIN_FLOAT[letters] | ~used).all(1) | (lengths > width)
        letters[~used] = 0
        letters[odd] = 0
        letters[odd, 0] = ord("0")
        try:
            values = letters.view(f"S{width}").reshape(-1).astype(np.float64)
        except ValueError:
            odd[:] = True
    bad = []
    for index in np.flatnonzero(odd).tolist():
        text = bytes(view[int(starts[index]) : int(starts[index] + lengths[index])]).strip(_SPACES)
        number = _float(text)
        if number is None:
            bad.append(index)
        values[index] = 0.0 if number is None else number
    if dtype == np.float32:
        return _single(view, fields, values), np.array(bad, np.int64)
    return values.astype(dtype), np.array(bad, np.int64)


def _float(text: bytes) -> float | None:
    if _DECIMAL.fullmatch(text):
        return float(text)
    if named := _NAMED.fullmatch(text):
        return float(named[1])
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text.decode())
        except OverflowError:
            return float("-inf") if text.startswith(b"-") else float("inf")
    return None


def _single(view: memoryview, fields: Fields, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """The nearest float32 of what is written, not of the nearest double: they differ half-way between two."""
    with np.errstate(over="ignore", under="ignore"):
        single = values.astype(np.float32)
    doubtful = np.flatnonzero(values.view(np.uint64) & np.uint64(2 * _HALF_WAY - 1) == _HALF_WAY)
    for index in doubtful.tolist():
        text = bytes(view[int(fields.starts[index]) : int(fields.starts[index] + fields.lengths[index])])
        if not np.isfinite(values[index]) or not _DECIMAL.fullmatch(text.strip(_SPACES)):
            continue
        if len(text) > _WIDEST:
            continue  # an exponent may be long; the last bit of such a number is nobody's
        beyond = Fraction(text.strip(_SPACES).decode()) - Fraction(float(values[index]))
        if beyond:
            nearest = single[index]  # infinite, where half-way is to what no float32 is
            toward = np.float32(np.inf if beyond > 0 else -np.inf)
            wrong_side = (float(nearest) > float(values[index])) != (beyond > 0)
            single[index] = np.nextafter(nearest, toward) if wrong_side else nearest
    return single
