"""The demonstration as a user starts it: from any directory, to its end, and ended early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.measure import tree
from benchmarks.servers import here
from tests.patience import LIMIT_S

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "benchmarks.demo", "--quick"]


def test_it_runs_from_any_directory_and_leaves_nothing(tmp_path: Path) -> None:
    """Every label comes once, the table has a row for each order, one line names the bottleneck; a report stays."""
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    environment = {**here(), "TMPDIR": str(temporary)}
    done = subprocess.run(
        COMMAND, cwd=work, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert rows == ["order", "deterministic", "sloppy"]
    assert sum(line.startswith("Limited by ") for line in lines) == 1
    assert any("came exactly once" in line for line in lines)
    assert not done.stderr
    assert [each for each in work.rglob("*") if each.is_file()] == [work / ".cache" / "demo.html"]
    assert lines[-1].endswith(str(work / ".cache" / "demo.html"))
    assert not list(temporary.iterdir())


@pytest.mark.sampled
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_early_it_cleans_up(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, and the signal that ends services, close server and workers and remove the files, without a traceback."""
    environment = {**here(), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "are in gs://" in line:
                break
        started = tree(process.pid)[1:]
        assert started, "neither server nor workers"
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
    # The interpreter itself ends by SIGINT when the interrupt struck inside an exec() of the standard library.
    assert process.returncode in {130, -signal.SIGINT}, errors
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())
    assert not [pid for pid in started if os.path.exists(f"/proc/{pid}")]
