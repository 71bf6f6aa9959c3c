"""`progress`: passes the elements of a dataset on, and shows how fast they come.

    for batch in ad.progress(ds) ──▶ Pace (counts, pure) ──▶ Display: a bar of tqdm's on a terminal, else plain lines

The commands show themselves on the same `Display`.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, TextIO

from asyncdata import arguments
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.terminal_bar import open_bar
from asyncdata.types import Element

_BAR_S: Final = 0.2
_LINE_S: Final = 10.0


class Iterated(Protocol):
    """The running iteration that is watched: an iterator of a dataset's."""

    def __next__(self) -> Element: ...
    async def __anext__(self) -> Element: ...
    def stats(self) -> PipelineStats:
        """Its numbers."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...

    async def aclose(self) -> None:
        """Ends it, from a coroutine."""
        ...


class Screen(Protocol):
    """What progress is drawn on.

    Attributes:
        every_s: Seconds between two drawings.
    """

    every_s: float

    def show(self, done: int, text: str) -> None:
        """Draws how many are done, and a text beside it."""

    def clear(self) -> None:
        """Makes room for other output until the next `show`."""

    def close(self, text: str) -> None:
        """Leaves a last text."""


class Lines:
    """Plain lines, for logs and for terminals without tqdm.

    Args:
        stream: Where they go.
        total: How many there are, if known.
        description: The beginning of each line.
        every_s: Seconds between two of them.
    """

    def __init__(self, stream: TextIO, total: int | None, description: str, every_s: float) -> None:
        self._stream = stream
        self._total = total
        self._lead = f"{description}: " if description else ""
        self.every_s = every_s

    def show(self, done: int, text: str) -> None:
        """See `Screen`."""
        of = "" if self._total is None else f" of {self._total:,}"
        self._write(f"{done:,}{of} {text}")

    def clear(self) -> None:
        """See `Screen`: lines are in nobody's way."""

    def close(self, text: str) -> None:
        """See `Screen`."""
        if text:
            self._write(text)

    def _write(self, text: str) -> None:
        print(f"{self._lead}{text}", file=self._stream, flush=True)


class Display:
    """Shows progress now and then. A closed terminal or a full disk silences it and never ends the work.

    Args:
        screen: What it is drawn on; None for nowhere.
    """

    def __init__(self, screen: Screen | None = None) -> None:
        self._screen = screen
        self._every_s = 0.0 if screen is None else screen.every_s
        self._due = time.perf_counter() + self._every_s

    def show(self, done: int, text: Callable[[], str]) -> None:
        """Shows how many are done, if it is time to; only then is the text made."""
        if self._screen is not None and time.perf_counter() >= self._due:
            self._due = time.perf_counter() + self._every_s
            self._draw(lambda screen: screen.show(done, text()))

    def clear(self) -> None:
        """Makes room for other output on the same terminal."""
        self._draw(lambda screen: screen.clear())

    def close(self, text: str = "") -> None:
        """Leaves a last text, if any. Nothing is shown after it."""
        self._draw(lambda screen: screen.close(text))
        self._screen = None

    def _draw(self, call: Callable[[Screen], None]) -> None:
        if self._screen is None:
            return
        try:
            call(self._screen)
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._screen = None


def open_display(
    total: int | None, description: str, stream: TextIO | None = None, every_s: float | None = None
) -> Display:
    """Opens a bar if the stream is a terminal and tqdm is installed, else plain lines.

    Args:
        total: How many there are; None: not known.
        description: What they are, in front of the numbers.
        stream: Where to show it; standard error by default.
        every_s: Seconds between two updates; by default 0.2 for a bar and 10 for lines.
    """
    found: TextIO | None = sys.stderr if stream is None else stream
    if found is None:  # a program without standard error
        return Display()
    bar = open_bar(found, total, description, every_s or _BAR_S) if _is_terminal(found) else None
    return Display(bar or Lines(found, total, description, every_s or _LINE_S))


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


@dataclass(slots=True)
class Pace:
    """Counts elements, and the time that the consumer waited for them. Pure: the caller passes the time.

    Attributes:
        began: When the iteration began, in seconds of some clock.
        done: Elements so far.
        waited_s: Seconds the consumer waited for them; of threads or tasks that share it, added up.
    """

    began: float
    done: int = 0
    waited_s: float = 0.0

    def rates(self, now: float, read_bytes: int) -> str:
        """Rates since the beginning, and the share of the time that was spent waiting."""
        seconds = max(now - self.began, 1e-9)
        rate = self.done / seconds
        shown = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        read = f", {read_bytes / seconds / 1e6:,.1f} MB/s read" if read_bytes else ""
        return f"{shown}/s{read}, waited {100 * min(self.waited_s / seconds, 1):.0f} %"


class Progress(Iterator[Element], AsyncIterator[Element]):
    """The elements of an iteration, in a plain loop or an ``async for``; see `progress`.

    Args:
        iterator: Where they come from.
        display: Where the numbers are shown.
        unit: What an element is called in the closing line.
    """

    def __init__(self, iterator: Iterated, display: Display, unit: str) -> None:
        self._iterator = iterator
        self._view = _View(iterator, display, unit)
        self._finalizer = weakref.finalize(self, self._view.close)

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Element:
        began = time.perf_counter()
        try:
            element = next(self._iterator)
        except BaseException:
            self._finalizer()
            raise
        self._view.count(began)
        return element

    async def __anext__(self) -> Element:
        began = time.perf_counter()
        try:
            element = await anext(self._iterator)
        except Exception:  # a cancelled wait loses no element, and the loop may go on
            self._finalizer()
            raise
        self._view.count(began)
        return element

    def stats(self) -> PipelineStats:
        """The numbers of the iterator behind it."""
        return self._iterator.stats()

    def close(self) -> None:
        """Ends the iteration and the display. Idempotent."""
        self._finalizer()
        self._iterator.close()

    async def aclose(self) -> None:
        """Like `close`, but does not block the loop."""
        self._finalizer()
        await self._iterator.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


class _View:
    """What is shown of one iteration. It does not know the `Progress`, so that it can be its finalizer."""

    def __init__(self, iterator: Iterated, display: Display, unit: str) -> None:
        self._iterator = iterator
        self._display = display
        self._unit = unit
        self._pace = Pace(time.perf_counter())
        self._read_before = _bytes_read(iterator)

    def count(self, began: float) -> None:
        """One more element, for which the consumer waited since `began`."""
        pace = self._pace
        pace.done += 1
        pace.waited_s += time.perf_counter() - began
        self._display.show(pace.done, self._text)

    def close(self) -> None:
        """The closing line."""
        seconds = time.perf_counter() - self._pace.began
        self._display.close(f"{self._pace.done:,} {self._unit} in {seconds:.1f} s, {self._rates()}")

    def _text(self) -> str:
        return f"{self._unit}, {self._rates()}"

    def _rates(self) -> str:
        return self._pace.rates(time.perf_counter(), _bytes_read(self._iterator) - self._read_before)


def _bytes_read(iterator: Iterated) -> int:
    count = iterator.stats().fetch.get("bytes", 0)
    return int(count)


@arguments.suggests
def progress(
    source: Any,
    *,
    total: int | None = None,
    description: str = "",
    unit: str = "elements",
    stream: TextIO | None = None,
    every_s: float | None = None,
) -> Progress:
    """Passes on the elements of a dataset and shows elements per second, MB/s read and the share of time spent waiting.

    On a terminal with tqdm installed (extra ``progress``) it shows a bar, otherwise a line every few seconds. A last
    line sums up, also after ``break`` or an error. MB/s counts what the Runtime read, so pipelines that share a Runtime
    are counted together. It costs less than a microsecond per element.

    Args:
        source: A `Dataset`, of which an iteration starts at once, or an iterator of one, which can save states.
        total: How many elements there are; by default what the dataset knows without running.
        description: Text before the numbers.
        unit: What an element is called in the last line.
        stream: Where it is shown; standard error by default.
        every_s: Seconds between two updates; by default 0.2 for a bar and 10 for lines.

    Raises:
        TypeError: `source` is neither a dataset nor an iterator of one, or `stream` no text file.
        ValueError: `description` or `unit` has several lines.

    Example:
        >>> import asyncdata as ad, io
        >>> log = io.StringIO()
        >>> sum(len(batch) for batch in ad.progress(ad.Dataset.range(10).batch(4), unit="batches", stream=log))
        10
        >>> print(log.getvalue())
        3 batches in ... s, .../s, waited ... %
    """
    arguments.integer_or_none("total", total, least=0)
    _check_line("description", description)
    _check_line("unit", unit)
    if stream is not None and not hasattr(stream, "write"):
        raise TypeError(f"stream must be a text file, not {arguments.shown(stream)}")
    if every_s is not None:
        arguments.number("every_s", every_s, above=0)
    if hasattr(source, "iterator") and hasattr(source, "cardinality"):
        known = source.cardinality() if total is None else total
        total = known if known >= 0 else None
        iterator = source.iterator()
    elif hasattr(source, "__anext__") and hasattr(source, "stats"):
        iterator = source
    else:
        raise TypeError(f"source must be a Dataset or an iterator of one, not {arguments.shown(source)}")
    return Progress(iterator, open_display(total, description, stream, every_s), unit)


def _check_line(name: str, value: str) -> None:
    if "".join(arguments.instance(name, value, str, "a text").splitlines()) != value:
        raise ValueError(f"{name} must be a single line, not {arguments.shown(value)}")
