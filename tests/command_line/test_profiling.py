"""``asyncdata profile``: a report of files and of the user's own datasets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncdata.command_line import profiling
from tests.observe.trace_checker import check_trace


def test_a_dataset_of_ones_own(run: Callable[..., Any], own: str, tmp_path: Path) -> None:
    """The table and the verdict are printed, and the page is where the last line says."""
    ran = run("profile", f"{own}:dataset", "--seconds", 600)
    assert ran.code == 0
    assert "map(square)" in ran.out
    assert "Limited by" in ran.out
    path = Path(ran.out.splitlines()[-1].removeprefix("The report is in "))
    assert path == tmp_path / "profile.html"
    assert path.read_text().startswith("<!doctype html>")


def test_the_document(run: Callable[..., Any], shard: Callable[..., Path], tmp_path: Path) -> None:
    """Of files, of several epochs; it is also what the file holds."""
    shard("a.tfrecord", [bytes(100)] * 50)
    document = run("profile", "*.tfrecord", "--epochs", 2, "--json", "--out", "report.json").document
    assert [each["stats"]["elements"] for each in document["profile"]["pipelines"]] == [50, 50]
    assert document["report"] == str(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == document["profile"]


def test_a_pretended_step(run: Callable[..., Any], own: str) -> None:
    """The consumer is busy with it, until the time is up."""
    document = run("profile", f"{own}:endless", "--json", "--seconds", "2", "--step-ms", "400").document
    (pipeline,) = document["profile"]["pipelines"]
    assert 0 < pipeline["stats"]["elements"] <= 6
    assert pipeline["stats"]["consumer"]["step_s"] >= 0.01


def test_the_time_ends_a_pretended_step(run: Callable[..., Any], own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step goes on when the time is up."""
    steps: list[float] = []
    monkeypatch.setattr(profiling, "threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=steps.append)))
    assert run("profile", f"{own}:dataset", "--seconds", 600, "--step-ms", 3_600_000).code == 0
    assert len(steps) == 100
    assert max(steps) <= 600


def test_a_pipeline_that_gives_no_element(run: Callable[..., Any], own: str) -> None:
    """There is a report of it as well when the time is up."""
    document = run("profile", f"{own}:nothing", "--json", "--seconds", "1").document
    (pipeline,) = document["profile"]["pipelines"]
    assert "filter(<lambda>) got " in pipeline["verdict"]["text"]


def test_a_trace(run: Callable[..., Any], own: str, tmp_path: Path) -> None:
    """It is where the document and the last line say."""
    ran = run("profile", f"{own}:dataset", "--trace", "trace.json")
    assert f"The trace is in {tmp_path / 'trace.json'}" in ran.out.splitlines()[-1]
    assert check_trace((tmp_path / "trace.json").read_text()).of("training loop")
    document = run("profile", f"{own}:dataset", "--json", "--trace", "again.json").document
    assert document["trace"] == str(tmp_path / "again.json")


def test_one_file_for_report_and_trace(run: Callable[..., Any], own: str, tmp_path: Path) -> None:
    """One of them would be lost; nothing is iterated or written."""
    ran = run("profile", f"{own}:dataset", "--out", "both.json", "--trace", "./both.json")
    assert ran.code == 2
    assert "a file each" in ran.err
    assert not (tmp_path / "both.json").exists()


def test_an_error_of_the_user(run: Callable[..., Any], own: str, tmp_path: Path) -> None:
    """The message is that of ``bench``, and the command says where the report of what happened before is."""
    ran = run("profile", "--quiet", f"{own}:fails")
    assert (ran.code, ran.out) == (1, f"The report is in {tmp_path / 'profile.html'}\n")
    assert "ZeroDivisionError" in ran.err
    assert (tmp_path / "profile.html").exists()
    document = run("profile", "--quiet", "--json", f"{own}:fails").document
    assert document["report"] == str(tmp_path / "profile.html")
    assert "ZeroDivisionError" in document["error"]


def test_ctrl_c(run: Callable[..., Any], own: str, tmp_path: Path) -> None:
    """The report of what was seen is named."""
    ran = run("profile", "--quiet", f"{own}:interrupts")
    assert (ran.code, ran.out) == (130, f"The report is in {tmp_path / 'profile.html'}\n")
    document = run("profile", "--quiet", "--json", f"{own}:interrupts").document
    assert (document["report"], document["error"]) == (str(tmp_path / "profile.html"), "interrupted")


def test_what_was_there_before_is_not_called_the_report(run: Callable[..., Any], own: str, tmp_path: Path) -> None:
    """Where the dataset could not be made, nothing is written."""
    (tmp_path / "profile.html").write_text("old")
    ran = run("profile", "--quiet", f"{own}:raises")
    assert (ran.code, ran.out) == (2, "")


def test_no_such_directory(run: Callable[..., Any], own: str) -> None:
    """It is said before anything is iterated."""
    ran = run("profile", f"{own}:endless", "--out", "missing/report.html")
    assert (ran.code, ran.out) == (3, "")
    assert "does not exist" in ran.err
