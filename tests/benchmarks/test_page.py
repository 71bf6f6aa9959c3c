"""Tables of the page on performance are replaced by what was measured."""

from __future__ import annotations

import pytest

from benchmarks.page import COMMANDS, NOT_YET, PAGE, replaced


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
    page = PAGE.read_text(encoding="utf-8")
    block = page.partition(f"<!-- table: {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    assert block.strip() == NOT_YET or block.count("\n|") >= 4
