"""Draws the steps of a running plan: sources on top, the consumer at the bottom, where each one's time went. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from asyncdata.observe.parts import ConsumerStats, StepStats
from asyncdata.wording import grouped

COLOURS: Final[Mapping[str, str]] = {
    "working": "#2f6fdb",
    "input": "#e3a72f",
    "memory": "#d0453b",
    "workers": "#7a4fd0",
    "idle": "#dfe3e8",
}
"""Of the five parts of a step's time."""

_WIDTH: Final = 300
_HEIGHT: Final = 74
_GAP_X: Final = 24
_GAP_Y: Final = 26
_MARGIN: Final = 8
_LONGEST: Final = 38
_PLACES: Final[Mapping[str, str]] = {
    "loop": "on the stage loop",
    "process": "in worker processes",
    "thread": "in threads",
    "coroutine": "in coroutines",
}


class _Box(NamedTuple):
    column: float
    row: int


def draw(
    steps: Sequence[StepStats], window_s: float, elements: int, consumer: ConsumerStats, bottleneck: str = ""
) -> str:
    """An SVG picture of a pipeline.

    Args:
        steps: Of `PipelineStats`: the last step first.
        window_s: Seconds since the pipeline started.
        elements: That the consumer received.
        consumer: What it did.
        bottleneck: The name of the step that is marked.
    """
    boxes = _layout(steps)
    rows = 1 + max((box.row for box in boxes), default=0)
    columns = 1 + max((box.column for box in boxes), default=0.0)
    width = _MARGIN * 2 + columns * (_WIDTH + _GAP_X) - _GAP_X
    height = _MARGIN * 2 + (rows + 1) * (_HEIGHT + _GAP_Y) - _GAP_Y
    end = _Box(boxes[0].column if boxes else 0.0, rows)
    drawn = [
        _arrow(boxes[source], boxes[place], rows)
        for place, step in enumerate(steps)
        for source in step.inputs
        if source < len(boxes)
    ]
    if boxes:
        drawn.append(_arrow(boxes[0], end, rows))
    for step, box in zip(steps, boxes, strict=True):
        drawn.append(_step(step, box, rows, window_s, step.name == bottleneck))
    drawn.append(_consumer(elements, consumer, end, rows))
    return (
        f'<svg class="plan" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" '
        f'aria-label="the steps of the pipeline">{"".join(drawn)}</svg>'
    )


def _layout(steps: Sequence[StepStats]) -> list[_Box]:
    """Rows by the distance from the consumer; sources side by side, and what follows in the middle above them."""
    rows = [0] * len(steps)
    for place, step in enumerate(steps):  # inputs come after what they are inputs of
        for source in step.inputs:
            rows[source] = max(rows[source], rows[place] + 1)
    columns: dict[int, float] = {}
    free = 0.0
    for place in reversed(range(len(steps))):
        above = [columns[source] for source in steps[place].inputs if source in columns]
        if not above:
            columns[place] = free
            free += 1
        else:
            columns[place] = sum(above) / len(above)
    return [_Box(columns[place], rows[place]) for place in range(len(steps))]


def _corner(box: _Box, rows: int) -> tuple[float, float]:
    """The upper left corner; row 0 is the last step."""
    row = box.row if box.row == rows else rows - 1 - box.row
    return _MARGIN + box.column * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y)


def _arrow(source: _Box, target: _Box, rows: int) -> str:
    (x, y), (to_x, to_y) = _corner(source, rows), _corner(target, rows)
    x, y, to_x = x + _WIDTH / 2, y + _HEIGHT, to_x + _WIDTH / 2
    tip = f"M{to_x - 4:.1f} {to_y - 6:.1f}L{to_x:.1f} {to_y:.1f}L{to_x + 4:.1f} {to_y - 6:.1f}"
    return f'<path class="arrow" d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}{tip}"/>'


def _step(step: StepStats, box: _Box, rows: int, window_s: float, is_bottleneck: bool) -> str:
    times = (step.working_s, step.input_s, step.memory_s, step.workers_s, step.consumer_s)
    parts = dict(zip(COLOURS, times, strict=True))
    copies = "" if step.copies < 1.5 else f" x {step.copies:.1f}"
    parallel = f", {step.parallel} at a time" if step.parallel > 1 else ""
    rate = f"{grouped(step.elements, 'element')}, {_rate(step.elements, window_s)}"
    return _box(
        step.name + copies, rate, f"{_PLACES[step.runs]}{parallel}", parts, _corner(box, rows), marked=is_bottleneck
    )


def _consumer(elements: int, consumer: ConsumerStats, box: _Box, rows: int) -> str:
    parts = {"working": consumer.step_s, "input": consumer.wait_s}
    total_s = consumer.step_s + consumer.wait_s
    waited = f"waited {100 * consumer.wait_s / max(total_s, 1e-9):.0f} % of the time"
    rate = f"{grouped(elements, 'element')}, {_rate(elements, total_s)}"
    return _box("consumer: your loop", rate, waited, parts, _corner(box, rows), marked=False)


def _box(
    name: str, rate: str, where: str, parts: Mapping[str, float], corner: tuple[float, float], *, marked: bool
) -> str:
    x, y = corner
    total = max(sum(parts.values()), 1e-9)
    told = ", ".join(f"{part} {100 * seconds / total:.0f} %" for part, seconds in parts.items())
    shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    lines = [
        f'<g class="step{" bottleneck" if marked else ""}"><title>{escape(f"{name}: {told}")}</title>',
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>',
        f'<text class="name" x="{x + 10:.1f}" y="{y + 20:.1f}">{escape(shown)}</text>',
        f'<text x="{x + 10:.1f}" y="{y + 36:.1f}">{escape(rate)}</text>',
        f'<text x="{x + 10:.1f}" y="{y + 51:.1f}">{escape(where)}</text>',
    ]
    at = x + 10
    for part, seconds in parts.items():
        width = (_WIDTH - 20) * seconds / total
        if width >= 0.5:
            bar = f'x="{at:.1f}" y="{y + 58:.1f}" width="{width:.1f}" height="8"'
            lines.append(f'<rect {bar} fill="{COLOURS[part]}"/>')
        at += width
    return "".join([*lines, "</g>"])


def _rate(elements: int, seconds: float) -> str:
    rate = elements / max(seconds, 1e-9)
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
