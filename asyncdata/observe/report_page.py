"""The page of a profile: texts, tables and the plan are written here; the charts are drawn in the browser. Pure.

The page needs no network: style, scripts and numbers are inside. Everything that comes from the user (names of steps,
options, URLs) is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Final, NamedTuple

from asyncdata.observe.parts import LineStats
from asyncdata.observe.pipeline_profile import PipelineProfile
from asyncdata.observe.plan_drawing import COLOURS, draw
from asyncdata.observe.table import HEAD, consumer_row, step_row

_FOLDER: Final = "page"
_CHARTS: Final = (
    ("steps", "Steps and waits", "Time per delivery: what your loop worked, and what it waited for it."),
    ("rate", "Rate", "Elements per second, and MB per second from storage."),
    ("memory", "Memory", "By the step that holds it, on top of one another; the consumer's part are your batches."),
    ("requests", "Reads", "Reads under way, those that wait for their turn, and the most that may be under way."),
    ("processors", "Processors", "Processors in use: by the stage loop, by other threads, and by worker processes."),
)
_MOST_LINES: Final = 15
_MEANINGS: Final = {
    "working": "working on the stage loop",
    "input": "waiting for the step above, or for storage",
    "memory": "waiting for memory",
    "workers": "waiting for its own calls",
    "idle": "nobody asked for more",
}


class _Figure(NamedTuple):
    """One number: its name in the page, what it is, its value, and how it is shown."""

    key: str
    label: str
    value: float
    shown: str


def page(
    document: str,
    pipelines: Sequence[PipelineProfile],
    lines: Sequence[LineStats],
    dropped: int,
    about: Mapping[str, str],
) -> str:
    """The whole page.

    Args:
        document: The report as JSON, from which the charts are drawn.
        pipelines: What is shown.
        lines: Of the consumer.
        dropped: How many pipelines were not kept.
        about: When and where it was recorded.
    """
    longest = max(pipelines, key=lambda each: each.stats.window_s, default=None)
    sections = [_section(number, each, is_open=each is longest) for number, each in enumerate(pipelines)]
    title = "Profile" if longest is None else f"Profile of {longest.plan}"
    nothing = "" if pipelines else "<p>No pipeline was iterated in this profile.</p>"
    missing = f"<p>{dropped:,} earlier pipelines are not kept.</p>" if dropped else ""
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            # What the page holds may run, and nothing may be loaded.
            """<meta http-equiv="Content-Security-Policy" content="default-src 'unsafe-inline'">""",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{_file('uPlot.min.css')}{_file('report.css')}</style></head><body><main>",
            '<h1>What limits the pipeline</h1><p id="failure"></p>',
            nothing + missing,
            *sections,
            _lines("Lines of your own loop", lines),
            "<h2>Where it was recorded</h2>",
            _table(("", ""), about.items()),
            "</main>",
            f'<script type="application/json" id="report">{document.replace("<", chr(92) + "u003c")}</script>',
            f"<script>{_file('uPlot.iife.min.js')}</script><script>{_file('report.js')}</script></body></html>",
        )
    )


def _section(number: int, pipeline: PipelineProfile, *, is_open: bool) -> str:
    stats, verdict = pipeline.stats, pipeline.verdict
    figures = "".join(
        f'<div><b data-figure="{each.key}" data-value="{each.value!r}">{escape(each.shown)}</b>'
        f"<span>{escape(each.label)}</span></div>"
        for each in _figures(pipeline)
    )
    legend = "".join(
        f'<span><i style="background:{COLOURS[part]}"></i>{text}</span>' for part, text in _MEANINGS.items()
    )
    faster = (
        f"<p>If this step were twice as fast: {verdict.faster_rate:,.3g} elements/s instead of "
        f"{verdict.rate:,.3g} elements/s.</p>"
        if verdict.step and verdict.faster_rate > verdict.rate
        else ""
    )
    rows = [*(step_row(step, stats.window_s) for step in reversed(stats.steps))]
    rows.append(consumer_row(stats.elements, stats.bytes, stats.consumer))
    charts = "".join(
        f'<section class="chart" data-chart="{key}"><h3>{heading}</h3><p>{text}</p><div></div></section>'
        for key, heading, text in _CHARTS
        if key != "requests" or stats.reads.requests
    )
    held = [(each.name, *(f"{n / 1e6:,.1f}" for n in (each.used_bytes, each.most_bytes))) for each in pipeline.held]
    settings = [(each.step, each.setting, each.because) for each in stats.knobs]
    found = f"epoch {pipeline.epoch}, {stats.window_s:,.1f} s: {verdict.step or verdict.cause}"
    plan = draw(stats.steps, stats.window_s, stats.elements, stats.consumer, verdict.step)
    return "\n".join(
        (
            f'<details class="pipeline" data-pipeline="{number}"{" open" if is_open else ""}>',
            f"<summary><b>{escape(pipeline.plan)}</b> {escape(found)}</summary>",
            f'<p class="verdict">{escape(verdict.sentence)}</p>',
            f'<p class="action">{escape(verdict.action)}</p>{faster}' if verdict.action or faster else "",
            f'<div class="figures">{figures}</div>',
            f'<h2>Where the time goes</h2><p class="legend">{legend}</p><div class="wide">{plan}</div>',
            _table(HEAD, rows),
            _lines("Lines of your functions", stats.lines),
            f"<h2>Over time</h2>{charts}",
            f"<h2>Memory at its peak</h2>{_table(('held by', 'MB then', 'MB at most'), held)}" if held else "",
            "<h2>Reads from storage</h2>" + _table(("", ""), _reads(pipeline)) if stats.reads.requests else "",
            "<h2>Found by AUTOTUNE</h2>" + _table(("step", "setting", "because"), settings) if settings else "",
            "<h2>Options</h2>" + _table(("option", "value"), pipeline.options.items()) if pipeline.options else "",
            "</details>",
        )
    )


def _figures(pipeline: PipelineProfile) -> list[_Figure]:
    stats = pipeline.stats
    consumer = stats.consumer
    total_s = consumer.wait_s + consumer.step_s
    waited = consumer.wait_s / total_s if total_s else 0.0
    rate = stats.elements / total_s if total_s else 0.0
    read = stats.reads.bytes / stats.window_s if stats.window_s else 0.0
    return [
        _Figure("elements", "elements", stats.elements, f"{stats.elements:,}"),
        _Figure("rate", "elements per second", rate, f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"),
        _Figure("waited", "of its time the consumer waited", waited, f"{100 * waited:.0f} %"),
        _Figure("first_wait_s", "until the first element", consumer.first_wait_s, f"{consumer.first_wait_s:.2f} s"),
        _Figure(
            "p99_wait_s", "is longer than 99 of 100 waits", consumer.p99_wait_s, f"{1e3 * consumer.p99_wait_s:.1f} ms"
        ),
        _Figure("read", "read from storage", read, f"{read / 1e6:,.1f} MB/s"),
        _Figure("peak_bytes", "memory at its peak", stats.peak_bytes, f"{stats.peak_bytes / 1e6:,.0f} MB"),
        _Figure("limit_bytes", "memory limit", stats.limit_bytes, f"{stats.limit_bytes / 1e6:,.0f} MB"),
    ]


def _reads(pipeline: PipelineProfile) -> list[tuple[str, str]]:
    stats, fetch = pipeline.stats, pipeline.stats.fetch
    times = (f"{1e3 * fetch.get(f'first_byte_{part}_s', 0.0):,.0f} ms" for part in ("median", "p90", "p99"))
    window = fetch.get("window") or {}
    return [
        ("first byte: median, p90, p99", ", ".join(times)),
        ("requests", f"{stats.reads.requests:,}"),
        ("under way on average, and at most allowed", f"{stats.reads.in_flight:.1f} of {stats.reads.limit}"),
        ("why so many are allowed", str(window.get("reason", "given"))),
        ("retries, refused by the server", f"{stats.reads.retries:,}, {stats.reads.refused:,}"),
        ("second attempts, of which came first", f"{stats.reads.hedges:,}, {stats.reads.hedges_won:,}"),
        ("received in vain", f"{stats.reads.wasted_bytes / 1e6:,.1f} MB"),
    ]


def _lines(heading: str, lines: Sequence[LineStats]) -> str:
    """Where time was spent in code, by line."""
    if not lines:
        return ""
    total_s = max(sum(each.seconds for each in lines), 1e-9)
    rows = [
        (
            f"{each.file}:{each.line}" if each.file else "",
            each.function,
            each.place,
            f"{each.seconds:,.2f}",
            f"{100 * each.seconds / total_s:.0f} %",
        )
        for each in lines[:_MOST_LINES]
    ]
    return f"<h2>{heading}</h2>" + _table(("line", "function", "in", "seconds", "share"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    header = "".join(f"<th>{escape(cell)}</th>" for cell in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{header}</tr>{body}</table></div>'


def _file(name: str) -> str:
    return (resources.files("asyncdata.observe") / _FOLDER / name).read_text(encoding="utf-8")
