"""A bar on a terminal, drawn by tqdm (extra ``progress``). The only file that imports tqdm."""

from __future__ import annotations

import threading
from typing import Any, Final, TextIO

_COUNT: Final = "{desc}{n:,} {unit}"
_SHARE: Final = "{desc}{percentage:3.0f}% |{bar}| {n:,} of {total:,} {unit}"


class Bar:
    """One bar of tqdm's; a `Display` of `progress`.

    Args:
        bar: The bar.
        stream: The terminal.
        lead: The text in front of it.
        every_s: Seconds between two updates.
    """

    def __init__(self, bar: Any, stream: TextIO, lead: str, every_s: float) -> None:
        self._bar = bar
        self._stream = stream
        self._lead = lead
        self.every_s = every_s

    def show(self, done: int, text: str) -> None:
        """Draws it anew."""
        if self._bar.total is not None and done > self._bar.total:
            self._bar.total, self._bar.bar_format = None, _COUNT
        self._bar.n, self._bar.unit = done, text
        self._bar.refresh()

    def clear(self) -> None:
        """Removes it until it is drawn again, so that something else can be written to the terminal."""
        self._bar.clear()

    def close(self, text: str) -> None:
        """Removes it for good, and leaves one line."""
        self._bar.close()
        if text:
            print(f"{self._lead}{text}", file=self._stream, flush=True)


def open_bar(stream: TextIO, total: int | None, description: str, every_s: float) -> Bar | None:
    """Opens a bar; None without tqdm.

    Args:
        stream: The terminal.
        total: How many there are, if known.
        description: The text in front of it.
        every_s: Seconds between two updates.
    """
    try:
        from tqdm import tqdm  # noqa: PLC0415 -- an optional package, wanted on terminals only
    except ImportError:
        return None

    class Quick(tqdm):  # type: ignore[misc]  # tqdm has no types
        """A bar that is drawn on request: no thread watches it, and no other process draws beside it."""

        monitor_interval = 0
        _lock = threading.RLock()

    form = _COUNT if total is None else _SHARE
    lead = f"{description}: " if description else ""
    bar = Quick(total=total, desc=lead, unit="", file=stream, leave=False, dynamic_ncols=True, bar_format=form)
    return Bar(bar, stream, lead, every_s)
