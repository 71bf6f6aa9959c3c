"""docs/reference is complete: every option, error and number of the statistics has a row that says what it means."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import json
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import options
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
from asyncdata.runtime.settings import OF_THE_RUNTIME
from asyncdata.storage.counters import FetchStats, WindowStats
from tests.architecture.tree import parse, python_files

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
# Exceptions that a caller inside asyncdata always catches, or that stand for something else.
INTERNAL = {
    "BrokenSequenceError": "of asyncdata.testing, which has a section of its own",
    "FooterError": "becomes a DataError",
    "GrantDeniedError": "a worker process asks again",
    "HeaderError": "becomes a BrokenFrameError",
    "LawBrokenError": "of asyncdata.testing, which has a section of its own",
    "LeakError": "of asyncdata.testing, which has a section of its own",
    "MalformedHeadError": "becomes an UnreadableHeadError",
    "Misfit": "a batch ends there",
    "NoRoomError": "the receiver asks again",
    "OverdueError": "becomes a TaskTimeoutError",
    "RemoteTraceback": "a cause, never raised",
    "StaleConnectionError": "the request is sent again",
    "StalledLoopError": "of asyncdata.testing, which has a section of its own",
    "StreamError": "becomes a CompressionError",
    "UnreadableHeadError": "the request is sent again by aiohttp",
    "UnwritableError": "becomes a PipelineError",
    "UsageError": "of the command line",
    "UserCodeError": "of the command line",
    "WireError": "becomes a CorruptRecordError",
}
# Calls in several forms; and parameters that a sentence explains, or that only pipelines use.
OTHER_FORMS = {"Dataset.range", "Dataset.zip"}
LEFT_OUT = {"buffer_size", "only", "hedge_memory", "receivers"}
CALL = re.compile(r"`((?:\w+\.)*\w+)\(([^`]*)\)`")


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


def test_every_option_is_the_runtimes_or_the_pipelines() -> None:
    """The page on sharing a Runtime lists each option where the code decides about it."""
    page = (REFERENCE.parent / "howto" / "share-a-runtime.md").read_text(encoding="utf-8")
    lists = re.findall(r"^(The Runtime's|The pipeline's)[^:]*:(.*?)\. ", page, re.MULTILINE | re.DOTALL)
    found = {whose: sorted(re.findall(r"`(\w+)`", names)) for whose, names in lists}
    every = {field.name for field in dataclasses.fields(options.Options)}
    assert found == {
        "The Runtime's": sorted(OF_THE_RUNTIME),
        "The pipeline's": sorted(every - OF_THE_RUNTIME - {"storage"}),
    }


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


def exception_classes() -> dict[str, list[str]]:
    """Every exception class of asyncdata by name, with the names of its bases."""
    classes = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for path in python_files("asyncdata")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }

    def is_exception(name: str) -> bool:
        if name in classes:
            return any(map(is_exception, classes[name]))
        standard = getattr(builtins, name, None)
        return inspect.isclass(standard) and issubclass(standard, BaseException)

    return {name: bases for name, bases in classes.items() if is_exception(name)}


def test_every_error_is_explained() -> None:
    """Every exception has a row or a section of its own, or never reaches a user; the row names its bases."""
    text = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    classes = exception_classes()
    assert {"ReadFailedError", "StateError", "UserFunctionError"} <= set(classes)
    assert set(classes) >= set(INTERNAL)
    explained = {name for name in classes if re.search(rf"^(\| |## )?`?{name}\b", text, re.MULTILINE)}
    assert set(classes) - explained == set(INTERNAL)
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE))
    named = {name: re.findall(r"`(\w+)`", rows[name]) for name in rows if name in classes}
    assert named == {name: classes[name] for name in named}


def test_the_tree_of_errors_is_whole() -> None:
    """The page on handling errors shows each error that ``asyncdata`` exports, and no other."""
    page = (REFERENCE.parent / "howto" / "handle-errors.md").read_text(encoding="utf-8")
    tree = page.partition("```\n")[2].partition("```")[0]
    exported = {name for name in ad.__all__ if name.endswith("Error")}
    assert set(re.findall(r"^[ │├└─]*(\w+Error)\b", tree, re.MULTILINE)) == exported


# --- names ---------------------------------------------------------------------------------------------------------


def calls() -> Iterator[tuple[str, str, Any]]:
    """The calls that api.md shows in front of their meaning: name, parameters as written, and what is called."""
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        homes: list[Any] = [ad]
        homes += [getattr(ad, name) for name in re.findall(r"\w+", head) if inspect.isclass(getattr(ad, name, None))]
        if head.startswith(("asyncdata.", "fake_gcs")):
            homes = [importlib.import_module(head)]
        for cell in re.findall(r"^\| (`.*?) \||\n\n(`[^`]*`):? ", f"\n{body}", re.MULTILINE):
            for name, parameters in CALL.findall("".join(cell)):
                for home in homes:
                    try:
                        thing = operator.attrgetter(name)(home)
                    except AttributeError:
                        continue
                    if name not in OTHER_FORMS:
                        yield name, parameters, thing
                    break


def parameters_of(function: Any) -> list[tuple[str, Any, bool]]:
    """Name, kind and whether there is a default, of each parameter."""
    given = inspect.signature(function).parameters.values()
    return [
        (each.name, each.kind, each.default is not each.empty)
        for each in given
        if each.name != "self" and each.name not in LEFT_OUT
    ]


def test_calls_are_shown_as_they_are() -> None:
    """Names, order, kinds and defaults of the parameters in api.md are those of the code."""
    shown = list(calls())
    assert len(shown) > 90
    names = {name for name, _, _ in shown}
    assert {"batch", "BytesArray.copied", "RaggedArray.from_row_lengths", "register_backend", "feed.torch"} <= names
    wrong = []
    for name, parameters, thing in shown:
        space: dict[str, Any] = {"np": np, "AUTOTUNE": ad.AUTOTUNE}
        exec(f"def written({parameters}): pass", space)
        if parameters_of(space["written"]) != parameters_of(thing):
            wrong.append(f"{name}({parameters}) is {inspect.signature(thing)}")
    assert wrong == []


def test_the_page_of_names_has_every_name() -> None:
    """It says so."""
    words = set(re.findall(r"\w+", (REFERENCE / "api.md").read_text(encoding="utf-8")))
    assert set(ad.__all__) <= words
