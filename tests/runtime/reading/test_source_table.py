"""Numbers of sources, and the names behind them."""

from __future__ import annotations

import numpy as np

from asyncdata.runtime.reading.source_table import SourceTable


def origin(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array([number, 7, 0, 300], np.int64)


def test_numbers_follow_from_the_place_alone() -> None:
    """The same place has the same number in any table and any order; other places have others."""
    one, two = SourceTable(), SourceTable()
    places: list[tuple[int | str, ...]] = [("1",), ("1", 5), ("2",), ("1", 5, 6)]
    numbers = [one.add(place, "gs://b/o") for place in places]
    assert numbers == [two.add(place, "gs://b/o") for place in reversed(places)][::-1]
    assert len(set(numbers)) == 4
    assert one.add(("1",), "gs://b/other") not in numbers
    assert all(0 <= number < 1 << 63 for number in numbers)


def test_elements_are_named_for_people() -> None:
    """A record is named by URL, offset and version, an element of anything else by its position."""
    table = SourceTable()
    shard = table.add(("1",), "gs://b/o", "42", is_file=True)
    numbers = table.add(("2",), "range(10)")
    assert table.name_element(origin(shard)) == "record 7 of gs://b/o (byte offset 300, version 42)"
    assert table.name_element(origin(numbers)) == "element 7 of range(10)"
    assert table.place(origin(shard)) == {"url": "gs://b/o", "version": "42", "record": 7, "offset": 300}
    assert table.place(origin(numbers)) == {"record": 7}
    assert table[shard].is_file


def test_millions_of_inner_datasets_do_not_pile_up() -> None:
    """Names of datasets that are no files are kept up to a limit; files are always known."""
    table = SourceTable()
    last = [table.add(("1", i), "range(3)") for i in range(70_000)][-1]
    assert len(table) < 70_000
    assert table.name_element(origin(last)) == "element 7 of a dataset"
    shard = table.add(("2",), "gs://b/o", None, is_file=True)
    assert table[shard].name == "gs://b/o"
