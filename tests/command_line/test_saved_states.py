"""``asyncdata state``: shows states and their differences, of files and of objects."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.runtime.state.document import VERSION
from fake_gcs import FakeGCS


@pytest.fixture
def states(tmp_path: Path) -> list[str]:
    """Of one pipeline, behind two elements and behind three."""
    dataset = ad.Dataset.range(50).shuffle(10, seed=1).batch(2)
    paths = [str(tmp_path / f"{count}.json") for count in (2, 3)]
    with dataset.iterator() as it:
        for count, path in enumerate(paths, 2):
            while it.position < count:
                next(it)
            ad.state.save(path, it.state_dict())
    return paths


def test_one_state(run: Callable[..., Any], states: list[str]) -> None:
    """Text and document tell the same."""
    text, document = run("state", "show", states[0]), run("state", "show", states[0], "--json").document
    assert text.code == 0
    assert text.out == f"{ad.state.describe(ad.state.load(states[0]))}\n"
    assert (document["state_version"], document["position"]) == (VERSION, 2)
    assert document["steps"][-1].startswith("batch(")


def test_an_object(run: Callable[..., Any]) -> None:
    """By URL, with the options of its storage."""
    with FakeGCS(buckets=["bucket"]) as server, ad.Dataset.range(3).iterator() as it:
        options = ad.Options(storage={"gs": {"endpoint_url": server.url, "token": "anon"}})
        ad.state.save("gs://bucket/state.json", it.state_dict(), options)
        storage = ("--storage", f"gs.endpoint_url={server.url}", "--storage", "gs.token=anon")
        assert "behind 0 elements" in run("state", "show", "gs://bucket/state.json", *storage).out


def test_two_states(run: Callable[..., Any], states: list[str]) -> None:
    """The exit code says whether they differ."""
    same = run("state", "diff", states[0], states[0])
    assert (same.code, same.out) == (0, "no differences\n")
    differing = run("state", "diff", *states)
    assert differing.code == 1
    assert "position" in differing.out
    assert run("state", "diff", *states, "--json").document["differences"] == differing.out.splitlines()


def test_what_is_no_state(run: Callable[..., Any], tmp_path: Path, states: list[str]) -> None:
    """Other JSON, what is not there, and the wrong number of states."""
    (tmp_path / "other.json").write_text("{}")
    assert run("state", "show", str(tmp_path / "other.json")).code == 3
    assert run("state", "show", str(tmp_path / "missing.json")).code == 3
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in run("state", "show", str(tmp_path / "fifo")).err
    assert run("state", "show", str(tmp_path)).code == 3
    wrong = run("state", "show", *states)
    assert wrong.code == 2
    assert "show takes 1 URL, not 2" in wrong.err
    assert "diff takes 2 URLs, not 1" in run("state", "diff", states[0]).err


def test_how_files_are_opened_is_left_out(run: Callable[..., Any], tmp_path: Path) -> None:
    """The name of the reader tells it."""
    names = [tmp_path / name for name in ("a", "b")]
    for name in names:
        name.write_text("text")
    with ad.FileDataset([str(name) for name in names]).iterator() as it:
        next(it)
        ad.state.save(str(tmp_path / "state"), it.state_dict())
    shown = run("state", "show", str(tmp_path / "state")).out
    assert "interleave(function=FileDataset, cycle_length=16" in shown
    assert "'opens'" not in shown
    assert "again, because its datasets are of unknown lengths" not in shown
