"""docs/reference is complete: every option, error and number of the statistics has a row that says what it means."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata import errors, options
from asyncdata.observe.bottleneck import Verdict
from asyncdata.observe.parts import (
    ConsumerStats,
    CpuStats,
    KnobStats,
    LineStats,
    ReadStats,
    SkippedStats,
    StageStats,
    StepStats,
    WorkersStats,
)
from asyncdata.observe.pipeline_profile import PipelineProfile
from asyncdata.observe.profile_report import ProfileReport
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.timeline import Arrival, Moment
from asyncdata.storage.counters import FetchStats, WindowStats
from asyncdata.workers.failure import UserFunctionError

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
RECORDS: list[tuple[Any, str, str]] = [
    *(
        (record, "options.md", name)
        for name, record in vars(options).items()
        if name.endswith(("Options", "Policy")) and dataclasses.is_dataclass(record)
    ),
    (PipelineStats, "statistics.md", "PipelineStats"),
    (StageStats, "statistics.md", "StageStats"),
    (StepStats, "statistics.md", "StepStats"),
    (Verdict, "statistics.md", "Verdict"),
    (KnobStats, "statistics.md", "KnobStats"),
    (ConsumerStats, "statistics.md", "ConsumerStats"),
    (ReadStats, "statistics.md", "ReadStats"),
    (CpuStats, "statistics.md", "CpuStats"),
    (LineStats, "statistics.md", "LineStats"),
    (WorkersStats, "statistics.md", "WorkersStats"),
    (SkippedStats, "statistics.md", "SkippedStats"),
    (ProfileReport, "profile.md", "ProfileReport"),
    (PipelineProfile, "profile.md", "PipelineProfile"),
    (Moment, "profile.md", "Moment"),
    (FetchStats, "statistics.md", "fetch"),
    (WindowStats, "statistics.md", "window"),
]
ERRORS = [
    *(thing for thing in vars(errors).values() if inspect.isclass(thing) and issubclass(thing, errors.AsyncdataError)),
    UserFunctionError,
]


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no section {heading}"
    return found[1]


@pytest.mark.parametrize(("record", "page", "heading"), RECORDS, ids=[heading for _, _, heading in RECORDS])
def test_every_field_has_a_row(record: Any, page: str, heading: str) -> None:
    """A row for each field, in the order of the fields, and for nothing else."""
    rows = re.findall(r"^\| `(\w+)`", section(page, heading).split("\n\n| cause")[0], re.MULTILINE)
    assert sorted(rows) == sorted(field.name for field in dataclasses.fields(record))


def test_the_profile_as_json() -> None:
    """The documents of a profile have the fields that the page names, and no others."""
    arrivals = re.findall(r"^\| `(\w+)`", section("profile.md", "Arrival"), re.MULTILINE)
    assert arrivals == list(Arrival._fields)
    with ad.profile() as profile:
        list(ad.Dataset.range(3))
    document = json.loads(profile.report().to_json())
    text = section("profile.md", "JSON")
    assert set(document) == set(re.findall(r"`(\w+)`", text.partition("Later")[0]))
    (pipeline,) = document["pipelines"]
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    assert set(pipeline) == {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(pipeline["arrivals"]) == set(Arrival._fields)
    assert set(pipeline["timeline"]) == {"every_s", *(field.name for field in dataclasses.fields(Moment))}
    for part, record in (("stats", PipelineStats), ("verdict", Verdict)):
        assert set(pipeline[part]) - {"text"} == {field.name for field in dataclasses.fields(record)}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_explained(error: type[Exception]) -> None:
    """Errors have a row or a section of their own."""
    text = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    assert f"| `{error.__name__}`" in text or f"## {error.__name__}" in text
