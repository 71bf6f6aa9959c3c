"""``asyncdata bench``: measures files and the user's own datasets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.command_line.entry import main


def test_files(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """All epochs of all files are read; bytes count each time."""
    sizes = [shard(f"{number}.tfrecord", [bytes(1000)] * 50).stat().st_size for number in range(3)]
    document = run("bench", "*.tfrecord", "--epochs", 2, "--seconds", 600, "--json").document
    assert (document["elements"], document["epochs"], document["bytes_read"]) == (300, 2, 2 * sum(sizes))
    assert 0 < document["first_element_s"] <= document["seconds"]
    assert document["cpu_s"] > 0


def test_the_most_memory_of_all_epochs(run: Callable[..., Any], own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last epoch may have used less than one before."""
    peaks = [1 << 20, 5 << 20, 2 << 20]
    stats = ad.PipelineIterator.stats
    monkeypatch.setattr(
        ad.PipelineIterator, "stats", lambda iterator: dataclasses.replace(stats(iterator), peak_bytes=peaks.pop(0))
    )
    document = run("bench", f"{own}:dataset", "--epochs", 3, "--seconds", 600, "--json").document
    assert (document["epochs"], document["peak_memory_bytes"]) == (3, 5 << 20)


def test_a_dataset_of_ones_own(run: Callable[..., Any], own: str) -> None:
    """A function in a module of the current directory, with worker processes, whose CPU time counts."""
    document = run("bench", f"{own}:dataset", "--json", "--seconds", "inf").document
    assert (document["elements"], document["epochs"], document["source"]) == (100, 1, [f"{own}:dataset"])
    assert document["cpu_s_per_gb"] is None


def test_the_time_ends_it(run: Callable[..., Any], own: str) -> None:
    """A dataset without an end is read for so long; it may be an object, too."""
    document = run("bench", f"{own}:endless", "--json", "--seconds", "2", "--epochs", 2).document
    assert document["epochs"] == 0
    assert document["elements"] > 0


def test_the_time_ends_what_gives_no_element(run: Callable[..., Any], own: str) -> None:
    """The verdict says where elements are lost."""
    document = run("bench", f"{own}:nothing", "--json", "--seconds", "1").document
    assert (document["epochs"], document["elements"]) == (0, 0)
    assert "filter(<lambda>) got " in document["limits"]["verdict"]


@pytest.mark.parametrize("name", ["missing", "number"])
def test_what_is_no_dataset(name: str, run: Callable[..., Any], own: str) -> None:
    """It is a wrong command line."""
    ran = run("bench", f"{own}:{name}")
    assert (ran.code, ran.out) == (2, "")
    assert f"{own}:{name}" in ran.err


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "ValueError: no data yet"),
        ("wants", "missing 1 required positional argument: 'more'"),
        ("leaves", "SystemExit: 7"),
        ("waits", "is an async function"),
    ],
)
def test_a_function_that_makes_no_dataset(name: str, why: str, run: Callable[..., Any], own: str) -> None:
    """One line says how it ended; the exit code blames no data."""
    ran = run("bench", "--quiet", f"{own}:{name}")
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert f"{own}:{name}" in line
    assert why in line


def test_a_module_that_cannot_be_imported(run: Callable[..., Any], own: str, tmp_path: Path) -> None:
    """Whatever it raises; the line is named."""
    (tmp_path / f"{own}.py").write_text("x = 1\ny = 1 // 0\n")
    ran = run("bench", "--quiet", f"{own}:dataset")
    assert ran.code == 2
    assert "ZeroDivisionError" in ran.err
    assert f"{own}.py, line 2" in ran.err


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("fails", "ZeroDivisionError: integer division or modulo by zero"),
        ("fails_in_workers", "ZeroDivisionError: integer division or modulo by zero"),
        ("lacks", "FileNotFoundError: [Errno 2] No such file or directory: 'no/such/file'"),
        ("leaves_later", "SystemExit: 7"),
    ],
)
def test_an_error_of_the_user(name: str, what: str, run: Callable[..., Any], own: str) -> None:
    """Its type, text, line, step and element, without lines of the library; it is no failure of storage."""
    ran = run("bench", "--quiet", "--json", f"{own}:{name}")
    assert ran.code == 1
    error = ran.document["error"]
    assert error.startswith(what)
    assert f"{own}.py:" in error
    assert "in map(" in error
    assert "element 0 of range" in error
    assert ran.err.splitlines() == [f"asyncdata bench: {line}" for line in error.splitlines()]


def test_a_function_that_lacks_a_file(run: Callable[..., Any], own: str) -> None:
    """The one that makes the dataset: its exception has a type and a line, and storage is not blamed."""
    ran = run("bench", "--quiet", f"{own}:lacks_at_once")
    assert ran.code == 2
    assert "FileNotFoundError" in ran.err
    assert f"{own}.py, line" in ran.err


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["talks", "talks_in_workers"])
def test_what_functions_print_is_no_part_of_the_result(
    name: str, own: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to standard error, wherever they run."""
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--json", "--quiet", f"{own}:{name}"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["elements"] == 3
    assert (err.count("made"), err.count("called")) == (name == "talks", 3)


def test_the_document_of_what_went_wrong(run: Callable[..., Any], shard: Callable[..., Path], own: str) -> None:
    """A program that reads the output learns it there; exit code and complaint are the same as without it."""
    path = shard("a.tfrecord", [bytes(100)] * 3)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    for url, code in (("a.tfrecord", 1), ("missing", 3), (f"{own}:raises", 2)):
        ran = run("bench", "--quiet", "--json", url)
        assert (ran.code, ran.document["command"]) == (code, "bench")
        assert ran.document["error"] in ran.err


def test_one_kind_at_a_time(run: Callable[..., Any], shard: Callable[..., Path], tmp_path: Path) -> None:
    """Records of different formats have no common rate."""
    shard("a.tfrecord", [b"x"])
    (tmp_path / "a.txt").write_text("x\n")
    ran = run("bench", "a.*")
    assert ran.code == 2
    assert "different kinds" in ran.err


def test_nothing_to_read(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """No file is an error of storage; files without records are none."""
    assert run("bench", "missing").code == 3
    shard("a.tfrecord", [])
    ran = run("bench", "a.tfrecord")
    assert (ran.code, ran.out) == (0, "no elements\n")


def test_damaged_files(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """They are wrong data, not a wrong command line."""
    path = shard("a.tfrecord", [bytes(100)] * 3)
    path.write_bytes(path.read_bytes()[:-1])
    ran = run("bench", "a.tfrecord")
    assert (ran.code, ran.out) == (1, "")
    assert "truncated" in ran.err
