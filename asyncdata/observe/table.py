"""Statistics as tables: of text for terminals, and of HTML for notebooks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from asyncdata.observe.parts import ConsumerStats, StepStats

HEAD: Final = ("step", "elements", "MB", "working", "input", "memory", "workers", "idle")
"""The columns: times are parts of the window; ``idle`` means that nobody asked for more."""

_LONGEST: Final = 60
_MOST_ROWS: Final = 40


def step_row(step: StepStats, window_s: float) -> list[str]:
    """One step."""
    name = step.name if step.copies < 1.5 else f"{step.name} x {step.copies:.1f}"
    times = (step.working_s, step.input_s, step.memory_s, step.workers_s, step.consumer_s)
    return [name, *_amounts(step.elements, step.bytes), *(_share(seconds, window_s) for seconds in times)]


def consumer_row(elements: int, nbytes: int, consumer: ConsumerStats) -> list[str]:
    """The program that takes the elements: its work, and its waits for input."""
    total_s = consumer.wait_s + consumer.step_s
    times = (_share(consumer.step_s, total_s), _share(consumer.wait_s, total_s))
    return ["consumer", *_amounts(elements, nbytes), *times, "", "", ""]


def as_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that are aligned with spaces: the first to the left, the others to the right."""
    lines = [list(head), *([_cut(cell) for cell in row] for row in _shortened(rows))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def as_html(head: Sequence[str], rows: Sequence[Sequence[str]], below: str) -> str:
    """A table and a paragraph; names are escaped, because they may come from URLs and functions of others."""
    header = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in _shortened(rows))
    return f"<table><tr>{header}</tr>{body}</table><p>{escape(below[:2000])}</p>"


def _cells(row: Sequence[str]) -> str:
    first, *others = (escape(_cut(cell, _LONGEST if not column else 2 * _LONGEST)) for column, cell in enumerate(row))
    return f'<td style="text-align:left">{first}</td>' + "".join(f"<td>{cell}</td>" for cell in others)


def _shortened(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """All rows, or the first and the last ones."""
    if len(rows) <= _MOST_ROWS:
        return list(rows)
    half = _MOST_ROWS // 2
    between = [f"… {len(rows) - 2 * half} more …", *[""] * (len(rows[0]) - 1)]
    return [*rows[:half], between, *rows[-half:]]


def _amounts(elements: int, nbytes: int) -> tuple[str, str]:
    return f"{elements:,}", f"{nbytes / 1e6:,.1f}"


def _share(seconds: float, window_s: float) -> str:
    return f"{100 * seconds / max(window_s, 1e-9):.0f} %"


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
