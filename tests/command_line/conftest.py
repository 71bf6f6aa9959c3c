"""Commands run in this process, as ``main`` runs them, on real files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import asyncdata as ad
from asyncdata.command_line.entry import main


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
