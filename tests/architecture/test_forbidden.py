"""What the source must not contain. Each rule is a function over one file, tried here on a text that breaks it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from tests.architecture.tree import ROOT, name_of, python_files

PACKAGE = python_files("asyncdata")
EVERYTHING = python_files("asyncdata", "fake_gcs", "tests", "benchmarks", "docs")

FORBIDDEN_STEMS = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core", "manager"}
LONGEST_FILE = 700
MOST_IN_RUNTIME = 12
# The whole vocabulary in one place: signatures and docstrings (tests/dataset/test_vocabulary.py sees to that).
MAY_BE_LONG = {"asyncdata/dataset/dataset.py"}

# The leak check waits for things that announce nothing. A rate is measured over a length of time, so `knob` sleeps for
# one, and waits for nothing.
MAY_POLL = {"asyncdata/runtime/tuning/knob.py", "asyncdata/testing/leaks.py"}

# Where the environment is read, once, when a Runtime starts; and where it is handed on to worker processes.
READS_ENVIRONMENT = {"asyncdata/options.py", "asyncdata/workers/spawn.py"}

# Tables that registration fills, while modules are imported or by the user for the whole process; and what a hook of
# the whole process must find after fork.
MAY_HOLD_STATE = {
    "asyncdata/runtime/lower/registry.py",
    "asyncdata/runtime/life/exit_hooks.py",
    "asyncdata/storage/backends.py",
}

# Tests wait for events and conditions. What sleeps all the same is no wait:
MAY_SLEEP = {
    "tests/architecture/test_forbidden.py": "names what is forbidden",
    "tests/faults/test_interrupts.py": "a signal at a random moment",
    "tests/faults/test_killed_consumers.py": "a signal at a random moment",
    "tests/integration/test_charged_as_used.py": "a function that takes longer for some elements than for others",
    "tests/patience.py": "looks at conditions that nobody announces; lets virtual time pass",
    "tests/storage/http1/test_watchdog.py": "somebody keeps the loop for longer than a limit",
    "tests/storage/raw_server.py": "a slow network",
    "tests/storage/test_busy_trainer.py": "a training step that gives up the lock for a while",
    "tests/testing/test_clock.py": "what virtual clocks do with a sleep",
}

_SLEEP_IN_TEXT = re.compile(r"\b(time|asyncio)\.sleep\((?!0\))")
_CLOCKS = {f"time.{name}{unit}" for name in ("monotonic", "perf_counter", "time") for unit in ("", "_ns")}
_SILENCES = re.compile(r"noqa|type:\s*ignore", re.IGNORECASE)
_NOQA = re.compile(r"noqa(?!: [A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)* -- \S)", re.IGNORECASE)
_TYPE_IGNORE = re.compile(r"type:\s*ignore(?!\[[a-z-]+(, ?[a-z-]+)*\]  # \S)")


def dotted(node: ast.AST) -> str:
    """``a.b.c`` as it is written; what is no name or attribute counts for nothing."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def sleeps(tree: ast.AST) -> Iterator[int]:
    """Lines that sleep for a fixed time: waiting is for events, not for clocks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and dotted(node.func) in {"time.sleep", "asyncio.sleep"}:
            duration = node.args[0]
            named = isinstance(duration, ast.Name | ast.Attribute) and ast.unparse(duration).isupper()
            written = isinstance(duration, ast.Constant) and bool(duration.value)
            if dotted(node.func) == "time.sleep" or named or written:
                yield node.lineno


def waits_for_time(tree: ast.AST) -> Iterator[int]:
    """Lines of a test, or of a program that it holds as text, that sleep at all."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=function, args=[duration, *_]) if dotted(function) == "asyncio.sleep":
                lines = [node.lineno] if ast.unparse(duration) != "0" else []
            case ast.Constant(value=str(text)):
                lines = [node.lineno] if _SLEEP_IN_TEXT.search(text) else []
            case ast.Attribute():
                lines = [node.lineno] if dotted(node) == "time.sleep" else []
            case _:
                lines = []
        yield from lines


def elapsed_asserts(tree: ast.AST) -> Iterator[int]:
    """Lines that assert what a real clock shows, directly or by a name that was given its time."""

    def reads_clock(node: ast.AST) -> bool:
        return any(isinstance(part, ast.Call) and dotted(part.func) in _CLOCKS for part in ast.walk(node))

    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        nodes = list(ast.walk(function))
        times = {
            name.id
            for node in nodes
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value and reads_clock(node.value)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        }
        for node in nodes:
            if isinstance(node, ast.Assert) and (
                reads_clock(node.test)
                or any(isinstance(part, ast.Name) and part.id in times for part in ast.walk(node.test))
            ):
                yield node.lineno


def forks(tree: ast.AST) -> Iterator[int]:
    """Lines that fork: a child of a process with threads is undefined behaviour."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
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
            case ast.Call(func=function, args=[]) if dotted(function).rpartition(".")[2] in makers:
                yield node.lineno
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            yield inner.lineno


def environment_reads(tree: ast.AST) -> Iterator[int]:
    """Lines that look at the environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and dotted(node) in {"os.environ", "os.environb", "os.getenv"}:
            yield node.lineno


def bare_suppressions(text: str) -> Iterator[int]:
    """Lines that silence a checker without saying which rule and why."""
    if not _SILENCES.search(text):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (_NOQA.search(token.string) or _TYPE_IGNORE.search(token.string)):
            yield token.start[0]


def silent_tests(tree: ast.AST) -> Iterator[int]:
    """Lines where a test begins that does not say what must hold."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and not ast.get_docstring(node)
        ):
            yield node.lineno


def undescribed(tree: ast.Module) -> Iterator[int]:
    """The first line of a module that does not open with a docstring, unless it is empty."""
    if tree.body and not ast.get_docstring(tree):
        yield 1


OF_PACKAGE: dict[Callable[[ast.Module], Iterator[int]], set[str]] = {
    sleeps: MAY_POLL,
    forks: set(),
    shared_state: MAY_HOLD_STATE,
    environment_reads: READS_ENVIRONMENT,
    undescribed: set(),
}
"""The rules for the library's own files, and the files that are exempt."""


@pytest.fixture(scope="module")
def broken() -> dict[str, list[str]]:
    """Where each rule is broken, as ``file:line``; every file is read and parsed once, and forgotten."""
    found: dict[str, list[str]] = defaultdict(list)
    package = set(PACKAGE)
    for path in EVERYTHING:
        name = name_of(path)
        text = path.read_text(encoding="utf-8")
        places: list[tuple[str, Iterator[int]]] = [("bare_suppressions", bare_suppressions(text))]
        if path in package:
            tree = ast.parse(text, filename=name)
            places += [(rule.__name__, rule(tree)) for rule, exempt in OF_PACKAGE.items() if name not in exempt]
        elif name.startswith("tests/"):
            tree = ast.parse(text, filename=name)
            if path.name.startswith("test_"):
                places.append(("silent_tests", silent_tests(tree)))
            if name not in MAY_SLEEP:
                places += [(rule.__name__, rule(tree)) for rule in (waits_for_time, elapsed_asserts)]
        for rule, lines in places:
            found[rule] += [f"{name}:{line}" for line in lines]
        if len(text.splitlines()) > LONGEST_FILE and name not in MAY_BE_LONG:
            found["long"].append(name)
    return found


def test_nothing_polls(broken: dict[str, list[str]]) -> None:
    """The library waits for events; it never sleeps for a fixed time."""
    assert broken["sleeps"] == []


def test_tests_wait_for_no_time(broken: dict[str, list[str]]) -> None:
    """No test sleeps to let something happen, or asserts how long something took on the real clock."""
    assert broken["waits_for_time"] == []
    assert broken["elapsed_asserts"] == []


def test_nothing_forks(broken: dict[str, list[str]]) -> None:
    """Processes are spawned."""
    assert broken["forks"] == []


def test_modules_have_no_state(broken: dict[str, list[str]]) -> None:
    """What runs owns its state; modules hold none."""
    assert broken["shared_state"] == []


def test_the_environment_is_read_in_one_file(broken: dict[str, list[str]]) -> None:
    """Configuration arrives as options; environment variables are read in one function."""
    assert broken["environment_reads"] == []


def test_files_are_named_for_what_they_hold() -> None:
    """No drawer files: a name says what is inside."""
    parts = {path: [*path.relative_to(ROOT).parts[:-1], path.stem] for path in EVERYTHING}
    drawers = [path for path in EVERYTHING if not FORBIDDEN_STEMS.isdisjoint(part.strip("_") for part in parts[path])]
    assert drawers == []


def test_files_stay_short(broken: dict[str, list[str]]) -> None:
    """A file beyond seven hundred lines holds two ideas."""
    assert broken["long"] == []


def test_the_runtime_has_rooms() -> None:
    """What lies directly in it is what every room needs."""
    assert len(list((ROOT / "asyncdata" / "runtime").glob("*.py"))) <= MOST_IN_RUNTIME


def test_files_say_what_they_are(broken: dict[str, list[str]]) -> None:
    """Every module of the library opens with a docstring, unless it is empty."""
    assert broken["undescribed"] == []


def test_every_test_states_its_law(broken: dict[str, list[str]]) -> None:
    """The docstring of a test says what must hold."""
    assert broken["silent_tests"] == []


def test_a_suppression_gives_its_reason(broken: dict[str, list[str]]) -> None:
    """``noqa`` names a rule and a reason after two dashes, ``type: ignore`` a code and a reason in a comment."""
    assert broken["bare_suppressions"] == []


def test_every_kind_of_file_is_looked_at() -> None:
    """The rules above hold of files that are there: the package's, and those of the tests."""
    names = {name_of(path) for path in EVERYTHING}
    assert len(PACKAGE) > 100
    assert {name_of(path) for path in PACKAGE} <= names
    assert {"asyncdata/options.py", "fake_gcs/__init__.py", "tests/conftest.py", "benchmarks/__main__.py"} <= names
    assert names >= (MAY_POLL | READS_ENVIRONMENT | MAY_HOLD_STATE | MAY_BE_LONG | MAY_SLEEP.keys())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def test_it(): ...", [1]),
        ("class Some:\n    async def test_it(self): ...", [2]),
        ('def test_it():\n    """A law."""', []),
        ("def start(): ...", []),
    ],
)
def test_a_silent_test_is_found(text: str, lines: list[int]) -> None:
    """In classes and among coroutines too."""
    assert list(silent_tests(ast.parse(text))) == lines


def test_an_undescribed_module_is_found() -> None:
    """An empty one needs no words."""
    assert list(undescribed(ast.parse("import os"))) == [1]
    assert list(undescribed(ast.parse(""))) == list(undescribed(ast.parse('"""What it is."""'))) == []


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("loop.call_soon(time.sleep, 1)", True),
        ("await asyncio.sleep(delay_s)", True),
        ("run('while True: time.sleep(1)')", True),
        ("await asyncio.sleep(0)", False),
        ("run('await asyncio.sleep(0)')", False),
    ],
)
def test_a_wait_for_time_is_found(text: str, found: bool) -> None:
    """Also where a sleep is passed on, or part of a program."""
    assert list(waits_for_time(ast.parse(text))) == [1] * found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("began = time.monotonic()\n    assert time.monotonic() - began < 1", True),
        ("took = time.perf_counter() - began\n    assert took < 1", True),
        ("assert loop.time() == 7", False),
        ("took = 3\n    assert took", False),
    ],
)
def test_an_assert_of_elapsed_time_is_found(lines: str, found: bool) -> None:
    """By its clock, or by a name; the time of a loop may be virtual."""
    assert bool(list(elapsed_asserts(ast.parse(f"def test():\n    {lines}")))) is found


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
