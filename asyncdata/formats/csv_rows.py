"""Rows of CSV: one typed value per column and row, by the rules of tf.data's CsvDataset.

    bytes ──Splitter──▶ records and fields ──convert, column by column──▶ arrays and references

A wrong value affects only its row: the rows behind it can be read. Nothing behind a misplaced quote can be read.
Messages name line and column, counted from 1 and from 0.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncdata.errors import BrokenFrameError, CorruptRecordError, DataError
from asyncdata.formats.csv_split import Octets, Split, Splitter, field_index, lines_at
from asyncdata.formats.csv_values import Column, Converted, convert, make_quotes_single, missing, unquoted
from asyncdata.formats.framing import NOWHERE, Frames, Place, Positions, Refs, Values
from asyncdata.formats.signatures import look_of_no_text
from asyncdata.memory.structure import LEAF, DictOf, Structure, TupleOf
from asyncdata.wording import listed


class CsvFramer:
    """See the module's docstring.

    Args:
        columns: The wanted columns.
        header: Whether the first record is no row.
        delimiter: One byte.
        quotes: Whether fields may be quoted.
        na_value: A field that says this is missing, as an empty one is.
        selected: Numbers of the wanted columns; None: these are all there are.
        names: Of the wanted columns; rows are dicts then.
        by_header: Whether the file's header says where these columns are.
    """

    in_thread = True

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        header: bool = False,
        delimiter: bytes = b",",
        quotes: bool = True,
        na_value: bytes = b"",
        selected: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        by_header: bool = False,
    ) -> None:
        leaves = (LEAF,) * len(columns)
        self.structure: Structure = TupleOf(leaves) if names is None else DictOf(tuple(names), leaves)
        self._columns = list(columns)
        self._wanted = names if by_header else None
        self._numbers = list(range(len(columns))) if selected is None else list(selected)
        self._exactly = len(columns) if selected is None and not by_header else None
        self._header = header
        self._na_value = na_value
        self._splitter = Splitter(delimiter, quotes=quotes)

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`."""
        del remaining
        frames = self._frame(view, start, stop, limit=limit, last=last, place=place)
        if frames.error is not None and place.offset == 0:
            look = look_of_no_text(bytes(view[start : min(start + 8, stop)]))
            frames.error.message += f"; the file looks like {look}" if look else ""
        return frames

    def _frame(self, view: memoryview, start: int, stop: int, *, limit: int, last: bool, place: Place) -> Frames:
        array = np.frombuffer(view, np.uint8)
        leading = 1 if self._header and place.offset == 0 else 0
        # Spreadsheets write a byte order mark in front, behind which a quote may open the first name.
        begins_with_mark = bytes(view[start : min(start + 3, stop)]) == codecs.BOM_UTF8
        mark = len(codecs.BOM_UTF8) if leading and begins_with_mark else 0
        split = self._splitter.split(array, start + mark, stop, limit=limit + leading, at_least=1 + leading, last=last)
        if not len(split.starts):
            split = split._replace(stop=start)
        starts = split.starts[leading:]
        error: DataError | None = None
        columns = place.columns
        if leading and self._wanted is not None and len(split.starts):
            try:
                columns = self._find_columns(self._wanted, view, array, split, place)
            except BrokenFrameError as wrong_header:
                return Frames(starts=NOWHERE, values=self._no_rows(), stop=start, error=wrong_header)
        if len(starts):
            numbers = self._numbers if self._wanted is None else columns
            assert numbers is not None, "what the header says is known behind it"
            converted = self._convert(view, array, split, leading, numbers)
            wrong = min((c.wrong for c in converted), default=len(starts))
            if wrong < len(starts):
                error = self._wrong_value(converted, wrong, split, leading, place, start)
        else:
            converted, wrong = [Converted(values, 0, "") for values in self._no_rows()], 0
            if last and leading and start + mark == stop:
                error = self._broken("the file is empty, but its first line should be a header", place, 0, place.line)
        if error is None and len(split.starts) < limit + leading:
            error = self._broken_quote(split, place, start, leading)
        stop, resume = split.stop, -1
        if error is not None and wrong < len(starts):
            stop, resume = int(starts[wrong]), int(starts[wrong + 1]) if wrong + 1 < len(starts) else split.stop
        for column in converted:
            if isinstance(column.values, Refs):
                make_quotes_single(view, column.values.rows, column.escaped[column.escaped < wrong])
        return Frames(
            starts=starts[:wrong],
            values=tuple(_first(c.values, wrong) for c in converted),
            stop=stop,
            error=error,
            lines=lines_at(split, starts[:wrong], place.line),
            next_line=place.line + int(np.searchsorted(split.breaks, stop)),
            resume=resume,
            resume_line=place.line + int(np.searchsorted(split.breaks, resume)),
            columns=columns,
        )

    def _no_rows(self) -> tuple[Values, ...]:
        return tuple(
            Refs(np.empty((0, 2), np.int64)) if column.dtype == "bytes" else np.empty(0, column.dtype)
            for column in self._columns
        )

    def _find_columns(
        self, wanted: Sequence[str], view: memoryview, array: Octets, split: Split, place: Place
    ) -> tuple[int, ...]:
        """The numbers of the wanted columns, of the header, which is the first of the records.

        Raises:
            BrokenFrameError: The header does not name one of them, or several times.
        """
        stop = int(split.first_field[1])
        fields = unquoted(array, split.field_starts[:stop], split.field_ends[:stop], split.quotes)
        texts = [bytes(view[begin : begin + size]) for begin, size in zip(fields.starts, fields.lengths, strict=True)]
        for index in fields.escaped.tolist():
            texts[index] = texts[index].replace(b'""', b'"')
        header = [text.decode(errors="replace") for text in texts]
        for name in wanted:
            if header.count(name) != 1:
                found = "no column" if name not in header else f"{header.count(name)} columns"
                raise self._broken(f"the header has {found} {name!r}; it has {listed(header)}", place, 0, place.line)
        return tuple(header.index(name) for name in wanted)

    def _convert(
        self, view: memoryview, array: Octets, split: Split, leading: int, numbers: Sequence[int]
    ) -> list[Converted]:
        counted = self._counted(np.diff(split.first_field)[leading:], numbers)
        found = []
        for column, number in zip(self._columns, numbers, strict=True):
            index, _ = field_index(split, number)
            index = index[leading:]
            fields = unquoted(array, split.field_starts[index], split.field_ends[index], split.quotes)
            absent = missing(view, fields, self._na_value)
            values = convert(view, array, fields, column, absent, split.starts[leading:])
            if values.wrong >= counted.wrong:
                values = values._replace(wrong=counted.wrong, message=counted.message)
            else:
                values = values._replace(message=f"column {number} {values.message}")
            found.append(values)
        return found

    def _counted(self, counts: Positions, numbers: Sequence[int]) -> Converted:
        """The first record with a wrong number of fields, as if it were a wrong value."""
        bad = counts < max(numbers) + 1 if self._exactly is None else counts != self._exactly
        if not bad.any():
            return Converted([], len(counts), "")
        wrong = int(bad.argmax())
        have = int(counts[wrong])
        what = "at least " if self._exactly is None else ""
        want = max(numbers) + 1 if self._exactly is None else self._exactly
        return Converted([], wrong, f"{what}{want} fields are expected, but there are {have}")

    def _wrong_value(
        self, converted: list[Converted], wrong: int, split: Split, leading: int, place: Place, start: int
    ) -> DataError:
        found = next(c for c in converted if c.wrong == wrong)
        position = int(split.starts[leading + wrong])
        line = int(lines_at(split, np.array([position]), place.line)[0])
        message = f"line {line}: {found.message}"
        return place.error(CorruptRecordError, message, behind=position - start, record=wrong)

    def _broken_quote(self, split: Split, place: Place, start: int, leading: int) -> DataError | None:
        """What is wrong with the record behind those that were found, if its quotes are."""
        record = max(0, len(split.starts) - leading)
        if split.misplaced >= 0:
            line = int(lines_at(split, np.array([split.misplaced]), place.line)[0])
            text = "a quote is neither at the start nor at the end of a field; inside a field it must be written twice"
            return self._broken(text, place, record, line, split.misplaced - start)
        if split.unclosed:
            line = int(lines_at(split, np.array([split.stop]), place.line)[0])
            return self._broken("the data ends inside quotes", place, record, line, split.stop - start)
        return None

    def _broken(self, text: str, place: Place, record: int, line: int, behind: int = 0) -> BrokenFrameError:
        return place.error(BrokenFrameError, f"line {line}: {text}", behind=behind, record=record)


def _first(values: Values, count: int) -> Values:
    if isinstance(values, Refs):
        return Refs(values.rows[:count], values.leaf)
    part: Any = values[:count]
    found: Values = part
    return found
