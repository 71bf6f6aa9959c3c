"""Markdown tables: what a cell says, and that a table is one."""

from __future__ import annotations

from benchmarks.table import markdown, median_cell, ratio_cell


def test_a_cell_shows_the_median_and_the_extremes() -> None:
    """Extremes are left out where there is one value, and a cell without values says so."""
    assert median_cell([3.0, 1.0, 2.0]) == "2.00 (1.00-3.00)"
    assert median_cell([1.25], 1) == "1.2"
    assert median_cell([]) == "-"


def test_a_ratio_is_the_median_over_pairs() -> None:
    """Values are compared with what was measured beside them, not median with median."""
    assert ratio_cell([1.0, 20.0, 3.0], [2.0, 10.0, 2.0]) == "1.50"
    assert ratio_cell([1.0], []) == "-"
    assert ratio_cell([1.0], [0.0]) == "-"


def test_a_table_has_one_width_per_column() -> None:
    """All lines are equally long, and the first column alone is aligned to the left."""
    lines = markdown(("name", "x"), [["a", "100"], ["long name", "2"]]).splitlines()
    assert lines == [
        "| name      |   x |",
        "|-----------|----:|",
        "| a         | 100 |",
        "| long name |   2 |",
    ]
