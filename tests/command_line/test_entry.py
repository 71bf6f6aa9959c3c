"""``asyncdata`` as a program: its words, its exit codes, its ends; and that its reference lists just what there is."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.command_line import entry
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.architecture.tree import project
from tests.patience import LIMIT_S, wait_until
from tests.samples import SOAK

REFERENCE = Path(__file__).parents[2] / "docs/reference/commands.md"


@contextmanager
def started(*words: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program in a process of its own, which is gone behind the block."""
    command = [sys.executable, "-m", "asyncdata", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


# --- the command line --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("unknown",),
        ("verify",),
        ("verify", "x", "--format", "jpeg"),
        ("verify", "x", "--storage", "gs.token"),
        ("verify", "x", "--storage", "gs.no_such_option=1"),
        ("verify", "x", "--memory", "lots"),
        ("verify", "x", "--memory", "1k"),
        ("verify", "x", "--memory", "99999999999G"),
        ("inspect", "x", "--limit", "-1"),
        ("bench", "x", "--seconds", "0"),
        ("bench", "x", "--seconds", "nan"),
        ("bench", "x", "--epochs", "0"),
        ("bench", "no_such_module:dataset"),
        ("profile", "x", "--out", "report.pdf"),
        ("profile", "x", "--step-ms", "-1"),
        ("profile", "x", "--step-ms", "inf"),
        ("profile", "--pid", "1", "--seconds", "inf"),
        ("profile", "x", "--trace", "trace.html"),
        ("profile", "--pid", "1", "--trace", "trace.json"),
        ("profile", "--pid", "1", "x"),
        ("verify", "x", "--storage", "http.headers=a"),
    ],
    ids=" ".join,
)
def test_wrong_words(words: tuple[str, ...], run: Callable[..., Any]) -> None:
    """They are told on standard error, with exit code 2."""
    ran = run(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "asyncdata" in ran.err


@pytest.mark.parametrize(
    ("words", "command"), [((), None), (("unknown",), None), (("bench", "x", "--seconds", "0"), "bench")]
)
def test_the_document_of_wrong_words(words: tuple[str, ...], command: str | None, run: Callable[..., Any]) -> None:
    """A program that asked for one gets it; the message is that on standard error."""
    ran = run(*words, "--json")
    assert ran.code == 2
    assert ran.document["command"] == command
    assert ran.document["error"] in ran.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("profile", "--pid", "1", "x"), "not both"),
        (("verify", "x", "--storage", "http.headers=a"), "--storage cannot give"),
        (("bench", "."), "; give ./*"),
        (("inspect", "a.txt", "--save-images", "a.txt"), "--save-images needs a directory"),
    ],
    ids=" ".join,
)
def test_the_words_of_the_command_line_are_advised(
    words: tuple[str, ...], text: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    """Not calls of Python functions, or numbers of the system's errors."""
    (tmp_path / "a.txt").write_text("line\n")
    assert text in run(*words).err


def test_no_scheme_is_guessed_that_is_only_a_little_like_the_given_one(run: Callable[..., Any]) -> None:
    """One that is alike is."""
    assert "did you mean" not in run("verify", "x", "--storage", "foo.x=1").err
    assert "did you mean 'sftp'" in run("verify", "x", "--storage", "sftpp.x=1").err


@pytest.mark.parametrize("words", [("--help",), ("--version",), *((name, "--help") for name in entry.COMMANDS)])
def test_help(words: tuple[str, ...], run: Callable[..., Any]) -> None:
    """Help is a result."""
    ran = run(*words)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out


def test_streams_that_are_closed(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As behind ``>&-``: the exit code is the result."""
    (tmp_path / "a.tfrecord").write_bytes(b"garbage, and not little of it")
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    for name, code in (("a.tfrecord", 1), ("missing", 3)):
        for as_json in ((), ("--json",)):
            assert entry.main(["verify", name, *as_json]) == code


def test_an_error_that_nobody_can_be_told(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code still tells it, where standard error has no room left."""

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    assert run("verify", "--quiet", "missing").code == 3


def test_a_secret_on_the_command_line_is_not_repeated(run: Callable[..., Any]) -> None:
    """Neither in errors about it nor in those of the storage that was given it."""
    for words in (("x", "--storage", "s3secret=hunter2hunter2"), ("s3://b/x", "--storage", "s3.sekret=hunter2hunter2")):
        ran = run("verify", *words)
        assert ran.code == 2
        assert "hunter2" not in ran.out + ran.err


def test_a_signed_url_is_not_repeated(run: Callable[..., Any]) -> None:
    """Its signature is left out of text, documents and errors."""
    for as_json in ((), ("--json",)):
        ran = run("inspect", "missing?X-Goog-Signature=hunter2", *as_json)
        assert ran.code == 3
        assert "hunter2" not in ran.out + ran.err
        assert "missing" in ran.out + ran.err


def test_the_script() -> None:
    """The installed program is the same function."""
    module, _, name = project()["project"]["scripts"]["asyncdata"].partition(":")
    assert getattr(importlib.import_module(module), name) is entry.main


# --- ends --------------------------------------------------------------------------------------------------------


def test_nobody_reads_the_output(tmp_path: Path) -> None:
    """Behind a closed pipe the program ends quietly, with the code of a shell for it."""
    file = io.BytesIO()
    with ad.TFRecordWriter(file) as writer:
        writer.write_many([bytes(8)] * 2_000)
    content = bytearray(file.getvalue())
    content[12::24] = b"\1" * len(content[12::24])  # in every payload
    (tmp_path / "a.tfrecord").write_bytes(content)
    with started("verify", "a.tfrecord", folder=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"a.tfrecord:0: CorruptRecordError")
        process.stdout.close()
        assert process.wait(LIMIT_S) == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize("command", ["verify", *(["inspect", "bench", "profile", "doctor"] if SOAK else [])])
def test_ctrl_c(command: str, tmp_path: Path) -> None:
    """Whatever it waits for, it ends with 130, without a traceback; the leak check looks for what it leaves behind."""
    stall = Rule(fault=Fault(kind="stall", after_bytes=100_000), media_only=True)
    with FakeGCS(buckets=["bucket"], profile=Profile(rules=(stall,))) as server:
        server.put("bucket", "a.txt", b"line\n" * 100_000)
        words = (
            command,
            "gs://bucket/a.txt",
            "--storage",
            f"gs.endpoint_url={server.url}",
            "--storage",
            "gs.token=anon",
        )
        with started(*words, folder=tmp_path) as process:
            wait_until(lambda: any("stall" in entry.as_json() for entry in server.journal) or bool(process.poll()))
            process.send_signal(signal.SIGINT)
            out, complaints = process.communicate(timeout=LIMIT_S)
            assert (process.returncode, complaints) == (130, b"")
            assert (b"The report is in" in out) == (command == "profile")
    assert [path.name for path in tmp_path.iterdir()] == ["profile.html"] * (command == "profile")


def test_ctrl_c_while_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback of imports."""

    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt if name == "main" else AttributeError(name)

    name = "asyncdata.command_line.entry"
    monkeypatch.setitem(sys.modules, name, Interrupted(name))
    monkeypatch.delitem(sys.modules, "asyncdata.__main__", raising=False)
    with pytest.raises(SystemExit, match="130"):
        importlib.import_module("asyncdata.__main__")


# --- the reference -----------------------------------------------------------------------------------------------


def section(name: str) -> str:
    """The text of the reference below a heading."""
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", REFERENCE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def documented(name: str, column: str) -> list[str]:
    """The first column of the tables in a section with this heading."""
    tables = re.findall(rf"^\| {column} \|[^\n]*\n\|[-|]+\|\n((?:\|[^\n]*\n)+)", section(name), re.MULTILINE)
    return [row for table in tables for row in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)]


def test_the_reference_lists_the_options() -> None:
    """Every option of every command, with its placeholder, and no other."""
    groups = [action for action in entry.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    of_all = documented("Options of all commands", "option")
    for name, command in groups[0].choices.items():
        options = [
            " ".join([action.option_strings[0], *([str(action.metavar)] if action.metavar else [])])
            for action in command._actions
            if action.option_strings and action.option_strings[0] not in ("-h", "--format")
        ]
        assert sorted(options) == sorted([*of_all, *documented(name, "option")])
        assert ("--format" in command.format_help()) == (name in ("inspect", "verify", "bench", "profile"))


def keys(found: Any) -> list[str]:
    assert (found["version"], next(iter(found))) == (1, "version")
    return sorted(set(found) - {"version", "command"})


def test_the_reference_lists_the_fields(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """Every field of every document, and no other."""
    path = shard("a.tfrecord", [ad.serialize_example({"label": 1})])
    path.write_bytes(path.read_bytes() + b"rest")
    found = {name: run(name, "a.tfrecord", "--json").document for name in ("inspect", "verify", "doctor")}
    shard("a.tfrecord", [b"x"])
    found["bench"] = run("bench", "a.tfrecord", "--json").document
    found["profile"] = run("profile", "a.tfrecord", "--json").document
    for name, document in found.items():
        assert document["command"] == name
        assert keys(document) == sorted(documented(name, "field"))
    (kind,) = found["inspect"]["kinds"]
    assert sorted(kind) == sorted(documented("inspect", "field of a kind"))
    (finding,) = found["verify"]["findings"]
    assert set(finding) == {"url", "offset", "record", "error", "unread_bytes"}
    assert [finding] == kind["findings"]
    assert all(set(check) == {"name", "value", "advice", "kind"} for check in found["doctor"]["checks"])


def test_the_reference_lists_the_exit_codes() -> None:
    """The same codes as the program's own docstring."""
    written = re.findall(r"^\| ([0-9]+) \|", section("Exit codes"), re.MULTILINE)
    assert written == re.findall(r"^\| ([0-9]+) \|", str(entry.__doc__), re.MULTILINE)
