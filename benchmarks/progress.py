"""Live progress: one line that is written over on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self, TextIO

_BAR: Final = 28


class Progress:
    """Shows how far something is; leave the block to end the line.

    Args:
        title: What is under way.
        total: Steps in all.
        unit: What a step is.
        stream: Where to write; standard output unless given.
        interval_s: Shortest time between two displays; 0.1 s on a terminal, 2 s elsewhere, unless given.
    """

    def __init__(
        self, title: str, total: int, unit: str, *, stream: TextIO | None = None, interval_s: float | None = None
    ) -> None:
        self._title = title
        self._total = total
        self._unit = unit
        self._stream = sys.stdout if stream is None else stream
        self._live = self._stream.isatty()
        self._interval_s = (0.1 if self._live else 2.0) if interval_s is None else interval_s
        self._began = self._shown = time.monotonic()
        self._done = 0
        self._width = 0

    def __enter__(self) -> Self:
        self._began = self._shown = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show("" if kind is None else " - ended early")
        if self._live:
            self._stream.write("\n")
            self._stream.flush()

    def advance(self, steps: int) -> None:
        """So many more are done."""
        self._done += steps
        now = time.monotonic()
        if now - self._shown >= self._interval_s:
            self._shown = now
            self._show("")

    def _show(self, remark: str) -> None:
        rate = self._done / max(time.monotonic() - self._began, 1e-9)
        share = min(1.0, self._done / max(1, self._total))
        text = f"{self._done:,} of {self._total:,} {self._unit}, {rate:,.0f}/s{remark}"
        if not self._live:
            self._stream.write(f"{self._title}: {text}\n")
            self._stream.flush()
            return
        filled = int(_BAR * share)
        line = f"{self._title:<24} [{'#' * filled}{'.' * (_BAR - filled)}] {text}"
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)
