"""What the documentation shows works: pages run as the scripts they are, examples in docstrings give what they say.

A block of a page that cannot run here is preceded by ``<!-- not executed: reason -->``. All other ```` ```python ````
blocks of one page are one script, run from top to bottom in a folder of its own; in a long run, and for a few pages
always, in a process of its own as well. A page with ``<!-- needs: package -->`` is skipped where that is not installed.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import asyncdata
from tests.architecture.tree import ROOT, name_of, public_names
from tests.patience import LIMIT_S
from tests.samples import SOAK

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The first page as whoever copies it runs it; packages that keep something for the rest of the process; and a page that
# adds to what the process knows.
ALONE = {
    "README.md",
    "docs/contributing.md",
    "docs/howto/feed-flax.md",
    "docs/howto/feed-hugging-face.md",
    "docs/howto/feed-keras.md",
    "docs/howto/feed-lightning.md",
    "docs/howto/feed-pytorch.md",
    "docs/howto/feed-tensorflow.md",
    "docs/howto/read-from-s3-and-azure.md",
    "docs/howto/use-other-libraries-in-map.md",
    "docs/howto/use-torchvision-in-map.md",
}
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*$")
OPT_OUT = re.compile(r"<!-- not executed: \S.* -->")
NEEDS = re.compile(r"^<!-- needs: (\w+) -->$", re.MULTILINE)
IMPORT = re.compile(r"^(?: *>>> | *\.\.\. )? *from ((?:asyncdata|fake_gcs)[\w.]*) import ([\w, ]+)$", re.MULTILINE)
INSIDE = {"contributing.md"}
"""Pages for those who change asyncdata."""
LINK = re.compile(r"\]\((?!https?:|#|mailto:)(?P<target>[^)#\s]+)")

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def script_of(page: str) -> str:
    """The page with all but its executed Python lines blanked, so that line numbers in errors are those of the page."""
    lines: list[str] = []
    inside = executed = False
    before = indent = ""
    for line in page.splitlines():
        fence = FENCE.match(line)
        if fence is not None:
            inside = not inside
            executed = inside and fence["language"] == "python" and not OPT_OUT.fullmatch(before.strip())
            indent = fence["indent"]
            lines.append("")
        else:
            lines.append(line.removeprefix(indent) if inside and executed else "")
        if line.strip():
            before = line
    return "\n".join(lines).rstrip()


class Finder(doctest.DocTestFinder):
    """Looks also at methods inside a wrapper, which counts as a function of the wrapper's module."""

    def _from_module(self, module: object, object: object) -> bool:  # noqa: A002 -- doctest's names
        unwrapped = inspect.unwrap(object) if inspect.isfunction(object) else object
        return bool(super()._from_module(module, unwrapped))  # type: ignore[misc]  # not in the stubs


def examples_of(thing: object, name: str) -> list[doctest.DocTest]:
    """The docstring examples of a class or function, its methods included."""
    found = Finder(exclude_empty=True).find(thing, name, module=inspect.getmodule(thing))
    return [test for test in found if test.examples]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the current one, and where temporary files go: examples clean up nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page.read_text(encoding="utf-8"))], ids=name_of)
def test_a_page_runs(page: Path, folder: Path) -> None:
    """The Python blocks of a page, read from top to bottom, run without an error, and leave nothing running."""
    text = page.read_text(encoding="utf-8")
    needed = NEEDS.findall(text)
    for package in needed:
        pytest.importorskip(package, reason=f"{package} is not installed here: make feeds", exc_type=ImportError)
    path = folder / f"page_{page.stem}.py"  # a page may be called as a module of Python is
    path.write_text(script_of(text), encoding="utf-8")
    if not SOAK and name_of(page) not in ALONE:
        runpy.run_path(str(path), run_name="__main__")
        return
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Frameworks warn about each other.
    command = [sys.executable, "-W", "default" if needed else "error", str(path)]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Links to other files of the repository exist."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(("package", "name"), public_names())
@pytest.mark.usefixtures("folder")
def test_docstring_examples_give_what_they_say(package: str, name: str) -> None:
    """Examples in the docstrings of public names are true."""
    thing = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return  # a constant or an alias carries the docstring of its type
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for example in examples_of(thing, f"{package}.{name}"):
        runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_every_method_of_a_dataset_shows_an_example() -> None:
    """Nobody has to guess how a transformation is called."""
    methods = {name: method for name, method in vars_of(asyncdata.Dataset).items() if callable(method)}
    assert len(methods) > 10
    assert [name for name, method in methods.items() if ">>>" not in (method.__doc__ or "")] == []


def test_every_public_class_and_function_shows_an_example() -> None:
    """All but exceptions, constants and aliases."""
    things = {name: getattr(asyncdata, name) for name in asyncdata.__all__}
    shown = {
        name: thing
        for name, thing in things.items()
        if inspect.isroutine(thing) or (inspect.isclass(thing) and not issubclass(thing, BaseException))
    }
    assert len(shown) > 30
    assert [name for name, thing in shown.items() if ">>>" not in (thing.__doc__ or "")] == []


def test_examples_for_users_import_public_names() -> None:
    """What a page for users or a docstring of a public name imports, readers may import, too."""
    texts = {name_of(page): script_of(page.read_text(encoding="utf-8")) for page in PAGES if page.name not in INSIDE}
    things = {f"{package}.{name}": getattr(importlib.import_module(package), name) for package, name in public_names()}
    texts |= {name: thing.__doc__ or "" for name, thing in things.items() if callable(thing)}
    imports = {
        (name, f"{package}.{each.strip()}")
        for name, text in texts.items()
        for package, names in IMPORT.findall(text)
        for each in names.split(",")
    }
    assert len(imports) > 20
    known = {*things, "asyncdata.options.read_environment"}
    assert sorted(pair for pair in imports if pair[1] not in known) == []


def vars_of(thing: type) -> dict[str, object]:
    """Its public attributes, those of its bases included."""
    return {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}


def test_every_public_name_is_in_the_reference() -> None:
    """Each public name stands in some page of docs/reference."""
    pages = list((ROOT / "docs" / "reference").rglob("*.md"))
    assert pages
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    words = set(re.findall(r"\w+", text))
    assert [f"{package}.{name}" for package, name in public_names() if name not in words] == []


def test_a_block_is_executed_unless_it_opts_out() -> None:
    """Blocks of other languages and those with a reason are blanked; line numbers stay."""
    page = """\
Text.
```python
a = 1
```
```console
$ ls
```
<!-- not executed: needs a bucket -->
```python
b = 2
```
<!-- not executed: -->
  ```python
  c = 3
  ```
"""
    lines = script_of(page).splitlines()
    assert {number: line for number, line in enumerate(lines, start=1) if line} == {3: "a = 1", 14: "c = 3"}
