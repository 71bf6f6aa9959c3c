"""Commands run in this process, as ``main`` runs them, on real files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import asyncdata as ad
from asyncdata.command_line.entry import main

OWN = """
import asyncdata as ad

def dataset():
    return ad.Dataset.range(1000).map(square, num_parallel_calls=1).batch(10)

def square(x):
    return x * x

endless = ad.Dataset.counter()
nothing = ad.Dataset.counter().filter(lambda x: False)
number = 3

def fails():
    return ad.Dataset.range(3).map(lambda x: 1 // 0)

def fails_in_workers():
    return ad.Dataset.range(3).map(fail, num_parallel_calls=1)

def fail(x):
    return 1 // 0

def lacks():
    return ad.Dataset.range(3).map(lambda x: open("no/such/file"))

def leaves_later():
    return ad.Dataset.range(3).map(lambda x: exit(7))

def lacks_at_once():
    return open("no/such/file")

def interrupts():
    def stop(x):
        if x == 2:
            import _thread
            _thread.interrupt_main()
        return x
    return ad.Dataset.counter().map(stop)

def talks():
    print("made")
    return ad.Dataset.range(3).map(talk)

def talks_in_workers():
    return ad.Dataset.range(3).map(talk, num_parallel_calls=1)

def talk(x):
    print("called")
    return x

def raises():
    raise ValueError("no data yet")

def wants(more):
    return endless

def leaves():
    raise SystemExit(7)

async def waits():
    return endless
"""


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its JSON document."""
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Ran:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture
def shard(tmp_path: Path) -> Callable[..., Path]:
    """Writes TFRecord files."""

    def write(name: str, records: list[bytes], compression: str | None = None) -> Path:
        with ad.TFRecordWriter(str(tmp_path / name), compression) as writer:
            writer.write_many(records)
        return tmp_path / name

    return write


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's in the current directory, which the command adds to the path."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "own_pipeline.py").write_text(OWN)
    yield "own_pipeline"
    sys.modules.pop("own_pipeline", None)
