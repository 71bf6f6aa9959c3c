"""The suite's own leak check: a test that leaks is reported by the fixture every test has, kind by kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import LIMIT_S

ROOT = Path(__file__).parents[2]

LEAKING = {
    "task": "async def test_it():\n    kept.append(asyncio.create_task(asyncio.Event().wait(), name='forgotten'))",
    "thread": "def test_it():\n    threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "process": "def test_it():\n    kept.append(subprocess.Popen(['sleep', '60']))",
    "descriptor": "def test_it():\n    os.open('/dev/null', os.O_RDONLY)",
    "shared memory": (
        "def test_it():\n"
        "    descriptor = os.memfd_create('forgotten')\n"
        "    os.ftruncate(descriptor, 4096)\n"
        "    kept.append(mmap.mmap(descriptor, 4096))"
    ),
}

HEADER = "import asyncio, mmap, os, subprocess, threading\nkept = []\n\n"
LAST = (
    "\n\ndef test_last():\n"
    "    for item in kept:\n"
    "        getattr(item, 'kill', int)()\n"
    "        getattr(item, 'wait', int)()\n"
)


def run_suite(
    folder: Path, source: str, *, settle_s: float = 0.1, soak: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs one test file under this project's conftest and configuration."""
    test_file = folder / "test_leaking.py"
    test_file.write_text(HEADER + source, encoding="utf-8")
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    arguments += ["--rootdir", str(folder), "--confcutdir", str(folder), "-p", "tests.conftest", str(test_file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ASYNCDATA_TEST_SETTLE_S": str(settle_s)}
    environment |= {"ASYNCDATA_SOAK": soak, **variables}
    if "TMPDIR" in variables:  # a run of its own, not one that a test started
        del environment["ASYNCDATA_TEST_RUN"], environment["PYTEST_DEBUG_TEMPROOT"]
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


@pytest.mark.sampled
@pytest.mark.parametrize("kind", list(LEAKING))
def test_each_kind_fails_the_test_that_leaked_it(kind: str, tmp_path: Path) -> None:
    """The leak is an error at the end of the test that made it, and the next test is not blamed for it."""
    outcome = run_suite(tmp_path, LEAKING[kind] + LAST)
    assert f"{kind}: " in outcome.stdout, outcome.stdout + outcome.stderr
    assert "ERROR" in outcome.stdout
    assert "test_leaking.py::test_it" in outcome.stdout
    assert "test_leaking.py::test_last" not in outcome.stdout
    assert outcome.returncode == 1


def test_a_clean_test_passes(tmp_path: Path) -> None:
    """Tasks, threads, processes and descriptors that are gone in time are nobody's fault."""
    source = (
        "async def test_it():\n"
        "    await asyncio.to_thread(int)\n"
        "    await (await asyncio.create_subprocess_exec('true')).wait()\n"
    )
    outcome = run_suite(tmp_path, source, settle_s=LIMIT_S)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_a_test_may_run_on_several_loops(tmp_path: Path) -> None:
    """With loop factories of its own a folder is checked all the same, on each loop."""
    hook = (
        "import asyncio, uvloop\n"
        "def pytest_asyncio_loop_factories(config, item):\n"
        "    return {'asyncio': asyncio.new_event_loop, 'uvloop': uvloop.new_event_loop}\n"
    )
    (tmp_path / "conftest.py").write_text(hook, encoding="utf-8")
    outcome = run_suite(tmp_path, LEAKING["task"] + "\n\nasync def test_clean():\n    await asyncio.to_thread(int)\n")
    assert "4 passed, 2 errors" in outcome.stdout, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("task: forgotten") >= 2


def test_a_failed_test_is_not_blamed_twice(tmp_path: Path) -> None:
    """What a traceback holds is no leak of its own: the failure is reported alone."""
    outcome = run_suite(
        tmp_path, "def test_it():\n    held = open('/dev/null')\n    raise RuntimeError('the real one')\n"
    )
    assert "the real one" in outcome.stdout
    assert "LeakError" not in outcome.stdout


@pytest.mark.sampled
@pytest.mark.parametrize(("soak", "outcome_line"), [("", "1 passed, 1 skipped"), ("1", "2 passed")])
def test_long_versions_run_only_when_asked_for(soak: str, outcome_line: str, tmp_path: Path) -> None:
    """``soak`` tests and full sample counts need ASYNCDATA_SOAK=1."""
    source = (
        "import pytest\n\n"
        "@pytest.mark.soak\n"
        "def test_long():\n"
        "    assert os.environ['ASYNCDATA_SOAK']\n\n"
        "def test_counts(samples):\n"
        "    assert samples(6, 300) == (300 if os.environ['ASYNCDATA_SOAK'] else 2)\n"
    )
    outcome = run_suite(tmp_path, source, soak=soak)
    assert outcome_line in outcome.stdout, outcome.stdout + outcome.stderr


def test_a_hanging_test_ends_on_every_loop(tmp_path: Path) -> None:
    """A coroutine that waits for ever fails at its time limit, on uvloop too, and the run goes on."""
    hook = (
        "import asyncio, uvloop\n"
        "def pytest_asyncio_loop_factories(config, item):\n"
        "    return {'asyncio': asyncio.new_event_loop, 'uvloop': uvloop.new_event_loop}\n"
    )
    (tmp_path / "conftest.py").write_text(hook, encoding="utf-8")
    source = (
        "import pytest\n\n"
        "@pytest.mark.timeout(5, func_only=True)\n"
        "async def test_hangs():\n"
        "    await asyncio.Event().wait()\n\n"
        "def test_next():\n"
        "    pass\n"
    )
    outcome = run_suite(tmp_path, source)
    assert "2 failed, 1 passed" in outcome.stdout, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("TimeoutError") >= 2
    assert "asyncio.Event().wait()" in outcome.stdout


def test_a_run_that_leaves_temporary_files_fails(tmp_path: Path) -> None:
    """What tests leave in the temporary folder is named, and removed; what pytest keeps for them is its own."""
    source = "import tempfile\n\ndef test_it(tmp_path):\n    tempfile.mkdtemp(prefix='forgotten-')\n"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    outcome = run_suite(tmp_path, source, TMPDIR=str(temporary))
    assert "LEFT in the temporary folder: 1 files or folders: forgotten-" in outcome.stdout
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    outcome = run_suite(tmp_path, source.replace("tempfile.mkdtemp", "dict"), TMPDIR=str(temporary))
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert {path.name.partition("-of-")[0] for path in temporary.iterdir()} <= {"pytest"}
