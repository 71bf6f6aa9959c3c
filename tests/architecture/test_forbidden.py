"""What the source must not contain. Each rule is a function over one file, tried here on a text that breaks it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, name_of, parse, python_files

PACKAGE = python_files("asyncdata")
EVERYTHING = python_files("asyncdata", "fake_gcs", "tests", "benchmarks", "docs")

FORBIDDEN_STEMS = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core", "manager"}
LONGEST_FILE = 500

# The leak check waits for things that announce nothing; it is the one place that may look again and again.
MAY_POLL = {"asyncdata/testing/leaks.py"}

# Where the environment is read, once, when a Runtime starts; and where it is handed on to worker processes.
READS_ENVIRONMENT = {"asyncdata/options.py", "asyncdata/workers/spawn.py"}

# A table that registration fills while modules are imported; and what a hook of the whole process must find after fork.
MAY_HOLD_STATE = {"asyncdata/runtime/lower/registry.py", "asyncdata/runtime/ends.py"}

_NOQA = re.compile(r"noqa(?!: [A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)* -- \S)", re.IGNORECASE)
_TYPE_IGNORE = re.compile(r"type:\s*ignore(?!\[[a-z-]+(, ?[a-z-]+)*\]  # \S)")


def sleeps(tree: ast.AST) -> Iterator[int]:
    """Lines that sleep for a fixed time: waiting is for events, not for clocks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep"}:
            duration = node.args[0]
            named = isinstance(duration, ast.Name | ast.Attribute) and ast.unparse(duration).isupper()
            written = isinstance(duration, ast.Constant) and bool(duration.value)
            if ast.unparse(node.func) == "time.sleep" or named or written:
                yield node.lineno


def forks(tree: ast.AST) -> Iterator[int]:
    """Lines that fork: a child of a process with threads is undefined behaviour."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            first = node.args[0] if node.args else None
            asks_for_fork = isinstance(first, ast.Constant) and first.value == "fork"
            if name in {"os.fork", "os.forkpty"} or (
                name.endswith(("get_context", "set_start_method")) and asks_for_fork
            ):
                yield node.lineno


def shared_state(tree: ast.Module) -> Iterator[int]:
    """Lines that make state of a module: an empty container to be filled, or a ``global`` statement."""
    makers = {"dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict"}
    makers |= {"WeakSet", "WeakKeyDictionary", "WeakValueDictionary"}
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        match value:
            case ast.Dict(keys=[]) | ast.List(elts=[]):
                yield node.lineno
            case ast.Call(func=function, args=[]) if ast.unparse(function).rpartition(".")[2] in makers:
                yield node.lineno
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            yield inner.lineno


def environment_reads(tree: ast.AST) -> Iterator[int]:
    """Lines that look at the environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.environb", "os.getenv"}:
            yield node.lineno


def bare_suppressions(text: str) -> Iterator[int]:
    """Lines that silence a checker without saying which rule and why."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (_NOQA.search(token.string) or _TYPE_IGNORE.search(token.string)):
            yield token.start[0]


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_nothing_polls(path: Path) -> None:
    """The library waits for events; it never sleeps for a fixed time."""
    if name_of(path) not in MAY_POLL:
        assert list(sleeps(parse(path))) == []


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_nothing_forks(path: Path) -> None:
    """Processes are spawned."""
    assert list(forks(parse(path))) == []


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_modules_have_no_state(path: Path) -> None:
    """What runs owns its state; modules hold none."""
    if name_of(path) not in MAY_HOLD_STATE:
        assert list(shared_state(parse(path))) == []


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_the_environment_is_read_in_one_file(path: Path) -> None:
    """Configuration arrives as options; environment variables are read in one function."""
    if name_of(path) not in READS_ENVIRONMENT:
        assert list(environment_reads(parse(path))) == []


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_files_are_named_for_what_they_hold(path: Path) -> None:
    """No drawer files: a name says what is inside."""
    parts = [*path.relative_to(ROOT).parts[:-1], path.stem]
    assert FORBIDDEN_STEMS.isdisjoint(part.strip("_") for part in parts)


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_files_stay_short(path: Path) -> None:
    """A file beyond five hundred lines holds two ideas."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_files_say_what_they_are(path: Path) -> None:
    """Every module of the library opens with a docstring, unless it is empty."""
    tree = parse(path)
    assert not tree.body or ast.get_docstring(tree)


@pytest.mark.parametrize("path", python_files("tests"), ids=name_of)
def test_every_test_states_its_law(path: Path) -> None:
    """The docstring of a test says what must hold."""
    silent = [
        node.name
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and path.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_a_suppression_gives_its_reason(path: Path) -> None:
    """``noqa`` names a rule and a reason after two dashes, ``type: ignore`` a code and a reason in a comment."""
    assert list(bare_suppressions(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(0.1)",
        "time.sleep(pause)",
        "await asyncio.sleep(1)",
        "await asyncio.sleep(TICK_S)",
    ],
)
def test_a_sleep_is_found(line: str) -> None:
    """Fixed times are found, written out or as a constant."""
    assert list(sleeps(ast.parse(line))) == [1]


@pytest.mark.parametrize("line", ["await asyncio.sleep(0)", "await asyncio.sleep(delay_s)", "sleep_until(7)"])
def test_a_yield_or_a_computed_delay_is_none(line: str) -> None:
    """Giving way to other tasks, and a delay that was decided elsewhere, are allowed."""
    assert list(sleeps(ast.parse(line))) == []


@pytest.mark.parametrize("line", ["os.fork()", "multiprocessing.get_context('fork')", "set_start_method('fork')"])
def test_a_fork_is_found(line: str) -> None:
    """Each way to ask for a fork is found."""
    assert list(forks(ast.parse(line))) == [1]
    assert list(forks(ast.parse(line.replace("fork", "spawn")))) == []


@pytest.mark.parametrize("line", ["cache = {}", "CACHE: dict[str, int] = {}", "seen = set()", "a = weakref.WeakSet()"])
def test_module_state_is_found(line: str) -> None:
    """Empty containers on module level are found, whatever their name; filled tables are constants."""
    assert list(shared_state(ast.parse(line))) == [1]
    assert list(shared_state(ast.parse("TABLE = {'a': 1}\nKINDS = frozenset()"))) == []
    assert list(shared_state(ast.parse("def f():\n    global x"))) == [2]


@pytest.mark.parametrize("line", ["os.environ['A']", "os.getenv('A')", "dict(os.environ)"])
def test_an_environment_read_is_found(line: str) -> None:
    """Each way to look at the environment is found."""
    assert list(environment_reads(ast.parse(line))) == [1]


@pytest.mark.parametrize(
    ("comment", "bare"),
    [
        ("# noqa", True),
        ("# noqa: E501", True),
        ("# noqa: E501 because", True),
        ("# noqa: E501 -- the table reads better in one line", False),
        ("# noqa: E501, S101 -- two at once", False),
        ("# type: ignore", True),
        ("# type: ignore[attr-defined]", True),
        ("# type: ignore[attr-defined]  # set by the loop", False),
        ("# an ordinary comment", False),
    ],
)
def test_a_bare_suppression_is_found(comment: str, bare: bool) -> None:
    """A suppression needs both, the rule and the reason."""
    assert list(bare_suppressions(f"x = 1  {comment}\n")) == ([1] if bare else [])
