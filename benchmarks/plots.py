"""Line plots of measurements as PNG files. The one file that imports matplotlib, which the extra ``bench`` brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot

_DPI: Final = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot of a row of them.

    Attributes:
        title: Above it.
        lines: Name to (x, y) points.
        dashed: Height of a dashed line, or None.
        dashed_name: What the dashed line shows.
    """

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    dashed: float | None = None
    dashed_name: str = "ideal"


def save_panels(path: Path, panels: Sequence[Panel], *, x: str, y: str, logarithmic: bool = False) -> None:
    """Writes a row of plots that share the y axis.

    Args:
        path: A ``.png`` file.
        panels: From left to right.
        x: Name and unit of the x axis.
        y: Name and unit of the y axis.
        logarithmic: Whether the x axis doubles from tick to tick.
    """
    figure, axes = pyplot.subplots(
        1, len(panels), sharey=True, figsize=(4.2 * len(panels), 3.6), squeeze=False, layout="constrained"
    )
    for panel, axis in zip(panels, axes[0], strict=True):
        for name, points in panel.lines.items():
            axis.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
        if panel.dashed is not None:
            axis.axhline(panel.dashed, color="0.4", linestyle="--", linewidth=1, label=panel.dashed_name)
        if logarithmic:
            axis.set_xscale("log", base=2)
            ticks = sorted({point[0] for points in panel.lines.values() for point in points})
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(x)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel(y)
    axes[0][-1].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)
    pyplot.close(figure)
