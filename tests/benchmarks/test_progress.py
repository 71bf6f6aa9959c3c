"""Progress: one line written over on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

from benchmarks.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line() -> None:
    """Every display begins with a carriage return; the only line end comes at the end."""
    stream = Terminal()
    with Progress("Reading", 4, "images", stream=stream, interval_s=0.0) as progress:
        for _ in range(4):
            progress.advance(1)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text.count("\r") == 5
    assert "4 of 4 images" in text.rsplit("\r", 1)[1]


def test_elsewhere_it_is_plain_lines() -> None:
    """No carriage return, and the last line says how far it came."""
    stream = io.StringIO()
    with Progress("Reading", 4, "images", stream=stream, interval_s=0.0) as progress:
        progress.advance(2)
        progress.advance(2)
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert len(lines) == 3
    assert lines[-1].startswith("Reading: 4 of 4 images, ")


def test_an_early_end_is_said() -> None:
    """What was interrupted does not look finished."""
    stream = io.StringIO()
    progress = Progress("Reading", 4, "images", stream=stream)
    progress.__enter__()
    progress.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert stream.getvalue().endswith("- ended early\n")
