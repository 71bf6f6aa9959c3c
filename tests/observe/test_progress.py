"""`progress`: the same elements, in a plain loop and in an ``async for``, and numbers that disturb nothing."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import io
import os
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.observe.progress import Pace

LAST = re.compile(r"([\d,]+) elements in [\d.]+ s, [\d.,e+-]+/s(, [\d.,]+ MB/s read)?, waited \d+ %\n")


@contextmanager
def terminal(columns: int = 100) -> Iterator[tuple[TextIO, int]]:
    """A terminal: what programs write to, and the descriptor from which what they wrote is read."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(follower, "w") as stream:
        yield stream, leader
    os.close(leader)


def read_line(leader: int) -> str:
    """What a terminal shows up to the first end of a line."""
    shown = ""
    while not shown.endswith("\n"):
        shown += os.read(leader, 1 << 16).decode(errors="replace")
    return shown.replace("\r\n", "\n")


@pytest.mark.parametrize("make", [lambda ds: ds, lambda ds: ds.iterator()], ids=["dataset", "iterator"])
def test_the_elements_are_the_same(make: Any) -> None:
    """Of a dataset or of an iterator of one; a last line counts them."""
    log = io.StringIO()
    assert [int(x) for x in ad.progress(make(ad.Dataset.range(1000)), stream=log)] == list(range(1000))
    found = LAST.fullmatch(log.getvalue())
    assert found is not None
    assert found[1] == "1,000"


async def test_in_a_coroutine() -> None:
    """The same with ``async for``."""
    log = io.StringIO()
    assert [int(x) async for x in ad.progress(ad.Dataset.range(100), stream=log)] == list(range(100))
    assert LAST.fullmatch(log.getvalue())


@pytest.mark.parametrize("total", [None, 7])
def test_lines(total: int | None) -> None:
    """Without a terminal there is a line now and then, with the total if it is known."""
    log = io.StringIO()
    ds = ad.Dataset.range(5).filter(lambda _x: True)
    list(ad.progress(ds, total=total, description="train", unit="images", stream=log, every_s=1e-9))
    *lines, last = log.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[1].startswith("train: 2 images, " if total is None else "train: 2 of 7 images, ")
    assert last.startswith("train: 5 images in ")


@pytest.mark.parametrize("total", [None, 5, 2], ids=["unknown", "known", "wrong"])
def test_a_bar(total: int | None) -> None:
    """On a terminal tqdm draws a bar, which makes room for one last line."""
    pytest.importorskip("tqdm")
    with terminal() as (stream, leader):
        ds = ad.Dataset.range(5).filter(lambda _x: True)
        elements = [int(x) for x in ad.progress(ds, total=total, stream=stream, every_s=1e-9)]
        shown = read_line(leader)
    assert elements == list(range(5))
    assert ("5 of 5 elements, " in shown) == (total == 5)
    assert "5 elements, " in shown or total == 5
    assert LAST.search(shown)


def test_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets lines then."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with terminal() as (stream, leader):
        list(ad.progress(ad.Dataset.range(3), stream=stream, every_s=1e-9))
        shown = read_line(leader)
    assert shown.startswith("1 of 3 elements, ")


def test_break_closes_it() -> None:
    """The last line is there, and the pipeline ends, as soon as nobody refers to it; an exception does the same."""
    log = io.StringIO()
    for _ in ad.progress(ad.Dataset.counter(), stream=log):
        break
    assert LAST.fullmatch(log.getvalue())
    log = io.StringIO()
    with pytest.raises(ZeroDivisionError):
        list(ad.progress(ad.Dataset.range(3).map(lambda x: 1 // (int(x) - 1)), stream=log))
    assert log.getvalue().startswith("1 elements in ")
    gc.collect()


def test_closing_it() -> None:
    """`close` and ``with`` end the pipeline; more than once is no harm, and one line is enough."""
    log = io.StringIO()
    with ad.progress(ad.Dataset.counter(), stream=log) as elements:
        next(elements)
        assert elements.stats().elements == 1
    elements.close()
    assert len(log.getvalue().splitlines()) == 1
    with pytest.raises(ad.PipelineClosedError):
        next(elements)


async def test_a_cancelled_wait_loses_nothing() -> None:
    """The loop goes on after it, with the element that it waited for."""
    go = asyncio.Event()

    async def gated() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go.wait(), loop))
            yield number

    loop = asyncio.get_running_loop()
    log = io.StringIO()
    async with ad.progress(ad.Dataset.from_generator(gated), stream=log) as elements:
        waiting = asyncio.ensure_future(anext(elements))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert log.getvalue() == ""
        go.set()
        assert [int(x) async for x in elements] == [0, 1, 2]
    assert log.getvalue().startswith("3 elements in ")


class Full(io.StringIO):
    """A disk without room."""

    def write(self, text: str) -> int:
        del text
        raise OSError(28, "No space left on device")


def test_a_stream_that_fails_ends_nothing() -> None:
    """A full disk, a closed stream and a program without standard error."""
    closed = io.StringIO()
    closed.close()
    for stream in (Full(), closed):
        assert len(list(ad.progress(ad.Dataset.range(10), stream=stream, every_s=1e-9))) == 10


def test_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under pythonw or after a daemon has closed its streams."""
    monkeypatch.setattr(sys, "stderr", None)
    assert len(list(ad.progress(ad.Dataset.range(10)))) == 10


@pytest.mark.parametrize("source", [3, [1, 2], iter([1]), None])
def test_what_is_no_dataset(source: Any) -> None:
    """It is refused by name."""
    with pytest.raises(TypeError, match="source must be a Dataset"):
        ad.progress(source)


def test_an_endless_dataset_has_no_total() -> None:
    """Its cardinality is no number of elements."""
    log = io.StringIO()
    elements = ad.progress(ad.Dataset.counter(), stream=log, every_s=1e-9)
    next(elements)
    elements.close()
    assert log.getvalue().startswith("1 elements, ")


@given(
    done=st.integers(0, 10**12),
    seconds=st.floats(0, 1e9),
    waited=st.floats(0, 4),
    read=st.integers(0, 1 << 60),
)
def test_rates(done: int, seconds: float, waited: float, read: int) -> None:
    """Any numbers make a text; the share of waiting is one of the whole time, however many threads wait."""
    pace = Pace(began=5.0, done=done, waited_s=waited * seconds)
    text = pace.rates(5.0 + seconds, read)
    assert re.fullmatch(r"[\d.,e+-]+/s(, [\d.,]+ MB/s read)?, waited \d+ %", text)
    assert int(text.rpartition("waited ")[2].rstrip(" %")) <= 100


@pytest.mark.parametrize(
    ("wrong", "kind", "why"),
    [
        ({"stream": 5}, TypeError, "stream must be a text file"),
        ({"unit": 5}, TypeError, "unit must be a text"),
        ({"unit": "a\nb"}, ValueError, "unit must be a single line"),
        ({"description": "a\n"}, ValueError, "description must be a single line"),
    ],
)
def test_what_cannot_be_shown(wrong: dict[str, Any], kind: type[Exception], why: str) -> None:
    """It is refused before an iteration starts."""
    with pytest.raises(kind, match=why):
        ad.progress(ad.Dataset.range(3), **wrong)
