"""Markdown tables: medians with their spread, ratios, aligned columns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def median_cell(values: Sequence[float], digits: int = 2) -> str:
    """``0.27 (0.25-0.31)``: the median, and the extremes where there is more than one value."""
    if not values:
        return "-"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def ratio_cell(values: Sequence[float], others: Sequence[float]) -> str:
    """``1.08``: the median ratio of values measured in pairs, one after the other; ``-`` without a partner."""
    ratios = [value / other for value, other in zip(values, others, strict=False) if other]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One table; all columns but the first are numbers and stand on the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    rule = "|".join("-" * (width + 2) if not column else "-" * (width + 1) + ":" for column, width in enumerate(widths))
    lines = [_line(head, widths), f"|{rule}|", *(_line(row, widths) for row in rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
