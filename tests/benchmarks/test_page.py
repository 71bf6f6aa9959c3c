"""Tables of the page on performance are replaced by what was measured."""

from __future__ import annotations

import re

import pytest

from benchmarks.page import COMMANDS, NOT_YET, PAGE, SUMMARY, replaced

SMALL = re.compile(r"<!-- part of: (\w+) -->\n\n((?:\|.*\n)+)")


def test_a_table_is_replaced_and_nothing_else() -> None:
    """The text around it and the marks stay; a table may contain what a pattern would take for its own."""
    page = "before\n<!-- table: a -->\nold\n<!-- end of a -->\nbetween\n<!-- table: b -->\n<!-- end of b -->\n"
    assert replaced(page, "a", r"new \1") == (
        "before\n<!-- table: a -->\n\nnew \\1\n\n<!-- end of a -->\nbetween\n<!-- table: b -->\n<!-- end of b -->\n"
    )


def test_replacing_twice_is_replacing_once() -> None:
    """Measuring again leaves nothing of the table before."""
    page = "<!-- table: a -->\n<!-- end of a -->"
    assert replaced(replaced(page, "a", "first"), "a", "second") == replaced(page, "a", "second")


def test_a_table_that_is_not_there_is_an_error() -> None:
    """Hours of measuring do not end in a page without them."""
    with pytest.raises(ValueError, match="table: a"):
        replaced("nothing", "a", "new")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_every_table(name: str) -> None:
    """Every command has its place on the page, with a measured table in it or the word that there is none yet."""
    block = full_table(name)
    assert block.strip() == NOT_YET or block.count("\n|") >= 4


def test_small_tables_repeat_figures_of_the_full_ones() -> None:
    """Every figure of a small table is in its full table, so measuring again cannot leave a small table behind."""
    small = SMALL.findall(SUMMARY.read_text(encoding="utf-8"))
    assert len(small) == SUMMARY.read_text(encoding="utf-8").count("<!-- part of:") > 5
    for name, table in small:
        full = set(figures(full_table(name)))
        assert [figure for row in table.splitlines()[2:] for figure in figures(row) if figure not in full] == [], name


def full_table(name: str) -> str:
    """The text between a table's marks."""
    page = PAGE.read_text(encoding="utf-8")
    return page.partition(f"<!-- table: {name} -->")[2].partition(f"<!-- end of {name} -->")[0]


def figures(text: str) -> list[str]:
    """The numbers in a text, as they are written."""
    return re.findall(r"\d+(?:[.,]\d+)*", text)
